"""What a hybrid is and what state it keeps, from its files or its geometry alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests import hybrids
from txdecode.kernels.models.describe import describe_model, state_needs
from txdecode.kernels.models.hybrid_config import HybridConfig
from txdecode.kernels.models.loading import load_text
from txdecode.kernels.models.source import resolve


@pytest.fixture(scope="module")
def hybrid_folder(tiny_tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hybrid")
    return hybrids.save(hybrids.build("qwen3_5"), folder, nested=True, tokenizer=tiny_tokenizer)


def test_a_hybrid_described(hybrid_folder: Path) -> None:
    described = describe_model(resolve(str(hybrid_folder)))
    assert (described.supported, described.reason) == (True, None)
    assert described.architecture == "Qwen3_5ForConditionalGeneration"
    assert isinstance(described.config, HybridConfig)
    assert described.eos_ids == (0,)
    kv, gdn, conv, pairs, tail = described.states
    # Two heads of 32 in one layer; six states of 24 by 16 in fp32 and three rows of 208 in three layers.
    assert (kv.name, kv.kind, kv.layers, kv.token_bytes, kv.sequence_bytes) == ("kv", "pages", 1, 256, 0)
    assert attrs.astuple(gdn) == ("gdn", "column", 3, 0, "fp32", 3 * 6 * 24 * 16 * 4)
    assert attrs.astuple(conv) == ("conv", "ring", 3, 0, "fp32", 3 * 3 * 208 * 4)
    assert attrs.astuple(pairs) == ("pairs", "pages", 1, 256, "bf16", 0)
    assert attrs.astuple(tail) == ("tail", "ring", 1, 0, "bf16", 64 * 2)
    (note,) = described.notes
    assert note.endswith("tensors of the vision part that are not read: 1")


def test_the_dtype_asked_for_leaves_the_recurrent_state_alone(hybrid_folder: Path) -> None:
    two, four = (describe_model(resolve(str(hybrid_folder)), dtype).states for dtype in ("bf16", "fp32"))
    assert [need.dtype for need in four] == ["fp32"] * 5
    assert [need.token_bytes for need in four] == [2 * need.token_bytes for need in two]
    assert four[1:3] == two[1:3]
    assert four[4].sequence_bytes == 2 * two[4].sequence_bytes


def test_an_mtp_layer_that_is_named_but_absent_is_said(
    hybrid_folder: Path, tmp_path: Path, tiny_tokenizer: Any
) -> None:
    plain = hybrids.build("qwen3_5", mtp=False)
    folder = hybrids.save(plain, tmp_path / "plain", tokenizer=tiny_tokenizer)
    described = describe_model(resolve(str(folder)))
    assert described.notes == ()
    assert [need.name for need in described.states] == ["kv", "gdn", "conv"]
    for nested in (False, True):
        folder = hybrids.save(plain, tmp_path / str(nested), nested=nested, tokenizer=tiny_tokenizer)
        config = json.loads((folder / "config.json").read_text())
        (config["text_config"] if nested else config)["mtp_num_hidden_layers"] = 1
        (folder / "config.json").write_text(json.dumps(config))
        assert "no MTP drafts" in describe_model(resolve(str(folder))).notes[-1]


def test_a_variant_that_is_not_computed_is_described_with_the_reason(
    hybrid_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(hybrid_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["attention_bias"] = True
    (folder / "config.json").write_text(json.dumps(config))
    described = describe_model(resolve(str(folder)))
    assert (described.supported, described.config, described.states) == (False, None, ())
    assert described.reason is not None
    assert "attention_bias" in described.reason
    assert described.parameters > 0


def test_end_tokens_may_stand_in_the_text_part(hybrid_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(hybrid_folder, folder)
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["eos_token_id"] = [5, 6]
    (folder / "config.json").write_text(json.dumps(config))
    assert load_text(resolve(str(folder))).eos_ids == (5, 6)
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": 7}))
    assert load_text(resolve(str(folder))).eos_ids == (7,)


def test_state_of_a_geometry_of_27_billion() -> None:
    config = HybridConfig(
        architecture="qwen3_5",
        vocab_size=248_320,
        hidden_size=5120,
        mixers=("linear", "linear", "linear", "full") * 16,
        feeds=("dense",) * 64,
        intermediate_size=17_408,
        moe=None,
        head_count=24,
        kv_head_count=4,
        head_dim=256,
        rotary_dim=64,
        rope_theta=1e7,
        rms_eps=1e-6,
        context=262_144,
        key_heads=16,
        value_heads=48,
        key_dim=128,
        value_dim=128,
        conv_width=4,
        tied_head=False,
        mtp=True,
        mtp_feed="dense",
    )
    kv, gdn, conv, pairs, _ = state_needs(config, "bf16")
    assert (kv.layers, kv.token_bytes) == (16, 64 << 10)
    assert (gdn.layers, gdn.sequence_bytes) == (48, 144 << 20)
    assert (conv.layers, conv.sequence_bytes) == (48, 48 * 3 * 10_240 * 4)
    assert (pairs.layers, pairs.token_bytes) == (1, 4 << 10)
    without = attrs.evolve(config, mtp=False, mixers=("linear",) * 2, feeds=("dense",) * 2)
    assert [need.name for need in state_needs(without, "bf16")] == ["gdn", "conv"]
