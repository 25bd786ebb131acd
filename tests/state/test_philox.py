"""Philox4x32-10 against the known answers that Random123 publishes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txdecode.state.philox import KEY_STEPS, MULTIPLIERS, WORD, philox

KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((WORD,) * 4, (WORD,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
WORDS = st.integers(0, WORD)


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_known_answers(counter, key, words):
    assert philox(counter, key) == words


@given(st.tuples(WORDS, WORDS, WORDS, WORDS), st.tuples(WORDS, WORDS))
def test_words_stay_words_and_a_key_permutes_the_counters(counter, key):
    made = philox(counter, key)
    assert all(0 <= word <= WORD for word in made)
    assert backwards(made, key) == counter


def backwards(block, key):
    """The rounds undone one by one: the multipliers are odd, so each has an inverse modulo 2^32."""
    inverse = [pow(m, -1, 1 << 32) for m in MULTIPLIERS]
    for step in reversed(range(10)):
        k0, k1 = ((k + step * s) & WORD for k, s in zip(key, KEY_STEPS, strict=True))
        c0, c1, c2, c3 = block
        old0, old2 = c3 * inverse[0] & WORD, c1 * inverse[1] & WORD
        block = (old0, c0 ^ k0 ^ (MULTIPLIERS[1] * old2 >> 32), old2, c2 ^ k1 ^ (MULTIPLIERS[0] * old0 >> 32))
    return block
