"""The header of a GGUF file, version 2 or 3 (format: the specification in the ggml repository).

Read here instead of by the library's reader, which makes an array object a value (3 s for a vocabulary of
49,152) and does not check that what it reads lies inside the file.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from txdecode.kernels.models.errors import DamagedModel, UnsupportedFeature
from txdecode.kernels.models.fields import Fields
from txdecode.kernels.models.stored import StoredTensor, map_file

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = 32
_DIMENSIONS_MAX = 4
_EXTENT_MAX = 1 << 40
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


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
    cursor = _Cursor(path, map_file(path))
    if cursor.take(4) != _MAGIC:
        raise DamagedModel(path, "does not begin with 'GGUF'")
    version = cursor.scalar("I")
    if version not in _VERSIONS:
        expected = f"one of {list(_VERSIONS)} in little-endian order"
        raise UnsupportedFeature("GGUF version", version, expected)
    tensor_count, field_count = cursor.scalar("Q"), cursor.scalar("Q")
    metadata: dict[str, Any] = {}
    for _ in range(field_count):
        key = cursor.string()
        if key in metadata:
            raise DamagedModel(path, f"metadata '{key}' occurs twice")
        metadata[key] = cursor.value(cursor.scalar("I"))
    fields = Fields(path, metadata)
    if metadata.get("split.count", 0) not in (0, 1):
        raise UnsupportedFeature("split.count", metadata["split.count"], "at most 1 (merge the parts first)")
    infos = [_tensor_info(cursor) for _ in range(tensor_count)]
    alignment = fields.count("general.alignment", default=_ALIGNMENT, most=1 << 20)
    start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, StoredTensor] = {}
    for info in infos:
        placed = attrs.evolve(info, offset=start + info.offset)
        if placed.name in tensors:
            raise DamagedModel(path, f"tensor '{placed.name}' occurs twice")
        if placed.offset + placed.nbytes > cursor.size:
            missing = placed.offset + placed.nbytes - cursor.size
            raise DamagedModel(path, f"truncated: tensor '{placed.name}' misses {missing} bytes")
        tensors[placed.name] = placed
    return GgufFile(path, metadata, tensors)


def _tensor_info(cursor: _Cursor) -> StoredTensor:
    """One row of the tensor table; its offset still counts from the start of the data."""
    name = cursor.string()
    dimensions = cursor.scalar("I")
    if not 1 <= dimensions <= _DIMENSIONS_MAX:
        raise DamagedModel(cursor.path, f"tensor '{name}' has {dimensions} dimensions")
    # The file lists the innermost dimension first.
    shape = tuple(reversed([cursor.scalar("Q") for _ in range(dimensions)]))
    type_number, offset = cursor.scalar("I"), cursor.scalar("Q")
    try:
        kind = GGMLQuantizationType(type_number)
        block, block_bytes = GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError) as error:
        raise DamagedModel(cursor.path, f"tensor '{name}' has the unknown type {type_number}") from error
    if not all(1 <= extent <= _EXTENT_MAX for extent in shape) or shape[-1] % block:
        raise DamagedModel(cursor.path, f"tensor '{name}' of type {kind.name} has shape {list(shape)}")
    tensor = StoredTensor(name, kind.name, shape, 0, cursor.path, offset)
    return attrs.evolve(tensor, nbytes=tensor.elements // block * block_bytes)


class _Cursor:
    """Reads forward through a header and never past the end of the file."""

    def __init__(self, path: Path, data: memoryview) -> None:
        self.path = path
        self.position = 0
        self.size = len(data)
        self._data = data

    def take(self, count: int) -> bytes:
        start, end = self.position, self.position + count
        if end > self.size:
            raise DamagedModel(self.path, f"truncated: the header ends at byte {self.size}, wanted {end}")
        self.position = end
        return bytes(self._data[start:end])

    def scalar(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self) -> str:
        raw = self.take(self.scalar("Q"))
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise DamagedModel(self.path, f"a string before byte {self.position} is not UTF-8") from error

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise DamagedModel(self.path, f"unknown metadata type {kind} before byte {self.position}")
        return self.scalar(_SCALARS[kind])

    def _array(self) -> list[Any]:
        kind, count = self.scalar("I"), self.scalar("Q")
        if kind in _SCALARS:
            code = _SCALARS[kind]
            raw = self.take(count * struct.calcsize("<" + code))
            return list(struct.unpack(f"<{count}{code}", raw))
        if kind != _STRING:
            raise DamagedModel(self.path, f"unknown array type {kind} before byte {self.position}")
        return [self.string() for _ in range(count)]
