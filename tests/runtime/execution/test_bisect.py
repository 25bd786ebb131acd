"""Faults planted at a random round: bisect names that round, and the ledger or state group that went wrong."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest

from txdecode.runtime import Sampling
from txdecode.runtime.execution import ExecutionRefused, Explanation, bisect, execute
from txdecode.runtime.execution.errors import ExecutionDivergence
from txdecode.state.errors import LedgerCorrupt
from txdecode.transactions.events import Event, RequestSubmitted, RoundCommitted, StateAudited
from txdecode.transactions.executor import ROLLBACKS, Description
from txdecode.transactions.toy import ToyExecutor, plain

ROUNDS = 500
STATE = ("conv", "gdn", "kv", "pairs", "ngram", "tail")


def _same_round(found: Any, planted: Any) -> bool:
    return (found.request, found.ordinal) == (planted.request, planted.ordinal)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("what", STATE)
def test_state(log: Path, toy: Any, write: Any, corrupting: Any, what: str, fused: bool) -> None:
    seed = 7 * STATE.index(what) + fused
    make = partial(toy, fused=fused, accuracy=5)
    broken = corrupting(make(), what, random.Random(seed).randrange(ROUNDS - 100), seed)
    draft = "executor" if what in ("pairs", "tail") else "lookup"
    write(log, broken, draft=draft, rounds=ROUNDS, tokens=40, seed=seed, audit_every=1)
    result = bisect(log, make())
    found = result.found
    assert found is not None
    assert _same_round(found, broken.planted)
    assert (found.by, found.ledger, found.groups, found.window) == ("audit", what, (what,), None)
    # A search by halves in each epoch, and not one rebuild an audit.
    assert result.rebuilt < result.audits / 4
    with pytest.raises(ExecutionDivergence) as caught:
        execute(log, make(), until=found.sequence, request=found.request)
    assert caught.value.sequence == found.sequence


@pytest.mark.parametrize("what", ["conv", "kv", "pairs"])
def test_row(log: Path, toy: Any, write: Any, corrupting: Any, what: str) -> None:
    """In paranoid mode the run itself ends there, with the rows in the log."""
    broken = corrupting(toy(), what, 80)
    with pytest.raises(LedgerCorrupt):
        write(log, broken, rounds=200, audit_every=1, paranoid=True)
    found = bisect(log, toy()).found
    assert found is not None
    assert _same_round(found, broken.planted)
    assert (found.ledger, found.row) == (what, int(broken.planted.detail))
    assert found.index == (0 if what == "conv" else found.row // 4)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("law", ["coupled", "chain"])
def test_random_position(
    log: Path, toy: Any, write: Any, corrupting: Any, law: Any, seed: int, fused: bool
) -> None:
    make = partial(toy, fused=fused)
    samplings = [Sampling(temperature=1.5, seed=number, law=law) for number in (1, 2, 3)]
    broken = corrupting(make(), "rng", random.Random(seed).randrange(ROUNDS - 100), seed)
    write(log, broken, samplings=samplings, rounds=ROUNDS, seed=seed)
    result = bisect(log, make())
    found = result.found
    assert found is not None
    assert _same_round(found, broken.planted)
    assert (found.by, found.ledger, found.field) == ("round", "rng", "position")
    # One token can be drawn by other words as well: the true ones are among those that fit.
    fitting = {found.found, *(other.found for other in found.others)}
    assert int(broken.planted.detail) in fitting
    assert result.tried > 30


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("logprobs", [None, 0])
def test_count(
    log: Path, toy: Any, write: Any, corrupting: Any, logprobs: Any, seed: int, fused: bool
) -> None:
    make = partial(toy, fused=fused)
    penalties: dict[str, Any] = {"frequency_penalty": 2.0, "presence_penalty": 0.3, "repetition_penalty": 1.2}
    # Words explain nothing in a greedy request; in a sampled one logprobs tell words from counts.
    temperature = {"temperature": 0.0} if logprobs is None else {"temperature": 1.0, "seed": 5}
    sampling = Sampling(logprobs=logprobs, **temperature, **penalties)
    broken = corrupting(make(), "count", random.Random(seed).randrange(ROUNDS - 100), seed)
    write(log, broken, samplings=[sampling] * 3, rounds=ROUNDS, seed=seed)
    assert broken.planted is not None
    found = bisect(log, make()).found
    assert found is not None
    assert _same_round(found, broken.planted)
    assert (found.by, found.ledger) == ("round", "tokens")
    assert broken.planted.detail in (found.field, *(other.field for other in found.others))
    if logprobs is not None:
        assert found.field == broken.planted.detail


@pytest.mark.parametrize("what", ["gdn", "kv"])
def test_audits_now_and_then(log: Path, toy: Any, write: Any, corrupting: Any, what: str) -> None:
    """The window is known, and the first round in it that went another way."""
    broken = corrupting(toy(), what, 60)
    write(
        log,
        broken,
        samplings=[None, Sampling(seed=1, temperature=1.0)],
        rounds=150,
        audit_every=7,
        faults=False,
    )
    found = bisect(log, toy()).found
    assert found is not None
    assert found.request == broken.planted.request
    assert (found.by, found.window[0] <= broken.planted.ordinal <= found.window[1]) == ("audit", True)
    assert what in found.groups
    assert found.window[1] - found.window[0] < 7
    assert found.ids is None or broken.planted.ordinal < found.ids <= found.window[1]


def test_round_in_the_window(log: Path, toy: Any, write: Any, corrupting: Any) -> None:
    broken = corrupting(toy(), "gdn", 60)
    write(log, broken, samplings=[None], tokens=200, stop_ids=(), audit_every=25, faults=False)
    found = bisect(log, toy()).found
    assert found is not None
    assert (found.by, found.request) == ("audit", broken.planted.request)
    assert found.ids is not None
    assert found.window[0] <= broken.planted.ordinal < found.ids <= found.window[1]


@pytest.mark.parametrize(("what", "ledger"), [("kv", "logits"), ("pairs", "drafter"), ("tail", "drafter")])
@pytest.mark.parametrize("fused", [False, True])
def test_no_audits(
    log: Path, toy: Any, write: Any, corrupting: Any, what: str, ledger: str, fused: bool
) -> None:
    """Then only what came of it is seen, a little later."""
    make = partial(toy, fused=fused, accuracy=5)
    broken = corrupting(make(), what, 20)
    draft = "lookup" if what == "kv" else "executor"
    write(log, broken, samplings=[None, None], draft=draft, tokens=100, stop_ids=(), faults=False)
    found = bisect(log, make()).found
    assert found is not None
    assert (found.by, found.ledger, found.request) == ("round", ledger, broken.planted.request)
    assert broken.planted.ordinal < found.ordinal < broken.planted.ordinal + 20


# Logs that were changed.


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, toy: Any, write: Any) -> Path:
    log: Path = tmp_path_factory.mktemp("written") / "run.txlog"
    write(log, toy(), tokens=24, audit_every=2)
    return log


def _put(at: int, event: Event, end: bool = False) -> Any:
    def change(sequence: int, old: Event) -> Event | None:
        if sequence == at:
            return event
        return None if end and sequence > at else old

    return change


def test_nothing_differs(written: Path, toy: Any, read: Any) -> None:
    seen: list[tuple[int, int]] = []
    result = bisect(written, toy(), progress=lambda done, size: seen.append((done, size)))
    events = read(written)
    assert result.found is None
    assert result.rounds == sum(isinstance(event, RoundCommitted) for event in events)
    assert result.audits == sum(isinstance(event, StateAudited) for event in events)
    assert result.to_data()["class"] == "exact"
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]


def _round_with(read: Any, log: Path, test: Any) -> tuple[int, RoundCommitted, tuple[int, ...]]:
    """The first round that passes, with the tokens known before it."""
    known: dict[int, list[int]] = {}
    for at, event in enumerate(read(log)):
        if isinstance(event, RequestSubmitted):
            known[event.request] = list(event.prompt)
        elif isinstance(event, RoundCommitted):
            if not event.clip and not event.logprobs and test(event):
                return at, event, tuple(known[event.request])
            known[event.request].extend(event.emitted)
    raise AssertionError("no such round")


def test_one_draft_less(written: Path, tmp_path: Path, toy: Any, read: Any, rewrite: Any) -> None:
    at, event, _ = _round_with(read, written, lambda e: e.accepted and e.adopted == ((), ()))
    fewer = msgspec.structs.replace(
        event,
        accepted=event.accepted - 1,
        emitted=event.emitted[:-1],
        rng=tuple(position - 1 for position in event.rng),
    )
    found = bisect(rewrite(written, tmp_path / "o.txlog", _put(at, fewer, end=True)), toy()).found
    assert found is not None
    assert (found.sequence, found.ledger) == (at, "acceptance")
    assert (found.expected, found.found) == (event.accepted, event.accepted - 1)


@pytest.mark.parametrize("right", [True, False])
def test_one_draft_more(
    written: Path, tmp_path: Path, toy: Any, read: Any, rewrite: Any, right: bool
) -> None:
    """With the right token after it the acceptance is at fault; with another one nothing on the host explains it."""
    # Pages hold four rows, so that there is room for one more in the last.
    at, event, known = _round_with(
        read,
        written,
        lambda e: e.request == 0 and e.accepted < len(e.drafts) and (e.rng[0] - 1) % 4,
    )
    accepted = event.drafts[: event.accepted + 1]
    (token,) = plain((*known, *accepted), 1, 48)
    more = msgspec.structs.replace(
        event,
        accepted=event.accepted + 1,
        emitted=(*accepted, token if right else (token + 1) % 46),
        rng=tuple(position + 1 for position in event.rng),
    )
    found = bisect(rewrite(written, tmp_path / "o.txlog", _put(at, more, end=True)), toy()).found
    assert found is not None
    assert (found.sequence, found.ledger) == (at, "acceptance" if right else "logits")
    if right:
        assert (found.expected, found.found) == (event.accepted, event.accepted + 1)


@pytest.mark.parametrize("form", ROLLBACKS)
def test_one_draft_more_in_every_form(
    log: Path, tmp_path: Path, toy: Any, write: Any, read: Any, rewrite: Any, form: str
) -> None:
    """The round after the one at fault starts from what that one leaves, wherever its form puts it."""
    make = partial(toy, rollback=form)
    write(log, make(), samplings=[None], faults=False, draft="lookup", rounds=60)
    test_one_draft_more(log, tmp_path, make, read, rewrite, True)


def test_flipped_id(written: Path, tmp_path: Path, toy: Any, read: Any, rewrite: Any) -> None:
    at, event, _ = _round_with(read, written, lambda e: e.request == 0 and e.ordinal == 3)
    flipped = msgspec.structs.replace(event, emitted=(*event.emitted[:-1], (event.emitted[-1] + 1) % 46))
    found = bisect(rewrite(written, tmp_path / "o.txlog", _put(at, flipped, end=True)), toy()).found
    assert found is not None
    assert (found.sequence, found.ledger, found.by) == (at, "logits", "round")
    assert found.field == f"emitted[{len(event.emitted) - 1}]"
    assert (found.expected, found.found) == (event.emitted[-1], flipped.emitted[-1])


def test_seed_of_another_request(
    log: Path, tmp_path: Path, toy: Any, read: Any, write: Any, rewrite: Any
) -> None:
    """The log says 6 for a request that drew from 5, like the other one."""
    sampling = Sampling(temperature=1.5, seed=5)
    write(log, toy(), samplings=[sampling, sampling], faults=False)
    submitted = read(log)[0]
    changed = msgspec.structs.replace(submitted, seed=6)
    found = bisect(rewrite(log, tmp_path / "o.txlog", _put(0, changed)), toy()).found
    assert found is not None
    assert (found.request, found.ledger) == (0, "rng")
    assert Explanation("rng", "seed", 6, 5) in (
        Explanation("rng", found.field, found.expected, found.found),
        *found.others,
    )


def test_clip(written: Path, tmp_path: Path, toy: Any, read: Any, rewrite: Any) -> None:
    at, end = next(
        (at, event)
        for at, event in enumerate(read(written))
        if isinstance(event, RoundCommitted) and event.clip == 2
    )
    changed = msgspec.structs.replace(end, clip=1)
    found = bisect(rewrite(written, tmp_path / "o.txlog", _put(at, changed)), toy()).found
    assert found is not None
    assert (found.sequence, found.ledger, found.field) == (at, "tokens", "clip")
    assert (found.expected[1], found.found[1]) == ("length", "stop")


def test_one_wrong_digest(written: Path, tmp_path: Path, toy: Any, read: Any, rewrite: Any) -> None:
    """The audits after it are right, which a device's own fault would not leave them."""
    at, event = next(
        (at, event)
        for at, event in enumerate(read(written))
        if isinstance(event, StateAudited) and event.ordinal > 3
    )
    entries = ((*event.entries[0][:4], 5), *event.entries[1:])
    other = rewrite(written, tmp_path / "o.txlog", _put(at, msgspec.structs.replace(event, entries=entries)))
    found = bisect(other, toy()).found
    assert found is not None
    assert (found.by, found.sequence, found.ledger, found.layer, found.index) == ("audit", at, "kv", 0, 0)
    assert found.found == f"{5:016x}"


def test_host_ledger(written: Path, tmp_path: Path, read: Any, rewrite: Any) -> None:
    """The log contradicts itself: no model is needed to say so."""
    at, event, _ = _round_with(read, written, lambda e: e.ordinal == 4)
    changed = msgspec.structs.replace(event, rng=tuple(position + 1 for position in event.rng))
    other = rewrite(written, tmp_path / "o.txlog", _put(at, changed), digests=False)
    result = bisect(other, "no-such-model")
    assert result.found is not None
    assert (result.found.by, result.found.sequence, result.found.ledger) == ("fold", at, "rng")
    assert (result.found.request, result.found.ordinal) == (event.request, event.ordinal)
    assert result.numerics is None


def test_another_model_is_refused(written: Path, toy: Any) -> None:
    with pytest.raises(ExecutionRefused, match="vocab_size"):
        bisect(written, toy(vocab_size=50))


def test_other_kernels(written: Path, tmp_path: Path, toy: Any, rewrite: Any) -> None:
    other = rewrite(written, tmp_path / "o.txlog", lambda _, event: event, cpu="another")
    result = bisect(other, toy())
    assert (result.found, result.rebuilt) == (None, 0)
    assert "cpu" in result.differs


class Depends(ToyExecutor):
    """Says that its bits depend on the batch."""

    def describe(self) -> Description:
        made = super().describe()
        return attrs.evolve(made, capabilities=attrs.evolve(made.capabilities, row_invariant=False))


def test_executor_that_depends_on_its_batch(log: Path, write: Any, corrupting: Any) -> None:
    """Its state cannot be built again from tokens, so the audits are compared as the rounds are run."""
    make = partial(Depends, context=256, page_count=96)
    broken = corrupting(make(), "kv", 60)
    write(log, broken, rounds=100, audit_every=1)
    result = bisect(log, make())
    assert result.found is not None
    assert _same_round(result.found, broken.planted)
    assert (result.found.by, result.found.ledger, result.rebuilt) == ("audit", "kv", 0)


def test_log_that_begins_with_a_snapshot(log: Path, toy: Any, write: Any, corrupting: Any) -> None:
    broken = corrupting(toy(), "gdn", 130)
    write(log, broken, rounds=160, audit_every=2, segment_bytes=1 << 14, keep_segments=4, tokens=40)
    found = bisect(log, toy()).found
    assert found is not None
    assert (found.by, found.ledger, found.request) == ("audit", "gdn", broken.planted.request)
