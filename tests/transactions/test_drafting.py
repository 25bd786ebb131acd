"""Who drafts: the host first, then the executor, then the host after it."""

from __future__ import annotations

import attrs
import pytest

from txdecode.transactions.drafting import appended
from txdecode.transactions.events import RoundCommitted
from txdecode.transactions.executor import ROLLBACKS, ExecutorFault, Proposal
from txdecode.transactions.target import GREEDY, Target
from txdecode.transactions.toy import ToyExecutor

COUPLED = Target(law="coupled", seed=11, temperature=1.2)
CHAIN = Target(law="chain", seed=11, temperature=1.2)
LEAVE = lambda count: None  # noqa: E731


class Asked(ToyExecutor):
    """Remembers how many drafts it was asked for, and what it proposed."""

    def __init__(self, **options):
        super().__init__(**options)
        self.widths = []
        self.proposed = []

    def draft(self, plans):
        made = super().draft(plans)
        self.widths.append([plan.width - 1 for plan in plans])
        self.proposed.extend(made)
        return made


def composed(rig, request, drafts, depth=None, propose=LEAVE, tail=0):
    """An ask that leaves the first ``depth`` drafts to the executor, and expects the right ones after them but for
    the last ``tail``."""
    state = rig.state(request)
    done = len(state.generated)

    def extend(learned, count):
        text = rig.oracle(request, done + len(learned) + count + 1)[done + len(learned) :]
        right = max(count - tail, 0)
        wrong = tuple((token + 1) % rig.vocab_size for token in text[right:count])
        return Proposal((*text[:right], *wrong), "host")

    ask = rig.ask(request, None, drafts=drafts)
    return attrs.evolve(ask, propose=propose, extend=extend, depth=depth)


def run(rig, *asks):
    launch = rig.go(rig.open(*asks))
    assert launch.fault is None
    rig.check()
    return launch.transactions


def entered(kit, target=GREEDY, budget=40, **toy):
    rig = kit.Rig(make=Asked, accuracy=8, **toy)
    rig.enter(0, kit.PROMPT, budget, target=target)
    rig.round(0, ())
    return rig


@pytest.mark.parametrize("form", ROLLBACKS)
@pytest.mark.parametrize("target", [GREEDY, COUPLED, CHAIN], ids=["greedy", "coupled", "chain"])
def test_a_copy_extends_what_was_learned(kit, target, form):
    rig = entered(kit, target, rollback=form)
    (tx,) = run(rig, composed(rig, 0, drafts=5, depth=2))
    assert rig.executor.widths == [[2]]
    assert tx.proposal.tokens[:2] == rig.executor.proposed[0].tokens
    assert (len(tx.proposal.tokens), tx.proposal.copied, tx.proposal.drawn) == (5, 3, 2)
    assert tx.proposal.source == "toy+host"
    event = rig.log.events(RoundCommitted)[-1]
    assert (event.source, event.copied, event.drafts) == ("toy+host", 3, tx.proposal.tokens)
    assert event.law == (0 if target.law == "greedy" else 1)
    if target.law == "greedy":
        assert event.accepted == 5


@pytest.mark.parametrize("tail", range(4))
def test_every_number_of_accepted_copies(kit, tail):
    rig = entered(kit)
    (tx,) = run(rig, composed(rig, 0, drafts=5, depth=2, tail=tail))
    assert tx.outcome.accepted == 5 - tail
    # A miss after it, and another.
    run(rig, composed(rig, 0, drafts=0))
    run(rig, composed(rig, 0, drafts=5, depth=1))


@pytest.mark.parametrize(("drafts", "depth", "asked"), [(5, None, 5), (5, 9, 5), (3, 3, 3), (3, 1, 1)])
def test_the_executor_is_asked_for_its_share(kit, drafts, depth, asked):
    rig = entered(kit)
    (tx,) = run(rig, composed(rig, 0, drafts, depth))
    assert rig.executor.widths == [[asked]]
    assert tx.proposal.copied == drafts - asked
    assert tx.proposal.source == ("toy" if drafts == asked else "toy+host")


@pytest.mark.parametrize("fused", [False, True])
def test_a_copy_in_the_place_of_learned_drafts_saves_them(kit, fused):
    rig = entered(kit, fused=fused)
    script = rig.script(0, (True, True, False))
    (tx,) = run(rig, composed(rig, 0, drafts=3, propose=script))
    assert rig.executor.widths == []
    assert (tx.outcome.proposal.source, tx.outcome.proposal.copied, tx.outcome.accepted) == ("script", 0, 2)
    # The state that its drafter has is none the worse for rounds that it had no part in.
    (tx,) = run(rig, composed(rig, 0, drafts=3))
    assert (tx.outcome.proposal.source, tx.outcome.accepted) == ("toy", 3)


def test_a_fused_executor_drafts_alone(kit):
    rig = entered(kit, fused=True)
    (tx,) = run(rig, composed(rig, 0, drafts=5, depth=2))
    assert (tx.outcome.proposal.source, tx.outcome.proposal.copied) == ("toy", 0)
    assert len(tx.outcome.proposal.tokens) == 5


def test_who_drafts_is_decided_round_by_round(kit):
    rig = kit.Rig(make=Asked, accuracy=8)
    for request in range(3):
        rig.enter(request, kit.PROMPT[request:], 30)
        rig.round(request, ())
    host, learned, both = run(
        rig,
        composed(rig, 0, drafts=3, propose=rig.script(0, (True,) * 3)),
        rig.ask(1, None, drafts=4),
        composed(rig, 2, drafts=4, depth=1),
    )
    assert rig.executor.widths == [[4, 1]]
    assert [tx.proposal.source for tx in (host, learned, both)] == ["script", "toy", "toy+host"]


def test_nothing_learned_leaves_the_copy_to_itself():
    copy = Proposal((1, 2), "host")
    learned = Proposal((3,), "toy", "sampled", "q")
    assert appended(Proposal((), "toy"), copy) == copy
    assert appended(learned, Proposal()) == learned
    both = appended(learned, copy)
    assert (both.tokens, both.source, both.law, both.q, both.copied, both.drawn) == (
        (3, 1, 2),
        "toy+host",
        "sampled",
        "q",
        2,
        1,
    )


def test_an_executor_without_a_drafter_leaves_the_round_plain(kit):
    rig = kit.Rig(make=Asked)
    rig.enter(0, kit.PROMPT, 12)
    (tx,) = run(rig, composed(rig, 0, drafts=3))
    assert tx.proposal.tokens == ()


@pytest.mark.parametrize("fused", [False, True])
def test_an_executor_cannot_claim_copies(kit, fused):
    class Claiming(ToyExecutor):
        def _guess(self, plan):
            return attrs.evolve(super()._guess(plan), copied=1)

    rig = kit.Rig(make=Claiming, accuracy=8, fused=fused)
    rig.enter(0, kit.PROMPT, 12)
    before = rig.standing()
    launch = rig.go(rig.open(rig.ask(0, None, drafts=3)))
    assert isinstance(launch.fault, ExecutorFault)
    assert "copied by the host" in str(launch.fault)
    assert rig.standing() == before


@pytest.mark.parametrize("copied", [-1, 4, 1.0, None])
def test_copies_are_some_of_the_drafts(kit, copied):
    class Lost(ToyExecutor):
        def draft(self, plans):
            return [attrs.evolve(made, copied=copied) for made in super().draft(plans)]

    rig = kit.Rig(make=Lost, accuracy=8)
    rig.enter(0, kit.PROMPT, 12)
    launch = rig.go(rig.open(rig.ask(0, None, drafts=3)))
    assert "of 3 drafts are copied" in str(launch.fault)


def test_an_outcome_keeps_what_was_copied(kit):
    class Forgetful(Asked):
        def accept(self, rounds):
            return [
                attrs.evolve(made, proposal=attrs.evolve(made.proposal, copied=0))
                for made in super().accept(rounds)
            ]

    rig = kit.Rig(make=Forgetful, accuracy=8)
    rig.enter(0, kit.PROMPT, 20)
    launch = rig.go(rig.open(composed(rig, 0, drafts=4, depth=2)))
    assert "other drafts than were offered" in str(launch.fault)


def test_a_narrowed_plan_keeps_its_units(kit):
    rig = entered(kit)
    plan = rig.coordinator.begin(rig.ask(0, None, drafts=5)).plan
    narrow = plan.narrowed(2)
    assert (narrow.width, narrow.parents) == (3, (-1, 0, 1))
    assert attrs.evolve(narrow, parents=plan.parents) == plan
    assert plan.narrowed(5) is plan
    assert plan.narrowed(9) is plan
