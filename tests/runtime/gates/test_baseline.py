"""The gate ``baseline`` over the toy: what is a tie, what is a difference, what is too slow, what is missing."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.runtime.gates.test_lossless import Letters
from txdecode.runtime.bench.errors import PeerMissing
from txdecode.runtime.cli import main
from txdecode.runtime.errors import InvalidRequest
from txdecode.runtime.gates import baseline_run
from txdecode.runtime.gates.baseline import (
    TIES,
    BaselineCase,
    BaselineReport,
    HuggingFace,
    baseline_gate,
    judged,
    parted,
)
from txdecode.runtime.gates.prompts import GatePrompt
from txdecode.runtime.opening import Opened
from txdecode.transactions.toy import ToyExecutor, plain


class Table:
    """Scores by position: the best token, and how far below it every other one is."""

    def __init__(self, best: Mapping[int, int], margin: float) -> None:
        self._best, self._margin = best, margin

    def best(self, position: int) -> int:
        return self._best[position]

    def margin(self, position: int, better: int, worse: int) -> float:
        score = {self._best[position]: self._margin}
        return score.get(better, 0.0) - score.get(worse, 0.0)


class Judge:
    """Prefers what the toy says but at ``wrong`` positions of the text, there the next id by ``margin``."""

    def __init__(self, start: int, wrong: Sequence[int] = (), margin: float = 0.0) -> None:
        self.start, self.wrong, self.margin = start, wrong, margin
        self.read: list[list[int]] = []

    def scores(self, ids: Sequence[int]) -> Table:
        self.read.append(list(ids))
        best = {
            position: (ids[position] + (position - self.start in self.wrong)) % 48
            for position in range(self.start, len(ids))
        }
        return Table(best, self.margin)


class Other:
    """An engine that says what it is told."""

    def __init__(self, name: str, text: Sequence[int], tok_s: float = 1e-3) -> None:
        self.name, self.text, self.tok_s = name, text, tok_s
        self.asked: list[tuple[Sequence[int], int]] = []

    def decode(self, name: str, ids: Sequence[int], count: int) -> tuple[Sequence[int], float]:
        self.asked.append((ids, count))
        return self.text, self.tok_s


PROMPT = GatePrompt("p", [{"content": "ABCD"}], 12, False)
IDS = [ord(letter) % 48 for letter in "ABCD"]
OURS = plain(IDS, 12, 48)


def run(judge: Judge, *engines: Other, **options: Any) -> BaselineReport:
    opened = Opened(ToyExecutor(), "toy", Letters())  # type: ignore[arg-type]
    engines = engines or (Other("hf", OURS),)
    return baseline_gate(opened, [PROMPT], judge, engines, dtype="fp32", **options)


def test_equal_texts_pass_and_the_judge_reads_all_of_ours() -> None:
    judge, engine = Judge(4), Other("hf", OURS)
    report = run(judge, engine)
    assert report.passed
    (case,) = report.cases
    assert (case.tokens, case.differing, case.first, case.worst) == (12, 0, None, 0.0)
    assert judge.read == [[*IDS, *OURS]]
    assert engine.asked == [(IDS, 12)] * 3
    assert case.ratio == pytest.approx(case.tok_s / case.engine_tok_s)


def test_a_near_tie_is_reported_and_is_no_failure() -> None:
    report = run(Judge(4, [3, 5], TIES["fp32"]))
    (case,) = report.cases
    assert report.passed
    assert case.differing == 2
    assert case.first is not None
    assert (case.first.index, case.first.ours, case.first.theirs) == (3, OURS[3], (OURS[3] + 1) % 48)
    assert case.first.margin == case.worst == TIES["fp32"]


def test_a_margin_above_a_tie_fails_wherever_it_stands() -> None:
    report = run(Judge(4, [11], 2 * TIES["fp32"]))
    assert not report.passed
    assert not report.cases[0].same
    assert run(Judge(4, [11], 2 * TIES["fp32"]), tie=1.0).passed


def test_another_engines_own_text_is_compared_up_to_where_it_parts() -> None:
    theirs = [*OURS[:6], (OURS[6] + 1) % 48, 0, 0]
    close = run(Judge(4, [6], 1e-4), Other("hf", OURS), Other("llama.cpp", theirs))
    assert close.passed
    hf, llama = close.cases
    assert (hf.engine, llama.engine) == ("hf", "llama.cpp")
    assert llama.first is not None
    assert (llama.first.index, llama.first.theirs) == (6, theirs[6])
    assert not run(Judge(4, margin=1.0), Other("hf", OURS), Other("llama.cpp", theirs)).passed


def test_a_text_that_ends_early_does_not_differ() -> None:
    scores = Table({4 + index: token for index, token in enumerate(OURS)}, 9.0)
    assert parted(scores, 4, OURS, OURS[:5]) == (0, None, 0.0)
    assert parted(scores, 4, OURS[:5], OURS) == (0, None, 0.0)
    assert judged(scores, 4, OURS[:5]) == (0, None, 0.0)


def test_a_floor_makes_the_slow_fail() -> None:
    slow = Other("hf", OURS, tok_s=1e12)
    assert run(Judge(4), slow).passed
    report = run(Judge(4), slow, at_least=0.7)
    assert not report.passed
    assert report.slow == ("hf",)
    assert run(Judge(4), Other("hf", OURS), at_least=0.7).passed


def test_the_floor_is_of_the_median_over_prompts() -> None:
    cases = tuple(
        BaselineCase(name, "hf", 3, 0, None, 0.0, 0.1, tok_s, 100.0)
        for name, tok_s in (("a", 50.0), ("b", 80.0), ("c", 90.0))
    )
    assert BaselineReport("m", "fp32", cases, at_least=0.8).passed
    assert not BaselineReport("m", "fp32", cases, at_least=0.81).passed


def test_engines_take_turns() -> None:
    order: list[str] = []

    class Noted(Other):
        def decode(self, name: str, ids: Sequence[int], count: int) -> tuple[Sequence[int], float]:
            order.append(self.name)
            return super().decode(name, ids, count)

    run(Judge(4), Noted("a", OURS), Noted("b", OURS), repeats=2)
    assert order == ["a", "b", "b", "a"]


def test_a_model_without_a_tokenizer_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no tokenizer"):
        baseline_gate(Opened(ToyExecutor(), "toy"), [PROMPT], Judge(4), [], dtype="fp32")


@pytest.fixture
def without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *args: Any, **options: Any) -> Any:
        if name == "transformers":
            raise ModuleNotFoundError("No module named 'transformers'", name="transformers")
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", absent)


@pytest.mark.usefixtures("without_transformers")
def test_transformers_missing_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        PeerMissing, match=r"needs the package 'transformers', which this environment does not have"
    ):
        HuggingFace(tmp_path, "fp32", 1)


def test_llama_cpp_missing_is_reported_and_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Source:
        kind = "gguf"
        path = tmp_path / "m.gguf"

    def missing(*args: Any, **options: Any) -> None:
        raise PeerMissing("llama-bf16", "llama_cpp", "'python'")

    seen: dict[str, Any] = {}

    def gate(opened: Opened, prompts: Any, reference: Any, engines: Sequence[Any], **options: Any) -> str:
        seen.update(options, engines=list(engines))
        return "report"

    monkeypatch.setattr(baseline_run, "resolve", lambda name: Source)
    monkeypatch.setattr(baseline_run, "HuggingFace", lambda *args: "hf")
    monkeypatch.setattr(baseline_run, "PeerProcess", missing)
    monkeypatch.setattr(baseline_run, "baseline_gate", gate)
    opened = Opened(ToyExecutor(), "toy")
    options: dict[str, Any] = {"dtype": "fp32", "threads": 1}
    assert baseline_run.run_baseline(opened, [], python_llama="python", **options) == "report"
    assert seen["engines"] == ["hf"]
    assert "'llama-bf16' needs llama_cpp" in seen["absent"][0]
    Source.kind = "folder"
    with pytest.raises(InvalidRequest, match=r"llama\.cpp reads GGUF files"):
        baseline_run.run_baseline(opened, [], python_llama="python", **options)


def model_with_a_tokenizer(folder: Path) -> Path:
    import torch
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=1024,
        eos_token_id=None,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_the_command_on_a_model_and_transformers(tmp_path: Path) -> None:
    """Random weights, same ids, fp32 on both sides; and a floor that nothing reaches."""
    import json

    folder = model_with_a_tokenizer(tmp_path / "m")
    common = [
        "gate",
        "baseline",
        "--model",
        str(folder),
        "--dtype",
        "fp32",
        "--threads",
        "1",
        "--repeats",
        "1",
    ]
    common += ["--max-tokens", "6", "--limit", "1"]
    result = CliRunner().invoke(main, [*common, "--json"])
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["passed"] is True
    assert data["cases"][0]["tokens"] == 6
    assert data["ratios"]["hf"] > 0
    result = CliRunner().invoke(main, [*common, "--at-least", "1e9"])
    assert result.exit_code == 1
    assert "below 1e+09" in result.stdout
    assert "gate baseline FAILS" in result.stdout


def test_weights_are_rounded_as_ours_are(tmp_path: Path) -> None:
    found = HuggingFace(model_with_a_tokenizer(tmp_path / "m"), "bf16", 1)
    import torch

    assert next(found._model.parameters()).dtype == torch.bfloat16
    for mine, theirs in zip(found._judge.parameters(), found._model.parameters(), strict=True):
        assert mine.dtype == torch.float32
        assert torch.equal(mine, theirs.float())
