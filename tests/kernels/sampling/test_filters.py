"""Filters, penalties and bias: against the definition on every row, and against HF transformers."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from txdecode.kernels.sampling import blocks, filters, reference
from txdecode.kernels.sampling.adjust import adjusted
from txdecode.kernels.sampling.filters import candidates
from txdecode.transactions.target import History, Target

INF = math.inf


def dense(logits: torch.Tensor, target: Target) -> torch.Tensor:
    """Candidates as scores over the vocabulary; checks their form."""
    kept = candidates(logits, target)
    if kept.ids is None:
        return kept.scores
    made = torch.full(logits.shape, -INF, dtype=torch.float64)
    for row in range(logits.shape[0]):
        real = kept.scores[row] > -INF
        ids = kept.ids[row][real]
        assert real.any()
        assert (ids.diff() > 0).all()
        assert not kept.ids[row][~real].any()
        made[row, ids] = kept.scores[row][real]
    return made


def logits_of(seed: int, rows: int, vocab: int, spread: float, step: float, holes: float) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    made = spread * torch.randn(rows, vocab, generator=random)
    if step:
        made = (made / step).round() * step
    made[torch.rand(rows, vocab, generator=random) < holes] = -INF
    made[:, seed % vocab] = 0.25
    return made


@settings(deadline=None, max_examples=250)
@given(
    seed=st.integers(0, 10_000),
    vocab=st.sampled_from([1, 2, 5, 17, 255, 256, 600, 1024]),
    spread=st.sampled_from([0.0, 0.5, 3.0, 20.0]),
    step=st.sampled_from([0.0, 0.5, 2.0]),
    holes=st.sampled_from([0.0, 0.3, 0.99]),
    temperature=st.sampled_from([0.05, 0.7, 1.0, 3.0, 100.0]),
    top_k=st.sampled_from([0, 1, 2, 3, 20, 200, 5000]),
    top_p=st.sampled_from([1.0, 0.999999, 0.95, 0.75, 0.5, 0.25, 1e-9]),
    min_p=st.sampled_from([0.0, 1e-4, 0.05, math.exp(-0.5), 1.0]),
    bins=st.sampled_from([2, 16, 256]),
)
def test_kept_sets_and_scores_of_the_definition(
    seed: int, vocab: int, spread: float, step: float, holes: float, bins: int, **fields: Any
) -> None:
    logits = logits_of(seed, 3, vocab, spread, step, holes)
    target = Target(law="coupled", **fields)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("txdecode.kernels.sampling.filters._BINS", bins)
        assert torch.equal(dense(logits, target), reference.filtered(logits, target))


@pytest.mark.parametrize("fields", [{"top_k": 40, "top_p": 0.9}, {"top_p": 0.95}, {"min_p": 0.01}])
@pytest.mark.parametrize("vocab", [49_152, 32_001])
def test_kept_sets_of_a_vocabulary(vocab: int, fields: dict[str, Any]) -> None:
    logits = logits_of(3, 1, vocab, 3.0, 0.125, 0.0)
    target = Target(law="coupled", temperature=0.9, **fields)
    assert torch.equal(dense(logits, target), reference.filtered(logits, target))


@pytest.mark.parametrize(
    ("logits", "fields", "kept"),
    [
        ([1.0, 1.0, 1.0, 1.0], {"top_k": 2}, [0, 1]),
        ([0.0, 1.0, 1.0, 1.0], {"top_k": 2}, [1, 2]),
        ([1.0, 1.0, 1.0, 1.0], {"top_p": 0.5}, [0, 1]),
        ([1.0, 1.0, 1.0, 1.0], {"top_p": 0.500001}, [0, 1, 2]),
        ([0.0, 2.0, 2.0, 0.0], {"min_p": 1.0}, [1, 2]),
        ([0.0, -1.0, -2.0], {"min_p": math.exp(-1.0)}, [0, 1]),
        ([-INF, 3.0, -INF], {"top_k": 3, "top_p": 0.9}, [1]),
    ],
)
def test_borders(logits: list[float], fields: dict[str, Any], kept: list[int]) -> None:
    scores = dense(torch.tensor([logits]), Target(law="coupled", **fields))
    assert (scores[0] > -INF).nonzero().flatten().tolist() == kept


def test_a_border_within_rounding_is_settled_by_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    """top-p exactly a sum of some weights over the total, as the definition computes them."""
    close, differ, original = 0, False, filters._settle
    for seed in range(60):
        logits = logits_of(seed, 1, 40, 2.0, 0.0, 0.0)
        ranked = sorted(logits[0].tolist(), reverse=True)
        weights = [math.exp(score - ranked[0]) for score in ranked]
        total = reached = 0.0
        for weight in weights:
            total += weight
        for weight in weights[:7]:
            reached += weight
        target = Target(law="coupled", top_p=reached / total)
        expected = reference.filtered(logits, target)
        settled: list[int] = []

        def settle(ranked: list[float], target: Target, calls: list[int] = settled) -> int:
            calls.append(1)
            return original(ranked, target)

        with monkeypatch.context() as patch:
            patch.setattr(filters, "_settle", settle)
            assert torch.equal(dense(logits, target), expected)
            close += len(settled)
        with monkeypatch.context() as patch:
            patch.setattr(filters, "_settle", lambda *_: 0)
            patch.setattr(filters, "_MARGIN", -1.0)
            differ |= not torch.equal(dense(logits, target), expected)
    assert close == 60
    assert differ


@pytest.mark.parametrize("vocab", [5, 17, 1000, 32_001, 49_152])
@pytest.mark.parametrize("fields", [{"top_k": 20, "top_p": 0.95}, {"top_p": 0.8}, {"min_p": 0.02}, {}])
def test_a_row_does_not_depend_on_the_others(vocab: int, fields: dict[str, Any]) -> None:
    """To the bit, whether other rows keep one candidate or thousands."""
    logits = logits_of(1, 4, vocab, 2.0, 0.0, 0.0)
    logits[1] *= 30
    logits[2] *= 0.01
    target = Target(law="chain", temperature=0.9, **fields)
    together = dense(logits, target)
    for row in range(4):
        assert torch.equal(dense(logits[row : row + 1], target)[0], together[row])


@pytest.mark.parametrize("vocab", [3, 256, 700, 5000])
def test_largest_takes_the_lowest_of_equals(vocab: int) -> None:
    logits = logits_of(8, 3, vocab, 2.0, 1.0, 0.2)
    for count in (1, 2, 20, 600):
        ids, values = blocks.largest(logits, count)
        for row in range(3):
            order = sorted(range(vocab), key=lambda i, row=row: (-float(logits[row, i]), i))  # type: ignore[misc]
            expected = [i for i in order[:count] if logits[row, i] > -INF]
            real = values[row] > -INF
            assert ids[row][real].tolist() == expected
            assert not ids[row][~real].any()
            assert torch.equal(values[row][real], logits[row, expected])


# Penalties


TARGETS = [
    Target(repetition_penalty=1.3),
    Target(repetition_penalty=0.7, presence_penalty=0.5),
    Target(frequency_penalty=0.3, bias=((0, 1.7), (3, -INF))),
    Target(presence_penalty=-0.4, frequency_penalty=-0.1, repetition_penalty=1.1, bias=((2, -2.5),)),
    Target(bias=((1, 100.0), (4, 0.1))),
    Target(min_tokens=5, held=(0, 2)),
    Target(min_tokens=9, held=(4,), repetition_penalty=1.7, frequency_penalty=0.2),
    Target(min_tokens=5),
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("vocab", [5, 600])
def test_adjusted_logits_of_the_definition(target: Target, vocab: int) -> None:
    for seed in range(6):
        random = torch.Generator().manual_seed(seed)
        prompt = tuple(torch.randint(vocab, (seed,), generator=random).tolist())
        counts = {int(token): seed for token in torch.randint(vocab, (min(seed, 2),), generator=random)}
        history = History(prompt, counts, 2 * seed % 7)
        drafts = torch.randint(5, (seed,), generator=random).tolist()
        logits = logits_of(seed, len(drafts) + 1, vocab, 3.0, 0.0, 0.1)
        before = logits.clone()
        made = adjusted(logits, target, history, drafts)
        expected = reference.adjusted(logits, target, history, drafts)
        assert torch.equal(made, expected)
        assert torch.equal(logits, before)
        given = torch.tensor(prompt, dtype=torch.int64)
        assert torch.equal(adjusted(logits, target, history, drafts, given), expected)


def test_logits_that_nothing_changes_are_not_copied() -> None:
    logits = torch.zeros(2, 7)
    assert adjusted(logits, Target(law="coupled", top_k=3), None, [1]) is logits


# HF transformers. Its processors work in fp32, so values are close, and kept sets equal where no border is within
# rounding; the seeds here have none.


def row_prefixes(prompt: list[int], generated: list[int], drafts: list[int]) -> list[torch.Tensor]:
    return [torch.tensor([[*prompt, *generated, *drafts[:row]]]) for row in range(len(drafts) + 1)]


def hf_scores(target: Target, prefix: torch.Tensor, prompt_size: int, row: torch.Tensor) -> torch.Tensor:
    """The processors in the order of ``txdecode.transactions.target``; presence and frequency penalties, which have
    no class there, as OpenAI's documentation states them: mu[j] - c[j]*frequency - float(c[j] > 0)*presence."""
    scores = row.unsqueeze(0).clone()
    if target.repetition_penalty != 1.0:
        scores = RepetitionPenaltyLogitsProcessor(target.repetition_penalty)(prefix, scores)
    counts = torch.bincount(prefix[0, prompt_size:], minlength=row.shape[0]).float()
    scores = scores - counts * target.frequency_penalty - (counts > 0).float() * target.presence_penalty
    if target.bias:
        scores = SequenceBiasLogitsProcessor([[[token], value] for token, value in target.bias])(
            prefix, scores
        )
    if target.min_tokens:
        least = MinNewTokensLengthLogitsProcessor(
            prompt_size, target.min_tokens, list(target.held), device="cpu"
        )
        scores = least(prefix, scores)
    if target.law != "greedy":
        scores = TemperatureLogitsWarper(target.temperature)(prefix, scores)
        if target.top_k:
            scores = TopKLogitsWarper(target.top_k)(prefix, scores)
        if target.top_p < 1.0:
            scores = TopPLogitsWarper(target.top_p)(prefix, scores)
        if target.min_p:
            scores = MinPLogitsWarper(target.min_p)(prefix, scores)
    result: torch.Tensor = scores[0]
    return result


SAMPLED = Target(law="coupled")
HF_TARGETS = [
    attrs.evolve(SAMPLED, temperature=0.7),
    attrs.evolve(SAMPLED, top_k=20),
    attrs.evolve(SAMPLED, temperature=1.5, top_p=0.9),
    attrs.evolve(SAMPLED, min_p=0.05),
    attrs.evolve(SAMPLED, temperature=0.8, top_k=30, top_p=0.95, min_p=0.02),
    attrs.evolve(SAMPLED, repetition_penalty=1.2, top_k=50, top_p=0.8),
    attrs.evolve(SAMPLED, presence_penalty=0.6, frequency_penalty=0.4, temperature=1.2, top_p=0.7),
    attrs.evolve(SAMPLED, bias=((5, 4.0), (6, -3.0), (7, -INF)), top_k=10),
    attrs.evolve(SAMPLED, min_tokens=6, held=(1, 3), top_p=0.99),
    attrs.evolve(
        SAMPLED,
        repetition_penalty=1.3,
        presence_penalty=0.2,
        frequency_penalty=0.1,
        bias=((2, 1.5), (9, -1.0)),
        min_tokens=5,
        held=(0,),
        temperature=0.9,
        top_k=40,
        top_p=0.9,
        min_p=0.01,
    ),
    Target(repetition_penalty=1.2, bias=((4, 2.0),), min_tokens=7, held=(3,)),
]


@pytest.mark.parametrize("target", HF_TARGETS)
@pytest.mark.parametrize("vocab", [50, 1000])
def test_against_the_processors_of_transformers(target: Target, vocab: int) -> None:
    random = torch.Generator().manual_seed(vocab)
    prompt = torch.randint(vocab, (12,), generator=random).tolist()
    generated = torch.randint(vocab, (4,), generator=random).tolist()
    drafts = torch.randint(vocab, (3,), generator=random).tolist()
    counts = {token: generated.count(token) for token in generated}
    history = History(tuple(prompt), counts, len(generated))
    logits = 3 * torch.randn(4, vocab, generator=random)
    found = dense(adjusted(logits, target, history, drafts), target)
    for row, prefix in enumerate(row_prefixes(prompt, generated, drafts)):
        expected = hf_scores(target, prefix, len(prompt), logits[row])
        assert torch.equal(found[row] > -INF, expected > -INF)
        real = expected > -INF
        torch.testing.assert_close(found[row][real].float(), expected[real], rtol=1e-5, atol=1e-5)


def test_in_the_order_that_transformers_itself_builds() -> None:
    """Its own list for the arguments that it has. It adds its bias before its repetition penalty, so the biased ids
    here are none of the prompt's."""
    from transformers import GenerationConfig, GenerationMixin

    class Maker(GenerationMixin):
        config = SimpleNamespace(is_encoder_decoder=False)

    vocab, prompt = 400, list(range(0, 60, 3))
    config = GenerationConfig(
        do_sample=True,
        temperature=0.8,
        top_k=30,
        top_p=0.9,
        min_p=0.02,
        repetition_penalty=1.4,
        min_new_tokens=4,
        eos_token_id=[6],
        sequence_bias=[[[5], 3.0], [[7], -2.0]],
    )
    config._eos_token_tensor = torch.tensor([6])
    made = Maker()._get_logits_processor(
        generation_config=config, input_ids_seq_length=len(prompt), device="cpu", logits_processor=[]
    )
    names = [type(item).__name__ for item in made]
    assert names.index("TopKLogitsWarper") < names.index("TopPLogitsWarper") < names.index("MinPLogitsWarper")
    logits = 3 * torch.randn(1, vocab, generator=torch.Generator().manual_seed(2))
    prefix = torch.tensor([prompt])
    expected = made(prefix, logits.clone())[0]
    target = Target(
        law="coupled",
        temperature=0.8,
        top_k=30,
        top_p=0.9,
        min_p=0.02,
        repetition_penalty=1.4,
        min_tokens=4,
        held=(6,),
        bias=((5, 3.0), (7, -2.0)),
    )
    found = dense(adjusted(logits, target, History(tuple(prompt), {}, 0), []), target)[0]
    real = expected > -INF
    assert torch.equal(found > -INF, real)
    torch.testing.assert_close(found[real].float(), expected[real], rtol=1e-5, atol=1e-5)
