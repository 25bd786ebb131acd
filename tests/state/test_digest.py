"""The mixing function, the packed form, and digests against a naive recomputation."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txdecode.state.digest import LEDGERS, MASK, PACKED_SIZE, ZERO, add, mix, pack, unpack

TAGS = (*range(0x10, 0x17), *range(0x20, 0x23), 0x30, 0x31, 0x40, 0x41, 0x50)
WORD = st.integers(0, MASK)


def grid():
    columns = (*range(12), *((1 << 32) + b for b in range(4)))
    return itertools.product(TAGS, range(8), columns, range(24))


def test_mix_is_normative():
    # These numbers are in every log ever written; a change of them needs a new format version.
    assert mix(0x10, 0, 0, 0) == 0x75A170AD2D2F78D0
    assert mix(0x50, 3, 2, 48_000) == 0x89978497DA7C1CB9
    assert mix(0x20, (1 << 40), (1 << 32) + 5, MASK) == 0xD72E656417355F4C


def test_mix_has_no_collision_on_a_grid_and_no_cell_that_weighs_nothing():
    cells = [mix(*cell) for cell in grid()]
    assert len(set(cells)) == len(cells)
    assert 0 not in cells


def test_exchanged_values_change_the_sum():
    # A linear mix would let two neighbours exchange their values unseen: the commonest fault of all.
    for tag, a, b in itertools.product(TAGS, range(3), range(6)):
        for v, w in itertools.combinations(range(8), 2):
            assert mix(tag, a, b, v) + mix(tag, a, b + 1, w) != mix(tag, a, b, w) + mix(tag, a, b + 1, v)
            assert mix(tag, a, b, v) + mix(tag, a + 1, b, w) != mix(tag, a, b, w) + mix(tag, a + 1, b, v)


def test_every_bit_of_the_mix_moves():
    ones = sum(bin(mix(*cell)).count("1") for cell in grid())
    total = sum(1 for _ in grid())
    assert 0.49 < ones / (64 * total) < 0.51


@settings(deadline=None)
@given(st.tuples(WORD, WORD, WORD, WORD, WORD))
def test_pack_round_trip(digests):
    data = pack(digests)
    assert len(data) == PACKED_SIZE == 40
    assert data == b"".join(value.to_bytes(8, "little") for value in digests)
    assert unpack(data) == digests


@pytest.mark.parametrize("size", [0, 39, 41])
def test_unpack_wants_its_length(size):
    with pytest.raises(struct.error):
        unpack(bytes(size))


@settings(deadline=None)
@given(st.tuples(WORD, WORD, WORD, WORD, WORD), st.tuples(*[st.integers(-(1 << 70), 1 << 70)] * 5))
def test_add_is_modular_by_ledger(base, increments):
    after = add(base, increments)
    assert after == tuple((x + y) % (1 << 64) for x, y in zip(base, increments, strict=True))
    assert add(after, tuple(-y for y in increments)) == base


def test_order_of_ledgers():
    assert LEDGERS == ("tokens", "pages", "recurrent", "history", "rng")
    assert (0,) * len(LEDGERS) == ZERO
