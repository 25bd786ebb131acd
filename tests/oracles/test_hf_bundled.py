"""The bundled model against HF's own classes, in fp32 on the same bf16 weights: logits, drafts, acceptance."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.bundled import evaluate
from tests.bundled.model import Drafted
from tests.hybrid_bench import Bench
from txdecode.kernels.models.source import resolve
from txdecode.kernels.models.weights import HybridWeights, load_weights
from txdecode.runtime import Runtime, Sampling
from txdecode.runtime.gates.prompts import CODE_PROMPTS
from txdecode.runtime.journal import iterate
from txdecode.runtime.opening import open_model
from txdecode.transactions.codec import decode
from txdecode.transactions.events import RoundCommitted

os.environ["HF_HUB_OFFLINE"] = "1"

# Largest difference of a logit, of the largest logit: fp32 sums in another order, eight layers deep.
BOUND = 1e-5
KNOWN = 150
NEW = 40


@pytest.fixture(scope="module")
def hf() -> Drafted:
    """The folder in AutoModelForCausalLM, the MTP layer in MtpModel."""
    return evaluate.load(resolve("bundled").path)


@pytest.fixture(scope="module")
def weights() -> HybridWeights:
    found = load_weights(resolve("bundled"), "fp32")
    assert isinstance(found, HybridWeights)
    return found


@pytest.fixture(scope="module")
def ids() -> tuple[int, ...]:
    """A text of code."""
    text = open_model("bundled", "fp32", "none", pages=1, threads=1).text
    assert text is not None
    return tuple(text.encode(CODE_PROMPTS[0].text))[:185]


@pytest.fixture(scope="module")
def expected(hf: Drafted, ids: tuple[int, ...]) -> torch.Tensor:
    """HF's logits at every position, [tokens, vocab]."""
    with torch.inference_mode():
        logits: torch.Tensor = hf.target(input_ids=torch.tensor([ids])).logits[0]
    return logits


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    difference = (found.float() - expected).abs().max() / expected.abs().max()
    return bool(difference < BOUND)


def test_every_row_of_blocks_from_the_first_token_on(
    weights: HybridWeights, ids: tuple[int, ...], expected: torch.Tensor
) -> None:
    bench = Bench(weights, rows_max=16)
    line = bench.open()
    found = []
    for start in range(0, len(ids), 16):
        rows = ids[start : start + 16]
        plan = bench.plan(line, rows[0], len(rows))
        found += bench.verify([plan], [rows[1:]])
        bench.settle([line], [plan], [rows])
    assert close(torch.cat(found), expected)


def test_single_steps_and_a_block_after_a_prefilled_prompt(
    weights: HybridWeights, ids: tuple[int, ...], expected: torch.Tensor
) -> None:
    bench = Bench(weights, rows_max=16)
    line = bench.open(ids[:KNOWN], tile=KNOWN)
    block = bench.plan(line, ids[KNOWN], 16)
    (wide,) = bench.verify([block], [ids[KNOWN + 1 : KNOWN + 16]])
    bench.abandon([block])
    assert close(wide, expected[KNOWN : KNOWN + 16])
    for position in range(KNOWN, KNOWN + 10):
        plan = bench.plan(line, ids[position], 1)
        (step,) = bench.verify([plan], [()])
        bench.settle([line], [plan], [(ids[position],)])
        assert close(step, expected[position : position + 1])


def test_the_model_knows_python(expected: torch.Tensor, ids: tuple[int, ...]) -> None:
    """Weights that belong to another tokenizer, or none at all, would do no better than chance."""
    loss = torch.nn.functional.cross_entropy(expected[:-1], torch.tensor(ids[1:]))
    assert loss < 0.75 * torch.tensor(4096.0).log()


def rounds_of(log: Path) -> list[RoundCommitted]:
    events = (decode(record.type, record.version, record.flags, record.payload) for record in iterate(log))
    return [event for event in events if isinstance(event, RoundCommitted)]


def test_drafts_are_accepted_where_those_of_hf_would_be(
    hf: Drafted, ids: tuple[int, ...], tmp_path: Path
) -> None:
    """Seven drafts a round of our MTP layer; HF's MtpModel on the same text says how many of them are right."""
    log = tmp_path / "run.txlog"
    prompt = list(ids[:KNOWN])
    with Runtime.open(
        "bundled", dtype="fp32", draft="mtp", draft_len=7, log=log, threads=1, batch_max=1
    ) as runtime:
        greedy = Sampling(temperature=0)
        written = runtime.submit(prompt, max_tokens=NEW, sampling=greedy, ignore_eos=True).result().ids
    right = evaluate.agreeing(hf, torch.tensor([[*prompt, *written]]), KNOWN, None).sum(-1).tolist()
    found, expected = [], []
    generated = 0
    for event in rounds_of(log):
        # The round that begins after the n-th token of the text is row n-1 of HF's.
        if len(event.drafts) == evaluate.DEPTH and generated - 1 < len(right):
            found.append(event.accepted)
            expected.append(right[generated - 1])
        generated += len(event.emitted)
    assert len(found) > 5
    assert any(found)
    assert found == expected


def naive(hf: Drafted, tokens: torch.Tensor, length: int, noise: torch.Tensor | None) -> int:
    """Drafts of one round after ``length`` tokens, made one after the other: how many are the tokens that follow."""
    known = tokens[:, :length]
    hidden = hf.hidden(known[:, :-1])
    for depth in range(1, evaluate.DEPTH + 1):
        scores = hf.head(hf.drafts(hidden, known, depth)[-1][:, -1:])[0, -1]
        if noise is not None:
            scores = scores + noise[0, known.shape[1]]
        draft = int(scores.argmax())
        if draft != int(tokens[0, known.shape[1]]):
            return depth - 1
        known = torch.cat([known, torch.tensor([[draft]])], dim=1)
    return evaluate.DEPTH


@pytest.mark.parametrize("sampled", [False, True])
def test_acceptance_of_all_rounds_at_once_is_that_of_each_alone(
    sampled: bool, hf: Drafted, ids: tuple[int, ...]
) -> None:
    first = torch.tensor([ids[:40]])
    noise: Any = None
    if sampled:
        drawn = torch.Generator().manual_seed(1)
        noise = torch.empty(1, 60, hf.target.config.vocab_size).exponential_(generator=drawn).log_().neg_()
    with torch.inference_mode():
        tokens = evaluate.continued(hf, first, 20, noise)
        right = evaluate.agreeing(hf, tokens, 40, noise).sum(-1).tolist()
        assert len(right) == 20 - evaluate.DEPTH
        assert right == [naive(hf, tokens, 41 + start, noise) for start in range(len(right))]
    assert any(right)


def test_a_text_is_continued_by_the_likeliest_token(hf: Drafted, ids: tuple[int, ...]) -> None:
    first = torch.tensor([ids[:40]])
    tokens = evaluate.continued(hf, first, 6, None)
    with torch.inference_mode():
        logits = hf.target(input_ids=tokens).logits[0, 39:-1]
    assert logits.argmax(-1).tolist() == tokens[0, 40:].tolist()
