"""The file header: what is refused, and with which error."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import cast
from zlib import crc32

import msgspec
import pytest

from txdecode.runtime.journal import (
    FORMAT_VERSION,
    Journal,
    JournalCorrupt,
    JournalError,
    JournalUnavailable,
    JournalVersionError,
    NotAJournal,
    iterate,
    read_header,
)
from txdecode.runtime.journal.format import HEADER_MAP_MAX, encode_header
from txdecode.state.errors import TxDecodeError

SALT = bytes(range(16))


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def header_of(body: bytes, version: int = FORMAT_VERSION, length: int | None = None) -> bytes:
    """A header with right checksums over any map."""
    prefix = struct.pack("<8sHHI", b"\x89TXLOG\r\n", version, 0, len(body) if length is None else length)
    return prefix + struct.pack("<I", crc32(prefix)) + body + struct.pack("<I", crc32(body))


def test_header_comes_back_as_given(tmp_path: Path) -> None:
    fingerprint = {"code": "0.1.0", "weights": "ab" * 16}
    configuration = {"pages": 64, "draft": {"cap": 7}, "nothing": None, "ratio": 0.5}
    path = tmp_path / "a.txlog"
    Journal.create(path, fingerprint=fingerprint, configuration=configuration).close()
    header = read_header(path)
    assert (header.version, header.required, header.optional) == (FORMAT_VERSION, (), ())
    assert header.fingerprint == fingerprint
    assert header.configuration == configuration
    assert len(header.salt) == 16
    assert header.size == path.stat().st_size
    assert list(iterate(path)) == []


def test_two_journals_of_one_run_have_different_chains(tmp_path: Path) -> None:
    for name in "ab":
        Journal.create(tmp_path / name, fingerprint={}, configuration={}).close()
    assert read_header(tmp_path / "a").chain != read_header(tmp_path / "b").chain


@pytest.mark.parametrize(
    "data", [b"", b"hello, this is text and not a log\n", b"\x89PNG\r\n\x1a\n" + bytes(64)]
)
def test_other_files_are_no_journals(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(NotAJournal, match="not a txdecode journal"):
        iterate(write(tmp_path / "other", data))
    if data:
        with pytest.raises(NotAJournal):
            Journal.resume(tmp_path / "other")
        assert (tmp_path / "other").read_bytes() == data


def test_a_directory_is_no_journal(tmp_path: Path) -> None:
    with pytest.raises(NotAJournal, match="directory"):
        iterate(tmp_path)
    with pytest.raises(NotAJournal, match="directory"):
        Journal.create(tmp_path, fingerprint={}, configuration={})
    with pytest.raises(NotAJournal, match="directory"):
        Journal.resume(tmp_path)


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotAJournal, match="regular"):
        iterate(tmp_path / "pipe")
    with pytest.raises(NotAJournal, match="regular"):
        Journal.create(tmp_path / "pipe", fingerprint={}, configuration={})


def test_a_missing_file_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(JournalUnavailable, match="cannot open"):
        iterate(tmp_path / "none")
    with pytest.raises(JournalUnavailable, match="cannot open"):
        Journal.resume(tmp_path / "none")
    with pytest.raises(JournalUnavailable, match="cannot create"):
        Journal.create(tmp_path / "no" / "folder", fingerprint={}, configuration={})
    assert not (tmp_path / "none").exists()


def test_a_later_version_is_told_from_damage(tmp_path: Path) -> None:
    # What follows the first 20 bytes may have any form in a later version.
    path = write(tmp_path / "later", header_of(b"whatever", version=FORMAT_VERSION + 6))
    with pytest.raises(JournalVersionError) as caught:
        read_header(path)
    assert caught.value.found == f"format version {FORMAT_VERSION + 6}"
    assert caught.value.supported == f"up to {FORMAT_VERSION}"
    with pytest.raises(JournalVersionError):
        Journal.resume(path)


def test_an_unknown_required_feature_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a", encode_header({}, {}, SALT, required=["zstd", "trees"], optional=["hints"]))
    with pytest.raises(JournalVersionError, match="trees, zstd"):
        read_header(path)


def test_an_unknown_optional_feature_is_ignored(tmp_path: Path) -> None:
    path = write(tmp_path / "a", encode_header({}, {}, SALT, optional=["hints"]))
    assert read_header(path).optional == ("hints",)


def test_an_unknown_key_of_the_map_is_ignored(tmp_path: Path) -> None:
    body = {
        "required": [],
        "optional": [],
        "fingerprint": {},
        "configuration": {},
        "salt": SALT,
        "previous": 1,
    }
    assert read_header(write(tmp_path / "a", header_of(msgspec.msgpack.encode(body)))).salt == SALT


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (header_of(b"\x80"), "map cannot be read"),  # The map lacks its keys.
        (header_of(b"\xc1"), "map cannot be read"),  # Not MessagePack.
        (header_of(msgspec.msgpack.encode({"required": [b"\xff"]})), "map cannot be read"),
        (header_of(b"\x81\xa8required\x91\xa1\xff"), "map cannot be read"),  # A string that is not UTF-8.
        (header_of(b"", version=0), "version 0"),
        (header_of(b"\x80", length=HEADER_MAP_MAX + 1), "impossible"),
        (header_of(b"\x80", length=500), "524 bytes expected"),
    ],
)
def test_a_header_that_cannot_be_is_damage(tmp_path: Path, data: bytes, reason: str) -> None:
    with pytest.raises(JournalCorrupt, match=f"file header.*{reason}") as caught:
        read_header(write(tmp_path / "a", data))
    assert caught.value.sequence is None


def test_a_header_that_no_reader_takes_is_not_written() -> None:
    with pytest.raises(AssertionError):
        encode_header({}, {}, SALT[:15])
    with pytest.raises(AssertionError):
        encode_header({}, {"text": "x" * HEADER_MAP_MAX}, SALT)
    with pytest.raises(AssertionError):
        encode_header({"pages": cast("str", 4)}, {}, SALT)


def test_every_error_is_one_line_and_rooted() -> None:
    path = Path("x")
    for kind in JournalError.__subclasses__():
        assert issubclass(kind, TxDecodeError)
    for error in (
        NotAJournal(path, "r"),
        JournalVersionError(path, "f", "s"),
        JournalCorrupt(path, 1, 2, "r"),
    ):
        assert "\n" not in str(error)
        assert error.path == path
