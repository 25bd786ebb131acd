"""``specs/journal.md`` against the code: a reader written from the text alone, and pinned bytes."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from txdecode.runtime.journal import Entry, Journal, iterate, read_header

# A journal of two records in format version 1. These bytes never change: readers of them are out there.
PINNED = bytes.fromhex(
    "8954584c4f470d0a0100000056000000f6a125a585a8726571756972656490a86f7074696f6e616c90ab66696e676572"
    "7072696e7481a4636f6465a131ad636f6e66696775726174696f6e81a5706167657304a473616c74c410000102030405"
    "060708090a0b0c0d0e0f1f99b533c10101000400000000000000000000002bc0a21793010203ba79e927a773a1228b78"
    "7904c1fa02010000000001000000000000007d8bd6efc8cb91758f2d2cf0af0850e4"
)


def read_by_the_text(data: bytes) -> tuple[dict[str, object], list[tuple[int, int, int, int, bytes]]]:
    """Sections 2 and 3 of the text, for sound journals; knows nothing of the package."""
    magic, version, reserved, length, check = struct.unpack_from("<8sHHII", data)
    assert (magic, version, reserved) == (bytes([0x89, 0x54, 0x58, 0x4C, 0x4F, 0x47, 0x0D, 0x0A]), 1, 0)
    assert check == zlib.crc32(data[:16])
    end = 20 + length
    assert struct.unpack_from("<I", data, end)[0] == zlib.crc32(data[20:end])
    header = msgspec.msgpack.decode(data[20:end])
    at = end + 4
    chain = hashlib.blake2b(data[:at], digest_size=8).digest()
    records: list[tuple[int, int, int, int, bytes]] = []
    while at < len(data):
        marker, kind, schema, flags, size, sequence, check = struct.unpack_from("<BBBBIQI", data, at)
        assert marker == 0xC1
        assert check == zlib.crc32(data[at : at + 16])
        assert sequence == len(records)
        end = at + 20 + size
        chain = hashlib.blake2b(chain + data[at:end], digest_size=8).digest()
        assert data[end : end + 8] == chain
        assert struct.unpack_from("<I", data, end + 8)[0] == zlib.crc32(data[at + 20 : end + 8])
        records.append((sequence, kind, schema, flags, data[at + 20 : end]))
        at = end + 12
    return header, records


def test_a_reader_by_the_text_agrees(make: Callable[..., Path], entries: list[Entry]) -> None:
    path = make(entries)
    header, records = read_by_the_text(path.read_bytes())
    ours = read_header(path)
    assert header == {
        "required": [],
        "optional": [],
        "fingerprint": ours.fingerprint,
        "configuration": ours.configuration,
        "salt": ours.salt,
    }
    assert records == [(one.sequence, one.type, one.version, one.flags, one.payload) for one in iterate(path)]


def test_the_bytes_are_pinned(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with Journal.create(
        path, fingerprint={"code": "1"}, configuration={"pages": 4}, salt=bytes(range(16))
    ) as journal:
        journal.append([(1, 1, 0, b"\x93\x01\x02\x03"), (250, 2, 1, b"")])
    assert path.read_bytes() == PINNED
