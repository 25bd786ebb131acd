"""The texts in specs/ are enough to read a log: a reader written from them alone agrees with the project's."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from txdecode.runtime import Runtime, replay
from txdecode.transactions.toy import ToyExecutor

HERE = Path(__file__).parent
spec = importlib.util.spec_from_file_location("golden_reader", HERE / "reader.py")
assert spec is not None
assert spec.loader is not None
reader: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reader)
NUMBERS = {
    "RequestSubmitted": 1,
    "RequestAdmitted": 2,
    "PrefillCommitted": 3,
    "RoundCommitted": 4,
    "RoundRolledBack": 5,
    "RequestPreempted": 8,
    "RequestFinished": 9,
    "Snapshot": 10,
    "RuntimeNote": 11,
    "StateAudited": 12,
}


def write(path: Path, *, finish: bool = True, **options: Any) -> Path:
    """Requests of all three laws, one of them preempted, one cancelled."""
    options = {"segment_bytes": 2**20, "keep_segments": None, "audit_every": 0, **options}
    executor = ToyExecutor(accuracy=6)
    with Runtime.open(executor, log=path, draft="executor", draft_len=3, **options) as runtime:
        noisy = {"temperature": 1.0, "seed": 7, "logprobs": 1}
        preempted = runtime.submit([3, 1, 4], max_tokens=30, sampling=noisy)
        runtime.submit([2, 7, 1, 8], max_tokens=9, sampling={**noisy, "law": "chain", "seed": 2**63 + 5})
        runtime.submit(range(11), max_tokens=12, sampling={"temperature": 0.0, "logprobs": 2})
        runtime.submit([6], max_tokens=12, stop_ids=range(0, 48, 3), draft_len=0)
        cancelled = runtime.submit([9, 9, 9, 9, 9], max_tokens=60)
        for _ in range(5):
            runtime.step()
        runtime.preempt(preempted)
        runtime.step()
        cancelled.cancel()
        for _ in range(2):
            runtime.step()
        if finish:
            runtime.run()
    return path


def facts(path: Path) -> dict[str, Any]:
    """What both readers say of a log."""
    log = reader.read(path)
    return {
        "records": len(log["events"]),
        "chain": log["chain"],
        "digests": log["digests"],
        "requests": {r: (q["ids"], q["finish"]) for r, q in log["requests"].items()},
        "events": Counter(kind for kind, _ in log["events"]),
    }


def replayed(path: Path) -> dict[str, Any]:
    report = replay(path)
    return {
        "records": report.records,
        "chain": report.chain,
        "digests": report.digests,
        "requests": {r: (list(q.ids), q.finish) for r, q in report.requests.items()},
        "events": {NUMBERS[name]: count for name, count in report.events.items()},
    }


def finishes(path: Path) -> set[str | None]:
    return {finish for _, finish in facts(path)["requests"].values()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("whole") / "log")


@pytest.fixture(scope="module")
def segmented(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("segmented") / "log", segment_bytes=4096, audit_every=2)


def segments(path: Path) -> list[Path]:
    return sorted(path.parent.glob(path.name + "*"))


def copy(path: Path, folder: Path) -> Path:
    for segment in segments(path):
        shutil.copy(segment, folder / segment.name)
    return folder / path.name


def borders(path: Path) -> list[int]:
    """Where the records of one file begin, and where it ends."""
    data = path.read_bytes()
    ends = [reader.header(data)[1]]
    while ends[-1] < len(data):
        size = reader.payload_size(data, ends[-1])
        assert size is not None
        ends.append(ends[-1] + 32 + size)
    return ends


def test_a_log_with_every_law_preemption_cancellation_stops_and_logprobs(whole: Path) -> None:
    assert facts(whole) == replayed(whole)
    assert finishes(whole) >= {"stop", "length", "cancelled"}
    log = reader.read(whole)["events"]
    assert {e[8] for kind, e in log if kind == 1} == {0, 1, 2}, "every law is in it"
    assert {4, 8, 9} <= {kind for kind, _ in log}
    assert any(e[18] for kind, e in log if kind == 4), "logprobs are in it"


def test_several_segments(segmented: Path) -> None:
    assert len(segments(segmented)) > 3
    assert facts(segmented) == replayed(segmented)
    assert {10, 12} <= set(facts(segmented)["events"])


def test_segments_that_were_dropped_by_the_runtime_or_by_hand(segmented: Path, tmp_path: Path) -> None:
    dropped = write(tmp_path / "dropped", segment_bytes=4096, keep_segments=1)
    assert not dropped.exists()
    assert facts(dropped) == replayed(dropped)
    log = copy(segmented, tmp_path)
    for segment in segments(log)[:-1]:
        segment.unlink()
        assert facts(log) == replayed(log)
        assert facts(log)["chain"] == facts(segmented)["chain"]


def test_a_segment_missing_between_others_or_of_another_log(
    segmented: Path, whole: Path, tmp_path: Path
) -> None:
    log = copy(segmented, tmp_path)
    second, third = segments(log)[1:3]
    second.unlink()
    refused(log)
    shutil.copy(third, second)
    refused(log)
    shutil.copy(segments(segmented)[1], second)
    assert facts(log) == facts(segmented)
    shutil.copy(whole, log)
    refused(log)


def test_an_unfinished_log(tmp_path: Path) -> None:
    log = write(tmp_path / "log", finish=False, segment_bytes=4096)
    assert facts(log) == replayed(log)
    assert None in finishes(log)
    assert any(facts(log)["digests"][name] != "0" * 16 for name in facts(log)["digests"])


def test_the_golden_log_of_schema_1() -> None:
    log, expected = HERE / "schema-1.txlog", json.loads((HERE / "schema-1.json").read_text())
    assert facts(log) == replayed(log)
    assert {name: facts(log)[name] for name in ("records", "chain", "digests")} == {
        name: expected[name] for name in ("records", "chain", "digests")
    }
    assert facts(log)["requests"] == {
        int(r): (q["ids"], q["finish"]) for r, q in expected["requests"].items()
    }
    assert facts(log)["events"] == {NUMBERS[name]: count for name, count in expected["events"].items()}


def refused(log: Path) -> None:
    with pytest.raises(reader.Refused):
        reader.read(log)
    with pytest.raises(Exception, match="journal"):
        replay(log)


def test_a_torn_tail_at_every_byte_of_the_last_record(whole: Path, tmp_path: Path) -> None:
    data, (*_, start, end) = whole.read_bytes(), borders(whole)
    cut, full = tmp_path / "log", facts(whole)
    for size in range(start, end):
        cut.write_bytes(data[:size])
        log = facts(cut)
        assert log == replayed(cut)
        assert log["records"] == full["records"] - 1
        torn, there = reader.read(cut)["torn"], replay(cut).torn_tail
        assert torn == size - start == (there.size if there else 0)


def test_the_last_segment_cut_anywhere(segmented: Path, tmp_path: Path) -> None:
    log = copy(segmented, tmp_path)
    last, before = segments(log)[-1], segments(log)[:-1]
    data, (opening, second, *_) = last.read_bytes(), borders(last)
    for size in (
        *range(0, opening, 37),
        *range(opening, second, 101),
        second - 1,
        second,
        second + 1,
        len(data) - 1,
    ):
        last.write_bytes(data[:size])
        assert facts(log) == replayed(log)
        assert bool(reader.read(log)["torn"]) == (
            size not in (*borders(segments(segmented)[-1]),) and size > second
        )
    for size in (
        0,
        7,
        opening - 1,
        opening,
        second - 1,
    ):  # Nothing is before it now that it could be told from.
        last.write_bytes(data[:size])
        for segment in before:
            segment.unlink(missing_ok=True)
        refused(log)


def test_bytes_cut_from_a_segment_with_others_behind_it(segmented: Path, tmp_path: Path) -> None:
    log = copy(segmented, tmp_path)
    middle = segments(log)[1]
    data = middle.read_bytes()
    for size in (0, 8, 100, borders(segments(segmented)[1])[0], len(data) - 1):
        middle.write_bytes(data[:size])
        refused(log)
    middle.write_bytes(data + b"more")
    refused(log)


def test_a_flipped_bit_is_refused_or_taken_for_a_torn_tail(
    segmented: Path, whole: Path, tmp_path: Path
) -> None:
    flipped = refusals = 0
    for source in (whole, segmented):
        (folder := tmp_path / source.parent.name).mkdir()
        log = copy(source, folder)
        target, last = segments(log)[-1], borders(segments(source)[-1])[-2]
        data, records = target.read_bytes(), facts(source)["records"]
        places = {i * len(data) // 18 for i in range(18)} | {
            8,
            15,
            16,
            19,
            last - 1,
            last,
            last + 8,
            last + 16,
        }
        for at in sorted(places):
            target.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
            flipped += 1
            if at < last:
                refused(log)
                refusals += 1
            else:
                assert facts(log) == replayed(log)
                assert facts(log)["records"] == records - 1
    assert flipped > 40
    assert 30 < refusals < flipped


def test_a_flipped_bit_in_a_segment_that_has_only_its_opening_record(segmented: Path, tmp_path: Path) -> None:
    log = copy(segmented, tmp_path)
    last = segments(log)[-1]
    opening, second, *_ = borders(last)
    data = last.read_bytes()[:second]
    for at in (0, 5, 9, 17, opening - 1, opening, opening + 5, opening + 40, second - 1):
        last.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        if at < opening:
            refused(log)
        else:
            assert facts(log) == replayed(log), "the segment counts as not begun"
            assert (
                facts(log)["records"]
                == facts(segmented)["records"] - len(borders(segments(segmented)[-1])) + 1
            )


def test_an_intact_record_that_does_not_continue_is_no_torn_tail(whole: Path, tmp_path: Path) -> None:
    data, (*_, start, _) = whole.read_bytes(), borders(whole)
    log = tmp_path / "log"
    log.write_bytes(data + data[start:])  # The last record again: its checksums are right, its number is not.
    refused(log)


def test_a_last_segment_that_begins_with_something_else_is_no_unfinished_one(
    whole: Path, tmp_path: Path
) -> None:
    log = copy(whole, tmp_path)
    (tmp_path / "log.00001").write_bytes(b"")
    assert facts(log) == replayed(log) == facts(whole)
    (tmp_path / "log.00001").write_bytes(b"else")
    refused(log)
