"""One journal of three segments and more, spoiled in every way that the fault model of the specification names.

Each case must end in a prefix of what was appended, with everything that was synced, or in a refusal that names
segment, offset and sequence. Here a sample is taken; ``TXDECODE_FULL`` takes every case and says how many there were
(run it with ``-s``, and a higher ``--timeout``).
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import pytest

from txdecode.runtime.journal import (
    Durability,
    Entry,
    Journal,
    JournalCorrupt,
    JournalError,
    JournalFailed,
    JournalUnavailable,
    JournalVersionError,
    NotAJournal,
    iterate,
    list_segments,
)
from txdecode.runtime.testing.choices import Choices, every_choice
from txdecode.runtime.testing.simulated_disk import Call, CallFault, Loss, SimulatedDisk

FULL = bool(os.environ.get("TXDECODE_FULL"))

SALT = bytes(range(16))
SEGMENT_BYTES = 2600
DURABILITIES: tuple[Durability, ...] = ("none", "write", "fsync")

# Three appends in four are of one record, as the runtime's are.
BATCHES: list[list[Entry]] = [
    [
        (
            1 + number % 9,
            1,
            number % 7 == 3,
            bytes((number * 29 + place * 3) % 256 for place in range(number % 23)),
        )
        for _ in range((1, 1, 2, 1, 3, 1, 1, 1)[number % 8])
    ]
    for number in range(170)
]


def run(
    path: Path,
    disk: SimulatedDisk | None = None,
    durability: Durability = "write",
    batches: Sequence[Sequence[Entry]] = BATCHES,
) -> None:
    """Write the journal. Every second segment opens with two records."""
    journal = Journal.create(
        path,
        fingerprint={"code": "1"},
        configuration={},
        durability=durability,
        salt=SALT,
        segment_bytes=SEGMENT_BYTES,
        **({} if disk is None else {"open_storage": disk.open}),
    )

    def snapshot() -> list[Entry]:
        number = len(journal.segments)
        return [(10, 1, 0, b"snapshot %d" % journal.sequence), (11, 1, 1, b"")] if number % 2 else []

    journal.snapshot = snapshot
    with journal:
        for batch in batches:
            journal.append(batch)


@attrs.frozen
class Whole:
    """The journal as it should be: its files, and for each record what it holds, where it is and where it ends."""

    files: dict[str, bytes]
    records: list[Entry]
    places: list[tuple[str, int, int]]

    def kept(self, lengths: dict[str, int]) -> int:
        """How many records lie in the first so many bytes of each file."""
        count = 0
        for name, _, end in self.places:
            if lengths.get(name, 0) < end:
                break
            count += 1
        return count


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    path = tmp_path_factory.mktemp("whole") / "log"
    run(path)
    records: list[Entry] = []
    places: list[tuple[str, int, int]] = []
    reader = iterate(path, "strict")
    for one in reader:
        records.append((one.type, one.version, one.flags, one.payload))
        places.append((reader.segment.name, one.offset, one.offset + one.size))
    for one in reader.segments:
        # Opening records count together or not at all.
        mine = slice(one.first_sequence, one.first_sequence + one.opening)
        places[mine] = [(name, offset, places[mine][-1][2]) for name, offset, _ in places[mine]]
    files = {one.path.name: one.path.read_bytes() for one in list_segments(path)}
    assert len(records) >= 200
    assert len(files) >= 4
    assert [one.opening for one in reader.segments[:4]] == [0, 2, 0, 2]
    return Whole(files, records, places)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    memory = Path("/dev/shm")
    if FULL and memory.is_dir():
        with tempfile.TemporaryDirectory(prefix="txdecode-", dir=memory) as made:
            yield Path(made)
    else:
        yield tmp_path_factory.mktemp("spoiled")


class Judge:
    """Puts files into a folder and tells what becomes of them; counts outcomes."""

    def __init__(self, whole: Whole, folder: Path) -> None:
        self.whole = whole
        self.path = folder / "log"
        self.counts: Counter[str] = Counter()

    def lay(self, files: dict[str, bytes]) -> None:
        for old in self.path.parent.iterdir():
            if old.name not in files:
                old.unlink()
        for name, content in files.items():
            (self.path.parent / name).write_bytes(content)

    def outcome(self, promised: int, go_on: bool = True) -> str:
        """Read and resume what is there; ``promised``: how many records must be."""
        told = self._read(promised)
        self.counts[told] += 1
        if not go_on:
            return told
        if told != "prefix":
            with pytest.raises(JournalError):
                Journal.resume(self.path)
            return told
        count = self.found
        with Journal.resume(self.path, segment_bytes=SEGMENT_BYTES) as journal:
            assert journal.sequence == count
            first = journal.append([(99, 1, 0, b"after")])
        assert first == count
        *before, after = [
            (one.type, one.version, one.flags, one.payload) for one in iterate(self.path, "strict")
        ]
        assert before == self.whole.records[:count]
        assert after == (99, 1, 0, b"after")
        return told

    def _read(self, promised: int) -> str:
        seen: list[Entry] = []
        try:
            for one in iterate(self.path):
                seen.append((one.type, one.version, one.flags, one.payload))
        except JournalCorrupt as error:
            self._names_its_place(error)
            assert seen == self.whole.records[: len(seen)]
            return "refused"
        except (NotAJournal, JournalVersionError, JournalUnavailable):
            assert seen == []
            return "no journal"
        assert seen == self.whole.records[: len(seen)]
        assert len(seen) >= promised
        self.found = len(seen)
        return "prefix"

    def _names_its_place(self, error: JournalCorrupt) -> None:
        assert error.segment in {file.name for file in self.path.parent.iterdir()}
        assert f"{error.segment}' is damaged at byte {error.offset} (" in str(error)
        assert ("file header" if error.sequence is None else f"record {error.sequence})") in str(error)
        assert error.sequence is None or error.sequence <= len(self.whole.records)


@pytest.fixture
def judge(whole: Whole, folder: Path, request: pytest.FixtureRequest) -> Iterator[Judge]:
    made = Judge(whole, folder)
    yield made
    assert made.counts
    if FULL:
        sys.stdout.write(f"\n{request.node.name}: {made.counts.total()} cases, {dict(made.counts)}\n")


def test_every_length_of_the_last_segment(judge: Judge) -> None:
    whole = judge.whole
    names = list(whole.files)
    for last, name in enumerate(names):
        before = {one: whole.files[one] for one in names[:last]}
        ends = {end for place, _, end in whole.places if place == name}
        for length in range(0, len(whole.files[name]) + 1, 1 if FULL else 29):
            judge.lay({**before, name: whole.files[name][:length]})
            kept = whole.kept({**{one: len(content) for one, content in before.items()}, name: length})
            told = judge.outcome(kept)
            if last == 0 and length == 0:
                assert told == "no journal"
            elif last == 0 and kept == 0 and told == "refused":
                assert length < whole.places[0][1]
            else:
                assert told == "prefix"
                assert judge.found == kept or length not in ends, length


def test_every_length_of_a_segment_that_others_follow(judge: Judge) -> None:
    whole = judge.whole
    for name in list(whole.files)[:-1]:
        for length in range(0, len(whole.files[name]), 1 if FULL else 31):
            judge.lay({**whole.files, name: whole.files[name][:length]})
            assert judge.outcome(len(whole.records), go_on=length % 16 == 0) == "refused"


def test_a_missing_segment(judge: Judge) -> None:
    whole = judge.whole
    names = list(whole.files)
    for gone in names[:-1]:
        judge.lay({name: content for name, content in whole.files.items() if name != gone})
        if gone == names[0]:
            # Segment 1 opens with a snapshot: the journal may begin there.
            assert iterate(judge.path).header.place.base
        else:
            assert judge.outcome(0) == "refused"


def test_every_flipped_bit(judge: Judge) -> None:
    whole = judge.whole
    judge.lay(whole.files)
    last_name, last_offset, _ = whole.places[-1]
    for name, content in whole.files.items():
        descriptor = os.open(judge.path.parent / name, os.O_RDWR)
        for flip in range(0, len(content) * 8, 1 if FULL else 199):
            position, bit = divmod(flip, 8)
            os.pwrite(descriptor, bytes([content[position] ^ 1 << bit]), position)
            told = judge.outcome(len(whole.records) - 1, go_on=False)
            # Whatever is flipped in the last append, with nothing after it, cannot be told from a crash.
            assert (told == "prefix") == (name == last_name and position >= last_offset), (name, flip)
            assert told != "no journal"
            os.pwrite(descriptor, content[position : position + 1], position)
        os.close(descriptor)
    assert judge.outcome(len(whole.records)) == "prefix"


def test_a_flipped_bit_where_a_rotation_was_the_last_thing(judge: Judge) -> None:
    whole = judge.whole
    names = list(whole.files)
    for last in (1, 2):
        name = names[last]
        opened = (
            [end for place, _, end in whole.places if place == name][1] if last == 1 else whole.places[0][1]
        )
        if last == 2:
            opened = next(offset for place, offset, _ in whole.places if place == name)
        content = whole.files[name][:opened]
        files = {one: whole.files[one] for one in names[:last]}
        kept = whole.kept({one: len(data) for one, data in files.items()})
        for flip in range(0, opened * 8, 1 if FULL else 53):
            position, bit = divmod(flip, 8)
            spoiled = content[:position] + bytes([content[position] ^ 1 << bit]) + content[position + 1 :]
            judge.lay({**files, name: spoiled})
            assert judge.outcome(kept) in ("prefix", "refused")


class Cuts:
    """Images of a disk in every crash that its choices allow, each judged once."""

    def __init__(self, judge: Judge, durability: Durability, loss: Loss) -> None:
        self.judge = judge
        self.durability = durability
        self.loss = loss
        self.known: set[int] = set()

    def take(self, disk: SimulatedDisk, choices: Choices) -> None:
        left = {path.name: content for path, content in disk.leaves(choices, self.loss).items()}
        promised = self.judge.whole.kept({path.name: size for path, size in disk.promised.items()})
        key = hash((promised, tuple(sorted(left.items()))))
        if key in self.known:
            return
        self.known.add(key)
        self.judge.lay(left)
        told = self.judge.outcome(promised)
        header = self.judge.whole.files["log"][: self.judge.whole.places[0][1]]
        if told == "no journal" or (told == "refused" and self.loss == "tail"):
            # Order kept, a crash is always survived; but the very first header may be lost.
            assert promised == 0
            assert list(left) in ([], ["log"])
            assert not left.get("log", b"").startswith(header)


def decisions(disk: SimulatedDisk, loss: Loss, durability: Durability, at: int) -> Iterator[Choices]:
    """What a crash at call number ``at`` may decide."""
    if not FULL:
        for seed in range(20 if durability == "none" else 1):
            yield Choices(seed=100 * at + seed)
        return
    if loss == "tail" or durability == "fsync":
        yield from every_choice()
        return
    # All subsets are too many: each write alone lost, alone kept, alone torn in two ways, and some at random.
    named = [] if disk.unsynced.keys() == disk.promised.keys() else [1]
    for writes in list(disk.unsynced.values())[-1:]:
        for index, data in enumerate(writes):
            rest = len(writes) - index - 1
            yield Choices([*named, *[1] * index, 0, *[1] * rest])
            yield Choices([*named, *[0] * index, 1, *[0] * rest])
            cuts = range(0, len(data or b"") - 1, 1 if durability == "none" else 3 if at % 16 == 0 else 11)
            for cut in cuts:
                yield Choices([*named, *[1] * index, 2, cut, *[1] * rest])
                yield Choices([*named, *[1] * index, 3, cut, *[1] * rest])
    for seed in range(60):
        yield Choices(seed=at * 1000 + seed)


@pytest.mark.parametrize("loss", ["tail", "holes"])
@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_crash_of_the_machine_before_every_call(
    judge: Judge, tmp_path: Path, durability: Durability, loss: Loss
) -> None:
    cuts = Cuts(judge, durability, loss)
    at = 0

    def before_call() -> None:
        nonlocal at
        at += 1
        for choices in decisions(disk, loss, durability, at):
            try:
                cuts.take(disk, choices)
            except AssertionError as error:
                error.add_note(f"call {at} {disk.calls[-1:]}, {loss}, choices {choices.taken}")
                raise

    disk = SimulatedDisk(before_call=before_call)
    run(tmp_path / "log", disk, durability)
    before_call()
    disk.kill()


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_killed_process_loses_nothing_that_was_written(
    judge: Judge, tmp_path: Path, durability: Durability
) -> None:
    for count in range(0, len(BATCHES), 1 if FULL else 3):
        folder = tmp_path / str(count)
        folder.mkdir()
        disk = SimulatedDisk()
        run(folder / "log", disk, durability, BATCHES[:count])
        files = {one.path.name: one.path.read_bytes() for one in list_segments(folder / "log")}
        judge.lay(files)
        promised = judge.whole.kept({name: len(content) for name, content in files.items()})
        assert promised >= sum(map(len, BATCHES[:count]))
        assert judge.outcome(promised) == "prefix"


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_fault_at_every_call(judge: Judge, tmp_path: Path, durability: Durability, error: int) -> None:
    clean = SimulatedDisk()
    run(tmp_path / "log", clean, durability)
    clean.kill()
    kinds = Counter(call for call, _ in clean.calls)
    assert {"open", "write", "fsync", "directory"} <= set(kinds)
    step = 1 if FULL or durability == "none" else 11
    for call, count in kinds.items():
        for ordinal in range(0, count, step if count > 10 else 1):
            for part in (0, 1, 17, 41, 10_000) if call == "write" else (0,):
                _with_fault(judge, tmp_path, durability, (call, ordinal), CallFault(error, part))


def _with_fault(
    judge: Judge, tmp_path: Path, durability: Durability, place: tuple[Call, int], fault: CallFault
) -> None:
    path = tmp_path / "log"
    for one in list_segments(path):
        one.path.unlink()
    disk = SimulatedDisk({place: fault})
    with pytest.raises((JournalFailed, JournalUnavailable)):
        run(path, disk, durability)
    disk.kill()
    files = {one.path.name: one.path.read_bytes() for one in list_segments(path)}
    judge.lay(files)
    kept = judge.whole.kept({name: len(content) for name, content in files.items()})
    told = judge.outcome(kept)
    assert told == "prefix" or kept == 0
    promised = judge.whole.kept({one.name: size for one, size in disk.promised.items()})
    for seed in range(3):
        judge.lay({one.name: data for one, data in disk.leaves(Choices(seed=seed)).items()})
        told = judge.outcome(promised)
        assert told == "prefix" or promised == 0


def test_short_writes_everywhere(judge: Judge, tmp_path: Path) -> None:
    for taken in (1, 2, 3, 20, 33):
        disk = SimulatedDisk({("write", ordinal): CallFault(0, taken) for ordinal in range(0, 400, 2)})
        run(tmp_path / str(taken), disk, "write")
        files = {
            one.path.name.replace(str(taken), "log", 1): one.path.read_bytes()
            for one in list_segments(tmp_path / str(taken))
        }
        assert files == judge.whole.files
        judge.lay(files)
        assert judge.outcome(len(judge.whole.records)) == "prefix"
