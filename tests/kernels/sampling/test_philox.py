"""Random words: known answers, the vector form against the scalar one, and the map from words to numbers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from txdecode.kernels.sampling import philox as fast
from txdecode.kernels.sampling import reference
from txdecode.state.philox import WORD, philox
from txdecode.transactions.draws import exponential, key, salt, uniform, word

# Random123's own test vectors: counter, key, words.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((WORD,) * 4, (WORD,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
words32 = st.integers(0, WORD)


@pytest.mark.parametrize(("counter", "keys", "expected"), KNOWN)
def test_known_answers(
    counter: tuple[int, int, int, int], keys: tuple[int, int], expected: tuple[int, int, int, int]
) -> None:
    assert philox(counter, keys) == expected
    block, position, role, fourth = counter
    ids = torch.tensor([[4 * block + lane for lane in (2, 0, 1, 3)]])
    made = fast.words(torch.tensor([keys]), torch.tensor([position]), role, ids, fourth=fourth)
    assert made.tolist() == [[expected[2], expected[0], expected[1], expected[3]]]


@settings(deadline=None, max_examples=60)
@given(
    seeds=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4),
    position=words32,
    role=st.integers(0, 3),
    ids=st.lists(st.integers(0, 2**18), min_size=1, max_size=9),
    fourth=words32,
    chunk=st.sampled_from([1, 3, 1 << 16]),
)
def test_word_for_word(
    seeds: list[int], position: int, role: int, ids: list[int], fourth: int, chunk: int
) -> None:
    rows = len(seeds)
    keys = torch.tensor([key(seed) for seed in seeds])
    positions = torch.tensor([(position + row) & WORD for row in range(rows)])
    named = torch.tensor([ids] * rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast, "_CHUNK_BLOCKS", chunk)
        for fourths in (fourth, torch.full((rows,), fourth)):
            made = fast.words(keys, positions, role, named, fourth=fourths)
            assert torch.equal(made, reference.words(keys, positions, role, named, fourth=fourths))
            made = fast.words(keys, positions, role, None, len(ids), fourths)
            assert torch.equal(made, reference.words(keys, positions, role, None, len(ids), fourths))
        shared = fast.words(keys[:1], positions, role, named, fourth=fourth)
        assert torch.equal(shared, reference.words(keys[:1], positions, role, named, fourth=fourth))


def test_of_a_vocabulary_and_into_single_precision() -> None:
    keys, positions = torch.tensor([key(77)]), torch.tensor([5, 9])
    made = fast.words(keys, positions, 0, None, 32_001)
    for row, column in ((0, 0), (1, 32_000), (1, 17_003)):
        assert int(made[row, column]) == word(77, 0, int(positions[row]), column)
    single = torch.empty(2, 8001, 4)
    fast.fill(single, keys, positions, 0)
    assert torch.equal(single.view(2, -1)[:, :32_001], made.float())


def test_no_rows_and_no_ids() -> None:
    keys, none = torch.tensor([key(1)]), torch.tensor([], dtype=torch.int64)
    assert fast.words(keys, none, 0, None, 5).shape == (0, 5)
    assert fast.words(keys, none, 0, torch.empty(0, 3, dtype=torch.int64)).shape == (0, 3)
    assert fast.words(keys, torch.tensor([1]), 0, torch.empty(1, 0, dtype=torch.int64)).shape == (1, 0)


def test_addresses_do_not_meet() -> None:
    """Seeds, roles, positions, ids and salts all change the word."""
    ids = torch.arange(64).expand(3, -1)
    made = [
        fast.words(torch.tensor([key(seed)]), torch.arange(3), role, ids, fourth=last).flatten()
        for seed in (0, 1, 2**32)
        for role in range(4)
        for last in (0, salt(0, 1), salt(1, 0))
    ]
    assert torch.cat(made).unique().numel() == len(made) * 3 * 64


def test_every_word_is_a_number_and_a_finite_draw() -> None:
    """Both ends, and rising between them: at a hundred thousand places also from one word to the next."""
    assert 0.0 < uniform(0) < uniform(1)
    assert uniform(WORD - 1) < uniform(WORD) < 1.0
    assert uniform(0) == 1.0 - uniform(WORD) == 2.0**-33
    assert 0.0 < exponential(0) < exponential(1)
    assert exponential(WORD) == pytest.approx(33 * math.log(2))
    before = 0.0
    for x in range(0, WORD, 43_019):
        here, following = exponential(x), exponential(x + 1)
        assert before < here < following < math.inf
        assert math.isfinite(math.log(here))
        assert uniform(x) * 2.0**33 == 2 * x + 1
        before = following
