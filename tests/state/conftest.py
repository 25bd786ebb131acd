"""A naive shadow of the ledgers, and sequences of valid changes drawn from bytes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from txdecode.state.changes import Admit, Advance, Change, Close, Evict, PerGroup, Submit
from txdecode.state.digest import MASK, mix
from txdecode.state.groups import StateGroup
from txdecode.state.ledgers import Ledgers

# Page sizes differ, there are two column groups, and no two pools are of one size: a mixed-up group shows.
GROUPS = (
    StateGroup("kv", "pages", 4, 1, 8, "target", 10),
    StateGroup("gdn", "column", 1, 1, 8, "target", 6),
    StateGroup("kda", "column", 1, 1, 8, "target", 7),
    StateGroup("conv", "ring", 8, 1, 8, "target", 3),
    StateGroup("ngram", "tokens", 2, 1, 8),
    StateGroup("pairs", "pages", 3, 1, 8, "drafter", 12),
)
PAGES = (("kv", 4, 10), ("pairs", 3, 12))
COLUMNS = (6, 7)
RINGS = (3,)


class Choices:
    """Small numbers from bytes; falsy once they are used up. Shrinks with the bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = iter(data)
        self._left = len(data)

    def __bool__(self) -> bool:
        return self._left > 0

    def pick(self, count: int) -> int:
        self._left -= 1
        return next(self._data, 0) % count

    def some(self, options: list[int], count: int) -> tuple[int, ...]:
        left = list(options)
        return tuple(left.pop(self.pick(len(left))) for _ in range(count))


@attrs.define
class Sequence:
    prompt: tuple[int, ...]
    budget: int
    roles: int
    law: int
    seed: int
    generated: list[int] = attrs.Factory(list)
    epoch: int = 0
    rounds: int = 0
    consumed: int = 0
    resident: bool = False
    tables: list[list[int]] = attrs.Factory(list)
    columns: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()

    @property
    def known(self) -> int:
        return len(self.prompt) + len(self.generated)


class Shadow:
    """The ledgers again, written the obvious way from the documents; ``next`` draws a valid change."""

    def __init__(self) -> None:
        self.sequences: dict[int, Sequence] = {}
        self.submitted = 0

    # What a ledger would hold.

    def cells(self, ledger: str) -> Iterator[tuple[int, int, int, int]]:
        for r, s in self.sequences.items():
            if ledger == "tokens":
                yield from ((0x10, r, i, token) for i, token in enumerate(s.prompt))
                yield from ((0x11, r, i, token) for i, token in enumerate(s.generated))
                yield from ((0x12, r, token, s.generated.count(token)) for token in set(s.generated))
                yield from ((0x13, r, s.rounds, s.consumed), (0x14, r, 0, s.epoch), (0x15, r, 0, s.budget))
                if s.resident:
                    yield 0x16, r, 0, 1
            elif ledger == "rng":
                yield from ((0x50, r, role, s.known) for role in range(s.roles))
                yield from ((tag, r, 0, value) for tag, value in ((0x51, s.seed), (0x52, s.law)) if value)
            elif s.resident and ledger == "pages":
                yield 0x22, r, 0, s.consumed
                for g, pages in enumerate(s.tables):
                    yield from ((0x20, r, (g << 32) + i, page) for i, page in enumerate(pages))
                    yield from ((0x21, g, page, 1) for page in pages)
            elif s.resident and ledger == "recurrent":
                yield 0x31, r, 0, s.consumed
                yield from ((0x30, r, g, column) for g, column in enumerate(s.columns))
            elif s.resident and ledger == "history":
                yield 0x41, r, 0, s.consumed
                yield from ((0x40, r, g, slot) for g, slot in enumerate(s.slots))

    def digests(self) -> tuple[int, ...]:
        return tuple(
            sum(mix(*cell) for cell in self.cells(ledger)) & MASK
            for ledger in ("tokens", "pages", "recurrent", "history", "rng")
        )

    # What is free, less what a batch has taken already.

    def free_pages(self, g: int, taken: set[int]) -> list[int]:
        held = {page for s in self.sequences.values() if s.resident for page in s.tables[g]} | taken
        return [page for page in range(PAGES[g][2]) if page not in held]

    def free_units(
        self, what: str, sizes: tuple[int, ...], taken: set[tuple[str, int, int]]
    ) -> list[list[int]]:
        holders = [s for s in self.sequences.values() if s.resident]
        return [
            [
                unit
                for unit in range(size)
                if all(getattr(s, what)[g] != unit for s in holders) and (what, g, unit) not in taken
            ]
            for g, size in enumerate(sizes)
        ]

    # Drawing changes.

    def next(self, choices: Choices, taken: set[tuple[str, int, int]], busy: set[int]) -> Change | None:
        """A valid change of a sequence not in ``busy``, with units not in ``taken``; both are extended."""
        if len(self.sequences) < 4 and choices.pick(5) == 0:
            r = self.submitted
            self.submitted += 1
            prompt = tuple(choices.pick(5) for _ in range(1 + choices.pick(7)))
            busy.add(r)
            law, seed = choices.pick(3), choices.pick(3) * 0x7FFF_FFFF_FFFF_FFFF
            return Submit(r, prompt, 1 + choices.pick(9), (1, 1, 4)[law], law, seed)
        known = [r for r in self.sequences if r not in busy]
        if not known:
            return None
        r = known[choices.pick(len(known))]
        busy.add(r)
        s = self.sequences[r]
        if not s.resident:
            return Close(r, ()) if choices.pick(8) == 0 else self._admit(r, choices, taken)
        action = choices.pick(10)
        if action == 0:
            return Close(r, self._table(s))
        if action == 1:
            return Evict(r, self._table(s))
        return self._advance(r, s, choices, taken)

    def _table(self, s: Sequence) -> PerGroup:
        return tuple(tuple(pages) for pages in s.tables)

    def _admit(self, r: int, choices: Choices, taken: set[tuple[str, int, int]]) -> Admit | None:
        columns = self.free_units("columns", COLUMNS, taken)
        slots = self.free_units("slots", RINGS, taken)
        if not all((*columns, *slots)):
            return None
        change = Admit(
            r,
            tuple(free[choices.pick(len(free))] for free in columns),
            tuple(free[choices.pick(len(free))] for free in slots),
        )
        taken.update(("columns", g, unit) for g, unit in enumerate(change.columns))
        taken.update(("slots", g, unit) for g, unit in enumerate(change.slots))
        return change

    def _advance(
        self, r: int, s: Sequence, choices: Choices, taken: set[tuple[str, int, int]]
    ) -> Change | None:
        is_round = s.consumed == s.known - 1
        left = s.budget - len(s.generated)
        if is_round and not left:
            return Close(r, self._table(s))
        count = 1 + choices.pick(min(left, 4) if is_round else s.known - 1 - s.consumed)
        emitted = tuple(choices.pick(5) for _ in range(count)) if is_round else ()
        rng = (s.known + count,) * s.roles if is_round else ()
        if is_round and choices.pick(6) == 0:
            return Advance(r, count, emitted, (), (), rng, True, True, self._table(s))
        adopted = []
        for g, (_, size, _) in enumerate(PAGES):
            free = self.free_pages(g, {page for what, h, page in taken if what == "pages" and h == g})
            needed = -(-(s.consumed + count) // size) - len(s.tables[g])
            if needed > len(free):
                return None
            adopted.append(choices.some(free, needed))
        columns = self.free_units("columns", COLUMNS, taken)
        if not all(columns):
            return None
        moved = tuple(free[choices.pick(len(free))] for free in columns)
        taken.update(("pages", g, page) for g, pages in enumerate(adopted) for page in pages)
        taken.update(("columns", g, unit) for g, unit in enumerate(moved))
        return Advance(r, count, emitted, tuple(adopted), moved, rng, is_round)

    # Performing them.

    def perform(self, change: Change) -> None:
        if isinstance(change, Submit):
            self.sequences[change.request] = Sequence(
                change.prompt, change.budget, change.roles, change.law, change.seed
            )
            return
        s = self.sequences[change.request]
        if isinstance(change, Close) or (isinstance(change, Advance) and change.close):
            del self.sequences[change.request]
        elif isinstance(change, Evict):
            s.resident, s.consumed, s.epoch = False, 0, s.epoch + 1
        elif isinstance(change, Admit):
            s.resident, s.columns, s.slots = True, change.columns, change.slots
            s.tables = [[] for _ in PAGES]
        else:
            s.consumed += change.consumed
            s.rounds += change.round
            s.generated.extend(change.emitted)
            s.columns = change.columns
            for pages, adopted in zip(s.tables, change.adopted, strict=True):
                pages.extend(adopted)


def contents(ledgers: Ledgers) -> dict[str, Any]:
    """Everything that the ledgers hold, copied deeply: equal iff nothing changed."""
    return copy.deepcopy(
        {
            "digests": ledgers.digests,
            "sequences": ledgers.tokens.sequences,
            "tables": ledgers.pages.tables,
            "lengths": ledgers.pages.lengths,
            "references": ledgers.pages.references,
            "columns": (ledgers.recurrent.units, ledgers.recurrent.positions, ledgers.recurrent.owners),
            "rings": (ledgers.history.units, ledgers.history.positions, ledgers.history.owners),
            "rng": ledgers.rng.streams,
        }
    )


def changes(data: bytes) -> list[Change]:
    """A valid sequence of changes."""
    choices, shadow, out = Choices(data), Shadow(), []
    while choices:
        change = shadow.next(choices, set(), set())
        if change is not None:
            shadow.perform(change)
            out.append(change)
    return out


def fold(ledgers: Ledgers, changed: list[Change]) -> Ledgers:
    """Apply changes one by one."""
    for change in changed:
        ledgers.apply(ledgers.delta(change))
    return ledgers


class Kit:
    """What the tests of this folder share; a fixture, since test files cannot import each other."""

    groups = GROUPS
    Choices = Choices
    Shadow = Shadow
    contents = staticmethod(contents)
    changes = staticmethod(changes)
    fold = staticmethod(fold)

    @staticmethod
    def ledgers() -> Ledgers:
        return Ledgers(GROUPS)

    @staticmethod
    def base() -> Ledgers:
        """0 is ready for its first round and draws by the chain law, 1 waits, 2 has generated two tokens and may
        emit two more, 3 is in the middle of its prefill."""
        return fold(
            Ledgers(GROUPS),
            [
                Submit(0, (1, 2, 3, 4, 5), 4, 4, 2, 77),
                Admit(0, (0, 0), (0,)),
                Advance(0, 4, (), ((0,), (0, 1)), (1, 1), (), False),
                Submit(1, (7,), 4, 1),
                Submit(2, (6, 6), 4, 1),
                Admit(2, (2, 2), (2,)),
                Advance(2, 1, (), ((1,), (2,)), (3, 3), (), False),
                Advance(2, 2, (9, 9), ((), ()), (2, 2), (4,), True),
                Submit(3, (1, 2, 3, 4, 5), 4, 1),
                Admit(3, (4, 4), (1,)),
                Advance(3, 2, (), ((4,), (4,)), (5, 5), (), False),
            ],
        )


@pytest.fixture(scope="session")
def kit() -> type[Kit]:
    """See ``Kit``."""
    return Kit
