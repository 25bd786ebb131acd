"""The property machine on the hybrid executor: random schedules with faults, crashes and preemptions.

Text is compared with greedy decoding by transformers' own class on the same weights.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import pytest
import torch
from transformers import DynamicCache

from tests import hybrids
from txdecode.kernels.hybrid_executor import HybridExecutor
from txdecode.kernels.models.source import resolve
from txdecode.kernels.models.weights import HybridWeights, load_weights
from txdecode.runtime.testing import Harness, check_executor
from txdecode.transactions.executor import Rollback

VOCAB = 48
EXAMPLES = 100 if os.environ.get("TXDECODE_FULL") else 4


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[hybrids.TinyHybrid, HybridWeights]:
    torch.set_num_threads(1)
    made = hybrids.build(
        "qwen3_5",
        vocab_size=VOCAB,
        num_hidden_layers=3,
        layer_types=["linear_attention", "full_attention", "linear_attention"],
    )
    folder = hybrids.save(made, tmp_path_factory.mktemp("tiny"))
    weights = load_weights(resolve(str(folder)), "fp32")
    assert isinstance(weights, HybridWeights)
    return made, weights


def greedy_loop(tiny: hybrids.TinyHybrid) -> Callable[[Sequence[int], int, frozenset[int]], Sequence[int]]:
    """One token a step through transformers' cache; texts are kept, since the machine asks for prefixes of them."""
    known: dict[tuple[int, ...], tuple[list[int], DynamicCache]] = {}

    def step(ids: Sequence[int], cache: DynamicCache) -> int:
        with torch.inference_mode():
            logits = tiny.model(input_ids=torch.tensor([list(ids)]), cache=cache, use_cache=True).logits
        return int(logits[0, -1].argmax())

    def oracle(prompt: Sequence[int], count: int, stops: frozenset[int]) -> Sequence[int]:
        key = tuple(prompt)
        if key not in known:
            cache = DynamicCache(config=tiny.model.config)
            known[key] = ([step(prompt, cache)], cache)
        text, cache = known[key]
        while len(text) < count:
            text.append(step(text[-1:], cache))
        for index, token in enumerate(text[:count]):
            if token in stops:
                return text[: index + 1]
        return text[:count]

    return oracle


@pytest.mark.parametrize("rollback", ["columns", "replay", "restore"])
def test_every_promise_holds_on_a_hybrid(
    tiny: tuple[hybrids.TinyHybrid, HybridWeights], rollback: Rollback
) -> None:
    made, weights = tiny

    def make() -> HybridExecutor:
        return HybridExecutor(
            weights, dtype="fp32", rollback=rollback, page_count=8, batch_max=3, rows_max=6, context=96
        )

    harness = Harness(f"hybrid-{rollback}", make=make, oracle=greedy_loop(made))
    check_executor(harness, examples=EXAMPLES, steps=20, seed=5, shrink=False)
