"""Replay: the log alone rebuilds the ledgers, and refuses every event that contradicts them."""

from __future__ import annotations

import msgspec
import pytest

from txdecode.state.digest import LEDGERS, pack, unpack
from txdecode.state.errors import LedgerCorrupt
from txdecode.state.ledgers import Ledgers
from txdecode.transactions.events import (
    PrefillCommitted,
    RequestAdmitted,
    RequestFinished,
    RequestPreempted,
    RequestSubmitted,
    RoundCommitted,
    RoundRolledBack,
    RuntimeNote,
)
from txdecode.transactions.fold import change, check_event, fold

replace = msgspec.structs.replace


@pytest.fixture(scope="module")
def history(kit):
    """Groups and events of a run that has one of everything: chunks, rounds right and wrong, a rollback, an
    eviction, a request that ends in a round and one that does not."""
    rig = kit.Rig()
    rig.enter(0, kit.PROMPT, 9, (2, 2))
    rig.enter(1, (7, 7, 7), 9)
    rig.round(0)
    rig.round(0, (True, True, False))
    rig.round(1)
    rig.hook.armed = "verify"
    rig.go(rig.open(rig.ask(0, (True,))))
    rig.recompute(1)
    rig.round(1, (True,))
    rig.finish(0, ((True, False, True),))
    rig.residency.finish(1, "cancelled")
    rig.store.note(RuntimeNote("closed", {}))
    return rig.description.groups, rig.log.events()


def folded(history, upto):
    groups, events = history
    ledgers = Ledgers(groups)
    for event in events[:upto]:
        fold(ledgers, event)
    return ledgers


def find(history, kind, *, last=False, **wanted):
    """Position and event of the first (or last) of its kind with these values."""
    matches = [
        (index, event)
        for index, event in enumerate(history[1])
        if type(event) is kind and all(getattr(event, name) == value for name, value in wanted.items())
    ]
    return matches[-1 if last else 0]


def refused(history, index, event):
    ledgers = folded(history, index)
    before = ledgers.snapshot(), ledgers.digests
    with pytest.raises(LedgerCorrupt) as error:
        fold(ledgers, event)
    assert (ledgers.snapshot(), ledgers.digests) == before
    return error.value.ledger, error.value.field


def test_the_run_has_one_of_everything(history):
    kinds = {type(event) for event in history[1]}
    assert len(kinds) == 8
    assert {event.clip for event in history[1] if type(event) is RoundCommitted} == {0, 2}


def test_fold_of_all_reaches_the_recorded_digests(history):
    ledgers = folded(history, 0)
    for event in history[1]:
        delta = fold(ledgers, event)
        assert (delta is None) is (type(event) in (RoundRolledBack, RuntimeNote))
        assert (change(event) is None) is (delta is None)
        if delta is not None:
            assert pack(ledgers.digests) == event.digests
        ledgers.check()
    assert not ledgers.tokens.sequences


def test_fold_of_all_is_fold_of_snapshot_and_tail_at_every_cut(history):
    groups, events = history
    whole = folded(history, len(events))
    for cut in range(len(events) + 1):
        ledgers = Ledgers(groups)
        ledgers.restore(msgspec.json.decode(msgspec.json.encode(folded(history, cut).snapshot())))
        for event in events[cut:]:
            fold(ledgers, event)
        assert ledgers.digests == whole.digests


BLOCK = {"accepted": 2, "clip": 0}
ROUNDS = {
    "epoch": (BLOCK, lambda e: {"epoch": e.epoch + 1}, "epoch"),
    "an older epoch": ({"request": 1, "epoch": 1}, lambda e: {"epoch": 0}, "epoch"),
    "ordinal": (BLOCK, lambda e: {"ordinal": e.ordinal + 1}, "ordinal"),
    "width": (BLOCK, lambda e: {"width": e.width - 1}, "width"),
    "an unknown clip": (BLOCK, lambda e: {"clip": 3}, "clip"),
    "a clip below zero": (BLOCK, lambda e: {"clip": -1}, "clip"),
    "more accepted than offered": (BLOCK, lambda e: {"accepted": 4}, "accepted, emitted"),
    "accepted below zero": (BLOCK, lambda e: {"accepted": -1}, "accepted, emitted"),
    "more emitted than accepted and one": (
        BLOCK,
        lambda e: {"emitted": (*e.emitted, 1)},
        "accepted, emitted",
    ),
    "nothing emitted": (BLOCK, lambda e: {"emitted": ()}, "accepted, emitted"),
    "emitted other than accepted": (
        BLOCK,
        lambda e: {"emitted": (e.emitted[0] + 1, *e.emitted[1:])},
        "emitted",
    ),
    "the last accepted draft is another": (
        BLOCK,
        lambda e: {"drafts": (e.drafts[0], e.drafts[1] + 1, *e.drafts[2:])},
        "emitted",
    ),
    "less emitted, and no clip": (
        BLOCK,
        lambda e: {"emitted": e.emitted[:2]},
        "emitted without a clip",
    ),
}


@pytest.mark.parametrize("name", ROUNDS)
def test_a_round_that_contradicts_itself_or_its_request(history, name):
    wanted, damage, field = ROUNDS[name]
    index, event = find(history, RoundCommitted, **wanted)
    ledger, where = refused(history, index, replace(event, **damage(event)))
    assert (ledger, where) == ("tokens", f"request {event.request} {field}")


def test_a_block_without_a_clip_says_how_long_it_is(history):
    index, event = find(history, RoundCommitted, **BLOCK)
    with pytest.raises(LedgerCorrupt) as error:
        fold(folded(history, index), replace(event, emitted=event.emitted[:2]))
    assert (error.value.expected, error.value.found) == (3, 2)


@pytest.mark.parametrize(
    ("kind", "wanted", "damage", "field"),
    [
        (PrefillCommitted, {}, {"epoch": 1}, "request 0 epoch"),
        (PrefillCommitted, {}, {"start": 1}, "request 0 start"),
        (PrefillCommitted, {"start": 2}, {"start": 0}, "request 0 start"),
        (RequestAdmitted, {}, {"epoch": 1}, "request 0 epoch"),
        (RequestAdmitted, {"epoch": 1}, {"epoch": 0}, "request 1 epoch"),
        (RequestPreempted, {}, {"epoch": 0}, "request 1 epoch"),
        (RequestPreempted, {}, {"epoch": 2}, "request 1 epoch"),
        (RequestFinished, {}, {"epoch": 0}, "request 1 epoch"),
    ],
)
def test_an_event_of_another_time(history, kind, wanted, damage, field):
    index, event = find(history, kind, **wanted)
    assert refused(history, index, replace(event, **damage)) == ("tokens", field)


@pytest.mark.parametrize("kind", [RoundCommitted, PrefillCommitted, RequestPreempted, RequestFinished])
def test_an_event_of_a_stranger(history, kind):
    index, event = find(history, kind)
    assert refused(history, index, replace(event, request=9)) == ("tokens", "request 9")


def test_a_ledger_refuses_in_its_own_name(history):
    index, event = find(history, RoundCommitted, **BLOCK)
    assert refused(history, index, replace(event, columns=(999,)))[0] == "recurrent"
    assert refused(history, index, replace(event, rng=(0,)))[0] == "rng"
    assert refused(history, index, replace(event, adopted=((), (), ())))[0] == "pages"
    index, event = find(history, RequestAdmitted)
    assert refused(history, index, replace(event, slots=(99,)))[0] == "history"


@pytest.mark.parametrize("position", range(5))
def test_a_wrong_digest_is_named_by_its_ledger(history, position):
    index, event = find(history, RoundCommitted)
    digests = list(unpack(event.digests))
    digests[position] ^= 1
    assert refused(history, index, replace(event, digests=pack(tuple(digests)))) == (
        LEDGERS[position],
        "digest",
    )


def test_a_digest_says_both_values_in_hexadecimal(history):
    index, event = find(history, RequestSubmitted)
    ledgers = folded(history, index)
    with pytest.raises(LedgerCorrupt, match=r"0000000000000000 \(recorded\).*[0-9a-f]{16} \(folded\)"):
        fold(ledgers, replace(event, digests=bytes(40)))


@pytest.mark.parametrize("size", [0, 39, 41])
def test_digests_of_another_size(history, size):
    index, event = find(history, RequestSubmitted)
    assert refused(history, index, replace(event, digests=bytes(size))) == ("tokens", "digests")


def test_a_missing_event_shows_at_the_next(history):
    changing = [event for event in history[1] if change(event) is not None]
    for missing in range(len(changing) - 1):
        ledgers = folded((history[0], changing), missing)
        with pytest.raises(LedgerCorrupt):
            fold(ledgers, changing[missing + 1])


def test_notes_are_not_checked(history):
    ledgers = folded(history, 0)
    for event in (RuntimeNote("x", {}), RoundRolledBack(9, 9, 9, 9, 1, 5, "")):
        check_event(ledgers, event)
        assert fold(ledgers, event) is None
