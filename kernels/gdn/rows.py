"""What a launch does to recurrent and conv state, row by row: where each row reads and writes."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import numpy.typing as npt
import torch

Ints = npt.NDArray[np.int64]

ZERO = -1
"""A column that nobody wrote: the zero state. A ring row that nobody wants."""


@attrs.frozen
class Stretch:
    """Rows of one sequence in a launch, at positions ``position`` .. ``position + count - 1``.

    ``slot`` is its ring; ``current`` the column that holds the state before them (not read at position zero);
    ``targets`` the column that takes the state after each row, or one column for all, which the last row keeps.
    """

    slot: int
    position: int
    count: int
    current: int
    targets: tuple[int, ...]


@attrs.frozen(eq=False)
class Places:
    """A launch for every linear layer alike, int64 arrays.

    ``starts`` [sequences + 1]: first row of each. ``windows`` [sequences, conv_width - 1]: ring rows that come
    before its first row, oldest first, ``ZERO`` before position zero. ``writes`` [rows]: ring row that takes each
    row's raw columns, or ``ZERO``. ``sources``, ``targets`` [rows]: column read and written.
    """

    starts: Ints
    windows: Ints
    writes: Ints
    sources: Ints
    targets: Ints

    @property
    def rows(self) -> int:
        """Rows of the launch."""
        return int(self.writes.shape[0])


def places(stretches: Sequence[Stretch], ring_rows: int, conv_width: int) -> Places:
    """Where the rows of a launch read and write. A ring holds ``ring_rows`` rows, by position modulo that."""
    starts, windows = [0], list[list[int]]()
    writes, sources, targets = list[int](), list[int](), list[int]()
    for item in stretches:
        base, end = item.slot * ring_rows, item.position + item.count
        starts.append(starts[-1] + item.count)
        before = range(item.position - conv_width + 1, item.position)
        windows.append([base + p % ring_rows if p >= 0 else ZERO for p in before])
        kept = end - ring_rows
        writes += [base + p % ring_rows if p >= kept else ZERO for p in range(item.position, end)]
        assert len(item.targets) in (1, item.count), (len(item.targets), item.count)
        made = item.targets * item.count if len(item.targets) == 1 else item.targets
        sources += [item.current if item.position else ZERO, *made[:-1]]
        targets += made
    return Places(
        np.array(starts, dtype=np.int64),
        np.array(windows, dtype=np.int64).reshape(len(stretches), conv_width - 1),
        np.array(writes, dtype=np.int64),
        np.array(sources, dtype=np.int64),
        np.array(targets, dtype=np.int64),
    )


@attrs.frozen(eq=False)
class GdnWeights:
    """What a linear layer has beside its projections, fp32.

    ``conv`` [conv_width, conv_size]: taps, oldest first. ``decay`` [value_heads]: -exp(A_log). ``dt_bias``
    [value_heads]. ``norm`` [value_dim]: scale of the gated norm. ``key_heads`` and ``key_dim`` say how the conv
    columns divide into queries, keys and values.
    """

    conv: torch.Tensor
    decay: torch.Tensor
    dt_bias: torch.Tensor
    norm: torch.Tensor
    key_heads: int
    key_dim: int
    eps: float

    @property
    def value_heads(self) -> int:
        """Number of value heads."""
        return self.decay.shape[0]

    @property
    def value_dim(self) -> int:
        """Dimension of one value head."""
        return self.norm.shape[0]


@attrs.frozen(eq=False)
class Records:
    """What rows did to the state of one layer, compactly; fp32.

    ``keys`` [rows, key_heads, key_dim] are normalised, ``deltas`` [rows, value_heads, value_dim] the corrections
    times beta, ``decays`` [rows, value_heads] what the state was multiplied with before.
    """

    keys: torch.Tensor
    deltas: torch.Tensor
    decays: torch.Tensor

    @classmethod
    def empty(cls, rows: int, key_heads: int, key_dim: int, value_heads: int, value_dim: int) -> Records:
        """Room for ``rows`` rows."""
        return cls(
            torch.empty(rows, key_heads, key_dim),
            torch.empty(rows, value_heads, value_dim),
            torch.empty(rows, value_heads),
        )

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return (self.keys[0].numel() + self.deltas[0].numel() + self.decays[0].numel()) * 4
