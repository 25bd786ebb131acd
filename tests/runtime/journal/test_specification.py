"""``specs/journal.md`` against the code: a reader written from the text alone, and pinned bytes."""

from __future__ import annotations

import hashlib
import os
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from txdecode.runtime.journal import Entry, Journal, iterate, read_header
from txdecode.runtime.journal.verdict import TABLE

# A journal of two records in format version 1. These bytes never change: readers of them are out there.
PINNED = bytes.fromhex(
    "8954584c4f470d0a0100000056000000f6a125a585a8726571756972656490a86f7074696f6e616c90ab66696e676572"
    "7072696e7481a4636f6465a131ad636f6e66696775726174696f6e81a5706167657304a473616c74c410000102030405"
    "060708090a0b0c0d0e0f1f99b533c10101000400000000000000000000002bc0a21793010203ba79e927a773a1228b78"
    "7904c1fa02010000000001000000000000007d8bd6efc8cb91758f2d2cf0af0850e4"
)


# The second segment of a journal, with one opening record and one other. The same holds of these.
PINNED_SEGMENT = bytes.fromhex(
    "8954584c4f470d0a010000009e0000001f67dc168aa8726571756972656491a87365676d656e7473a86f7074696f6e61"
    "6c90ab66696e6765727072696e7481a4636f6465a131ad636f6e66696775726174696f6e81a5706167657304a473616c"
    "74c410000102030405060708090a0b0c0d0e0fa77365676d656e7401ae66697273745f73657175656e636502ac636861"
    "696e5f6265666f7265c408c8cb91758f2d2cf0a462617365c3a76f70656e696e6701795a576bc10a0100020000000200"
    "00000000000048c44e6491078593d7be01709171516ea06fc1020100010000000300000000000000a1daf31090a66ab5"
    "e04f7ad683c7fb6934"
)

Found = tuple[int, int, int, int, bytes]


def read_by_the_text(path: Path) -> tuple[dict[str, object], list[Found]]:
    """Sections 2 to 4 of the text, for sound journals; knows nothing of the package."""
    numbered = {}
    for name in os.listdir(path.parent):
        match = re.fullmatch(re.escape(path.name) + r"(?:[.]([0-9]{5,}))?", name)
        if match and (match[1] is None or (int(match[1]) > 0 and match[1] == f"{int(match[1]):05d}")):
            numbered[int(match[1] or 0)] = path.parent / name
    headers, records = [], []
    end, before = None, None
    for number in range(min(numbered), max(numbered) + 1):
        header, found, end, before = read_segment(numbered[number].read_bytes(), number, end, before)
        headers.append(header)
        records += found
    lowest = headers[0]
    assert lowest.get("segment", 0) == 0 or (lowest["base"] and lowest["opening"])
    return lowest, records


def read_segment(
    data: bytes, number: int, begin: int | None, before: bytes | None
) -> tuple[dict[str, Any], list[Found], int, bytes]:
    """One segment, which must continue sequence number ``begin`` and chain ``before``."""
    magic, version, reserved, length, check = struct.unpack_from("<8sHHII", data)
    assert (magic, version, reserved) == (bytes([0x89, 0x54, 0x58, 0x4C, 0x4F, 0x47, 0x0D, 0x0A]), 1, 0)
    assert check == zlib.crc32(data[:16])
    end = 20 + length
    assert struct.unpack_from("<I", data, end)[0] == zlib.crc32(data[20:end])
    header = msgspec.msgpack.decode(data[20:end])
    assert set(header["required"]) <= {"segments"}
    assert header.get("segment", 0) == number
    next_sequence = header.get("first_sequence", 0)
    assert begin in (None, next_sequence)
    assert before in (None, header.get("chain_before", bytes(8)))
    at = end + 4
    chain = hashlib.blake2b(data[:at], digest_size=8).digest()
    records: list[Found] = []
    while at < len(data):
        marker, kind, schema, flags, size, sequence, check = struct.unpack_from("<BBBBIQI", data, at)
        assert marker == 0xC1
        assert check == zlib.crc32(data[at : at + 16])
        assert sequence == next_sequence + len(records)
        end = at + 20 + size
        chain = hashlib.blake2b(chain + data[at:end], digest_size=8).digest()
        assert data[end : end + 8] == chain
        assert struct.unpack_from("<I", data, end + 8)[0] == zlib.crc32(data[at + 20 : end + 8])
        records.append((sequence, kind, schema, flags, data[at + 20 : end]))
        at = end + 12
    assert len(records) >= header.get("opening", 0)
    return header, records, next_sequence + len(records), chain


def test_a_reader_by_the_text_agrees(make: Callable[..., Path], entries: list[Entry]) -> None:
    path = make(entries)
    header, records = read_by_the_text(path)
    ours = read_header(path)
    assert header == {
        "required": [],
        "optional": [],
        "fingerprint": ours.fingerprint,
        "configuration": ours.configuration,
        "salt": ours.salt,
    }
    assert records == [(one.sequence, one.type, one.version, one.flags, one.payload) for one in iterate(path)]


@pytest.mark.parametrize("keep", [None, 3])
def test_a_reader_by_the_text_agrees_over_segments(tmp_path: Path, keep: int | None) -> None:
    path = tmp_path / "run.txlog"
    with Journal.create(
        path, fingerprint={}, configuration={"pages": 4}, segment_bytes=300, keep_segments=keep
    ) as journal:
        journal.snapshot = lambda: [(10, 1, 0, b"s"), (11, 1, 1, bytes(journal.sequence))]
        for number in range(60):
            journal.append([(1, 1, 0, bytes([number]) * (number % 9))])
    (tmp_path / "run.txlog.000001").write_text("another file")
    header, records = read_by_the_text(path)
    reader = iterate(path, "strict")
    assert records == [(one.sequence, one.type, one.version, one.flags, one.payload) for one in reader]
    assert header["salt"] == reader.header.salt
    assert header["configuration"] == {"pages": 4}
    assert (records[0][0] > 0) == (keep is not None)
    assert len(reader.segments) == (keep or reader.segments[-1].number + 1) > 2


def test_the_table_of_the_text_is_that_of_the_code() -> None:
    text = (Path(__file__).parents[3] / "specs" / "journal.md").read_text()
    lines = text[text.index("| adjacent | header |") :].split("\n\n")[0].splitlines()
    names = [cell.strip().replace(" ", "_") for cell in lines[0].strip("|").split("|")]
    values = {"yes": (True,), "no": (False,), "": None, "none": ("none",), "bad": ("short", "checksum")}
    rows = []
    for line in lines[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        row = {
            name: cell if name == "verdict" else values.get(cell, (cell,))
            for name, cell in zip(names, cells, strict=True)
        }
        rows.append(row)
    assert rows == [{name: getattr(row, name) for name in names} for row in TABLE]


def test_the_bytes_are_pinned(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with Journal.create(
        path, fingerprint={"code": "1"}, configuration={"pages": 4}, salt=bytes(range(16))
    ) as journal:
        journal.append([(1, 1, 0, b"\x93\x01\x02\x03"), (250, 2, 1, b"")])
    assert path.read_bytes() == PINNED


def test_the_bytes_of_a_later_segment_are_pinned(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with Journal.create(
        path, fingerprint={"code": "1"}, configuration={"pages": 4}, salt=bytes(range(16)), segment_bytes=1
    ) as journal:
        journal.snapshot = lambda: [(10, 1, 0, b"\x91\x07")]
        journal.append([(1, 1, 0, b"\x93\x01\x02\x03"), (250, 2, 1, b"")])
        journal.append([(2, 1, 0, b"\x90")])
    assert path.read_bytes() == PINNED
    assert (tmp_path / "a.00001").read_bytes() == PINNED_SEGMENT
