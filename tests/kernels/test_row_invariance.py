"""Logits, keys and values are one function of the tokens before a row, to the bit."""

from __future__ import annotations

import functools
from collections.abc import Callable

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from txdecode.kernels.executor import DenseExecutor
from txdecode.kernels.models.weights import DenseWeights
from txdecode.transactions.executor import (
    AuditEntry,
    PrefillPlan,
    Proposal,
    Round,
    RoundPlan,
    SequenceView,
)

MakeWeights = Callable[..., DenseWeights]
LONGEST = 200
ROWS_MAX = 16
PAGES = 24
CASES = [
    ("llama", "bf16"),
    ("llama", "fp32"),
    ("llama-biased", "bf16"),
    ("qwen2", "bf16"),
    ("qwen3", "bf16"),
    ("qwen3", "fp32"),
    ("every-head-its-own", "bf16"),
]


def stream(vocab: int) -> list[int]:
    draw = torch.Generator().manual_seed(3)
    return torch.randint(vocab, (LONGEST + ROWS_MAX,), generator=draw).tolist()  # type: ignore[no-any-return]


def view(request: int, length: int, pages: tuple[int, ...]) -> SequenceView:
    return SequenceView(request, 0, length, (pages,), (), ())


def round_of(request: int, length: int, pages: tuple[int, ...], tokens: list[int], width: int) -> Round:
    plan = RoundPlan(
        view(request, length, pages),
        0,
        tokens[length],
        tuple(range(-1, width - 1)),
        (pages,),
        (),
        (0, width),
        width,
    )
    return Round(plan, Proposal(tuple(tokens[length + 1 : length + width])))


@attrs.frozen(eq=False)
class Canon:
    """An executor, and what it computes for each position one row at a time."""

    executor: DenseExecutor
    tokens: list[int]
    logits: list[torch.Tensor]
    audits: list[tuple[AuditEntry, ...]]


@functools.cache
def canon(make_weights: MakeWeights, variant: str, dtype: str) -> Canon:
    weights = make_weights(variant)
    executor = DenseExecutor(weights, dtype=dtype, page_count=PAGES, batch_max=3, rows_max=ROWS_MAX)
    tokens = stream(weights.config.vocab_size)
    logits, audits = [], []
    pages = tuple(range(4))
    for position in range(LONGEST):
        audits.append(executor.audit(view(1, position, pages)))
        executor.verify([round_of(1, position, pages, tokens, 1)])
        logits.append(executor.logits_of_last_launch()[0][0].clone())
    return Canon(executor, tokens, logits, audits)


def check(canon_of: Canon, rounds: list[Round]) -> None:
    canon_of.executor.verify(rounds)
    for item, found in zip(rounds, canon_of.executor.logits_of_last_launch(), strict=True):
        start = item.plan.view.length
        assert found.shape[0] == 1 + len(item.proposal.tokens)  # type: ignore[union-attr]
        for row, values in enumerate(found):
            assert torch.equal(values, canon_of.logits[start + row]), (start, row)


@pytest.mark.parametrize(("variant", "dtype"), CASES)
@pytest.mark.parametrize("width", range(1, ROWS_MAX + 1))
def test_every_width_across_the_page_border(
    variant: str, dtype: str, width: int, make_weights: MakeWeights
) -> None:
    made = canon(make_weights, variant, dtype)
    pages = (20, 9, 13, 2)
    made.executor.prefill([PrefillPlan(view(2, 0, pages), tuple(made.tokens[:130]), (pages,), ())])
    # Backwards: a round at a shorter length makes scratch of all rows behind it.
    for start in (130, 128, 127, 64, 63, 62, 1, 0):
        check(made, [round_of(2, start, pages, made.tokens, width)])


@settings(max_examples=25, deadline=None)
@given(data=st.data(), case=st.sampled_from(CASES))
def test_any_schedule(data: st.DataObject, case: tuple[str, str], make_weights: MakeWeights) -> None:
    """Sequences filled in random tiles on random pages, then verified together at random widths, with some
    rows committed and wrong drafts in between: every row and every audit is the canonical one."""
    made = canon(make_weights, *case)
    order = data.draw(st.permutations(range(PAGES)))
    count = data.draw(st.integers(1, 3))
    lanes = []
    for lane in range(count):
        pages = tuple(order[4 * lane : 4 * lane + 4])
        pages = tuple(sorted(pages)) if data.draw(st.booleans()) else pages
        target = data.draw(st.integers(0, 150))
        length = 0
        while length < target:
            rows = min(data.draw(st.sampled_from([1, 2, 7, 33, 64, 100])), target - length)
            plan = PrefillPlan(
                view(lane, length, pages), tuple(made.tokens[length : length + rows]), (pages,), ()
            )
            made.executor.prefill([plan])
            length += rows
        lanes.append((pages, length))
    for _ in range(data.draw(st.integers(1, 4))):
        widths = [data.draw(st.integers(1, ROWS_MAX)) for _ in lanes]
        rounds = [
            round_of(lane, length, pages, made.tokens, width)
            for lane, ((pages, length), width) in enumerate(zip(lanes, widths, strict=True))
        ]
        reject(made, rounds)
        check(made, rounds)
        lanes = [
            (pages, length + data.draw(st.integers(1, width)))
            for (pages, length), width in zip(lanes, widths, strict=True)
        ]
    for pages, length in lanes:
        if length < LONGEST:
            assert made.executor.audit(view(0, length, pages)) == made.audits[length]


def reject(made: Canon, rounds: list[Round]) -> None:
    """The same rounds with other drafts, thrown away."""
    vocab = made.executor.describe().vocab_size
    wrong = [
        Round(item.plan, Proposal(tuple((token + 1) % vocab for token in item.proposal.tokens)))  # type: ignore[union-attr]
        for item in rounds
    ]
    made.executor.verify(wrong)
    made.executor.abandon([item.plan for item in wrong])
