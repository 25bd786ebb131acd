"""The bytes of a journal, as pure functions; ``specs/journal.md`` is the normative text.

::

    journal = segment+
    segment = header record*
    header  = magic 8 | version u16 | reserved u16 | map length u32 | crc u32 | map | crc u32
    record  = marker u8 | type u8 | version u8 | flags u8 | length u32 | sequence u64 | crc u32
              | payload | chain 8 | crc u32

All integers are little-endian. A record's first checksum covers the 16 bytes before it, its last one the
payload and the chain. The chain is BLAKE2b-64 over the chain before, the 20 header bytes and the payload;
before the first record of a segment stands the BLAKE2b-64 of the segment's whole header, and that header holds
the chain digest after the last record of the segment before.

Why the last checksum comes after the chain: a record whose checksums are right was then written to its
last byte, so a wrong chain or sequence in it is never the trace of a crash.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Literal
from zlib import crc32

import attrs
import msgspec

from txdecode.runtime.journal.errors import JournalCorrupt, JournalVersionError, NotAJournal

# The high first byte and the CR LF show at once a file that went through a text-mode copy.
MAGIC = b"\x89TXLOG\r\n"
FORMAT_VERSION = 1
SEGMENTS = "segments"
FEATURES: frozenset[str] = frozenset({SEGMENTS})
SALT_SIZE = 16
HEADER_MAP_MAX = 1 << 20

# 0xC1 is the one byte that no MessagePack value begins with, which makes it rare in payloads and lets a
# search for records run at the speed of ``bytes.find``.
MARKER = b"\xc1"
CHAIN_SIZE = 8
HEAD_SIZE = 20
TAIL_SIZE = CHAIN_SIZE + 4
FRAMING = HEAD_SIZE + TAIL_SIZE
PAYLOAD_MAX = 1 << 28
SEQUENCE_MAX = (1 << 64) - 1

IGNORABLE = 1

Entry = tuple[int, int, int, bytes]
"""One record to append: type, schema version, flags, payload."""

_PREFIX = struct.Struct("<8sHHI")
_HEAD = struct.Struct("<cBBBIQ")
_CRC = struct.Struct("<I")
HEAD = struct.Struct("<cBBBIQI")
TAIL = struct.Struct("<8sI")
PREFIX_SIZE = _PREFIX.size + _CRC.size


_Count = Annotated[int, msgspec.Meta(ge=0)]
_Chain = Annotated[bytes, msgspec.Meta(min_length=CHAIN_SIZE, max_length=CHAIN_SIZE)]

NO_CHAIN = bytes(CHAIN_SIZE)

HeaderState = Literal["empty", "torn", "foreign", "whole"]
"""``torn``: what a crash can leave of a header. ``foreign``: nothing that a writer of headers leaves."""


# Defaults are left out, so that a journal of one segment keeps the bytes it had before there were segments.
class _HeaderMap(msgspec.Struct, frozen=True, omit_defaults=True):
    required: tuple[str, ...]
    optional: tuple[str, ...]
    fingerprint: dict[str, str]
    configuration: dict[str, object]
    salt: bytes
    segment: _Count = 0
    first_sequence: _Count = 0
    chain_before: _Chain = NO_CHAIN
    base: bool = False
    opening: _Count = 0


_MAP_DECODER = msgspec.msgpack.Decoder(_HeaderMap)
_MAP_ENCODER = msgspec.msgpack.Encoder()


@attrs.frozen
class Place:
    """Where a segment stands in its journal.

    ``segment`` is its number, ``first_sequence`` that of its first record, ``chain_before`` the chain digest after
    the last record of the segment before (zeros for segment 0). The first ``opening`` records were written
    together with the header; with ``base`` they rebuild everything that the segments before led to.
    """

    segment: int = 0
    first_sequence: int = 0
    chain_before: bytes = NO_CHAIN
    base: bool = False
    opening: int = 0


FIRST = Place()


@attrs.frozen
class Header:
    """The header of a segment.

    ``required`` names features that a reader must know, ``optional`` those that it may ignore.
    ``fingerprint`` is what must agree for equal bits, ``configuration`` what the run was opened with
    (anything MessagePack holds). ``place`` says which segment of the journal this is. ``size`` is the length of
    the header in bytes, ``chain`` the digest that the chain of the segment's first record starts from.
    """

    version: int
    required: tuple[str, ...]
    optional: tuple[str, ...]
    fingerprint: Mapping[str, str]
    configuration: Mapping[str, object]
    salt: bytes
    size: int
    chain: bytes
    place: Place = FIRST


class Record(msgspec.Struct, frozen=True, gc=False):
    """One checked record. ``offset`` is that of its first byte in its segment, ``chain`` its chain digest.

    A msgspec struct because replay makes one a record: built in a sixth of the time of a frozen class.
    """

    sequence: int
    type: int
    version: int
    flags: int
    payload: bytes
    offset: int
    chain: bytes

    @property
    def ignorable(self) -> bool:
        """Whether a reader that does not know the type may pass over the record."""
        return bool(self.flags & IGNORABLE)

    @property
    def size(self) -> int:
        """Bytes of the record in the file."""
        return len(self.payload) + FRAMING


@attrs.frozen
class TornTail:
    """The end of a write that a crash cut short: ``size`` bytes from ``offset`` to the end of file ``segment``."""

    offset: int
    size: int
    reason: str
    segment: str


@attrs.frozen
class UnfinishedRotation:
    """A last segment that a crash left without its header or its opening records: nothing was appended to it.

    ``segment`` is the file's name, ``size`` its length in bytes.
    """

    segment: str
    size: int
    reason: str


def chain_digest(*parts: bytes) -> bytes:
    """BLAKE2b with 8 bytes of output over the concatenation of ``parts``."""
    return blake2b(b"".join(parts), digest_size=CHAIN_SIZE).digest()


def encode_header(
    fingerprint: Mapping[str, str],
    configuration: Mapping[str, object],
    salt: bytes,
    required: Sequence[str] = (),
    optional: Sequence[str] = (),
    version: int = FORMAT_VERSION,
    place: Place = FIRST,
) -> bytes:
    """The bytes of a segment's header. ``salt`` has 16 random bytes, so that no two journals share a chain.

    A segment after the first requires the feature ``segments``, which is added here.
    """
    assert len(salt) == SALT_SIZE, len(salt)
    assert len(place.chain_before) == CHAIN_SIZE, place
    needed = (SEGMENTS,) if place.segment and SEGMENTS not in required else ()
    assert all(isinstance(item, str) for pair in fingerprint.items() for item in pair), fingerprint
    body = _MAP_ENCODER.encode(
        _HeaderMap(
            (*required, *needed),
            tuple(optional),
            dict(fingerprint),
            dict(configuration),
            salt,
            place.segment,
            place.first_sequence,
            place.chain_before,
            place.base,
            place.opening,
        )
    )
    assert len(body) <= HEADER_MAP_MAX, len(body)
    prefix = _PREFIX.pack(MAGIC, version, 0, len(body))
    return b"".join((prefix, _CRC.pack(crc32(prefix)), body, _CRC.pack(crc32(body))))


def header_size(prefix: bytes, path: Path) -> int:
    """Bytes of the whole file header, told by its first ``PREFIX_SIZE`` bytes (fewer if the file ends).

    The first 20 bytes keep their form in every format version, so a later version is told from damage.
    Raises ``NotAJournal``, ``JournalCorrupt`` or ``JournalVersionError``.
    """
    if not prefix:
        raise NotAJournal(path, "the file is empty")
    if not prefix.startswith(MAGIC[: len(prefix)]):
        raise NotAJournal(path, f"it begins with {prefix[:8]!r}")
    if len(prefix) < PREFIX_SIZE:
        raise JournalCorrupt(
            path, 0, None, f"{PREFIX_SIZE} bytes expected, the file ends after {len(prefix)}"
        )
    _, version, _, length = _PREFIX.unpack_from(prefix)
    if _CRC.unpack_from(prefix, _PREFIX.size)[0] != crc32(prefix[: _PREFIX.size]):
        raise JournalCorrupt(path, 0, None, "the checksum of its first 20 bytes does not match")
    if version > FORMAT_VERSION:
        raise JournalVersionError(path, f"format version {version}", f"up to {FORMAT_VERSION}")
    if version == 0 or length > HEADER_MAP_MAX:
        raise JournalCorrupt(
            path, 0, None, f"format version {version} with a map of {length} bytes is impossible"
        )
    return PREFIX_SIZE + int(length) + _CRC.size


def decode_header(data: bytes, path: Path) -> Header:
    """The header whose bytes are ``data`` (cut to ``header_size``, shorter only if the file ends).

    Raises as ``header_size`` does; unknown required features raise ``JournalVersionError``.
    """
    size = header_size(data[:PREFIX_SIZE], path)
    if len(data) < size:
        raise JournalCorrupt(
            path, PREFIX_SIZE, None, f"{size} bytes expected, the file ends after {len(data)}"
        )
    body = data[PREFIX_SIZE : size - _CRC.size]
    if _CRC.unpack_from(data, size - _CRC.size)[0] != crc32(body):
        raise JournalCorrupt(path, PREFIX_SIZE, None, "the checksum of its map does not match")
    try:
        found = _MAP_DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise JournalCorrupt(path, PREFIX_SIZE, None, f"its map cannot be read ({error})") from error
    unknown = sorted(set(found.required) - FEATURES)
    if unknown:
        known = ", ".join(sorted(FEATURES)) or "none"
        raise JournalVersionError(path, f"required features {', '.join(unknown)}", f"the features: {known}")
    return Header(
        version=_PREFIX.unpack_from(data)[1],
        required=found.required,
        optional=found.optional,
        fingerprint=found.fingerprint,
        configuration=found.configuration,
        salt=found.salt,
        size=size,
        chain=chain_digest(data[:size]),
        place=Place(found.segment, found.first_sequence, found.chain_before, found.base, found.opening),
    )


def header_state(data: bytes) -> HeaderState:
    """What stands at the beginning of a file, told by its first bytes (the whole header, if the file has it).

    A write that a crash cut short or tore leaves the bytes that were written, or zeros where they were not.
    ``whole`` says that the checksums are right, not that ``decode_header`` can read it.
    """
    if not data:
        return "empty"
    if any(byte and byte != magic for byte, magic in zip(data, MAGIC, strict=False)):
        return "foreign"
    if len(data) < PREFIX_SIZE or data[: len(MAGIC)] != MAGIC:
        return "torn"
    if _CRC.unpack_from(data, _PREFIX.size)[0] != crc32(data[: _PREFIX.size]):
        return "torn"
    _, version, _, length = _PREFIX.unpack_from(data)
    if version != FORMAT_VERSION or length > HEADER_MAP_MAX:
        return "whole"
    end = PREFIX_SIZE + int(length)
    if len(data) < end + _CRC.size or _CRC.unpack_from(data, end)[0] != crc32(data[PREFIX_SIZE:end]):
        return "torn"
    return "whole"


def frame(entries: Iterable[Entry], sequence: int, chain: bytes) -> tuple[bytes, bytes]:
    """The bytes of the records from ``sequence`` on that follow ``chain``, and the chain after them."""
    parts: list[bytes] = []
    for kind, version, flags, payload in entries:
        length = len(payload)
        assert flags in (0, IGNORABLE), flags
        assert length <= PAYLOAD_MAX, length
        head = _HEAD.pack(MARKER, kind, version, flags, length, sequence)
        body = head + _CRC.pack(crc32(head)) + payload
        chain = blake2b(chain + body, digest_size=CHAIN_SIZE).digest()
        parts.append(body)
        parts.append(chain)
        parts.append(_CRC.pack(crc32(chain, crc32(payload))))
        sequence += 1
    return b"".join(parts), chain


def head_length(buffer: bytes, index: int) -> int | None:
    """Payload length of the record header at ``index``; ``None`` where none stands there.

    ``buffer`` must hold ``HEAD_SIZE`` bytes from ``index``.
    """
    marker, _, _, _, length, _ = _HEAD.unpack_from(buffer, index)
    if marker != MARKER or length > PAYLOAD_MAX:
        return None
    if _CRC.unpack_from(buffer, index + _HEAD.size)[0] != crc32(buffer[index : index + _HEAD.size]):
        return None
    return int(length)


def unframe(buffer: bytes, index: int, length: int, offset: int) -> Record | None:
    """The record at ``index`` with a good header that gives ``length``; ``None`` if the last checksum fails.

    ``buffer`` must hold the whole record. Its place in the chain is not checked here.
    """
    start = index + HEAD_SIZE
    end = start + length
    if _CRC.unpack_from(buffer, end + CHAIN_SIZE)[0] != crc32(buffer[start : end + CHAIN_SIZE]):
        return None
    _, kind, version, flags, _, sequence = _HEAD.unpack_from(buffer, index)
    return Record(sequence, kind, version, flags, buffer[start:end], offset, buffer[end : end + CHAIN_SIZE])
