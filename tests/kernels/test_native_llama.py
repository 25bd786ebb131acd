"""The dense decoder in our own operators: against transformers, against torch's operators, and to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.kernels.test_llama import VARIANTS, hf_model, logits_of, tokens_of
from txdecode.kernels.attention.cache import Segment
from txdecode.kernels.capability import numerics
from txdecode.kernels.models.dense import build, fits_vectors, memory_plan
from txdecode.kernels.models.llama import Limits, LlamaModel, NonFiniteActivation
from txdecode.kernels.models.native_llama import NativeLlama
from txdecode.kernels.models.weights import DenseWeights
from txdecode.kernels.sampling.argmax import lowest_argmax
from txdecode.kernels.sampling.reference import NOTHING

LIMITS = Limits(256, 256, 16, 8)


def rounded(weights: DenseWeights) -> DenseWeights:
    """The same weights in bf16's precision."""
    tensors = {name: value.bfloat16().float() for name, value in weights.tensors.items()}
    return DenseWeights(weights.config, tensors, weights.digest)


def native(weights: DenseWeights, threads: int = 1, limits: Limits = LIMITS) -> NativeLlama:
    with torch.inference_mode():
        return NativeLlama(weights, limits, threads)


def given(model: Any, segments: list[Segment]) -> torch.Tensor:
    with torch.inference_mode():
        found = model.forward(segments, True)
    assert found is not None
    return found


@pytest.mark.parametrize("variant", [*VARIANTS, "llama-biased"])
def test_logits_agree_with_transformers(variant: str, make_weights: Any) -> None:
    """On the same weights; keys and values are rounded to bf16 here, which is all that differs."""
    weights = rounded(make_weights(variant))
    tokens = tokens_of(weights)
    found = logits_of(native(weights), tokens)  # type: ignore[arg-type]
    with torch.inference_mode():
        expected = hf_model(weights)(torch.tensor([tokens])).logits[0]
    error = (found - expected).abs()
    assert error.max() < 0.02 * expected.abs().max()
    assert error.mean() < 0.002 * expected.abs().max()
    top = expected.topk(2, -1).values
    clear = top[:, 0] - top[:, 1] > 0.02 * expected.abs().max()
    assert clear.float().mean() > 0.5
    assert torch.equal(found.argmax(-1)[clear], expected.argmax(-1)[clear])


def test_only_keys_and_values_are_rounded(make_weights: Any) -> None:
    """One token attends to itself alone: its value is all that is rounded, and with the value zero nothing is."""
    weights = rounded(make_weights("llama"))
    for name, value in weights.tensors.items():
        if "v_proj" in name:
            value.zero_()
    found = given(native(weights), [Segment((5,), 0, (0,))])
    with torch.inference_mode():
        plain = LlamaModel(weights, numerics("fp32"), LIMITS).forward([Segment((5,), 0, (0,))], True)
    assert plain is not None
    torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_bits_do_not_depend_on_company_threads_or_pages(variant: str, make_weights: Any) -> None:
    weights = make_weights(variant)
    tokens = tokens_of(weights, 150)
    alone = native(weights)
    single = torch.cat([given(alone, [Segment((token,), at, (0, 1, 2))]) for at, token in enumerate(tokens)])
    for threads, pages in ((1, (5, 1, 3)), (2, (7, 0, 6)), (3, (2, 4, 1))):
        model = native(weights, threads)
        start = 0
        for rows in (37, 1, 2, 60, 3, 16, 31):
            part = Segment(tokens[start : start + rows], start, pages)
            assert torch.equal(given(model, [part]), single[start : start + rows]), (threads, start, rows)
            start += rows
        assert start == 150
        for layer in range(weights.config.layer_count):
            for ordinal, page in enumerate(pages):
                count = min(150 - ordinal * 64, 64)
                kept = model.cache.page_rows(layer, page, count)
                assert torch.equal(kept, alone.cache.page_rows(layer, ordinal, count))


def test_sequences_in_a_batch_do_not_see_each_other(make_weights: Any) -> None:
    weights = make_weights("qwen3")
    texts = [tokens_of(weights, count)[::step] for count, step in ((90, 1), (40, -1), (130, 1))]
    tables = ((0, 1), (2,), (3, 4, 5))
    lengths = (70, 0, 127)
    parts = [
        Segment(text[length : length + rows], length, pages)
        for text, length, rows, pages in zip(texts, lengths, (5, 1, 3), tables, strict=True)
    ]
    model = native(weights, 2)
    with torch.inference_mode():
        for text, length, pages in zip(texts, lengths, tables, strict=True):
            if length:
                model.forward([Segment(text[:length], 0, pages)], False)
    apart = torch.cat([given(model, [part]) for part in parts])
    assert torch.equal(given(model, parts), apart)
    assert torch.equal(given(model, parts[::-1]), torch.cat([apart[6:], apart[5:6], apart[:5]]))


def test_a_row_that_is_not_finite_is_named_and_leaves_its_pages_finite(make_weights: Any) -> None:
    weights = make_weights("llama")
    model = native(weights)
    tokens = tuple(range(1, 70))
    with torch.inference_mode():
        model.forward([Segment(tokens, 0, (0, 1))], False)
        kept = [model.cache.page_rows(1, page, count) for page, count in ((0, 64), (1, 5))]
        model._embedding[77] = 0x7FC0
        for logits in (True, False):
            with pytest.raises(NonFiniteActivation, match="not finite"):
                model.forward([Segment((3, 77, 4), 69, (0, 1))], logits)
        assert all(
            torch.equal(model.cache.page_rows(1, page, rows.shape[0]), rows) for page, rows in enumerate(kept)
        )
        assert model.cache._pool.isfinite().all()
        assert model.cache.page_rows(1, 1, 64)[5:].count_nonzero() == 0


@pytest.mark.parametrize("name", ["k_proj", "q_proj", "v_proj", "up_proj"])
@pytest.mark.parametrize("size", [1e25, 1e38, 3e38])
def test_numbers_too_large_for_the_pages_are_a_fault(name: str, size: float, make_weights: Any) -> None:
    """Keys that bf16 or a product can't hold would be infinite, and a score that is no number weighs nothing."""
    weights = make_weights("llama")
    weights.tensors[
        f"model.layers.0.self_attn.{name}.weight"
        if "_proj" in name and name != "up_proj"
        else f"model.layers.0.mlp.{name}.weight"
    ][3, 5] = size
    model = native(weights)
    with torch.inference_mode(), pytest.raises(NonFiniteActivation):
        model.forward([Segment(tuple(range(1, 9)), 0, (0,))], True)
    assert model.cache._pool.isfinite().all()


def test_a_damaged_first_token_is_found_by_the_launch_that_reads_it(make_weights: Any) -> None:
    weights = make_weights("llama")
    weights.tensors["model.embed_tokens.weight"][0] = float("nan")
    model = native(weights)
    with torch.inference_mode(), pytest.raises(NonFiniteActivation):
        model.forward([Segment((0,), 0, (0,))], True)


@pytest.mark.parametrize(
    ("segment", "words"),
    [
        (Segment((-1,), 0, (0,)), r"\(-1,\)"),
        (Segment((320,), 0, (0,)), r"\(320,\)"),
        (Segment((1,), 256, (0, 1, 2, 3, 4)), r"\(257, 256\)"),
        (Segment((1,), 64, (0,)), "1 pages for 65 rows"),
        (Segment((1,), 0, (8,)), r"\(8,\)"),
        (Segment((1,) * 300, 0, (0, 1, 2, 3, 4)), r"\(300, 256\)"),
    ],
)
def test_rows_outside_the_model_are_refused(segment: Segment, words: str, make_weights: Any) -> None:
    model = native(make_weights("llama"), limits=Limits(256 if segment.position else 512, 256, 16, 8))
    with torch.inference_mode(), pytest.raises(AssertionError, match=words):
        model.forward([segment], True)


def test_the_likeliest_token_is_found_in_the_kernel(make_weights: Any) -> None:
    model = native(make_weights("llama", vocab_size=317))
    logits = given(model, [Segment(tuple(range(40)), 0, (0,))])
    assert model.choices(40) == lowest_argmax(logits.contiguous())
    # Every token the same: the lowest wins.
    model._head.panels[:] = 0
    given(model, [Segment((1, 2), 0, (0,))])
    assert model.choices(2) == [0, 0]
    # The last token alone is above the others.
    model._head.bias[316] = 1.0
    given(model, [Segment((1, 2), 0, (0,))])
    assert model.choices(2) == [316, 316]
    for damage in (float("nan"), float("inf")):
        model._head.bias[200] = damage
        given(model, [Segment((1, 2), 0, (0,))])
        assert model.choices(2) == [NOTHING, NOTHING]


def test_the_memory_plan_counts_what_is_allocated(make_weights: Any) -> None:
    weights = make_weights("qwen3", vocab_size=4096)
    limits = Limits(512, 256, 16, 30)
    with torch.inference_mode():
        model = NativeLlama(weights, limits, torch.get_num_threads())
    plan = memory_plan(weights.config, numerics("bf16"), limits)
    assert plan["weights"] == model.parameter_bytes
    assert plan["embedding"] == model._embedding.nbytes
    assert plan["kv_pages"] == model.cache._pool.nbytes
    assert plan["tables"] == model._table.nbytes
    scratch = sum(part.nbytes for part in model._scratch)
    logits = 4 * limits.width_max * weights.config.vocab_size
    assert plan["activations"] == scratch + logits


def test_torch_computes_what_our_operators_do_not_take(make_weights: Any) -> None:
    weights = make_weights("llama")
    assert fits_vectors(weights.config, numerics("bf16"))
    assert not fits_vectors(weights.config, numerics("fp32"))
    odd = make_weights("llama", intermediate_size=52)
    assert not fits_vectors(odd.config, numerics("bf16"))
    with torch.inference_mode():
        assert isinstance(build(weights, numerics("bf16"), LIMITS), NativeLlama)
        assert isinstance(build(odd, numerics("bf16"), LIMITS), LlamaModel)
        with pytest.raises(AssertionError, match="a size of 52"):
            NativeLlama(odd, LIMITS, 1)
