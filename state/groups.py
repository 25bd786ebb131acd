"""State groups: what an executor keeps for a sequence, as data that the ledgers are generic over."""

from __future__ import annotations

from typing import Literal

import attrs

Kind = Literal["pages", "column", "ring", "tokens"]
Owner = Literal["target", "drafter"]
Columns = Literal["row", "round"]


@attrs.frozen
class StateGroup:
    """One kind of state that an executor keeps.

    ``kind`` says how a sequence holds it and how a round may write to it:

    - ``pages``: rows in pages of ``granularity`` rows, ``capacity`` pages in the pool. A round writes
      rows past the committed length; what lies past it is never read.
    - ``column``: one state of fixed size for a sequence, ``capacity`` columns in the pool. A round writes
      the state after verified row i to its i-th reserved column; with ``columns="round"`` it reserves one
      column whatever its width, which holds the state after the last committed row once it is settled.
    - ``ring``: the last ``granularity`` rows in a ring, ``capacity`` rings in the pool. A round of W rows
      overwrites the W oldest, so the ring must be longer than the window by the widest round.
    - ``tokens``: a context that is a pure function of the token ids; it takes nothing from a pool.

    ``row_bytes`` counts all layers. ``owner`` is ``drafter`` for the state of a learned drafter.
    """

    name: str
    kind: Kind
    granularity: int
    layers: int
    row_bytes: int
    owner: Owner = "target"
    capacity: int = 0
    columns: Columns = "row"

    def __attrs_post_init__(self) -> None:
        assert self.granularity >= 1, f"group {self.name}: granularity {self.granularity}"
        assert self.kind == "tokens" or self.capacity >= 1, f"group {self.name}: capacity {self.capacity}"
        assert self.columns == "row" or self.kind == "column", (
            f"group {self.name}: columns of kind {self.kind}"
        )

    def reserved_columns(self, rows: int) -> int:
        """Columns that a round of ``rows`` rows reserves of this group."""
        return rows if self.columns == "row" else min(rows, 1)


def of_kind(groups: tuple[StateGroup, ...], kind: Kind) -> tuple[StateGroup, ...]:
    """The groups of one kind, in the order of the description: the order that events use."""
    return tuple(group for group in groups if group.kind == kind)
