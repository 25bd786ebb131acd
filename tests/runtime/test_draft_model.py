"""A second model that drafts, opened by name: what fits, what does not, and that the text stays what it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests import hybrids
from txdecode.kernels.models.config import DenseConfig
from txdecode.kernels.models.errors import UnknownModel
from txdecode.kernels.models.weights import DenseWeights
from txdecode.kernels.paired import VocabularyMismatch
from txdecode.kernels.paired_executor import SOURCE, PairedExecutor
from txdecode.runtime import InvalidRequest, Runtime, Sampling
from txdecode.runtime.cli import main
from txdecode.runtime.draft_models import paired
from txdecode.runtime.execution import execute
from txdecode.runtime.gates.prompts import GatePrompt
from txdecode.runtime.journal import read_header
from txdecode.transactions.toy import ToyExecutor

PROMPT = "def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n"


def save(folder: Path, **changes: Any) -> Path:
    """A tiny hybrid with a tokenizer of bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: token for token, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return hybrids.save(
        hybrids.build("qwen3_5", **{"vocab_size": 256, **changes}), folder, tokenizer=tokenizer
    )


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return save(tmp_path_factory.mktemp("hybrid"))


def test_a_hybrid_has_no_first_layers(hybrid: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"'first:1' cuts dense models, and 'qwen3_5' is a hybrid"):
        Runtime.open(hybrid, dtype="fp32", draft="model", draft_model="first:1")


def test_an_unknown_drafter(hybrid: Path) -> None:
    with pytest.raises(UnknownModel, match="unknown model 'nowhere'"):
        Runtime.open(hybrid, dtype="fp32", draft="model", draft_model="nowhere")


@pytest.mark.parametrize("rollback", ["columns", "replay", "restore"])
def test_a_hybrid_drafts_for_another(hybrid: Path, rollback: str, tmp_path: Path) -> None:
    other = save(tmp_path / "other", num_hidden_layers=2, layer_types=["linear_attention", "full_attention"])
    log = tmp_path / "run.txlog"
    options: dict[str, Any] = {
        "dtype": "fp32",
        "rollback": rollback,
        "pages": 8,
        "batch_max": 2,
        "context": 128,
    }
    texts = []
    drafted: dict[str, Any] = {"log": log, "draft_model": other, "paranoid": True, "audit_every": 1}
    for draft, more in (("none", {}), ("model+lookup", drafted)):
        with Runtime.open(hybrid, draft=draft, draft_len=4, **options, **more) as runtime:
            handles = [
                runtime.submit(list(range(9 + number)), max_tokens=24, sampling=sampling)
                for number, sampling in enumerate((None, Sampling(temperature=1.0, seed=2)))
            ]
            for _ in range(8):
                runtime.step()
            if draft != "none":
                runtime.preempt(handles[0])
            runtime.run()
            texts.append([handle.result().ids for handle in handles])
            asked = [int(draft != "none"), 0]
            assert [handle.result().stats.preemptions for handle in handles] == asked
    assert texts[0] == texts[1]
    assert SOURCE in handles[0].result().stats.by_source
    recorded = read_header(log).configuration
    assert recorded["options"]["draft_model"] == str(other)  # type: ignore[index,call-overload]
    assert execute(log).numerics == "exact"


def test_another_vocabulary(hybrid: Path, tmp_path: Path) -> None:
    other = save(tmp_path, vocab_size=257)
    with pytest.raises(VocabularyMismatch, match=r"expected vocab_size 256.*found 257"):
        Runtime.open(hybrid, dtype="fp32", draft="model", draft_model=other)


def test_the_same_size_with_other_tokens(hybrid: Path, tmp_path: Path) -> None:
    other = save(tmp_path)
    file = other / "tokenizer.json"
    data = json.loads(file.read_text())
    vocab = data["model"]["vocab"]
    first, second = sorted(vocab, key=vocab.__getitem__)[-2:]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    file.write_text(json.dumps(data))
    with pytest.raises(VocabularyMismatch, match=rf"expected token {vocab[second]} to be"):
        Runtime.open(hybrid, dtype="fp32", draft="model", draft_model=other)
    file.unlink()
    Runtime.open(hybrid, dtype="fp32", draft="model", draft_model=other, pages=4, batch_max=1).close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--draft", "guess"], "draft must be 'lookup'"),
        (["--draft", "lookup:0"], "minimum match of draft 'lookup' must be 1 to 64"),
        (["--draft", "model"], "needs the model that drafts"),
        (["--draft-model", "first:2"], "draft='lookup' does not use"),
        (["--draft", "model", "--draft-model", "first:2"], "'first:2' cuts dense models"),
    ],
)
def test_the_command_line_refuses_in_one_line(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["run", "x", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("name", ["first:0", "first:30", "first:", "first:x", "first:9999"])
def test_layers_out_of_range(name: str) -> None:
    config = DenseConfig("llama", 48, 8, 8, 30, 1, 1, 8, 1e4, 1e-5, 64)
    with pytest.raises(InvalidRequest, match=rf"must keep 1 to 29 of the model's 30 layers, found '{name}'"):
        paired(ToyExecutor(), DenseWeights(config, {}, "none"), Tokenizer(models.BPE()), name, "fp32")


@pytest.mark.parametrize("name", ["first:1", "first:0", "first:"])
def test_one_layer_cannot_be_cut(name: str) -> None:
    config = DenseConfig("llama", 48, 8, 8, 1, 1, 1, 8, 1e4, 1e-5, 64)
    with pytest.raises(
        InvalidRequest, match=rf"'{name}' cuts layers off the model, and 'llama' has one layer alone; "
    ):
        paired(ToyExecutor(), DenseWeights(config, {}, "none"), Tokenizer(models.BPE()), name, "fp32")


def gate(hybrid: Path, *arguments: str) -> Any:
    fixed = ["--model", str(hybrid), "--dtype", "fp32", "--max-tokens", "6", "--threads", "1"]
    return CliRunner().invoke(main, ["gate", "lossless", *fixed, *arguments])


@pytest.mark.parametrize("draft", ["model", "model+suffix:2"])
def test_the_gate_takes_a_draft_model(hybrid: Path, draft: str, monkeypatch: pytest.MonkeyPatch) -> None:
    short = tuple(GatePrompt(f"p{i}", (), 9, False, text="def add(a, b):"[i:]) for i in range(2))
    monkeypatch.setattr("txdecode.runtime.cli.gate.CODE_PROMPTS", short)
    result = gate(hybrid, "--draft", draft, "--draft-model", str(hybrid), "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["passed"]
    # The same weights are always right, but where a copy took their place.
    assert all(0 < case["accepted"] <= case["drafted"] for case in report["cases"])
    if draft == "model":
        assert all(case["accepted"] == case["drafted"] for case in report["cases"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--draft", "guess"], "draft must be 'lookup'"),
        (["--draft", "none"], "draft 'none' is plain"),
        (["--draft", "model"], "needs the model that drafts"),
        (["--draft-model", "first:2"], "draft='lookup' does not use"),
    ],
)
def test_the_gate_refuses_in_one_line(hybrid: Path, arguments: list[str], message: str) -> None:
    result = gate(hybrid, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_recovery_opens_the_same_drafter(hybrid: Path, tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"
    sizes: dict[str, Any] = {"dtype": "fp32", "pages": 8, "batch_max": 2, "context": 128}
    with Runtime.open(hybrid, draft="none", **sizes) as runtime:
        text = runtime.submit(list(range(9)), max_tokens=24).result().ids
    options: dict[str, Any] = {"draft": "model+suffix:4", "draft_model": hybrid, "draft_len": 4}
    with Runtime.open(hybrid, log=log, **options, **sizes) as runtime:
        runtime.submit(list(range(9)), max_tokens=24)
        for _ in range(3):
            runtime.step()
    for draft in (None, "lookup"):
        with Runtime.recover(log, draft=draft) as recovered:
            # Its state is in the log's groups, whoever drafts now.
            assert isinstance(recovered._coordinator.executor, PairedExecutor)
            assert recovered.options.draft_model == str(hybrid)
            (handle,) = recovered.handles.values()
            if draft is None:
                recovered.step()
                continue
            recovered.run()
            assert handle.result().ids == text
    assert execute(log).numerics == "exact"


@pytest.mark.model
def test_first_layers_of_smollm2() -> None:
    options: dict[str, Any] = {"draft": "model", "draft_model": "first:10", "draft_len": 3}
    sizes: dict[str, Any] = {"pages": 8, "batch_max": 2, "context": 256, "threads": 1}
    samplings = (None, Sampling(temperature=0.8, top_p=0.9, seed=4))
    texts = []
    with Runtime.open("smollm2", **options, **sizes) as runtime:
        for length in (0, None):
            handles = [
                runtime.submit(PROMPT, max_tokens=8, sampling=sampling, draft_len=length)
                for sampling in samplings
            ]
            runtime.run()
            texts.append([handle.result().ids for handle in handles])
        memory = runtime.description.memory
    assert texts[0] == texts[1]
    assert memory["draft.weights"] < memory["weights"]
    assert all(handle.result().stats.by_source[SOURCE][0] for handle in handles)
