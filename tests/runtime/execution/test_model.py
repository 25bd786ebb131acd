"""The same on a real model, small enough to be run twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import LlamaConfig, LlamaForCausalLM

from txdecode.kernels.executor import DenseExecutor
from txdecode.runtime import Runtime, Sampling
from txdecode.runtime.execution import ExecutionDivergence, ExecutionRefused, bisect, execute
from txdecode.runtime.opening import open_model
from txdecode.transactions.executor import Settlement

SAMPLINGS = (
    None,
    Sampling(temperature=0.8, seed=3, top_k=40, logprobs=1),
    Sampling(temperature=1.0, seed=4, law="chain"),
    Sampling(temperature=0.9, seed=5, repetition_penalty=1.2, frequency_penalty=0.5),
)


def _model(folder: Path, seed: int) -> Path:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=192,
        eos_token_id=None,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer model with a byte tokenizer, in Hugging Face layout."""
    return _model(tmp_path_factory.mktemp("tiny"), 0)


def _write(log: Path, model: Any, **options: Any) -> None:
    options = {"draft_len": "additive", **options}
    with Runtime.open(model, log=log, dtype="fp32", threads=1, pages=16, **options) as runtime:
        for index, sampling in enumerate(SAMPLINGS):
            prompt = [(7 * index + 3 * place) % 31 for place in range(50 + 9 * index)]
            handle = runtime.submit(prompt, max_tokens=40, sampling=sampling)
        for _ in range(9):
            runtime.step()
        runtime.preempt(handle)
        runtime.run()


def test_execute(tiny: Path, log: Path, tmp_path: Path) -> None:
    """The header names the model."""
    _write(log, str(tiny), audit_every=4)
    report = execute(log)
    assert report.numerics == "exact"
    assert report.counts.tokens == 40 * len(SAMPLINGS)
    assert report.counts.audits > 20
    assert bisect(log).found is None
    with pytest.raises(ExecutionRefused, match="fingerprint 'weights'"):
        execute(log, str(_model(tmp_path, 1)))


def test_a_wrong_row_of_the_cache(tiny: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One value of one row of one layer, in the second page of a sequence."""
    settle = DenseExecutor.settle
    done: list[tuple[int, int]] = []

    def spoil(self: DenseExecutor, settlements: Sequence[Settlement]) -> None:
        settle(self, settlements)
        for item in settlements:
            plan = item.plan
            if not done and plan.request == 2 and plan.view.length > 75:
                with torch.inference_mode():
                    self.model.cache.page_rows(1, plan.pages[0][1], 12)[11, 0, 0] += 0.5
                done.append((plan.request, plan.ordinal))

    monkeypatch.setattr(DenseExecutor, "settle", spoil)
    executor = open_model(str(tiny), "fp32", "none", pages=16, threads=1).executor
    _write(log, executor, audit_every=1)
    monkeypatch.undo()
    clean = open_model(str(tiny), "fp32", "none", pages=16, threads=1).executor
    found = bisect(log, clean).found
    assert found is not None
    assert [(found.request, found.ordinal)] == done
    assert (found.by, found.ledger, found.layer, found.index) == ("audit", "kv", 1, 1)
    with pytest.raises(ExecutionDivergence) as caught:
        execute(log, clean)
    assert caught.value.sequence == found.sequence
