"""Greedy text and logits against HF transformers on the same weights, in fp32.

One HF forward over prompt and text gives its logits at every position, so its greedy text equals ours up to the
first position where its argmax is another token; there the margin must be a near-tie.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from txdecode.kernels.models.errors import ModelError
from txdecode.kernels.models.source import resolve
from txdecode.runtime import Runtime
from txdecode.runtime.gates.prompts import BUILT_IN, GatePrompt
from txdecode.transactions.executor import Round, Settlement

os.environ["HF_HUB_OFFLINE"] = "1"

NEAR_TIE = 1e-3
LOGIT_BOUND = 2e-3
TOKENS = int(os.environ.get("TXDECODE_ORACLE_TOKENS", "24"))
PROMPTS = BUILT_IN if os.environ.get("TXDECODE_FULL") else (BUILT_IN[1], BUILT_IN[3], BUILT_IN[7])

pytestmark = pytest.mark.model


class Recorder:
    """Keeps the logits of committed rows by position."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor
        self._verified: dict[int, torch.Tensor] = {}
        self.rows: dict[int, torch.Tensor] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def verify(self, rounds: Sequence[Round]) -> None:
        self._executor.verify(rounds)
        logits = self._executor.logits_of_last_launch()
        self._verified = {
            entry.plan.request: rows.float().clone() for entry, rows in zip(rounds, logits, strict=True)
        }

    def settle(self, settlements: Sequence[Settlement]) -> None:
        self._executor.settle(settlements)
        for settlement in settlements:
            view = settlement.plan.view
            for row in settlement.path:
                self.rows[view.length + row] = self._verified[view.request][row]


@pytest.fixture(scope="module")
def hf() -> Any:
    try:
        source = resolve("smollm2")
    except ModelError as error:
        pytest.skip(str(error))
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    # transformers reads and dequantises the file itself; only the assembly of the class is done here.
    shape = load_gguf_checkpoint(str(source.path), return_tensors=False)["config"]
    config = LlamaConfig(**{name: value for name, value in shape.items() if name != "architectures"})
    model = LlamaForCausalLM(config).eval()
    checkpoint = load_gguf_checkpoint(str(source.path), return_tensors=True, model_to_load=model)
    left = model.load_state_dict(checkpoint["tensors"], strict=False)
    assert not left.unexpected_keys
    assert left.missing_keys in ([], ["lm_head.weight"])
    model.tie_weights()
    return model


@pytest.fixture(scope="module")
def opened() -> Any:
    from txdecode.runtime.opening import open_model

    try:
        return open_model("smollm2", dtype="fp32")
    except ModelError as error:
        pytest.skip(str(error))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: prompt.name)
def test_text_and_logits_equal_transformers(prompt: GatePrompt, hf: Any, opened: Any) -> None:
    recorder = Recorder(opened.executor)
    ids = opened.text.encode_chat(prompt.messages)
    with Runtime.open(recorder, text=opened.text, eos_ids=sorted(opened.eos_ids)) as runtime:
        result = runtime.submit(ids, max_tokens=min(TOKENS, prompt.max_tokens)).result()
    known = [*ids, *result.ids]
    with torch.inference_mode():
        logits = hf(torch.tensor([known[:-1]])).logits[0]
    compared = 0
    for position in range(len(ids) - 1, len(known) - 1):
        theirs, ours = logits[position], recorder.rows[position]
        token = known[position + 1]
        if int(theirs.argmax()) != token:
            margin = float(theirs.max() - theirs[token])
            assert margin <= NEAR_TIE, f"position {position}: margin {margin}"
            break
        assert float((theirs - ours).abs().max()) <= LOGIT_BOUND, f"position {position}"
        compared += 1
    assert compared, "no position was compared"
