"""``describe`` of dense models and hybrids: what is printed, and the JSON of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tokenizers import Tokenizer

from tests import hybrids
from txdecode.runtime.cli import main


def invoke(*arguments: object) -> dict[str, str]:
    """What a command prints, by the name at the start of each line."""
    result = CliRunner().invoke(main, ["describe", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    lines = (line.strip().partition("  ") for line in result.stdout.splitlines())
    return {name: value.strip() for name, _, value in lines}


def described(*arguments: object) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["describe", *map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    data: dict[str, Any] = json.loads(result.stdout)
    return data


@pytest.fixture(scope="module")
def hybrid(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = Tokenizer.from_file(str(tiny / "tokenizer.json"))
    folder = tmp_path_factory.mktemp("hybrid")
    return hybrids.save(hybrids.build("qwen3_5_moe"), folder, nested=True, tokenizer=tokenizer)


def test_a_dense_model(tiny: Path) -> None:
    lines = invoke(tiny)
    assert lines["layers"] == "2"
    assert lines["hidden"] == "32, feed-forward 48"
    # Keys and values of one head of 16 in two layers, two bytes each.
    assert lines["state 'kv'"] == "pages, 2 layers, 128 bytes a token in bf16"
    assert "notes" not in lines
    assert "delta net" not in lines


def test_a_hybrid(hybrid: Path) -> None:
    lines = invoke(hybrid, "--dtype", "fp32")
    assert lines["supported"] == "yes"
    assert lines["layers"] == "4: 3 gated delta net, 1 full attention, and one MTP layer"
    assert lines["heads"] == "4 query, 2 key/value, 32 wide"
    assert lines["delta net"] == ("2 key heads, 16 wide, 6 value heads, 24 wide, convolution over 4 rows")
    assert lines["experts"] == "2 of 6 a token, 40 wide, and a shared one, 56 wide, in 4 layers"
    assert lines["hidden"] == "64"
    assert lines["state 'kv'"] == "pages, 1 layer, 512 bytes a token in fp32"
    assert lines["state 'gdn'"] == "column, 3 layers, 27.0 KiB a sequence in fp32"
    assert lines["state 'conv'"].startswith("ring, 3 layers, 7.3 KiB a sequence")
    assert lines["state 'pairs'"] == "pages, 1 layer, 512 bytes a token in fp32"
    assert "vision" in lines["notes"]


def test_a_hybrid_as_json(hybrid: Path) -> None:
    data = described(hybrid)
    assert data["config"]["mixers"] == ["linear", "linear", "linear", "full"]
    assert data["config"]["moe"]["experts"] == 6
    states = {state["name"]: state for state in data["states"]}
    assert list(states) == ["kv", "gdn", "conv", "pairs", "tail"]
    assert (states["gdn"]["token_bytes"], states["gdn"]["sequence_bytes"]) == (0, 27648)
    assert len(data["notes"]) == 1


def test_no_mtp_layer_no_shared_expert_no_experts(tiny: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny / "tokenizer.json"))
    folder = hybrids.save(hybrids.build("qwen3_5", mtp=False), tmp_path / "a", tokenizer=tokenizer)
    lines = invoke(folder)
    assert lines["layers"] == "4: 3 gated delta net, 1 full attention"
    assert lines["hidden"] == "64, feed-forward 88"
    assert "experts" not in lines
    assert "notes" not in lines
