"""A GGUF file through the ``gguf`` library, with what it reads held inside the file.

The library trusts the counts and lengths that it finds; a damaged one would send it far past the end, or into a
loop of hours. Its reads are bounded here, and what it raises becomes ``DamagedModel``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, GGUFValueType, ReaderTensor
from gguf.constants import GGML_QUANT_SIZES

from txdecode.kernels.models.errors import DamagedModel, UnsupportedFeature
from txdecode.kernels.models.fields import Fields
from txdecode.kernels.models.stored import StoredTensor, map_file

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_PREFIX_SIZE = 8
_DIMENSIONS_MAX = 4
_EXTENT_MAX = 1 << 40
_ITEMS_MAX = 1 << 22
"""Most items of a metadata array; the largest vocabularies have a quarter of a million."""


@attrs.frozen
class GgufFile:
    """Metadata and tensor table of a GGUF file. Arrays are lists; shapes are outermost first."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]

    @property
    def fields(self) -> Fields:
        """The metadata with checked access."""
        return Fields(self.path, self.metadata)


def read_gguf(path: Path) -> GgufFile:
    """Read the header. Raises ``DamagedModel`` for a file that is truncated or not GGUF, and
    ``UnsupportedFeature`` for a version, byte order or split that is not read here."""
    _check_prefix(path)
    try:
        reader = _BoundedReader(path)
        # The reader's own entries (version and counts) are no metadata of the file.
        metadata = {
            name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")
        }
        tensors = {tensor.name: _stored(path, tensor) for tensor in reader.tensors}
    except DamagedModel:
        raise
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, OSError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DamagedModel(path, f"the gguf library cannot read it: {reason}") from error
    if metadata.get("split.count", 0) not in (0, 1):
        raise UnsupportedFeature("split.count", metadata["split.count"], "at most 1 (merge the parts first)")
    return GgufFile(path, metadata, tensors)


def _check_prefix(path: Path) -> None:
    prefix = bytes(map_file(path)[:_PREFIX_SIZE])
    if prefix[:4] != _MAGIC:
        raise DamagedModel(path, "does not begin with 'GGUF'")
    if len(prefix) < _PREFIX_SIZE:
        raise DamagedModel(path, "truncated: it ends before its version")
    version = int.from_bytes(prefix[4:], "little")
    if version not in _VERSIONS:
        expected = f"one of {list(_VERSIONS)} in little-endian order"
        raise UnsupportedFeature("GGUF version", version, expected)


def _stored(path: Path, tensor: ReaderTensor) -> StoredTensor:
    # The library lists the innermost dimension first.
    shape = tuple(int(extent) for extent in reversed(tensor.shape.tolist()))
    block, block_bytes = GGML_QUANT_SIZES[tensor.tensor_type]
    kind = tensor.tensor_type.name
    if not all(1 <= extent <= _EXTENT_MAX for extent in shape) or shape[-1] % block:
        raise DamagedModel(path, f"tensor '{tensor.name}' of type {kind} has shape {list(shape)}")
    stored = StoredTensor(tensor.name, kind, shape, 0, path, int(tensor.data_offset))
    return attrs.evolve(stored, nbytes=stored.elements // block * block_bytes)


class _BoundedReader(GGUFReader):  # type: ignore[misc]
    """The library's reader, which never reads past the end of its file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        super().__init__(path)

    def _get(self, offset: int, dtype: npt.DTypeLike, count: int = 1, override_order: Any = None) -> Any:
        end = int(offset) + np.dtype(dtype).itemsize * int(count)
        if end > len(self.data):
            raise DamagedModel(self._path, f"truncated: it ends at byte {len(self.data)}, wanted {end}")
        return super()._get(offset, dtype, count, override_order)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if raw_type == GGUFValueType.ARRAY:
            items = int(self._get(orig_offs + 4, np.uint64)[0])
            if items > _ITEMS_MAX:
                raise DamagedModel(self._path, f"a metadata array has {items} items, at most {_ITEMS_MAX}")
            if self._get(orig_offs, np.uint32)[0] == GGUFValueType.ARRAY:
                raise DamagedModel(self._path, "a metadata array of arrays, which no known writer makes")
        return super()._get_field_parts(orig_offs, raw_type)

    def _get_tensor_info_field(self, orig_offs: int) -> Any:
        name_size = int(self._get(orig_offs, np.uint64)[0])
        dimensions = int(self._get(orig_offs + 8 + name_size, np.uint32)[0])
        if not 1 <= dimensions <= _DIMENSIONS_MAX:
            raise DamagedModel(self._path, f"a tensor has {dimensions} dimensions")
        return super()._get_tensor_info_field(orig_offs)
