"""The model that the package carries: found by name, whole, small enough, described by its card, part of a wheel."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

import pytest

from tests.bundled.publish import CARD, FILES
from txdecode.kernels.models import source
from txdecode.kernels.models.describe import describe_model
from txdecode.kernels.models.errors import DamagedModel
from txdecode.kernels.models.hybrid_config import HybridConfig
from txdecode.kernels.models.loading import load_config, load_text
from txdecode.kernels.models.source import resolve

BYTES_MAX = 16 << 20
ROOT = Path(__file__).parents[3]


@pytest.fixture
def folder() -> Path:
    return resolve("bundled").path


def test_the_name_is_a_folder_inside_the_package(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bundled").mkdir()
    found = resolve("bundled")
    assert (found.name, found.kind, found.path) == ("bundled", "folder", folder)
    assert folder.is_relative_to(Path(source.__file__).parent)
    shutil.copy(folder / "config.json", tmp_path / "bundled")
    assert resolve("./bundled").path == Path("bundled")


def test_its_files_are_few_and_small(folder: Path) -> None:
    files = sorted(folder.iterdir())
    assert [path.name for path in files] == sorted([*FILES, CARD])
    assert sum(path.stat().st_size for path in files) <= BYTES_MAX


def test_the_card_is_of_these_weights(folder: Path) -> None:
    card = (folder / CARD).read_text(encoding="utf-8")
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    described = describe_model(resolve("bundled"))
    assert f"`{digest}`" in card, "the weights changed: run tests.bundled.publish"
    assert f"{described.parameters:,} parameters" in card
    assert all(
        f"## {title}" in card for title in ("Data", "Recipe", "Figures", "Licence", "What it is not for")
    )
    assert re.search(r"target \d\.\d{3}; draft steps 1 to 3", card)
    assert re.search(r"^\| draft \| 1 \| 2 \| 3 \| 4 \| 5 \| 6 \| 7 \|$", card, re.MULTILINE)


def test_what_it_is() -> None:
    found = resolve("bundled")
    config, text = load_config(found), load_text(found)
    assert isinstance(config, HybridConfig)
    assert config.architecture == "qwen3_5"
    assert config.mixers == ("linear", "linear", "linear", "full") * 2
    assert (config.mtp, config.tied_head, config.vocab_size) == (True, True, 4096)
    described = describe_model(found)
    assert described.supported
    assert set(described.weight_bytes) == {"BF16"}
    assert (text.eos_ids, text.chat_template) == ((0,), None)
    line = "def f(x):\n    return x  # é\n"
    assert text.tokenizer.decode(text.tokenizer.encode(line).ids) == line


def test_a_broken_installation_names_the_missing_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(source, "_BUNDLED_FOLDER", tmp_path)
    with pytest.raises(DamagedModel, match=r"config\.json"):
        load_config(resolve("bundled"))


def test_a_wheel_has_it() -> None:
    setuptools = pytest.importorskip("setuptools")
    distribution = setuptools.Distribution({"src_root": str(ROOT)})
    distribution.parse_config_files([str(ROOT / "pyproject.toml")])
    build = distribution.get_command_obj("build_py")
    build.ensure_finalized()
    patterns = build.package_data["txdecode.kernels.models"]
    found = [path.name for pattern in patterns for path in (ROOT / "kernels" / "models").glob(pattern)]
    assert sorted(found) == sorted([*FILES, CARD])
    assert "txdecode.kernels.models" in build.packages
