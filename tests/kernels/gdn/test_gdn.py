"""The gated delta net: the compiled recurrence against the formulas, and against itself to the bit."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from txdecode.kernels.gdn import recurrent, reference
from txdecode.kernels.gdn.rows import ZERO, GdnWeights, Places, Records, Stretch, places

# Of the largest value of a tensor: fp32 sums of up to 64 products against doubles.
BOUND = 1e-5
COLUMNS, SLOTS = 24, 3


@attrs.frozen
class Shape:
    """A layer of the net and the length of its rings."""

    key_heads: int
    repeat: int
    dim: int
    value_dim: int
    width: int
    ring_rows: int

    @property
    def heads(self) -> int:
        return self.key_heads * self.repeat

    @property
    def conv_size(self) -> int:
        return 2 * self.key_heads * self.dim + self.heads * self.value_dim


@attrs.frozen(eq=False)
class World:
    """A layer, its state, and rows to run through it. Columns and rings begin with what others left there."""

    shape: Shape
    weights: GdnWeights
    states: torch.Tensor
    ring: torch.Tensor
    projected: torch.Tensor

    def again(self) -> World:
        return attrs.evolve(self, states=self.states.clone(), ring=self.ring.clone())


@attrs.frozen(eq=False)
class Made:
    """All that a launch left."""

    out: torch.Tensor
    records: Records
    states: torch.Tensor
    ring: torch.Tensor

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        kept = self.records
        return self.out, self.states, self.ring, kept.keys, kept.deltas, kept.decays


def world(shape: Shape, rows: int, seed: int) -> World:
    random = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=random)

    def uniform(low: float, high: float, *size: int) -> torch.Tensor:
        return low + (high - low) * torch.rand(*size, generator=random)

    weights = GdnWeights(
        conv=normal(shape.width, shape.conv_size) / math.sqrt(shape.width),
        decay=-uniform(0.02, 2.0, shape.heads),
        dt_bias=uniform(-3.0, 1.0, shape.heads),
        norm=1.0 + 0.2 * normal(shape.value_dim),
        key_heads=shape.key_heads,
        key_dim=shape.dim,
        eps=1e-6,
    )
    columns = shape.conv_size + shape.heads * (shape.value_dim + 2)
    return World(
        shape,
        weights,
        normal(COLUMNS, shape.heads, shape.dim, shape.value_dim),
        normal(SLOTS * shape.ring_rows, shape.conv_size),
        normal(rows, columns),
    )


def advanced(given_world: World, stretches: Sequence[Stretch], kernel: object = recurrent) -> Made:
    """One launch, on copies."""
    it, shape = given_world.again(), given_world.shape
    rows = it.projected.shape[0]
    records = Records.empty(rows, shape.key_heads, shape.dim, shape.heads, shape.value_dim)
    out = torch.empty(rows, shape.heads * shape.value_dim)
    where = places(stretches, shape.ring_rows, shape.width)
    advance = reference.advance if kernel is reference else recurrent.advance
    advance(it.projected, it.weights, it.states, it.ring, where, records, out)
    return Made(out, records, it.states, it.ring)


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((found - expected).abs().max() <= BOUND * max(float(expected.abs().max()), 1.0))


shapes = st.builds(
    lambda key_heads, repeat, dim, value_dim, width, spare: Shape(
        key_heads, repeat, dim, value_dim, width, width - 1 + spare
    ),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([8, 12, 16, 33, 64]),
    st.sampled_from([8, 10, 24, 64]),
    st.integers(2, 4),
    st.integers(1, 6),
)


@st.composite
def launches(draw: st.DrawFn) -> tuple[World, list[Stretch]]:
    """Up to three sequences at any place of their rings, each with a column for all rows or one a row."""
    shape = draw(shapes)
    free = iter(range(COLUMNS))
    stretches = []
    for slot in range(draw(st.integers(1, SLOTS))):
        count = draw(st.integers(1, 6))
        targets = tuple(next(free) for _ in range(draw(st.sampled_from([1, count]))))
        position = draw(st.sampled_from([0, 1, 2, 3, 7, 64, 1000]))
        stretches.append(Stretch(slot, position, count, next(free), targets))
    rows = sum(item.count for item in stretches)
    return world(shape, rows, draw(st.integers(0, 1000))), stretches


@given(launches())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_recurrence_is_the_formulas(launch: tuple[World, list[Stretch]]) -> None:
    it, stretches = launch
    found, expected = advanced(it, stretches), advanced(it, stretches, reference)
    assert torch.equal(found.ring, expected.ring)
    for mine, theirs in zip(found.tensors, expected.tensors, strict=True):
        assert close(mine, theirs)
    written = {column for item in stretches for column in item.targets}
    rest = [column for column in range(COLUMNS) if column not in written]
    assert torch.equal(found.states[rest], it.states[rest])


@given(launches())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_fold_makes_the_state_after_every_row_to_the_bit(launch: tuple[World, list[Stretch]]) -> None:
    it, stretches = launch
    free = iter(range(COLUMNS))
    a_row = [
        attrs.evolve(item, current=next(free), targets=tuple(next(free) for _ in range(item.count)))
        for item in stretches
    ]
    made, first = advanced(it, a_row), 0
    for item in a_row:
        source = item.current if item.position else ZERO
        for count in range(item.count + 1):
            before = made.states[source] if item.position else torch.zeros_like(made.states[0])
            expected = made.states[item.targets[count - 1]] if count else before
            for fold in (recurrent.fold, reference.fold):
                states = made.states.clone()
                target = source if count == item.count and item.position else COLUMNS - 1
                fold(states, source, target, made.records, first, count)
                assert torch.equal(states[target], expected), (count, fold)
                others = [column for column in range(COLUMNS) if column != target]
                assert torch.equal(states[others], made.states[others])
        first += item.count


@given(
    shapes,
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.tuples(*[st.sampled_from([0, 1, 5, 130])] * 2),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=6),
    st.integers(0, 1000),
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_rows_of_one_launch_are_rows_of_any_launches(
    shape: Shape,
    counts: tuple[int, int],
    start: tuple[int, int],
    cuts: list[tuple[int, int]],
    seed: int,
) -> None:
    """Two sequences: all rows at once, and cut into launches in which either may be missing."""
    it = world(shape, sum(counts), seed)
    first = [0, counts[0]]
    whole = advanced(it, [Stretch(i, start[i], counts[i], i, (i,)) for i in range(2)])
    done, parts, outs = [0, 0], it.again(), torch.empty_like(whole.out)
    for cut in [*cuts, counts]:
        takes = [min(cut[i], counts[i] - done[i]) for i in range(2)]
        active = [i for i in range(2) if takes[i]]
        if not active:
            continue
        rows = [row for i in active for row in range(first[i] + done[i], first[i] + done[i] + takes[i])]
        part = attrs.evolve(parts, projected=parts.projected[rows])
        made = advanced(part, [Stretch(i, start[i] + done[i], takes[i], i, (i,)) for i in active])
        parts = attrs.evolve(parts, states=made.states, ring=made.ring)
        outs[rows] = made.out
        done = [done[i] + takes[i] for i in range(2)]
    assert done == list(counts)
    assert torch.equal(outs, whole.out)
    assert torch.equal(parts.states, whole.states)
    assert torch.equal(parts.ring, whole.ring)


def test_without_records_the_rest_is_the_same() -> None:
    it = world(Shape(2, 2, 16, 12, 4, 7), 4, 0)
    stretches = [Stretch(0, 5, 4, 0, (1, 2, 3, 4))]
    made, other = advanced(it, stretches), it.again()
    out = torch.empty_like(made.out)
    where = places(stretches, 7, 4)
    recurrent.advance(other.projected, other.weights, other.states, other.ring, where, None, out)
    assert torch.equal(out, made.out)
    assert torch.equal(other.states, made.states)


@pytest.mark.parametrize("gate", [-50.0, 50.0])
@pytest.mark.parametrize("step", [-50.0, 50.0])
@pytest.mark.parametrize("log_decay", [-12.0, 6.0])
def test_extreme_gates_and_decays(gate: float, step: float, log_decay: float) -> None:
    shape = Shape(2, 3, 16, 12, 4, 9)
    it = world(shape, 5, 1)
    it.projected[:, -2 * shape.heads : -shape.heads] = gate
    it.projected[:, -shape.heads :] = step
    it = attrs.evolve(
        it, weights=attrs.evolve(it.weights, decay=torch.full((shape.heads,), -math.exp(log_decay)))
    )
    stretches = [Stretch(1, 3, 5, 0, (1,))]
    found, expected = advanced(it, stretches), advanced(it, stretches, reference)
    assert all(bool(tensor.isfinite().all()) for tensor in found.tensors)
    for mine, theirs in zip(found.tensors, expected.tensors, strict=True):
        assert close(mine, theirs)


def test_exp_is_within_two_units_in_the_last_place() -> None:
    points = np.linspace(-87.0, 88.0, 20_011, dtype=np.float32)
    for x in [*points, np.float32(0.0), np.float32(-0.0), np.float32(1e-30)]:
        expected = math.exp(float(x))
        assert abs(float(recurrent._exp(x)) - expected) <= 2 * float(np.spacing(np.float32(expected))), x
    # Beyond its range it stands still.
    assert recurrent._exp(np.float32(-500.0)) == recurrent._exp(np.float32(-87.0))
    assert recurrent._exp(np.float32(math.inf)) == recurrent._exp(np.float32(88.0))


@pytest.mark.parametrize("row", [2, 3])
def test_a_row_that_is_no_number_stays_in_its_sequence(row: int) -> None:
    """Of two sequences, the second has the row; what came before it is as it was."""
    it = world(Shape(2, 2, 16, 12, 3, 8), 6, 2)
    stretches = [Stretch(0, 4, 2, 0, (1, 2)), Stretch(1, 4, 4, 3, (4, 5, 6, 7))]
    sound = advanced(it, stretches)
    it.projected[row] = math.nan
    found = advanced(it, stretches)
    assert torch.equal(found.out[:row], sound.out[:row])
    assert bool(found.out[row:].isnan().all())
    assert torch.equal(found.states[: row + 2], sound.states[: row + 2])
    assert bool(found.states[row + 2].isnan().all())
    assert torch.equal(found.ring[:8], sound.ring[:8])


@pytest.mark.parametrize("column", ["query", "key", "value", "z", "b", "a"])
def test_a_damaged_column_is_seen_in_its_head(column: str) -> None:
    """A weight that is no number makes a column so in all rows; a sigmoid must not hide it."""
    shape = Shape(1, 1, 8, 8, 2, 4)
    it = world(shape, 2, 3)
    place = {"query": 0, "key": 8, "value": 16, "z": 24, "b": 32, "a": 33}[column]
    it.projected[:, place] = math.nan
    assert bool(advanced(it, [Stretch(0, 0, 2, 0, (1,))]).out[1].isnan().any())


def test_places_of_a_launch() -> None:
    found = places([Stretch(0, 0, 2, 9, (1, 2)), Stretch(2, 6, 3, 5, (7,))], ring_rows=5, conv_width=3)
    assert found.rows == 5
    expected = Places(
        starts=np.array([0, 2, 5]),
        windows=np.array([[ZERO, ZERO], [10 + 4, 10 + 0]]),
        writes=np.array([0, 1, 10 + 1, 10 + 2, 10 + 3]),
        sources=np.array([ZERO, 1, 5, 7, 7]),
        targets=np.array([1, 2, 7, 7, 7]),
    )
    for field in attrs.fields(Places):
        assert getattr(found, field.name).tolist() == getattr(expected, field.name).tolist(), field.name


def test_a_stretch_longer_than_its_ring_leaves_its_last_rows() -> None:
    found = places([Stretch(1, 3, 9, 0, (1,))], ring_rows=4, conv_width=2)
    assert found.writes.tolist() == [ZERO] * 5 + [4 + p % 4 for p in range(8, 12)]


@pytest.mark.parametrize("targets", [(), (1, 2), (1, 2, 3, 4)])
def test_a_column_for_all_rows_or_one_a_row(targets: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError):
        places([Stretch(0, 4, 3, 0, targets)], ring_rows=8, conv_width=4)


def test_bytes_of_a_record() -> None:
    assert Records.empty(5, 2, 16, 6, 24).row_bytes == 4 * (2 * 16 + 6 * 24 + 6)
