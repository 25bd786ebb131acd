"""The three physical forms of recurrent state: how the state after row t-1 is had when row t is rejected.

- ``columns``: every row leaves its state in a column of its own, and a commit names one. A state a row.
- ``replay``: rows leave compact records (key, correction, decay); a commit folds t of them into the committed
  state, in the order and by the operations of the forward. One state a sequence, a record a row.
- ``restore``: rows leave nothing; a commit of less than all rows runs the accepted ones again from the committed
  state. One state a sequence, and a second forward.

What they commit is equal to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs

from txdecode.kernels.attention.cache import Segment
from txdecode.kernels.gdn.rows import ZERO, Stretch
from txdecode.kernels.hybrid_state import Geometry
from txdecode.kernels.models.hybrid import HybridModel
from txdecode.transactions.executor import Border, Rollback, SequenceView


@attrs.frozen
class Taken:
    """Rows of one sequence as a launch takes them: ``tokens`` at positions ``view.length`` .., the page tables
    that cover them, for each column group the columns that its plan reserved, and where checkpoints go."""

    view: SequenceView
    tokens: tuple[int, ...]
    pages: tuple[tuple[int, ...], ...]
    columns: tuple[tuple[int, ...], ...]
    borders: tuple[Border, ...] = ()

    @property
    def slot(self) -> int:
        """The sequence's ring; slot 0 for a model that has none."""
        return self.view.slots[0] if self.view.slots else 0

    @property
    def current(self) -> int:
        """The column of the committed state, ``ZERO`` before the first token."""
        return self.view.columns[0] if self.view.columns and self.view.length else ZERO

    def segment(self, count: int | None = None) -> Segment:
        """The first ``count`` rows (all) for attention."""
        return Segment(self.tokens[:count], self.view.length, self.pages[0] if self.pages else ())

    def crossed(self, count: int) -> list[Border]:
        """Borders among the first ``count`` rows."""
        return [border for border in self.borders if border.row < count]

    def stretch(self, targets: tuple[int, ...], count: int | None = None) -> Stretch:
        """The first ``count`` rows (all) for the linear layers, which leave their state in ``targets``."""
        rows = len(self.tokens) if count is None else count
        return Stretch(self.slot, self.view.length, rows, self.current, targets)


Move = tuple[Taken, int]
"""A verified round and the number t of its rows that are committed."""


class Form(Protocol):
    """One form. ``records`` says whether a verify keeps records."""

    records: bool

    def stretches(self, rounds: Sequence[Taken]) -> list[Stretch]:
        """Where the rows of a verify read and write recurrent state."""

    def settle(self, moves: Sequence[Move]) -> None:
        """The reserved column of each round gets the state after its row t-1, and the checkpoint column of every
        border among its committed rows the state there."""


class Columns:
    """A column a row."""

    records = False

    def __init__(self, model: HybridModel) -> None:
        self._model = model

    def stretches(self, rounds: Sequence[Taken]) -> list[Stretch]:
        """Row i leaves its state in the i-th reserved column."""
        return [item.stretch(item.columns[0][: len(item.tokens)]) for item in rounds]

    def settle(self, moves: Sequence[Move]) -> None:
        """The ledger names the column of row t-1, which holds what it should; checkpoints are copies."""
        for item, count in moves:
            for border in item.crossed(count):
                self._model.copy_column(item.columns[0][border.row], border.columns[0])


class Replay:
    """Records, folded forward. ``_first`` is the row of the launch at which a request's records begin."""

    records = True

    def __init__(self, model: HybridModel, scratch: int) -> None:
        self._model = model
        self._scratch = scratch
        self._first: dict[int, tuple[int, int]] = {}

    def stretches(self, rounds: Sequence[Taken]) -> list[Stretch]:
        """All rows of a round share a scratch column."""
        self._first.clear()
        made, first = [], 0
        for index, item in enumerate(rounds):
            self._first[item.view.request] = (first, self._scratch + index)
            made.append(item.stretch((self._scratch + index,)))
            first += len(item.tokens)
        return made

    def settle(self, moves: Sequence[Move]) -> None:
        """Fold t records into the reserved column; with all rows accepted the scratch column has the state."""
        for item, count in moves:
            assert item.view.request in self._first, "settle of a round that was not in the last verify"
            first, scratch = self._first.pop(item.view.request)
            (target,) = item.columns[0]
            if count == len(item.tokens):
                self._model.copy_column(scratch, target)
            else:
                self._model.fold(item.current, target, first, count)
            for border in item.crossed(count):
                self._model.fold(item.current, border.columns[0], first, border.row + 1)


class Restore:
    """A second forward over the accepted rows, with the real keys and values before them."""

    records = False

    def __init__(self, model: HybridModel, scratch: int) -> None:
        self._model = model
        self._scratch = scratch
        self._columns: dict[int, int] = {}

    def stretches(self, rounds: Sequence[Taken]) -> list[Stretch]:
        """All rows of a round share a scratch column; the committed one is the snapshot."""
        self._columns = {item.view.request: self._scratch + index for index, item in enumerate(rounds)}
        return [item.stretch((self._scratch + index,)) for index, item in enumerate(rounds)]

    def settle(self, moves: Sequence[Move]) -> None:
        """Copy where all rows were accepted; run the accepted rows of the others again, in one forward."""
        again = []
        for item, count in moves:
            (target,) = item.columns[0]
            # One after the other: they are rows of one sequence.
            for border in item.crossed(count):
                self._again([(item, border.row + 1, border.columns[:1])])
            assert item.view.request in self._columns, "settle of a round that was not in the last verify"
            scratch = self._columns.pop(item.view.request)
            if count == len(item.tokens):
                self._model.copy_column(scratch, target)
            else:
                again.append((item, count, item.columns[0]))
        if again:
            self._again(again)

    def _again(self, runs: Sequence[tuple[Taken, int, tuple[int, ...]]]) -> None:
        self._model.forward(
            [item.segment(count) for item, count, _ in runs],
            [item.stretch(targets, count) for item, count, targets in runs],
            logits=False,
        )


class Stateless:
    """A model without recurrent layers."""

    records = False

    def stretches(self, rounds: Sequence[Taken]) -> list[Stretch]:
        """No linear layer looks at them."""
        return [item.stretch((0,)) for item in rounds]

    def settle(self, moves: Sequence[Move]) -> None:
        """There is nothing to move."""


def form_of(rollback: Rollback, model: HybridModel, shape: Geometry) -> Form:
    """The form by its name."""
    if not model.config.linear_layers:
        return Stateless()
    if rollback == "columns":
        return Columns(model)
    assert rollback in ("replay", "restore"), rollback
    return (Replay if rollback == "replay" else Restore)(model, shape.capacity)
