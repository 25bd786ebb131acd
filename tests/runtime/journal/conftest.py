"""A small journal, one of many small segments, and the ways to spoil them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from txdecode.runtime.journal import Entry, Journal, Record, iterate

SALT = bytes(range(16))

Make = Callable[..., Path]


def entry(number: int, size: int = 9) -> Entry:
    """A record whose content tells its number."""
    return (number % 256, 1, 0, bytes((number * 31 + position) % 256 for position in range(size)))


@pytest.fixture
def entries() -> list[Entry]:
    """Twelve records of different sizes, one of them empty, one ignorable, one that contains markers."""
    made = [entry(number, size) for number, size in enumerate((9, 0, 17, 3, 8, 1, 12, 5, 30, 2, 7, 11))]
    made[3] = (200, 7, 1, b"abc")
    made[6] = (6, 1, 0, b"\xc1" * 12)
    return made


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Writes a journal of the given entries and returns its path."""

    def write(entries: Sequence[Entry], name: str = "run.txlog", salt: bytes = SALT) -> Path:
        path = tmp_path / name
        with Journal.create(
            path, fingerprint={"code": "1"}, configuration={"pages": 4}, salt=salt, overwrite=True
        ) as journal:
            for one in entries:
                journal.append([one])
        return path

    return write


@pytest.fixture
def pieces() -> Callable[[Path], tuple[bytes, list[bytes]]]:
    """Cuts a sound journal into its header and its records."""

    def cut(path: Path) -> tuple[bytes, list[bytes]]:
        data = path.read_bytes()
        reader = iterate(path)
        size = reader.header.size
        return data[:size], [data[one.offset : one.offset + one.size] for one in reader]

    return cut


@pytest.fixture
def content() -> Callable[[Sequence[Record]], list[Entry]]:
    """What was appended to get these records."""

    def strip(records: Sequence[Record]) -> list[Entry]:
        return [(one.type, one.version, one.flags, one.payload) for one in records]

    return strip


def _create(path: Path, keep: int | None = None, snapshots: bool = True, **more: object) -> Journal:
    """A journal of small segments; snapshots are one record that tells its sequence number."""
    journal = Journal.create(
        path,
        fingerprint={"code": "1"},
        configuration={"pages": 4},
        salt=SALT,
        segment_bytes=400,
        keep_segments=keep,
        **more,  # type: ignore[arg-type]
    )
    if snapshots:
        journal.snapshot = lambda: [(10, 1, 0, b"snapshot %d" % journal.sequence)]
    return journal


def _fill(path: Path, count: int = 30, **more: object) -> Path:
    with _create(path, **more) as journal:  # type: ignore[arg-type]
        for number in range(count):
            journal.append([(1, 1, 0, b"record %03d" % number)])
    return path


@pytest.fixture
def create() -> Callable[..., Journal]:
    """Creates a journal of small segments."""
    return _create


@pytest.fixture
def fill() -> Callable[..., Path]:
    """Writes a journal of small segments, thirty records if not told otherwise, and returns its path."""
    return _fill


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a journal may go."""
    return tmp_path / "run.txlog"
