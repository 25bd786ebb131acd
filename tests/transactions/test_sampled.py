"""Sampled rounds on the toy: the text of a seed is one, whatever drafts, faults and recomputations do."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txdecode.state.errors import LedgerCorrupt
from txdecode.transactions.accept import inverse
from txdecode.transactions.coordinator import Coordinator
from txdecode.transactions.draws import DRAFT, Words, salt, word
from txdecode.transactions.events import RequestSubmitted, RoundCommitted
from txdecode.transactions.executor import ExecutorFault
from txdecode.transactions.phase import Signal
from txdecode.transactions.target import GREEDY, Target, TokenLogprobs
from txdecode.transactions.toy import ToyExecutor, plain
from txdecode.transactions.toy_model import logits, toy_hash

COUPLED = Target(law="coupled", seed=11, temperature=1.2)
BUSY = attrs.evolve(
    COUPLED,
    top_k=12,
    top_p=0.9,
    repetition_penalty=1.2,
    presence_penalty=0.3,
    frequency_penalty=0.4,
    bias=((3, 1.0), (5, float("-inf"))),
    min_tokens=6,
    held=(1, 2, 3),
    logprobs=2,
)
CHAIN = attrs.evolve(COUPLED, law="chain")
PENALISED = Target(repetition_penalty=1.5, frequency_penalty=0.5)
TARGETS = {"coupled": COUPLED, "busy": BUSY, "penalised greedy": PENALISED}


def test_the_toys_logits_have_its_target_on_top():
    for hidden in (toy_hash(n, 1, 2) for n in range(300)):
        made = logits(hidden, hidden % 48, 48)
        assert max(made) == made[hidden % 48]
        assert sorted(made)[-2] <= made[hidden % 48] - 1
        assert len(set(made)) > 10


def test_another_seed_is_another_text_and_greedy_is_the_most_likely():
    texts = {tuple(plain((1, 2), 16, 48, target=attrs.evolve(COUPLED, seed=seed))) for seed in range(20)}
    assert len(texts) == 20
    assert plain((1, 2), 16, 48, target=attrs.evolve(COUPLED, temperature=1e-3)) == plain((1, 2), 16, 48)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("drafts", [0, 1, 3, 7])
def test_text_at_every_draft_length(kit, drafts, name, fused):
    rig = kit.Rig(fused=fused)
    rig.enter(0, kit.PROMPT, 16, target=TARGETS[name])
    masks = [[(seed >> bit) & 1 == 1 for bit in range(drafts)] for seed in (255, 0b1011, 0, 0b1, 0b11)]
    assert rig.finish(0, masks) == rig.oracle_of(kit.PROMPT, 16, TARGETS[name])
    accepted = [event.accepted for event in rig.log.events() if isinstance(event, RoundCommitted)]
    assert (max(accepted) > 1) == (drafts > 1)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**64 - 1),
    st.lists(
        st.tuples(st.lists(st.booleans(), max_size=6), st.sampled_from(("", "fault", "evict"))), min_size=1
    ),
)
def test_text_under_faults_and_evictions(kit, seed, schedule):
    target = attrs.evolve(BUSY, seed=seed)
    rig = kit.Rig(paranoid=False)
    rig.enter(0, kit.PROMPT, 14, target=target)
    text, index = [], 0
    while True:
        mask, event = schedule[index % len(schedule)]
        if event == "evict":
            rig.recompute(0)
        elif event == "fault" and index < 40:
            rig.hook.armed = "accept"
            rig.go(rig.open(rig.ask(0, mask)))
        tx = rig.round(0, mask)
        text += tx.emitted
        index += 1
        if tx.clip != "none":
            break
    assert text == rig.oracle_of(kit.PROMPT, 14, target)
    rig.replay()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("accuracy", [2, 7, 8])
def test_the_executors_own_sampled_drafts(kit, accuracy, fused):
    rig = kit.Rig(accuracy=accuracy, fused=fused)
    rig.enter(0, kit.PROMPT, 24, target=COUPLED)
    text, accepted, drafted = [], 0, 0
    while True:
        tx = rig.round(0, None, drafts=4)
        text += tx.emitted
        accepted += tx.outcome.accepted
        drafted += len(tx.proposal.tokens)
        assert tx.proposal.law == ("sampled" if tx.proposal.tokens else "point")
        if tx.clip != "none":
            break
        rig.check()
    assert text == rig.oracle_of(kit.PROMPT, 24, COUPLED)
    # With equal distributions the shared noise makes every draft right.
    assert accepted == drafted if accuracy == 8 else 0 < accepted < drafted


@pytest.mark.parametrize("accuracy", [0, 1, 8])
def test_the_chain_law_on_the_toy(kit, accuracy):
    rig = kit.Rig(accuracy=accuracy)
    rig.enter(0, kit.PROMPT, 40, target=CHAIN)
    rejected = 0
    while True:
        tx = rig.round(0, None if accuracy else (True, True, False), drafts=3)
        rejected += tx.outcome.accepted < len(tx.proposal.tokens)
        if tx.clip != "none":
            break
        rig.check()
    assert (rejected > 0) == (accuracy < 8)


def test_chain_drafts_are_salted_by_epoch_and_attempt(kit):
    """A proposal whose round came to nothing is not made again with the same words: its length was seen."""
    rig = kit.Rig(accuracy=8)
    rig.enter(0, kit.PROMPT, 24, target=CHAIN)
    drawn = []

    def propose():
        launch = rig.open(rig.ask(0, None, drafts=3))
        rig.coordinator.advance(launch)
        (tx,) = launch.transactions
        expected = [
            inverse(
                q,
                word(CHAIN.seed, DRAFT, tx.plan.rng[0] + i, fourth=salt(tx.plan.view.epoch, tx.plan.attempt)),
            )
            for i, q in enumerate(tx.proposal.q)
        ]
        assert list(tx.proposal.tokens) == expected
        drawn.append((tx.plan.view.epoch, tx.plan.attempt))
        rig.coordinator.rollback(launch, tx, Signal.FAULT, "test")

    propose()
    propose()
    rig.recompute(0)
    propose()
    rig.round(0)
    propose()
    assert drawn == [(0, 0), (0, 1), (1, 0), (1, 2)]


def test_attempts_are_forgotten_with_the_request(kit):
    rig = kit.Rig()
    rig.enter(0, kit.PROMPT, 3, target=COUPLED)
    rig.enter(1, kit.PROMPT, 3, target=COUPLED)
    rig.finish(0)
    rig.round(1)
    assert set(rig.store._rounds) == {1}
    rig.residency.finish(1, "cancelled")
    assert not rig.store._rounds


@pytest.mark.parametrize("fused", [False, True])
def test_logprobs_are_those_of_plain_rounds_and_in_the_log(kit, fused):
    target = attrs.evolve(COUPLED, logprobs=3)
    found = []
    for mask in ((), (True, True, True), (True, False)):
        rig = kit.Rig(fused=fused)
        rig.enter(0, kit.PROMPT, 12, target=target)
        text = rig.finish(0, (mask,))
        rounds = [event for event in rig.log.events() if isinstance(event, RoundCommitted)]
        entries = [entry for event in rounds for entry in event.logprobs]
        assert [entry.token for entry in entries] == text
        assert all(isinstance(entry, TokenLogprobs) and len(entry.raw_top) == 3 for entry in entries)
        found.append(entries)
    assert found[0] == found[1] == found[2]


def test_a_clip_ends_the_logprobs_with_the_text(kit):
    target = attrs.evolve(COUPLED, logprobs=0)
    rig = kit.Rig()
    rig.enter(0, kit.PROMPT, 12, target=target)
    rig.round(0)
    tx = rig.round(0, (True, True, True), budget=5, stop_ids=(rig.oracle(0, 3)[2],))
    assert tx.clip == "stop"
    assert [entry.token for entry in tx.logprobs] == list(tx.emitted)
    assert len(tx.outcome.logprobs) > len(tx.emitted)


def test_law_and_seed_are_in_the_record_and_in_the_ledger(kit):
    rig = kit.Rig()
    rig.enter(0, kit.PROMPT, 3, target=CHAIN)
    (event,) = [event for event in rig.log.events() if isinstance(event, RequestSubmitted)]
    assert (event.law, event.seed, event.roles) == (2, 11, 4)
    assert rig.ledgers.rng.streams[0].seed == 11
    rig.check()


@pytest.mark.parametrize(
    "other",
    [attrs.evolve(COUPLED, seed=12), attrs.evolve(COUPLED, law="greedy"), GREEDY],
)
def test_a_round_that_would_draw_from_elsewhere_is_a_bug(kit, other):
    rig = kit.Rig()
    rig.enter(0, kit.PROMPT, 3, target=COUPLED)
    with pytest.raises(AssertionError, match="in the ledger"):
        rig.coordinator.begin(attrs.evolve(rig.ask(0), target=other))


def test_an_executor_that_only_knows_the_argmax_is_not_asked_for_more(kit):
    class Plain(ToyExecutor):
        def describe(self):
            made = super().describe()
            return attrs.evolve(made, capabilities=attrs.evolve(made.capabilities, sampling=False))

    rig = kit.Rig(make=Plain)
    rig.enter(0, kit.PROMPT, 3)
    assert isinstance(rig.coordinator, Coordinator)
    rig.round(0)
    rig.enter(1, kit.PROMPT, 3, target=PENALISED)
    with pytest.raises(AssertionError, match="greedily only"):
        rig.coordinator.begin(rig.ask(1))


class Foreign(int):
    """An integer that the log could not hold as it is."""


SPOILED = {
    "none": lambda made: (),
    "one too few": lambda made: made[:-1],
    "of another token": lambda made: (*made[:-1], TokenLogprobs(47 - made[-1].token, -1.0, -1.0)),
    "not a number": lambda made: (*made[:-1], TokenLogprobs(made[-1].token, float("nan"), -1.0)),
    "an integer": lambda made: (*made[:-1], TokenLogprobs(made[-1].token, -1, -1.0)),
    "an id of another library": lambda made: (
        *made[:-1],
        TokenLogprobs(Foreign(made[-1].token), -1.0, -1.0),
    ),
    "an alternative past the vocabulary": lambda made: (
        *made[:-1],
        TokenLogprobs(made[-1].token, -1.0, -1.0, (), ((48, -1.0),)),
    ),
    "an alternative that is a word": lambda made: (
        *made[:-1],
        TokenLogprobs(made[-1].token, -1.0, -1.0, (("a", -1.0),)),
    ),
    "more alternatives than asked": lambda made: (
        *made[:-1],
        TokenLogprobs(made[-1].token, -1.0, -1.0, ((1, -1.0), (2, -1.0))),
    ),
    "alternatives in a list": lambda made: (
        *made[:-1],
        TokenLogprobs(made[-1].token, -1.0, -1.0, [(1, -1.0)]),
    ),
    "an alternative of three": lambda made: (
        *made[:-1],
        TokenLogprobs(made[-1].token, -1.0, -1.0, ((1, -1.0, 2),)),
    ),
    "an alternative that is none": lambda made: (
        *made[:-1],
        TokenLogprobs(made[-1].token, -1.0, -1.0, ((1, float("nan")),)),
    ),
}


@pytest.mark.parametrize("name", SPOILED)
def test_bad_logprobs_fault_the_round(kit, name):
    class Spoiling(ToyExecutor):
        def _judge(self, plan, proposal):
            made = super()._judge(plan, proposal)
            return attrs.evolve(made, logprobs=SPOILED[name](made.logprobs))

    rig = kit.Rig(make=Spoiling)
    rig.enter(0, kit.PROMPT, 9, target=attrs.evolve(COUPLED, logprobs=1))
    before = rig.standing()
    launch = rig.go(rig.open(rig.ask(0, (True, True))))
    assert isinstance(launch.fault, ExecutorFault)
    assert "logprobs" in str(launch.fault)
    assert rig.standing() == before


def test_logprobs_that_nobody_asked_for_fault_the_round(kit):
    class Spoiling(ToyExecutor):
        def _judge(self, plan, proposal):
            return attrs.evolve(super()._judge(plan, proposal), logprobs=(TokenLogprobs(1, -1.0, -1.0),))

    rig = kit.Rig(make=Spoiling)
    rig.enter(0, kit.PROMPT, 9)
    launch = rig.go(rig.open(rig.ask(0)))
    assert "logprobs" in str(launch.fault)


def test_a_record_whose_logprobs_are_of_other_tokens_is_refused(kit):
    from msgspec.structs import replace

    from txdecode.transactions.fold import check_event

    rig = kit.Rig()
    rig.enter(0, kit.PROMPT, 9, target=attrs.evolve(COUPLED, logprobs=0))
    rig.round(0)
    event = rig.log.events()[-1]
    fresh = kit.Rig()
    fresh.enter(0, kit.PROMPT, 9, target=attrs.evolve(COUPLED, logprobs=0))
    check_event(fresh.ledgers, event)
    wrong = replace(event, logprobs=(replace(event.logprobs[0], token=event.emitted[0] ^ 1),))
    with pytest.raises(LedgerCorrupt, match="logprobs"):
        check_event(fresh.ledgers, wrong)


def test_a_wrong_seed_in_the_log_is_found_and_named(kit):
    from msgspec.structs import replace

    from txdecode.state.ledgers import Ledgers
    from txdecode.transactions.fold import fold

    rig = kit.Rig()
    rig.enter(0, kit.PROMPT, 9, target=COUPLED)
    submitted = rig.log.events()[0]
    for change in ({"seed": 12}, {"law": 0}):
        with pytest.raises(LedgerCorrupt) as error:
            fold(Ledgers(rig.description.groups), replace(submitted, **change))
        assert (error.value.ledger, error.value.field) == ("rng", "digest")


def test_a_minimum_that_was_reached_costs_nothing_more():
    target = attrs.evolve(GREEDY, min_tokens=3, held=(1,))
    assert [target.after(count).plain for count in (0, 2, 3, 9)] == [False, False, True, True]
    assert target.after(2) is target
    assert attrs.evolve(BUSY, min_tokens=0, held=()) == BUSY.after(6)


def test_history_has_counts_only_for_penalties(kit):
    rig = kit.Rig()
    target = attrs.evolve(COUPLED, bias=((1, 1.0),), min_tokens=3, held=(2,))
    rig.enter(0, kit.PROMPT, 9, target=target)
    rig.round(0)
    launch = rig.open(rig.ask(0))
    history = launch.transactions[0].plan.history
    assert (history.counts, history.generated) == ({}, 1)
    rig.enter(1, kit.PROMPT, 9, target=COUPLED)
    assert rig.open(rig.ask(1)).transactions[0].plan.history is None


def test_history_is_a_snapshot(kit):
    rig = kit.Rig()
    rig.enter(0, kit.PROMPT, 9, target=BUSY)
    launch = rig.open(rig.ask(0))
    history = launch.transactions[0].plan.history
    rig.go(launch)
    assert history.counts == {}
    assert rig.state(0).counts != {}
    assert rig.open(rig.ask(0)).transactions[0].plan.history.generated == 1
    assert isinstance(Words(1, 2)(0, 0), int)
