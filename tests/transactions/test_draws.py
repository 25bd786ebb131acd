"""Addresses of random words, and what a word means: no word gives a draw that is missing or infinite."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txdecode.state.philox import WORD, philox
from txdecode.state.rng import ROLES
from txdecode.transactions.draws import (
    ACCEPT,
    DRAFT,
    RESIDUAL,
    TARGET,
    Words,
    exponential,
    salt,
    uniform,
    word,
)

WORDS = st.integers(0, WORD)


def test_roles_are_numbered_as_the_ledger_keeps_them():
    assert [ROLES[role] for role in (TARGET, ACCEPT, RESIDUAL, DRAFT)] == [
        "target",
        "accept",
        "residual",
        "draft",
    ]


def test_the_address_is_block_position_role_salt_under_the_seed():
    seed, position = 0x0123456789ABCDEF, 0x1_0000_0007
    for index in range(9):
        block = philox((index // 4, 7, RESIDUAL, 99), (0x89ABCDEF, 0x01234567))
        assert word(seed, RESIDUAL, position, index, 99) == block[index % 4]


@given(st.integers(0, 2**64 - 1), st.integers(0, 1 << 20), st.integers(0, 3), st.integers(0, 40), WORDS)
def test_the_words_of_a_round_are_at_their_addresses(seed, position, role, index, fourth):
    words = Words(seed, position, fourth)
    for row in (3, 0, 3):
        assert words(role, row, index) == word(seed, role, position + row, index, fourth)


def test_other_addresses_have_other_words():
    axes = ((0, 1, 2**32), (0, 1, 2, 3), (5, 6), range(5), (0, 1))
    drawn = [word(s, r, p, i, f) for s, r, p, i, f in itertools.product(*axes)]
    assert len(set(drawn)) == len(drawn)


@given(
    st.integers(0, 4095), st.integers(0, (1 << 20) - 1), st.integers(0, 4095), st.integers(0, (1 << 20) - 1)
)
def test_salts_tell_epochs_and_attempts_apart(epoch, attempt, other_epoch, other_attempt):
    same = (epoch, attempt) == (other_epoch, other_attempt)
    assert (salt(epoch, attempt) == salt(other_epoch, other_attempt)) == same
    assert 0 <= salt(epoch, attempt) <= WORD


def test_a_salt_is_a_word_whatever_the_count():
    assert 0 <= salt(1 << 40, 1 << 40) <= WORD


@pytest.mark.parametrize("x", [0, 1, 2, 1 << 31, WORD - 1, WORD])
def test_the_map_is_exact_and_inside_the_interval(x):
    assert uniform(x) == (2 * x + 1) / 2**33
    assert 0.0 < uniform(x) < 1.0
    # Symmetric: the complement of a word is the complement of its number, to the bit.
    assert uniform(x) + uniform(WORD - x) == 1.0


def test_both_ends_are_finite_draws():
    low, high = exponential(0), exponential(WORD)
    assert 0.0 < low < 1.2e-10
    assert math.isclose(high, 33 * math.log(2))
    assert math.isfinite(math.log(low))
    assert math.isfinite(math.log(high))


@given(st.integers(0, WORD - 1))
def test_a_larger_word_is_a_larger_draw(x):
    assert uniform(x) < uniform(x + 1)
    assert exponential(x) <= exponential(x + 1)
    assert math.isclose(exponential(x), -math.log1p(-(2 * x + 1) / 2**33), rel_tol=1e-15)
