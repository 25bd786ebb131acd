"""A rig that drives the coordinator over the toy, with a log in memory and every promise checked."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence

import pytest

from txdecode.state.ledgers import Ledgers
from txdecode.state.rng import LAWS, ROLES_OF_LAW
from txdecode.transactions.clip import ClipRules
from txdecode.transactions.codec import Framed, decode
from txdecode.transactions.coordinator import Coordinator
from txdecode.transactions.events import Event, RequestSubmitted
from txdecode.transactions.executor import Proposal
from txdecode.transactions.fold import fold
from txdecode.transactions.residency import Chunk, Residency
from txdecode.transactions.store import Store
from txdecode.transactions.target import GREEDY, Target
from txdecode.transactions.toy import ToyExecutor, expected_audit, plain
from txdecode.transactions.transaction import Ask, Launch, Transaction, view

VERBS = ("draft", "verify", "accept")


class LogRefused(Exception):
    """What a log raises that can't append."""


class MemoryLog:
    """Records in a list. ``refusing`` makes every append fail; ``watch`` is called before each one."""

    def __init__(self) -> None:
        self.records: list[Framed] = []
        self.refusing = False
        self.watch: Callable[[], None] = lambda: None

    def append(self, records: Sequence[Framed]) -> int:
        self.watch()
        if self.refusing:
            raise LogRefused("the disk is full")
        self.records.extend(records)
        return len(self.records) - len(records)

    def events(self, kind: type[Event] | None = None) -> list[Event]:
        events = [decode(*record) for record in self.records]
        return [event for event in events if event is not None and (kind is None or type(event) is kind)]


class Failing:
    """A hook that fails once, the first time that the armed verb comes by."""

    def __init__(self) -> None:
        self.armed: str | None = None
        self.error: Callable[[str], Exception] = lambda verb: RuntimeError(f"{verb} broke")

    def __call__(self, verb: str) -> None:
        if verb == self.armed:
            self.armed = None
            raise self.error(verb)


class Rig:
    """One executor, one store, one coordinator. ``edges`` are the transitions seen so far."""

    def __init__(
        self,
        *,
        paranoid: bool = True,
        make: Callable[..., ToyExecutor] = ToyExecutor,
        **toy: object,
    ) -> None:
        self.hook = Failing()
        self.executor = make(hook=self.hook, **toy)
        self.description = self.executor.describe()
        self.log = MemoryLog()
        self.store = Store(Ledgers(self.description.groups), self.log)
        self.edges: list[tuple[int, object, object, object]] = []
        ticks = itertools.count(5_000_000_000, 1000)
        self.coordinator = Coordinator(
            self.executor,
            self.store,
            lambda: next(ticks),
            lambda *edge: self.edges.append(edge),
            paranoid,
        )
        self.residency = Residency(self.coordinator)
        self.vocab_size = self.description.vocab_size
        self.replayed = Ledgers(self.description.groups)
        self._folded = 0
        self.targets: dict[int, Target] = defaultdict(lambda: GREEDY)

    # Sequences.

    @property
    def ledgers(self) -> Ledgers:
        return self.store.ledgers

    def state(self, request: int):
        return self.ledgers.tokens.sequences[request]

    def submit(self, request: int, prompt: Sequence[int], budget: int, target: Target = GREEDY) -> None:
        self.targets[request] = target
        law = LAWS.index(target.law)
        self.residency.submit(
            RequestSubmitted(
                request, tuple(prompt), budget, (), ROLES_OF_LAW[law], {}, 0, law=law, seed=target.seed
            )
        )

    def prefill(self, request: int, sizes: Sequence[int] = ()) -> None:
        """Consume all known tokens but the pending one: in chunks of ``sizes``, then at most 16 at once."""
        sizes = list(sizes)
        while not self.state(request).ready:
            state = self.state(request)
            left = state.known - 1 - state.consumed
            chunk = Chunk(request, min(sizes.pop(0) if sizes else 16, left))
            self.residency.prefill([(chunk, self.residency.reserve(chunk))])

    def enter(
        self,
        request: int,
        prompt: Sequence[int],
        budget: int,
        sizes: Sequence[int] = (),
        target: Target = GREEDY,
    ) -> None:
        self.submit(request, prompt, budget, target)
        self.residency.admit(request)
        self.prefill(request, sizes)

    def recompute(self, request: int, sizes: Sequence[int] = (), reason: str = "asked") -> None:
        self.residency.evict(request, reason)
        self.residency.admit(request)
        self.prefill(request, sizes)

    def oracle(self, request: int, count: int = 0) -> list[int]:
        state = self.state(request)
        count = count or state.budget + 16
        return plain(state.prompt, count, self.vocab_size, target=self.targets[request])

    def oracle_of(self, prompt: Sequence[int], count: int, target: Target) -> list[int]:
        return plain(prompt, count, self.vocab_size, target=target)

    # Rounds.

    def script(self, request: int, mask: Sequence[bool]) -> Callable[[int], Proposal]:
        """A host drafter whose i-th draft is the right token iff ``mask[i]``."""
        done = len(self.state(request).generated)
        text = self.oracle(request, done + len(mask) + 1)[done:]
        drafts = tuple(
            token if right else (token + 1) % self.vocab_size
            for token, right in zip(text, mask, strict=False)
        )
        return lambda count: Proposal(drafts[:count], "script")

    def ask(
        self,
        request: int,
        mask: Sequence[bool] | None = (),
        *,
        drafts: int | None = None,
        stop_ids: Sequence[int] = (),
        stop_text: Callable[[Sequence[int]], int | None] | None = None,
        budget: int | None = None,
    ) -> Ask:
        """Offer drafts by ``mask``; ``None`` leaves drafting to the executor."""
        state = self.state(request)
        left = state.budget - len(state.generated) if budget is None else budget
        drafts = len(mask or ()) if drafts is None else drafts
        rules = ClipRules(left, frozenset(stop_ids), stop_text)
        propose = None if mask is None else self.script(request, mask)
        return Ask(request, min(drafts, left - 1), rules, propose, self.targets[request])

    def open(self, *asks: Ask) -> Launch:
        return self.coordinator.open([self.coordinator.begin(ask) for ask in asks])

    def go(self, launch: Launch) -> Launch:
        for _ in range(100):
            if self.coordinator.advance(launch):
                return launch
        raise AssertionError("a launch did not end")

    def round(self, request: int, mask: Sequence[bool] | None = (), **rules: object) -> Transaction:
        """One whole round that must not fault."""
        launch = self.go(self.open(self.ask(request, mask, **rules)))
        assert launch.fault is None
        return launch.transactions[0]

    def finish(self, request: int, masks: Sequence[Sequence[bool]] = ((),)) -> list[int]:
        """Rounds until the budget ends the request, masks in turn; its text."""
        text = list(self.state(request).generated)
        for mask in itertools.cycle(masks):
            tx = self.round(request, mask)
            text.extend(tx.emitted)
            if tx.clip != "none":
                return text
            self.check()
        raise AssertionError

    # Promises.

    def free(self) -> list[list[int]]:
        pools = self.store.pools
        return [pool.free() for pool in (*pools.pages, *pools.columns, *pools.slots)]

    def audits(self) -> dict[int, object]:
        return {
            request: self.executor.audit(view(self.ledgers, request))
            for request, state in self.ledgers.tokens.sequences.items()
            if state.resident
        }

    def standing(self) -> tuple[object, ...]:
        """All that a rollback must leave as it was."""
        return self.ledgers.digests, self.ledgers.snapshot(), self.free(), self.audits()

    def check(self, open_rounds: Sequence[Transaction] = ()) -> None:
        """Ledgers, pools, replay, device and text are all what the tokens say."""
        self.ledgers.check()
        self.conserve(open_rounds)
        self.replay()
        for request, state in self.ledgers.tokens.sequences.items():
            # The chain law keeps the distribution, not the text.
            if self.targets[request].law != "chain":
                text = self.oracle(request, max(len(state.generated), 1))
                assert state.generated == text[: len(state.generated)]
            if state.resident:
                expected = expected_audit(state.ids(0, state.consumed), self.executor.page, self.vocab_size)
                assert self.executor.audit(view(self.ledgers, request)) == expected

    def conserve(self, open_rounds: Sequence[Transaction] = ()) -> None:
        """Free, reserved and committed units together are the pool."""
        pools, ledgers = self.store.pools, self.ledgers
        flights = self.coordinator.flights
        taken = [tx.reservation for tx in open_rounds]
        taken += [reservation for launch in flights for reservation in (*launch.retained, *launch.retired)]
        taken += [pools.holdings(request) for request in ledgers.tokens.sequences]
        for what, members, groups in (
            ("pages", pools.pages, ledgers.pages.groups),
            ("columns", pools.columns, ledgers.recurrent.groups),
            ("slots", pools.slots, ledgers.history.groups),
        ):
            for g, (pool, group) in enumerate(zip(members, groups, strict=True)):
                held = [unit for each in taken for units in getattr(each, what)[g : g + 1] for unit in units]
                assert sorted(pool.free() + held) == list(range(group.capacity)), group.name
        if not open_rounds and not flights:
            pools.check()

    def replay(self) -> None:
        """Fold what was appended since the last time; replayed and live state are one."""
        for record in self.log.records[self._folded :]:
            event = decode(*record)
            assert event is not None
            fold(self.replayed, event)
        self._folded = len(self.log.records)
        assert self.replayed.digests == self.ledgers.digests
        assert self.replayed.snapshot() == self.ledgers.snapshot()


class Kit:
    """What the tests of this folder share; a fixture, since test files cannot import each other."""

    Rig = Rig
    LogRefused = LogRefused
    PROMPT = (3, 1, 4, 1, 5, 9)
    VERBS = VERBS

    @staticmethod
    def prepared(*, rounds: int = 1, requests: int = 1, **toy: object) -> Rig:
        """A rig whose requests have done ``rounds`` rounds."""
        rig = Rig(**toy)
        for request in range(requests):
            rig.enter(request, Kit.PROMPT[request:], 16)
            for done in range(rounds):
                rig.round(request, (True, True, False) if done else ())
        return rig

    @staticmethod
    def again(rig: Rig, before: tuple[object, ...], requests: int = 1) -> None:
        """Nothing moved, and the next try gives the right text."""
        assert rig.standing() == before
        rig.check()
        for request in range(requests):
            expected = rig.oracle(request, 16)
            assert rig.finish(request, ((True, True, False),)) == expected
        rig.check()

    @staticmethod
    def masks(size: int):
        """Every order of right and wrong drafts."""
        return itertools.product((True, False), repeat=size)


@pytest.fixture(scope="session")
def kit() -> type[Kit]:
    """See ``Kit``."""
    return Kit
