"""Executors and drafters that break their word: each is a fault, and the round leaves nothing."""

from __future__ import annotations

import attrs
import pytest

from txdecode.state.errors import LedgerCorrupt
from txdecode.transactions.contract import check_outcome, check_proposal
from txdecode.transactions.coordinator import Coordinator
from txdecode.transactions.executor import NO_PROPOSAL, ExecutorFault, Outcome, Proposal
from txdecode.transactions.phase import Signal
from txdecode.transactions.toy import ToyExecutor

RIGHT = (True, True, False)

BAD_OUTCOMES = {
    "a path that skips a row": (lambda o: attrs.evolve(o, path=(0, 2)), "no chain"),
    "a path that begins late": (lambda o: attrs.evolve(o, path=(1, 2)), "no chain"),
    "a path without a row": (lambda o: attrs.evolve(o, path=()), "no chain"),
    "a path longer than the rows": (lambda o: attrs.evolve(o, path=(0, 1, 2, 3, 4)), "no chain"),
    "a path that repeats a row": (lambda o: attrs.evolve(o, path=(0, 0)), "no chain"),
    "a token past the vocabulary": (lambda o: attrs.evolve(o, next_token=48), "outside the vocabulary"),
    "a token before it": (lambda o: attrs.evolve(o, next_token=-1), "outside the vocabulary"),
    "other drafts": (
        lambda o: attrs.evolve(o, proposal=Proposal((1,), "x"), path=(0,)),
        "other drafts than were offered",
    ),
    "fewer drafts": (
        lambda o: attrs.evolve(o, proposal=Proposal(o.proposal.tokens[:2], "x"), path=(0,)),
        "other drafts than were offered",
    ),
    "more drafts": (
        lambda o: attrs.evolve(o, proposal=Proposal((*o.proposal.tokens, 1), "x"), path=(0,)),
        "other drafts than were offered",
    ),
}


def spoiling(spoil):
    """A toy whose outcomes, by either style, go through ``spoil``."""

    class Spoiling(ToyExecutor):
        def accept(self, rounds):
            return spoil(super().accept(rounds))

        def collect(self, ticket):
            outcomes = super().collect(ticket)
            return outcomes if outcomes is None else spoil(outcomes)

    return Spoiling


def faulted(kit, rig, mask=RIGHT, drafts=None):
    """A launch of two requests that faults and leaves nothing; its fault."""
    for request in range(2):
        rig.enter(request, kit.PROMPT[request:], 12)
    before = rig.standing()
    launch = rig.go(rig.open(*(rig.ask(request, mask, drafts=drafts) for request in range(2))))
    assert [tx.ended_by for tx in launch.transactions] == [Signal.FAULT] * 2
    assert rig.standing() == before
    assert not rig.coordinator.flights
    rig.check()
    return launch.fault


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("name", BAD_OUTCOMES)
def test_a_bad_outcome_faults_the_launch(kit, name, position, fused):
    # Also where the rounds before it in the launch were good.
    damage, words = BAD_OUTCOMES[name]

    def spoil(outcomes):
        outcomes[position] = damage(outcomes[position])
        return outcomes

    fault = faulted(kit, kit.Rig(make=spoiling(spoil), fused=fused))
    assert isinstance(fault, ExecutorFault)
    assert words in str(fault)
    assert f"request {position}" in str(fault)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("spoil", [lambda o: o[:1], lambda o: [*o, o[0]], lambda o: []])
def test_a_wrong_number_of_outcomes(kit, spoil, fused):
    fault = faulted(kit, kit.Rig(make=spoiling(spoil), fused=fused))
    assert isinstance(fault, ExecutorFault)
    assert "expected 2 outcomes" in str(fault)


BAD_DRAFTS = {
    "too many": (lambda tokens: (*tokens, 1), "proposed 4, asked 3"),
    "past the vocabulary": (lambda tokens: (*tokens[:-1], 48), "outside 0..47"),
    "before the vocabulary": (lambda tokens: (-1, *tokens[1:]), "outside 0..47"),
}


def drafting(spoil):
    """A toy whose own proposals go through ``spoil``, in either style."""

    class Drafting(ToyExecutor):
        def draft(self, plans):
            return spoil(super().draft(plans))

        def _guess(self, plan):
            proposal = super()._guess(plan)
            return spoil([proposal])[0] if self.describe().capabilities.fused else proposal

        def _forward(self, plan, proposal):
            # Only the rows that there are columns for: the fault is the proposal, not the forward.
            super()._forward(plan, attrs.evolve(proposal, tokens=proposal.tokens[: plan.width - 1]))

        def _judge(self, plan, proposal):
            return Outcome(proposal, (0,), 1)

    return Drafting


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", BAD_DRAFTS)
def test_bad_drafts_of_the_executor(kit, name, fused):
    damage, words = BAD_DRAFTS[name]

    def spoil(proposals):
        return [*proposals[:-1], attrs.evolve(proposals[-1], tokens=damage(proposals[-1].tokens))]

    fault = faulted(kit, kit.Rig(make=drafting(spoil), fused=fused, accuracy=6), None, 3)
    assert isinstance(fault, ExecutorFault)
    assert words in str(fault)
    assert "'toy'" in str(fault)


@pytest.mark.parametrize("name", BAD_DRAFTS)
def test_bad_drafts_of_a_host_drafter(kit, name):
    damage, words = BAD_DRAFTS[name]
    rig = kit.Rig()
    rig.enter(0, kit.PROMPT, 12)
    before = rig.standing()
    ask = rig.ask(0, RIGHT)
    launch = rig.go(
        rig.open(attrs.evolve(ask, propose=lambda count: Proposal(damage(ask.propose(count).tokens), "host")))
    )
    assert isinstance(launch.fault, ExecutorFault)
    assert words in str(launch.fault)
    assert "'host'" in str(launch.fault)
    assert rig.standing() == before


def test_a_wrong_number_of_proposals(kit):
    fault = faulted(kit, kit.Rig(make=drafting(lambda proposals: proposals[:1]), accuracy=6), None, 3)
    assert isinstance(fault, ExecutorFault)
    assert "expected 2 proposals" in str(fault)


def test_a_good_outcome_passes():
    offered = Proposal((1, 2), "x")
    for path in ((0,), (0, 1), (0, 1, 2)):
        check_outcome(0, Outcome(offered, path, 47), offered, 2, 48)
        check_outcome(0, Outcome(offered, path, 0), None, 2, 48)
    check_outcome(0, Outcome(Proposal(), (0,), 0), Proposal(), 2, 48)


# The audit.


class WritesPast(ToyExecutor):
    """Verify spoils a committed row, column, ring entry or tail of the sequence that it works on."""

    what = "kv"

    def verify(self, rounds):
        super().verify(rounds)
        view = rounds[0].plan.view
        if self.what == "kv":
            self.kv[view.pages[0][0]][1] ^= 1
        elif self.what == "pairs":
            self.pairs[view.pages[1][0]][1] ^= 1
        elif self.what == "gdn":
            self.columns[view.columns[0]] ^= 1
        elif self.what == "conv":
            self.rings[view.slots[0]][(view.length - 1) % self.ring] ^= 1
        elif self.what == "ngram":
            self.contexts[view.slots[0]] = (0, 0)
        elif self.what == "tail":
            self.tails[view.slots[0]] ^= 1
        else:
            self.kv[view.pages[0][-1]][view.length % self.page] ^= 1


@pytest.mark.parametrize("what", ["kv", "pairs", "gdn", "conv", "ngram", "tail"])
def test_the_paranoid_audit_finds_a_write_past_the_plan(kit, what):
    rig = kit.Rig(make=WritesPast)
    rig.executor.what = what
    for request in range(2):
        rig.enter(request, kit.PROMPT, 12)
    launch = rig.open(rig.ask(0, RIGHT), rig.ask(1, RIGHT))
    rig.hook.armed = "accept"
    rig.coordinator.advance(launch)
    rig.coordinator.advance(launch)
    with pytest.raises(LedgerCorrupt, match="request 0 after rollback") as error:
        rig.coordinator.advance(launch)
    assert error.value.ledger == "device"
    assert error.value.expected.group == error.value.found.group == what
    # The bad audit came after every round of the launch had ended and given back what it held.
    assert launch.done
    assert [tx.ended_by for tx in launch.transactions] == [Signal.FAULT] * 2
    rig.conserve()
    rig.replay()


def test_the_paranoid_audit_allows_scratch(kit):
    rig = kit.Rig(make=WritesPast)
    rig.executor.what = "scratch"
    rig.enter(0, kit.PROMPT, 12)
    rig.hook.armed = "accept"
    rig.go(rig.open(rig.ask(0, RIGHT)))
    rig.check()


def test_without_paranoia_there_is_no_audit(kit):
    rig = kit.Rig(paranoid=False)
    assert not Coordinator(rig.executor, rig.store, lambda: 0).paranoid
    rig.enter(0, kit.PROMPT, 12)
    rig.executor.audit = lambda view: 1 // 0
    rig.round(0, RIGHT)
    rig.hook.armed = "accept"
    rig.go(rig.open(rig.ask(0, RIGHT)))
    del rig.executor.audit
    rig.check()


def test_an_audit_that_lost_an_entry_is_found(kit):
    rig = kit.Rig()
    rig.enter(0, kit.PROMPT, 12)
    launch = rig.open(rig.ask(0, RIGHT))
    audit = rig.executor.audit
    rig.executor.audit = lambda view: audit(view)[:-1]
    rig.hook.armed = "draft"
    rig.coordinator.interrupts[0] = Signal.CANCEL
    with pytest.raises(LedgerCorrupt, match="after rollback"):
        rig.go(launch)


@pytest.mark.parametrize("token", [True, 3.0, "3", None])
def test_a_token_of_another_type_is_a_fault(token: object) -> None:
    with pytest.raises(ExecutorFault, match="or no integer"):
        check_outcome(0, Outcome(NO_PROPOSAL, (0,), token), NO_PROPOSAL, 0, 8)  # type: ignore[arg-type]
    with pytest.raises(ExecutorFault, match="or no integer"):
        check_proposal(Proposal((token,), "odd"), 1, 8)  # type: ignore[arg-type]
