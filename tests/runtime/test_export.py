"""Logs for other programs: lines of JSON, and traces that Chrome and Perfetto take."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from txdecode.runtime import Runtime, Sampling
from txdecode.runtime.export import OutputUnavailable, event_data, export, export_file, plain
from txdecode.runtime.journal import Journal, JournalCorrupt, iterate, read_header
from txdecode.runtime.replay import Folder, InvalidArgument
from txdecode.runtime.trace import Trace
from txdecode.transactions.codec import IGNORABLE, decode, encode
from txdecode.transactions.events import (
    EVENTS,
    Event,
    PrefillCommitted,
    RequestFinished,
    RequestPreempted,
    RequestSubmitted,
    RoundCommitted,
    RoundRolledBack,
    RuntimeNote,
    Snapshot,
    StateAudited,
    Unfinished,
)
from txdecode.transactions.target import TokenLogprobs
from txdecode.transactions.toy import ToyExecutor


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Preemption, cancellation, a rollback, and rotations."""
    log = tmp_path_factory.mktemp("written") / "run.txlog"
    failing = [False]

    def hook(verb: str) -> None:
        if failing[0] and verb == "verify":
            failing[0] = False
            raise OSError("lost")

    executor = ToyExecutor(accuracy=6, hook=hook)
    with Runtime.open(executor, log=log, draft="executor", draft_len=3, segment_bytes=4096) as runtime:
        sampling = Sampling(temperature=1.0, seed=3, logprobs=2, logit_bias={7: -math.inf})
        first = runtime.submit([3, 1, 4, 1, 5], max_tokens=40, sampling=sampling)
        second = runtime.submit([9, 2, 6], max_tokens=30)
        for _ in range(3):
            runtime.step()
        runtime.preempt(first)
        runtime.step()
        failing[0] = True
        runtime.step()
        second.cancel()
        runtime.run()
    return log


def text(log: Path, to: str) -> str:
    parts: list[str] = []
    export(log, to, parts.append)
    return "".join(parts)


def events(log: Path) -> list[tuple[int, Event]]:
    found = []
    for record in iterate(log):
        event = decode(record.type, record.version, record.flags, record.payload)
        assert event is not None
        found.append((record.sequence, event))
    return found


# Lines of JSON.


def test_a_line_an_event_with_the_names_of_its_fields(written: Path) -> None:
    lines = [json.loads(line) for line in text(written, "jsonl").splitlines()]
    expected = events(written)
    assert [line["sequence"] for line in lines] == [sequence for sequence, _ in expected]
    for line, (_, event) in zip(lines, expected, strict=True):
        assert line["event"] == type(event).__name__
        assert list(line) == ["sequence", "event", *event.__struct_fields__]
        if isinstance(event, RoundCommitted):
            assert tuple(line["emitted"]) == event.emitted
            assert bytes.fromhex(line["digests"]) == event.digests
            if event.logprobs:
                assert line["logprobs"][0]["token"] == event.logprobs[0].token
    assert {line["event"] for line in lines} >= {
        "Snapshot",
        "RoundRolledBack",
        "RequestPreempted",
        "RuntimeNote",
    }


def test_no_field_hides_another() -> None:
    for event in EVENTS.values():
        assert not {"sequence", "event", "type"} & {*event.__struct_fields__}


def test_what_json_cannot_say() -> None:
    entry = TokenLogprobs(3, -0.5, -math.inf, ((3, -0.5),), ((4, math.nan),))
    assert plain((entry,)) == [
        {"token": 3, "raw": -0.5, "target": None, "raw_top": [[3, -0.5]], "target_top": [[4, None]]}
    ]
    submitted = RequestSubmitted(1, (2, 3), 4, (), 1, {"logit_bias": [[7, -math.inf]]}, 0)
    data = event_data(Snapshot({"tokens": {}}, (Unfinished(submitted, (entry,)),), 2, b"\x01\xff"))
    assert data["digests"] == "01ff"
    assert data["unfinished"][0]["submitted"]["parameters"] == {"logit_bias": [[7, None]]}
    assert data["unfinished"][0]["logprobs"] == plain((entry,))
    audited = event_data(StateAudited(0, 0, 1, 5, (("kv", 0, 1, -1, 99),)))
    assert audited["entries"] == [["kv", 0, 1, -1, 99]]
    json.dumps([data, audited], allow_nan=False)


def test_an_unknown_record_is_named_by_its_type(written: Path, tmp_path: Path) -> None:
    log = tmp_path / "later.txlog"
    with Journal.create(log, fingerprint={}, configuration=read_header(written).configuration) as journal:
        journal.append([(200, 1, IGNORABLE, b"\xc0"), encode(RuntimeNote("closed", {}))])
    lines = [json.loads(line) for line in text(log, "jsonl").splitlines()]
    assert lines[0] == {"sequence": 0, "event": "unknown", "type": 200}
    assert [item["name"] for item in json.loads(text(log, "chrome-trace"))["traceEvents"]][-1] == "closed"


# Traces.


def check_trace(items: list[dict[str, Any]]) -> None:
    """The trace event format, as far as these kinds of events go; on each track times never fall and spans nest."""
    last: dict[int, int] = {}
    open_until: dict[int, list[int]] = {}
    named = set()
    for item in items:
        assert {"ph", "name", "pid", "tid", "ts", "args"} <= item.keys(), item
        assert item["ph"] in ("M", "X", "i", "C")
        assert isinstance(item["name"], str)
        for key in ("pid", "tid", "ts"):
            assert type(item[key]) is int
            assert item[key] >= 0
        track = item["tid"]
        assert item["ts"] >= last.get(track, 0), item
        last[track] = item["ts"]
        if item["ph"] == "M":
            named.add(track)
            continue
        assert track in named, "a track is named before it is used"
        if item["ph"] == "X":
            assert type(item["dur"]) is int
            assert item["dur"] >= 0
            spans = open_until.setdefault(track, [])
            while spans and spans[-1] <= item["ts"]:
                spans.pop()
            end = item["ts"] + item["dur"]
            assert not spans or end <= spans[-1], "spans of a track nest"
            spans.append(end)
        else:
            assert "dur" not in item
        if item["ph"] == "i":
            assert item["s"] == "t"
        if item["ph"] == "C":
            assert all(type(value) is int and value >= 0 for value in item["args"].values())


def test_a_trace_is_valid_and_has_every_round(written: Path) -> None:
    trace = json.loads(text(written, "chrome-trace"))
    assert {*trace} == {"traceEvents", "displayTimeUnit", "otherData"}
    assert trace["otherData"]["executor"] == "toy-1"
    items = trace["traceEvents"]
    check_trace(items)
    found = events(written)
    kinds = {
        "round": RoundCommitted,
        "prefill": PrefillCommitted,
        "submit": RequestSubmitted,
        "rollback": RoundRolledBack,
        "preempt": RequestPreempted,
    }
    for name, kind in kinds.items():
        of_kind = [(item["args"]["sequence"], item["tid"]) for item in items if item["name"] == name]
        assert of_kind == [(n, e.request + 1) for n, e in found if isinstance(e, kind)]  # type: ignore[attr-defined]
        assert of_kind
    ends = [item["args"]["reason"] for item in items if item["name"] == "finish"]
    assert sorted(ends) == ["cancelled", "length"]
    assert {item["name"] for item in items if item["ph"] == "i" and item["tid"] == 0} == {"closed"}
    rolled = next(item for item in items if item["name"] == "rollback")
    assert (rolled["args"]["phase"], rolled["args"]["signal"]) == ("verify", "fault")
    accepted = [item["args"]["accepted"] for item in items if item["name"] == "accepted"]
    assert accepted == [e.accepted for _, e in found if isinstance(e, RoundCommitted)]


def test_the_page_counter_follows_the_ledger(written: Path) -> None:
    reader = iterate(written)
    folder = Folder(reader.header, written)
    counts = [(0, 0)]
    for record in reader:
        folder.take(record)
        tables = folder.ledgers.pages.tables.values()
        now = (sum(len(t[0]) for t in tables), sum(len(t[1]) for t in tables))
        if now != counts[-1]:
            counts.append(now)
    items = json.loads(text(written, "chrome-trace"))["traceEvents"]
    found = [(item["args"]["kv"], item["args"]["pairs"]) for item in items if item["name"] == "pages"]
    assert found == counts[1:]


def test_a_log_that_begins_with_a_snapshot_counts_its_pages(tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"
    with Runtime.open(ToyExecutor(), log=log, draft="none", segment_bytes=4096, keep_segments=1) as runtime:
        runtime.submit([1, 2], max_tokens=150)
        runtime.run()
    snapshot = events(log)[0][1]
    assert isinstance(snapshot, Snapshot)
    items = json.loads(text(log, "chrome-trace"))["traceEvents"]
    check_trace(items)
    pages = [item["args"]["kv"] for item in items if item["name"] == "pages"]
    assert pages[0] == len(snapshot.ledgers["pages"]["0"][0][0]) > 0
    assert pages[-1] == 0


def committed(ordinal: int, times: tuple[int, ...], clip: int = 0) -> RoundCommitted:
    return RoundCommitted(
        0, 0, ordinal, 1, "toy", 0, (4,), 2, 1, clip, (4, 5), (), ((1,), ()), (), (0,), (9,), times
    )


def traced(tmp_path: Path, *recorded: Event) -> list[dict[str, Any]]:
    log = tmp_path / "made.txlog"
    groups = [["kv", "pages", 4, 1, 8, "target", 64], ["pairs", "pages", 4, 1, 8, "drafter", 64]]
    with Journal.create(log, fingerprint={}, configuration={"groups": groups}) as journal:
        journal.append([encode(event) for event in recorded])
    items: list[dict[str, Any]] = json.loads(text(log, "chrome-trace"))["traceEvents"]
    check_trace(items)
    return items


def spans(items: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    return [(item["name"], item["ts"], item["dur"]) for item in items if item["ph"] == "X"]


def test_phases_end_where_the_round_was_committed(tmp_path: Path) -> None:
    items = traced(tmp_path, committed(0, (1000, 20, 300, 40)), committed(1, (2000, 0, 500, 10)))
    assert spans(items) == [
        ("round", 640, 360),
        ("draft", 640, 20),
        ("verify", 660, 300),
        ("accept", 960, 40),
        ("round", 1490, 510),
        ("verify", 1490, 500),
        ("accept", 1990, 10),
    ]
    args = next(item["args"] for item in items if item["name"] == "round")
    assert args == {
        "sequence": 0,
        "ordinal": 0,
        "launch": 1,
        "source": "toy",
        "copied": 0,
        "drafted": 1,
        "accepted": 1,
        "emitted": 2,
    }


def test_a_round_never_begins_before_the_one_before_it_ended(tmp_path: Path) -> None:
    items = traced(tmp_path, committed(0, (1000, 20, 300, 40)), committed(1, (1200, 50, 170, 10)))
    assert spans(items)[4:] == [("round", 1000, 200), ("draft", 1000, 50), ("verify", 1050, 150)]


@pytest.mark.parametrize("noted", [True, False])
def test_a_recovery_goes_on_from_the_last_commit(noted: bool, tmp_path: Path) -> None:
    # Without the note the clock of the log has to go back for it to show.
    later = 1500 if noted else 600
    note = [RuntimeNote("recovered", {})] if noted else []
    items = traced(tmp_path, committed(0, (1000, 0, 0, 0)), *note, committed(1, (later, 0, 100, 0)))
    assert spans(items)[1] == ("round", 1000 + later - 100, 100)


def test_prefill_and_what_has_no_time_of_its_own(tmp_path: Path) -> None:
    items = traced(
        tmp_path,
        PrefillCommitted(0, 0, 1, 0, 3, ((1,), (1,)), (0,), (250,)),
        committed(0, (1000, 0, 100, 0)),
        RequestPreempted(0, 1, "asked", ((1, 1), (1,))),
        RoundRolledBack(0, 0, 1, 2, 77, 78, "who knows"),
        RequestFinished(0, 1, "cancelled", "", ()),
    )
    assert spans(items)[0] == ("prefill", 0, 250)
    marks = [(item["name"], item["ts"]) for item in items if item["ph"] == "i"]
    assert marks == [("preempt", 1000), ("rollback", 1000), ("finish", 1000)]
    rolled = next(item["args"] for item in items if item["name"] == "rollback")
    assert (rolled["phase"], rolled["signal"]) == ("77", "78")
    pages = [item["args"] for item in items if item["name"] == "pages"]
    assert pages == [{"kv": 1, "pairs": 1}, {"kv": 2, "pairs": 1}, {"kv": 0, "pairs": 0}]


def test_a_commit_is_not_before_the_prefill_that_was_told_before_it(tmp_path: Path) -> None:
    prefill = PrefillCommitted(0, 0, 1, 0, 3, ((), ()), (0,), (250,))
    items = traced(tmp_path, prefill, committed(0, (100, 0, 10, 0)))
    assert spans(items) == [("prefill", 0, 250), ("round", 250, 0)]


def test_a_trace_forgets_requests_that_are_over(written: Path) -> None:
    trace = Trace(read_header(written))
    for sequence, event in events(written):
        list(trace.take(sequence, event))
    assert trace._ends == {}


def test_an_empty_log_is_an_empty_trace(tmp_path: Path) -> None:
    assert traced(tmp_path) == []


def test_times_that_are_missing(tmp_path: Path) -> None:
    event = msgspec.structs.replace(committed(0, ()), times=(7,))
    assert spans(traced(tmp_path, event)) == [("round", 7, 0)]


# Files.


@pytest.mark.parametrize("to", ["jsonl", "chrome-trace"])
def test_a_file_has_what_standard_output_would(to: str, written: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("what was there")
    seen: list[tuple[int, int]] = []
    count = export_file(written, to, out, lambda done, total: seen.append((done, total)))
    assert count == len(events(written))
    assert out.read_text() == text(written, to)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_damaged_log_leaves_the_file_as_it_was(written: Path, tmp_path: Path) -> None:
    log, out = tmp_path / "hurt.txlog", tmp_path / "out"
    data = bytearray(written.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    out.write_text("what was there")
    with pytest.raises(JournalCorrupt):
        export_file(log, "jsonl", out)
    assert out.read_text() == "what was there"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hurt.txlog", "out"]


def test_no_log_is_written_over(written: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txlog"
    other.write_bytes(written.read_bytes())
    before = other.read_bytes()
    for log in (written, other):
        with pytest.raises(InvalidArgument, match="is a log"):
            export_file(log, "jsonl", other)
    assert other.read_bytes() == before


def test_files_that_cannot_be_written(written: Path, tmp_path: Path) -> None:
    for out in (tmp_path, tmp_path / "missing" / "out"):
        with pytest.raises(OutputUnavailable, match="cannot write"):
            export_file(written, "jsonl", out)


def test_formats_that_do_not_exist(written: Path) -> None:
    with pytest.raises(InvalidArgument, match="no format 'pdf'; export to one of jsonl, chrome-trace"):
        export(written, "pdf", print)
