"""The simulated disk itself: what it keeps, what it may lose, and that it can be told what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from txdecode.runtime.journal import Journal, check, segment_path
from txdecode.runtime.testing import Disk
from txdecode.runtime.testing.choices import Choices, every_choice
from txdecode.runtime.testing.simulated_disk import CallFault, Loss, SimulatedDisk, SimulatedFile

Open = Callable[..., tuple[SimulatedDisk, SimulatedFile]]


@pytest.fixture
def new(tmp_path: Path) -> Open:
    """A disk with one file, just created, and its name on the disk."""

    def make(disk: SimulatedDisk | None = None, named: bool = True) -> tuple[SimulatedDisk, SimulatedFile]:
        disk = disk or SimulatedDisk()
        path = tmp_path / "a"
        file = disk.open(os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND), path)
        if named:
            file.sync_directory()
        return disk, file

    return make


def images(disk: SimulatedDisk, loss: Loss = "tail") -> set[tuple[tuple[str, bytes], ...]]:
    """Everything that a crash may leave."""
    return {
        tuple(sorted((path.name, content) for path, content in disk.leaves(choices, loss).items()))
        for choices in every_choice()
    }


def of_a(disk: SimulatedDisk, loss: Loss = "tail") -> set[bytes | None]:
    return {dict(image).get("a") for image in images(disk, loss)}


def test_what_was_synced_stays_and_the_rest_is_cut_anywhere(new: Open) -> None:
    disk, file = new()
    file.write(b"abc")
    file.fsync()
    file.write(b"de")
    file.write(b"fg")
    assert of_a(disk) == {b"abc", b"abcd", b"abcde", b"abcdef", b"abcdefg"}
    assert len(disk.promised) == 1
    assert disk.promised == dict.fromkeys(disk.promised, 3)
    assert list(disk.unsynced.values()) == [[b"de", b"fg"]]
    disk.kill()


def test_holes_are_left_where_order_is_lost(new: Open) -> None:
    disk, file = new()
    file.write(b"ab")
    file.write(b"cd")
    assert of_a(disk, "holes") == {
        b"", b"ab", b"a", b"\0b",
        b"\0\0cd", b"abcd", b"a\0cd", b"\0bcd",
        b"\0\0c", b"abc", b"a\0c", b"\0bc",
        b"\0\0\0d", b"ab\0d", b"a\0\0d", b"\0b\0d",
    }  # fmt: skip
    disk.kill()


def test_a_name_waits_for_the_folder(new: Open) -> None:
    disk, file = new(named=False)
    file.write(b"a")
    file.fsync()
    assert images(disk) == {(), (("a", b"a"),)}
    assert disk.promised == {}
    file.sync_directory()
    assert images(disk) == {(("a", b"a"),)}
    disk.kill()


def test_a_removed_file_may_come_back(new: Open, tmp_path: Path) -> None:
    disk, file = new()
    (tmp_path / "old").write_bytes(b"old")
    file.remove(tmp_path / "old")
    assert not (tmp_path / "old").exists()
    assert images(disk) == {(("a", b""),), (("a", b""), ("old", b"old"))}
    file.sync_directory()
    assert images(disk) == {(("a", b""),)}
    disk.kill()


def test_a_file_that_never_had_its_name_synced_does_not_come_back(new: Open, tmp_path: Path) -> None:
    disk, file = new()
    path = tmp_path / "b"
    other = disk.open(os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND), path)
    other.close()
    file.remove(path)
    assert images(disk) == {(("a", b""),)}
    disk.kill()


def test_a_cut_waits_for_its_sync(new: Open) -> None:
    disk, file = new()
    file.write(b"abcd")
    file.fsync()
    file.truncate(1)
    assert list(disk.promised.values()) == [1]
    assert of_a(disk) == {b"abcd", b"a"}
    file.write(b"x")
    assert of_a(disk) == {b"abcd", b"a", b"ax"}
    file.fsync()
    assert of_a(disk) == {b"ax"}
    disk.kill()


def test_a_failed_sync_leaves_its_writes_in_doubt_for_ever(new: Open) -> None:
    disk, file = new(SimulatedDisk({("fsync", 0): CallFault()}))
    file.write(b"a")
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        file.fsync()
    file.fsync()
    assert of_a(disk) == {b"", b"a"}
    file.write(b"b")
    file.fsync()
    assert of_a(disk) == {b"", b"a", b"ab"}
    assert list(disk.promised.values()) == [0]
    disk.kill()


@pytest.mark.parametrize("call", ["truncate", "directory", "remove", "open"])
def test_calls_fail_when_told_to(new: Open, tmp_path: Path, call: str) -> None:
    fault = {(call, 1): CallFault(errno.ENOSPC)}
    disk, file = new(SimulatedDisk(fault))  # type: ignore[arg-type]
    (tmp_path / "b").write_bytes(b"b")
    (tmp_path / "c").write_bytes(b"c")

    def act(name: str) -> None:
        if call == "open":
            disk.open(0, tmp_path / name)
        elif call == "remove":
            file.remove(tmp_path / name)
        elif call == "truncate":
            file.truncate(0)
        else:
            file.sync_directory()

    if call in ("remove", "truncate"):
        act("b")
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        act("c")
    assert (tmp_path / "c").exists()
    assert disk.calls[-1][0] == call
    disk.kill()


def test_writes_fail_and_fall_short_when_told_to(new: Open, tmp_path: Path) -> None:
    faults = {("write", 0): CallFault(errno.EIO, 2), ("write", 2): CallFault(0, 1)}
    told: list[int] = []
    disk = SimulatedDisk(faults, lambda: told.append(len(disk.calls)))  # type: ignore[arg-type]
    disk, file = new(disk)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        file.write(b"abc")
    assert file.write(memoryview(b"def")) == 3
    assert file.write(b"gh") == 1
    assert (tmp_path / "a").read_bytes() == b"abdefg"
    assert told == [0, 1, 2, 3, 4]
    disk.kill()


def test_a_crash_leaves_one_of_the_images_in_the_folder(new: Open, tmp_path: Path) -> None:
    disk, file = new()
    file.write(b"abc")
    (tmp_path / "old").write_bytes(b"old")
    file.remove(tmp_path / "old")
    # Written: none of the first write, and of that two bytes; the removed file came back.
    disk.crash(Choices([0, 2, 1]))
    assert (tmp_path / "a").read_bytes() == b"ab"
    assert (tmp_path / "old").read_bytes() == b"old"


def test_choices_are_taken_again_and_drawn_from_a_seed() -> None:
    def draw(choices: Choices) -> list[int]:
        return [choices.choose(options) for options in (2, 7, 1, 30)]

    seeded = Choices(seed=3)
    drawn = draw(seeded)
    assert draw(Choices(seed=3)) == drawn
    assert draw(Choices([chosen for chosen, _ in seeded.taken])) == drawn
    assert [options for _, options in seeded.taken] == [2, 7, 1, 30]
    assert len({tuple(draw(Choices(seed=seed))) for seed in range(20)}) > 10
    assert draw(Choices([1, 6])) == [1, 6, 0, 0]
    with pytest.raises(AssertionError):
        draw(Choices([2]))


def test_every_sequence_of_choices_comes_once() -> None:
    seen = []
    for choices in every_choice():
        first = choices.choose(3)
        # A decision may lead to others.
        seen.append((first, *(choices.choose(2) for _ in range(first))))
    assert sorted(seen) == [(0,), (1, 0), (1, 1), (2, 0, 0), (2, 0, 1), (2, 1, 0), (2, 1, 1)]
    assert sum(1 for choices in every_choice(3) if choices.choose(5) >= 0) == 3


def test_the_scripted_disk_takes_part_in_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "log"
    disk = Disk(lambda: None, lambda data: None, lambda what: None)
    with Journal.create(
        path, fingerprint={}, configuration={}, segment_bytes=1, open_storage=disk.open
    ) as journal:
        for number in range(3):
            journal.append([(1, 1, 0, bytes(9))])
            assert disk.path == segment_path(path, number)
        assert disk.size == disk.path.stat().st_size == journal.segments[-1].size
        assert disk.synced == disk.size - 41
        journal.append([(1, 1, 0, bytes(9))])
        disk.arm("refused", 0)
        with pytest.raises(OSError, match="no space left"):
            disk.write(b"x")
    assert check(path).records == 4
    disk.crash()
    assert len(check(path, fix_tail=True).segments) == 4
