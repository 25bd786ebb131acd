"""The small scope, walked whole: every interleaving of a few actions on a tiny toy, in both styles.

States that agree in everything committed, reserved and in flight are walked on from once. What each action does
is checked every time: ledgers, pools, replay, device and text.
"""

from __future__ import annotations

import copy

import attrs
import pytest

from txdecode.state.errors import LedgerExhausted
from txdecode.transactions.executor import Proposal
from txdecode.transactions.phase import TRANSITIONS, Phase, Signal
from txdecode.transactions.toy import plain
from txdecode.transactions.transaction import Ask, Launch

PROMPTS = {0: (3, 1, 4), 1: (5,)}
BUDGET = 5
TEXTS = {request: tuple(plain(prompt, BUDGET + 4, 48)) for request, prompt in PROMPTS.items()}
MASKS = ((), (False, True), (True, False), (True, True))
VERBS = {Phase.DRAFT: "draft", Phase.VERIFY: "verify", Phase.ACCEPT: "accept", Phase.COMMIT: "settle"}


@attrs.frozen
class Script:
    """A host drafter as plain data, so that a world can be copied; ``broken`` makes it fail."""

    tokens: tuple[int, ...]
    broken: bool = False

    def __call__(self, count):
        if self.broken:
            raise RuntimeError("draft broke")
        return Proposal(self.tokens[:count], "script")


@attrs.define
class World:
    """A rig, the open launch of each request, and which requests are over."""

    rig: object
    masks: tuple[tuple[bool, ...], ...]
    launches: dict[int, Launch] = attrs.Factory(dict)

    def copy(self):
        """A deep copy that shares what never changes."""
        rig = self.rig
        groups = rig.description.groups
        frozen = [
            rig.description,
            groups,
            *groups,
            rig.edges,
            rig.coordinator.observe,
            rig.coordinator.clock,
            *rig.log.records,
        ]
        for tx in (
            tx for launch in (*self.launches.values(), *rig.coordinator.flights) for tx in launch.transactions
        ):
            frozen += [tx.plan, tx.reservation, tx.outcome, tx.proposal, tx.before]
        return copy.deepcopy(self, {id(each): each for each in frozen if each is not None})

    def key(self):
        rig = self.rig
        flights = [
            (
                launch.number in {mine.number for mine in self.launches.values()},
                launch.retired,
                launch.retained,
            )
            for launch in rig.coordinator.flights
        ]
        return repr(
            (
                rig.ledgers.snapshot(),
                rig.free(),
                flights,
                [program[0] for program in rig.executor._programs.values()],
                sorted(
                    (
                        request,
                        [(tx.phase, tx.ask.propose, tx.ended_by) for tx in launch.transactions],
                    )
                    for request, launch in self.launches.items()
                ),
            )
        )

    def open_rounds(self):
        return [tx for launch in self.launches.values() for tx in launch.open]

    # Actions: each returns the actions of a world as (name, performer).

    def actions(self):
        rig, out = self.rig, []
        for request in PROMPTS:
            launch = self.launches.get(request)
            state = rig.ledgers.tokens.sequences.get(request)
            flying = rig.coordinator.in_flight(request)
            if launch is not None:
                out.append(("advance", request, None))
                open_now = bool(launch.open)
                if open_now and launch.open[0].phase is not Phase.COMMIT:
                    out.append(("interrupt", request, (Signal.CANCEL, Signal.PREEMPT)[request]))
                if open_now:
                    out.append(("fault", request, VERBS[launch.open[0].phase]))
            elif state is not None and state.resident and state.ready and flying is None:
                left = BUDGET - len(state.generated)
                out += [("begin", request, mask) for mask in self.masks if len(mask) < left]
            if state is not None and (flying or launch is None):
                out.append(("evict" if state.resident and state.ready else "enter", request, None))
        return out

    def begin(self, request, mask):
        state = self.rig.state(request)
        done = len(state.generated)
        drafts = tuple(
            TEXTS[request][done + i] if right else (TEXTS[request][done + i] + 1) % 48
            for i, right in enumerate(mask)
        )
        rules = self.rig.ask(request).rules
        ask = Ask(request, len(mask), rules, Script(drafts))
        self.launches[request] = self.rig.open(ask)

    def advance(self, request, _):
        launch = self.launches[request]
        (tx,) = launch.transactions
        was = tx.ended_by
        done = tx.plan.view.length + 1 - len(PROMPTS[request])
        self.rig.coordinator.advance(launch)
        if tx.ended_by is Signal.COMMITTED and was is None:
            assert tx.emitted == TEXTS[request][done : done + len(tx.emitted)]
            assert (tx.clip == "length") is (done + len(tx.emitted) == BUDGET)
            if tx.dirty and tx.clip == "none":
                self.evict(request, None)
        if launch.done:
            del self.launches[request]

    def interrupt(self, request, signal):
        self.rig.coordinator.interrupts[request] = signal
        self.advance(request, None)
        del self.rig.coordinator.interrupts[request]

    def fault(self, request, verb):
        launch = self.launches[request]
        (tx,) = launch.open
        hook = self.rig.hook
        if verb == "draft":
            tx.ask = attrs.evolve(tx.ask, propose=attrs.evolve(tx.ask.propose, broken=True))
        elif launch.ticket is not None:
            verb = "collect"
        hook.armed = verb
        self.advance(request, None)
        if hook.armed is None and verb != "settle":
            assert tx.ended_by is Signal.FAULT
        hook.armed = None

    def evict(self, request, _):
        self.rig.residency.evict(request, "asked")

    def enter(self, request, _):
        try:
            if not self.rig.state(request).resident:
                self.rig.residency.admit(request)
            self.rig.prefill(request)
        except LedgerExhausted:
            # Programs in flight still hold what would be needed; it is tried again later.
            assert self.rig.coordinator.flights

    # Whole rounds, for the coarse walk: one request alone, or both in one launch.

    def whole(self):
        """The actions that take a launch from begin to end, and what ends it early."""
        ready = [request for request, state in self.rig.ledgers.tokens.sequences.items() if state.ready]
        groups = [(request,) for request in ready] + ([tuple(ready)] if len(ready) > 1 else [])
        out = [("recompute", request, None) for request in ready]
        for group in groups:
            out += [("run", group, (mask, None, None)) for mask in MASKS]
            out += [("run", group, (MASKS[2], phase, None)) for phase in list(VERBS)[:3]]
            out += [("run", group, (MASKS[3], None, verb)) for verb in ("verify:late", "accept", "settle")]
        return out

    def run(self, group, how):
        mask, phase, verb = how
        for request in group:
            left = BUDGET - len(self.rig.state(request).generated)
            self.begin(request, mask[: left - 1])
        launches = [self.launches.pop(request) for request in group]
        transactions = [tx for launch in launches for tx in launch.transactions]
        launch = self.rig.coordinator.open(transactions)
        self.rig.hook.armed = verb
        while not launch.done:
            if phase is not None and transactions[0].phase is phase:
                self.rig.coordinator.interrupts[group[0]] = Signal.CANCEL
            self.rig.coordinator.advance(launch)
        self.rig.coordinator.interrupts.clear()
        for request, tx in zip(group, transactions, strict=True):
            ended = tx.ended_by
            if phase is not None and request == group[0]:
                assert ended is Signal.CANCEL
            elif verb in ("verify:late", "accept"):
                assert ended is Signal.FAULT
            else:
                assert ended is Signal.COMMITTED
                assert tx.dirty is (verb == "settle")
                done = tx.plan.view.length + 1 - len(PROMPTS[request])
                assert tx.emitted == TEXTS[request][done : done + len(tx.emitted)]
        for tx in transactions:
            if tx.dirty and tx.clip == "none":
                self.recompute(tx.request, None)

    def recompute(self, request, _):
        self.rig.recompute(request)

    def progress(self):
        """How far each request is: what a coarse walk tells states by. Numbers of pages, columns, epochs and
        launches differ between ways to get there, and must not matter."""
        return repr([(r, state.known) for r, state in self.rig.ledgers.tokens.sequences.items()])


def walk(start, depth, actions, key):
    """New states by distance, and the number of actions performed."""
    seen, frontier, performed, sizes = {key(start)}, [start], 0, []
    for _ in range(depth):
        reached = []
        for before in frontier:
            for name, *arguments in actions(before):
                after = before.copy()
                getattr(after, name)(*arguments)
                after.rig.check(after.open_rounds())
                performed += 1
                if key(after) not in seen:
                    seen.add(key(after))
                    reached.append(after)
        frontier = reached
        sizes.append(len(frontier))
    return sizes, performed


def world(kit, requests, masks, **toy):
    # Pages of two rows, and just enough of everything for requests of this size.
    rig = kit.Rig(page=2, page_count=12, batch_max=3, rows_max=3, delay=lambda launch: 1, **toy)
    for request in range(requests):
        rig.enter(request, PROMPTS[request], BUDGET)
    return World(rig, masks)


def unseen(start):
    """Transitions that a walk did not take: copies report to the world that they come from."""
    taken = {(before, signal) for _, before, signal, _ in start.rig.edges}
    return {f"{phase.name} {signal.name}" for phase, signal in TRANSITIONS if (phase, signal) not in taken}


PREEMPTS = {"DRAFT PREEMPT", "VERIFY PREEMPT", "ACCEPT PREEMPT"}
REFUSED = {"COMMIT REFUSED"}
# A fused program does not stop between verify and accept.
UNBROKEN = {"ACCEPT CANCEL", "ACCEPT FAULT", "ACCEPT PREEMPT"}


@pytest.mark.parametrize(("requests", "least"), [(1, 50), (2, 900)])
def test_whole_rounds_and_what_ends_them(kit, requests, least):
    start = world(kit, requests, MASKS)
    sizes, performed = walk(start, 8, World.whole, World.progress)
    # Nothing new is left to reach: every way to be at some progress and go on from there was walked.
    assert sizes[-1] == 0
    assert sum(sizes) + 1 == (BUDGET + 1) ** requests
    assert performed > least
    assert unseen(start) == {"DRAFT FAULT"} | PREEMPTS | REFUSED


def test_whole_rounds_by_everything_that_can_differ(kit):
    start = world(kit, 1, MASKS)
    sizes, performed = walk(start, 5, World.whole, World.key)
    assert all(sizes)
    assert performed > 500


@pytest.mark.parametrize(
    ("fused", "requests", "depth", "never"),
    [
        (False, 1, 8, PREEMPTS | REFUSED),
        (False, 2, 5, REFUSED),
        (True, 1, 7, PREEMPTS | UNBROKEN | REFUSED),
        (True, 2, 5, UNBROKEN | REFUSED),
    ],
)
def test_every_interleaving_of_phases(kit, fused, requests, depth, never):
    masks = MASKS if requests == 1 else MASKS[2:3]
    start = world(kit, requests, masks, fused=fused, paranoid=not fused)
    sizes, performed = walk(start, depth, World.actions, World.key)
    assert all(sizes)
    assert performed > 250
    assert unseen(start) == never
