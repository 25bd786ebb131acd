"""Tensors as they lie in files: names, types, shapes and places, without reading their data."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import attrs

from txdecode.kernels.models.config import DenseConfig
from txdecode.kernels.models.errors import DamagedModel, TensorMismatch
from txdecode.kernels.models.layout import HEAD, tensor_shapes


@attrs.frozen
class StoredTensor:
    """One tensor of a file. ``name`` is the file's own; ``dtype`` such as ``BF16`` or ``Q4_1``;
    ``shape`` in elements, outermost first; ``offset`` from the start of the file (GGUF only)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    path: Path
    offset: int = 0

    @property
    def elements(self) -> int:
        """Number of elements."""
        total = 1
        for extent in self.shape:
            total *= extent
        return total


def map_file(path: Path) -> memoryview:
    """The bytes of a file, mapped for reading. Raises ``DamagedModel``."""
    try:
        with path.open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise DamagedModel(path, f"cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise DamagedModel(path, "the file is empty") from error


def match_layout(
    config: DenseConfig, tensors: Mapping[str, StoredTensor], path: Path
) -> dict[str, StoredTensor]:
    """The tensors that the configuration asks for, in its order, by canonical name.

    ``tensors`` are keyed by canonical name. Raises ``TensorMismatch`` for one that is missing, of another
    shape, or unexpected: an ignored bias would change what the model computes.
    """
    return match_shapes(tensor_shapes(config), tensors, path, lambda name: _is_harmless(name, config))


def match_shapes(
    wanted: Mapping[str, tuple[int, ...]],
    tensors: Mapping[str, StoredTensor],
    path: Path,
    is_harmless: Callable[[str], bool],
) -> dict[str, StoredTensor]:
    """The tensors that are ``wanted``, in that order. Raises ``TensorMismatch`` for one that is missing, of
    another shape, or neither wanted nor harmless; ``path`` is named where a tensor lies nowhere."""
    for name, shape in wanted.items():
        found = tensors.get(name)
        if found is None or found.shape != shape:
            raise TensorMismatch(
                path if found is None else found.path, name, shape, None if found is None else found.shape
            )
    for name, tensor in tensors.items():
        if name not in wanted and not is_harmless(name):
            raise TensorMismatch(tensor.path, name, None, tensor.shape)
    return {name: tensors[name] for name in wanted}


def bytes_by_dtype(tensors: Iterable[StoredTensor]) -> dict[str, int]:
    """Stored bytes by dtype, most first."""
    totals: dict[str, int] = {}
    for tensor in tensors:
        totals[tensor.dtype] = totals.get(tensor.dtype, 0) + tensor.nbytes
    return dict(sorted(totals.items(), key=lambda item: (-item[1], item[0])))


def _is_harmless(name: str, config: DenseConfig) -> bool:
    # Older checkpoints store the rotary table, and some a copy of the embedding as the tied head.
    return name.endswith("rotary_emb.inv_freq") or (config.tied_head and name == HEAD)
