"""Hybrids against transformers' own classes, on random tiny models of all three families."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import pytest
import torch

from tests import hybrids
from tests.hybrid_bench import Bench, loaded, tokens_of
from tests.hybrids import Family, TinyHybrid
from txdecode.kernels.attention.cache import Segment
from txdecode.kernels.gdn.rows import Stretch

# Largest difference of a logit, of the largest logit: fp32 sums in another order, four layers deep.
BOUND = 1e-5
# The same in bf16 (8 bits of mantissa) against fp32.
BOUND_BF16 = 0.05


def rope(share: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": share}


CONFIGS: dict[str, tuple[Family, dict[str, Any]]] = {
    "next": ("qwen3_next", {}),
    "next-some-dense": (
        "qwen3_next",
        {
            "mlp_only_layers": [0, 3],
            "norm_topk_prob": False,
            "linear_num_value_heads": 2,
            "rope_parameters": rope(1.0),
            "linear_conv_kernel_dim": 2,
        },
    ),
    "next-no-shared": (
        "qwen3_next",
        {"shared_expert_intermediate_size": 0, "num_experts_per_tok": 1, "tie_word_embeddings": True},
    ),
    "next-every-other": (
        "qwen3_next",
        {
            "decoder_sparse_step": 2,
            "num_experts_per_tok": 6,
            "num_key_value_heads": 4,
            "linear_num_key_heads": 1,
            "linear_num_value_heads": 2,
            "mtp": False,
        },
    ),
    "dense": ("qwen3_5", {}),
    "dense-tied": (
        "qwen3_5",
        {
            "tie_word_embeddings": True,
            "linear_conv_kernel_dim": 3,
            "rope_parameters": rope(0.5),
            "linear_num_value_heads": 4,
            "num_key_value_heads": 1,
        },
    ),
    "dense-half-full": (
        "qwen3_5",
        {
            "layer_types": ["full_attention", "linear_attention"] * 2,
            "linear_num_key_heads": 3,
            "linear_num_value_heads": 3,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 8,
            "num_attention_heads": 6,
            "head_dim": 16,
            "mtp": False,
        },
    ),
    "moe": ("qwen3_5_moe", {}),
    "moe-wide": (
        "qwen3_5_moe",
        {
            "tie_word_embeddings": True,
            "linear_conv_kernel_dim": 2,
            "rope_parameters": rope(0.5),
            "num_experts": 9,
            "num_experts_per_tok": 4,
            "linear_key_head_dim": 8,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
        },
    ),
    "moe-one-head": (
        "qwen3_5_moe",
        {
            "linear_num_key_heads": 1,
            "linear_num_value_heads": 1,
            "num_attention_heads": 1,
            "num_key_value_heads": 1,
            "num_hidden_layers": 2,
            "layer_types": ["linear_attention", "full_attention"],
            "rope_parameters": rope(1.0),
            "mtp": False,
        },
    ),
}
TOKENS = tokens_of(96)


@functools.cache
def theirs(name: str) -> TinyHybrid:
    family, changes = CONFIGS[name]
    with warnings.catch_warnings():
        # A shared expert of no width.
        warnings.filterwarnings("ignore", "Initializing zero-element tensors")
        return hybrids.build(family, **changes)


@functools.cache
def bench(name: str, dtype: str = "fp32") -> Bench:
    return Bench(loaded(theirs(name), dtype), dtype=dtype, rows_max=8)


@functools.cache
def expected(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [tokens, vocab] and normed hidden rows of transformers."""
    with torch.inference_mode():
        made = theirs(name).model(input_ids=torch.tensor([TOKENS]), output_hidden_states=True)
    return made.logits[0], made.hidden_states[-1]


def gap(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Largest difference, of the largest value."""
    return float((found.float() - wanted).abs().max() / wanted.abs().max())


def whole(it: Bench, tokens: tuple[int, ...]) -> torch.Tensor:
    """Logits of every row of one forward."""
    line = it.open()
    with torch.inference_mode():
        made = it.executor.model.forward(
            [Segment(tokens, 0, line.pages[0])],
            [Stretch(line.slot, 0, len(tokens), 0, (line.column,))],
            logits=True,
        )
    it.close(line)
    assert made.logits is not None
    return made.logits


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_of_a_whole_prompt(name: str) -> None:
    assert gap(whole(bench(name), TOKENS), expected(name)[0]) < BOUND


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_of_single_steps_and_blocks(name: str) -> None:
    """Prefill over a page border; then single rows, then blocks of 3 to 8, each committed; half of what a block
    offers besides is wrong and rejected."""
    it, wanted = bench(name), expected(name)[0]
    line = it.open(TOKENS[:50], tile=19)
    for width, kept in [(1, 1)] * 4 + [(block, block) for block in range(3, 9)] + [(8, 3), (6, 1), (5, 5)]:
        start = len(line.tokens)
        rows = TOKENS[start : start + kept] + tuple(150 - i for i in range(width - kept))
        plan = it.plan(line, rows[0], width)
        (logits,) = it.verify([plan], [rows[1:]])
        assert gap(logits[:kept], wanted[start : start + kept]) < BOUND, (width, kept)
        it.settle([line], [plan], [rows[:kept]])
    assert len(line.tokens) == len(TOKENS)
    it.close(line)


@pytest.mark.parametrize("name", ["next", "dense-tied", "moe-wide"])
def test_bf16_is_near(name: str) -> None:
    """Of a mixture some rows wake another expert where two are all but equal; most rows must be near."""
    found, wanted = whole(bench(name, "bf16"), TOKENS).float(), expected(name)[0]
    worst = (found - wanted).abs().amax(-1) / wanted.abs().max()
    assert float(worst.median()) < BOUND_BF16
    assert float((found.argmax(-1) == wanted.argmax(-1)).float().mean()) > 0.8


def mtp_theirs(name: str, length: int, depth: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Logits of ``depth`` steps after ``length`` consumed tokens, by transformers: the drafts are their argmax. Each
    step computes all rows again: those of the target's pairs, and one from the output of each step before."""
    tiny, hidden = theirs(name), expected(name)[1][:, :length]
    assert tiny.mtp is not None
    tokens = list(TOKENS[1 : length + 1])
    found = []
    for _ in range(depth):
        made = tiny.mtp.forward_layer(
            0, hidden, torch.arange(hidden.shape[1])[None], None, input_ids=torch.tensor([tokens])
        )
        logits = tiny.mtp._project_to_logits(made)[0, -1]
        found.append(logits)
        hidden = torch.cat([hidden, made[:, -1:]], 1)
        tokens.append(int(logits.argmax()))
    return torch.tensor(tokens[-depth:]), found


@pytest.mark.parametrize("name", [name for name in CONFIGS if CONFIGS[name][1].get("mtp", True)])
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 80])
def test_mtp_logits_and_their_recursion(name: str, length: int) -> None:
    it, depth = bench(name), 3
    line = it.open(TOKENS[:length], tile=17)
    mtp, pairs = it.executor.mtp, line.pages[-1]
    assert mtp is not None
    with torch.inference_mode():
        drafts, wanted = mtp_theirs(name, length, depth)
        hidden = it.executor._tails[line.slot : line.slot + 1]
        token = TOKENS[length]
        for step in range(depth):
            hidden, logits = mtp.step([Segment((token,), length + step, pairs)], hidden)
            assert gap(logits[0], wanted[step]) < BOUND, step
            token = int(drafts[step])
    assert it.drafts(line, TOKENS[length], depth).tokens == tuple(drafts.tolist())
    it.close(line)


def test_every_kind_of_configuration_is_here() -> None:
    """The list above covers what it says it covers."""
    made = [bench(name).executor.model.config for name in CONFIGS]
    assert {config.conv_width for config in made} == {2, 3, 4}
    assert {config.rotary_dim / config.head_dim for config in made} == {0.25, 0.5, 1.0}
    assert {config.value_heads // config.key_heads for config in made} == {1, 2, 3}
    assert {config.tied_head for config in made} == {config.mtp for config in made} == {False, True}
    assert {config.moe.shared_size > 0 for config in made if config.moe} == {False, True}
    assert any(len(set(config.feeds)) == 2 for config in made)
