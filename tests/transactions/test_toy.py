"""The toy model is worth its oracle: each kind of state matters, and the audit is a function of tokens."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txdecode.state.groups import of_kind
from txdecode.transactions.executor import (
    ROLLBACKS,
    Border,
    PrefillPlan,
    Proposal,
    Rollback,
    Round,
    RoundPlan,
    SequenceView,
    Settlement,
)
from txdecode.transactions.toy import ToyExecutor, ToyState, advance, expected_audit, plain

TOKENS = st.lists(st.integers(0, 47), min_size=1, max_size=24)


def text_from(state, token, count=24):
    out = []
    for _ in range(count):
        made = advance(state, token, 48)
        state, token = made.state, made.target
        out.append(token)
    return out


def state_after(tokens):
    state = ToyState()
    for token in tokens:
        state = advance(state, token, 48).state
    return state


@settings(max_examples=50, deadline=None)
@given(TOKENS)
def test_plain_is_the_model_token_by_token(prompt):
    assert plain(prompt, 24, 48) == text_from(state_after(prompt[:-1]), prompt[-1])


def test_plain_ends_at_a_stop():
    text = plain((1, 2, 3), 9, 48)
    for index, token in enumerate(text):
        assert plain((1, 2, 3), 9, 48, frozenset({token})) == text[: text.index(token) + 1]
        assert plain((1, 2, 3), index, 48) == text[:index]


@pytest.mark.parametrize(
    "damage",
    [
        lambda s: attrs.evolve(s, recurrent=s.recurrent ^ 1),
        lambda s: attrs.evolve(s, attention=s.attention ^ 1),
        lambda s: attrs.evolve(s, window=(s.window[0] ^ 1, *s.window[1:])),
        lambda s: attrs.evolve(s, window=(*s.window[:2], s.window[2] ^ 1)),
        lambda s: attrs.evolve(s, context=(s.context[0] ^ 1, s.context[1])),
        lambda s: attrs.evolve(s, context=(s.context[0], s.context[1] ^ 1)),
        lambda s: attrs.evolve(s, position=s.position + 1),
        # One row off: the state after one token less.
        lambda s: state_after(tuple(range(9))),
    ],
)
def test_an_error_in_any_state_changes_the_text_soon(damage):
    state = state_after(range(10))
    changed = [text_from(damage(state), token) != text_from(state, token) for token in range(12)]
    # Three tokens in four are a function of the last alone, so one text may agree by chance.
    assert sum(changed) >= 11


@settings(max_examples=30, deadline=None)
@given(TOKENS, st.integers(1, 5))
def test_the_expected_audit_names_every_piece(tokens, page):
    entries = expected_audit(tokens, page, 48)
    pages = -(-len(tokens) // page)
    assert [(entry.group, entry.index) for entry in entries] == [
        *(("kv", index) for index in range(pages)),
        *(("pairs", index) for index in range(pages)),
        ("gdn", 0),
        ("conv", 0),
        ("ngram", 0),
        ("tail", 0),
    ]
    other = expected_audit([*tokens[:-1], tokens[-1] ^ 1], page, 48)
    assert [a != b for a, b in zip(entries, other, strict=True)][-4:] == [True] * 4
    assert entries[pages - 1] != other[pages - 1]
    # Digests cover committed rows only, so full pages are those of any longer text.
    longer = expected_audit([*tokens, 1], page, 48)
    full = len(tokens) // page
    assert entries[:full] == longer[:full]


def test_before_any_token_there_is_nothing_to_audit(kit):
    rig = kit.Rig()
    rig.enter(0, (1,), 4)
    assert rig.audits()[0] == expected_audit((), 4, 48)


@pytest.mark.parametrize(("accuracy", "low", "high"), [(1, 0.02, 0.4), (4, 0.3, 0.7), (8, 1.0, 1.0)])
def test_accuracy_is_the_share_of_right_drafts(kit, accuracy, low, high):
    offered = right = 0
    for first in range(12):
        rig = kit.Rig(accuracy=accuracy, paranoid=False)
        rig.enter(0, (first, 1), 24)
        for _ in range(8):
            done = len(rig.state(0).generated)
            tx = rig.round(0, None, drafts=1)
            offered += 1
            right += tx.outcome.accepted
            assert tx.outcome.accepted == (tx.proposal.tokens[0] == rig.oracle(0, done + 1)[done])
    assert low <= right / offered <= high


def test_the_drafter_guesses_from_its_cache(kit):
    # Rollback, recomputation and other drafts before leave its pairs, and so its guesses, the same.
    def guess(prepare):
        rig = kit.Rig(accuracy=5)
        rig.enter(0, kit.PROMPT, 24)
        prepare(rig)
        return rig.round(0, None, drafts=6).outcome.proposal.tokens

    def three_rounds(masks):
        def prepare(rig):
            while rig.state(0).known < 12:
                mask = next(masks)
                left = 12 - rig.state(0).known
                rig.round(0, mask[: left - 1])

        return prepare

    def recomputed(rig):
        three_rounds(iter([()] * 6))(rig)
        rig.recompute(0, (1, 4))

    def rolled_back(rig):
        three_rounds(iter([()] * 6))(rig)
        rig.hook.armed = "accept"
        rig.go(rig.open(rig.ask(0, None, drafts=5)))

    guesses = {
        guess(three_rounds(iter([()] * 6))),
        guess(three_rounds(iter([(True, False, True)] * 6))),
        guess(three_rounds(iter([(True,) * 5] * 6))),
        guess(recomputed),
        guess(rolled_back),
    }
    assert len(guesses) == 1


def test_the_description_has_every_kind_of_state(kit):
    description = kit.Rig().description
    kinds = {group.kind for group in description.groups}
    assert kinds == {"pages", "column", "ring", "tokens"}
    assert {group.owner for group in of_kind(description.groups, "pages")} == {"target", "drafter"}
    # Rows of the widest round must not reach the window in the ring.
    (ring,) = of_kind(description.groups, "ring")
    assert ring.granularity == 3 + description.rows_max
    for fused in (False, True):
        for accuracy in (0, 3):
            capabilities = kit.Rig(fused=fused, accuracy=accuracy).description.capabilities
            assert (capabilities.fused, capabilities.drafts) == (fused, accuracy > 0)


def test_columns_suffice_for_a_full_batch_of_the_widest_rounds(kit):
    rig = kit.Rig()
    for request in range(4):
        rig.enter(request, kit.PROMPT, 20)
    launch = rig.go(rig.open(*(rig.ask(request, (True,) * 7) for request in range(4))))
    assert launch.fault is None
    rig.check()


@pytest.mark.parametrize("form", ROLLBACKS)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_border_among_the_committed_rows_gets_its_checkpoint(form: Rollback, count: int) -> None:
    """Two tokens are consumed, so row 1 of the round fills the first page of four; one row does not get there."""
    toy = ToyExecutor(rollback=form)
    tokens = (5, 6, 7, 8, 9, 10)
    pages = ((0, 1), (0, 1))
    toy.prefill([PrefillPlan(SequenceView(0, 0, 0, pages, (0,), (0,)), tokens[:2], pages, (1,))])
    view = SequenceView(0, 0, 2, pages, (1,), (0,))
    columns = ((2, 3, 4, 5),) if form == "columns" else ((2,),)
    toy.columns[9] = -7
    plan = RoundPlan(view, 0, tokens[2], (-1, 0, 1, 2), pages, columns, (0, 4), 4, borders=(Border(1, (9,)),))
    offered = Round(plan, Proposal(tokens[3:6], "test"))
    toy.verify([offered])
    toy.settle([Settlement(plan, tuple(range(count)))])
    other = ToyExecutor()
    other.prefill([PrefillPlan(SequenceView(0, 0, 0, pages, (0,), (0,)), tokens[:4], pages, (1,))])
    assert toy.columns[9] == (other.columns[1] if count >= 2 else -7)
