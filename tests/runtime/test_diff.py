"""Where two runs part: event by event, and by the text of each request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from txdecode.runtime import Runtime, Sampling
from txdecode.runtime.diff import FieldDifference, RoundDifference, diff
from txdecode.runtime.export import plain
from txdecode.runtime.journal import Journal, JournalCorrupt, JournalUnavailable, iterate, read_header
from txdecode.runtime.replay import InvalidArgument, replay
from txdecode.transactions.codec import decode, encode
from txdecode.transactions.events import Event, RoundCommitted, RuntimeNote, StateAudited
from txdecode.transactions.toy import ToyExecutor

PROMPTS = ([3, 1, 4, 1, 5], [9, 2, 6], [5, 3])


def run(
    log: Path, *, draft: str = "executor", accuracy: int = 6, seed: int | None = None, **options: Any
) -> Path:
    sampling = None if seed is None else Sampling(temperature=1.0, seed=seed)
    opened = {"draft_len": 3, **options}
    with Runtime.open(ToyExecutor(accuracy=accuracy), log=log, draft=draft, **opened) as runtime:
        for prompt in PROMPTS:
            runtime.submit(prompt, max_tokens=30, sampling=sampling)
        runtime.run()
    return log


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("written") / "run.txlog", seed=5)


def rewritten(written: Path, log: Path, change: Callable[[int, Any], list[Event]]) -> Path:
    """The log with each event replaced, framed anew."""
    header = read_header(written)
    with Journal.create(log, fingerprint=header.fingerprint, configuration=header.configuration) as journal:
        for record in iterate(written):
            event = decode(record.type, record.version, record.flags, record.payload)
            journal.append([encode(item) for item in change(record.sequence, event)])
    return log


def rounds(log: Path, request: int) -> list[tuple[int, RoundCommitted]]:
    found = []
    for record in iterate(log):
        event = decode(record.type, record.version, record.flags, record.payload)
        if isinstance(event, RoundCommitted) and event.request == request:
            found.append((record.sequence, event))
    return found


def test_two_equal_runs(written: Path, tmp_path: Path) -> None:
    again = run(tmp_path / "again.txlog", seed=5)
    assert again.read_bytes() != written.read_bytes(), "times and salt"
    report = diff(written, again)
    assert report.equal
    assert report.text_equal
    assert report.event is None
    assert report.header == ()
    assert report.events == replay(written).records - replay(written).events["RuntimeNote"]
    assert [one.request for one in report.requests] == [0, 1, 2]
    for one in report.requests:
        assert (one.text, one.token, one.rounds, one.equal) == ("equal", None, None, True)


@pytest.mark.parametrize("seed", [None, 11])
def test_speculation_changes_rounds_and_no_text(seed: int | None, tmp_path: Path) -> None:
    fast = run(tmp_path / "fast.txlog", seed=seed)
    slow = run(tmp_path / "plain.txlog", draft="none", seed=seed)
    report = diff(fast, slow)
    assert report.text_equal
    assert not report.equal
    assert report.event is not None
    assert (report.event.event_a, report.event.field) == ("RoundCommitted", "source")
    assert FieldDifference("configuration.options.draft", "executor", "none") in report.header
    for one in report.requests:
        assert one.equal
        assert one.a is not None
        assert one.b is not None
        assert one.a.rounds < one.b.rounds == one.b.plain_steps == 30
        # The toy's drafter has nothing to go by in the first round.
        sequence, first = next(pair for pair in rounds(fast, one.request) if pair[1].drafts)
        assert one.rounds == RoundDifference(
            first.ordinal, sequence, rounds(slow, one.request)[first.ordinal][0]
        )


def test_other_seeds_give_other_texts(written: Path, tmp_path: Path) -> None:
    other = run(tmp_path / "other.txlog", seed=6)
    report = diff(written, other)
    assert not report.text_equal
    assert report.event is not None
    # Seeds are in the parameters of sampling too, which come first.
    assert (report.event.event_a, report.event.request) == ("RequestSubmitted", 0)
    assert report.event.field in ("parameters", "seed")
    ids = [replay(log).requests for log in (written, other)]
    for one in report.requests:
        a, b = (side[one.request].ids for side in ids)
        first = next(i for i in range(30) if a[i] != b[i])
        assert (one.text, one.token, one.tokens) == ("differs", first, (a[first], b[first]))


CHANGED: dict[str, tuple[dict[str, Any], str | None]] = {
    "times": ({"times": (1, 2, 3, 4)}, None),
    "launch": ({"launch": 999}, None),
    "digests": ({"digests": bytes(40)}, None),
    "accepted": ({"accepted": 77}, "accepted"),
    "columns": ({"columns": (5, 5)}, "columns"),
    "epoch": ({"epoch": 3}, "epoch"),
    "request": ({"request": 2}, "event"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_which_fields_are_compared(name: str, written: Path, tmp_path: Path) -> None:
    fields, expected = CHANGED[name]
    sequence, event = rounds(written, 1)[2]
    log = rewritten(
        written,
        tmp_path / "changed.txlog",
        lambda n, e: [msgspec.structs.replace(e, **fields) if n == sequence else e],
    )
    for a, b, swap in ((written, log, False), (log, written, True)):
        found = diff(a, b).event
        assert (found is None) == (expected is None)
        if found is None:
            continue
        assert (found.sequence_a, found.sequence_b, found.field) == (sequence, sequence, expected)
        if expected == "event":
            values = ["RoundCommitted of request 1", "RoundCommitted of request 2"]
            assert found.request is None
        else:
            values = [plain(value) for value in (getattr(event, name), fields[name])]
            assert found.request == 1
            assert isinstance(found.a, int | list)
        assert [found.a, found.b] == (values[::-1] if swap else values)


def test_a_run_that_was_cut_short(written: Path, tmp_path: Path) -> None:
    sequence, _ = rounds(written, 1)[3]
    log = rewritten(written, tmp_path / "short.txlog", lambda n, e: [e] if n < sequence else [])
    report = diff(written, log)
    assert report.event is not None
    assert (report.event.sequence_a, report.event.sequence_b) == (sequence, None)
    assert (report.event.field, report.event.b) == ("event", None)
    one = report.requests[1]
    told = replay(log).requests[1].emitted
    whole = replay(written).requests[1].ids
    assert (one.text, one.token, one.tokens) == ("A is longer", told, (whole[told], None))
    assert one.rounds == RoundDifference(3, sequence, None)
    assert not one.equal
    back = diff(log, written).requests[1]
    assert (back.text, back.tokens) == ("B is longer", (None, whole[told]))
    assert back.rounds == RoundDifference(3, None, sequence)


def test_requests_that_one_run_has(written: Path, tmp_path: Path) -> None:
    log = rewritten(
        written, tmp_path / "fewer.txlog", lambda n, e: [e] if getattr(e, "request", 0) != 1 else []
    )
    report = diff(written, log)
    assert [one.text for one in report.requests] == ["equal", "only in A", "equal"]
    assert report.requests[1].b is None
    assert not report.text_equal
    assert [one.text for one in diff(log, written).requests] == ["equal", "only in B", "equal"]


def test_another_end_is_a_difference(written: Path, tmp_path: Path) -> None:
    sequence, _ = rounds(written, 2)[-1]
    log = rewritten(
        written,
        tmp_path / "stop.txlog",
        lambda n, e: [msgspec.structs.replace(e, clip=1) if n == sequence else e],
    )
    report = diff(written, log)
    one = report.requests[2]
    assert one.text == "equal"
    assert not one.equal
    assert not report.text_equal


def test_notes_are_passed_over(written: Path, tmp_path: Path) -> None:
    log = rewritten(
        written, tmp_path / "noted.txlog", lambda n, e: [RuntimeNote("x", {}), e] if n % 3 == 0 else [e]
    )
    assert diff(written, log).equal
    assert diff(log, written).equal


def test_audits_are_compared_where_both_runs_have_them(written: Path, tmp_path: Path) -> None:
    audited = run(tmp_path / "audited.txlog", seed=5, audit_every=2)
    often = run(tmp_path / "often.txlog", seed=5, audit_every=1)
    assert replay(audited).events["StateAudited"] > 3
    for a, b in ((written, audited), (audited, written), (audited, often), (often, audited)):
        assert diff(a, b).equal
    places = []

    def corrupt(number: int, event: Any) -> list[Event]:
        if isinstance(event, StateAudited) and event.ordinal == 3 and event.request == 1:
            places.append(number)
            group, layer, index, row, digest = event.entries[0]
            entries = ((group, layer, index, row, digest ^ 1), *event.entries[1:])
            return [msgspec.structs.replace(event, entries=entries)]
        return [event]

    report = diff(audited, rewritten(audited, tmp_path / "corrupt.txlog", corrupt))
    assert report.event is not None
    assert (report.event.sequence_a, report.event.field, report.event.request) == (places[0], "entries", 1)
    assert report.text_equal
    assert not report.equal


def test_segments_make_no_difference(written: Path, tmp_path: Path) -> None:
    log = run(tmp_path / "segments.txlog", seed=5, segment_bytes=4096)
    assert replay(log).events["Snapshot"] > 0
    assert diff(written, log).equal


def test_a_log_whose_beginning_was_dropped(written: Path, tmp_path: Path) -> None:
    log = run(tmp_path / "late.txlog", seed=5, segment_bytes=4096, keep_segments=1)
    assert not log.exists()
    report = diff(written, log)
    assert report.event is not None
    late = {one.request: one for one in report.requests}
    begun = [n for n, history in replay(log).requests.items() if history.first_round]
    assert begun
    for number in begun:
        assert late[number].equal, "the snapshot has the text before it"
    assert diff(log, written).requests[begun[0]].equal


def test_header_differences_down_to_the_leaves(written: Path, tmp_path: Path) -> None:
    header = read_header(written)
    log = tmp_path / "other.txlog"
    options: Any = header.configuration["options"]
    configuration = {**header.configuration, "options": {**options, "draft_len": 7}, "new": 1}
    fingerprint = {**header.fingerprint, "executor": "toy-2"}
    with Journal.create(log, fingerprint=fingerprint, configuration=configuration) as journal:
        for record in iterate(written):
            journal.append([(record.type, record.version, record.flags, record.payload)])
    report = diff(written, log)
    assert report.equal, "only the headers differ"
    assert {*report.header} == {
        FieldDifference("fingerprint.executor", header.fingerprint["executor"], "toy-2"),
        FieldDifference("configuration.options.draft_len", 3, 7),
        FieldDifference("configuration.new", None, 1),
    }


def test_one_log_twice(written: Path, tmp_path: Path) -> None:
    link, hard = tmp_path / "link.txlog", tmp_path / "hard.txlog"
    link.symlink_to(written)
    hard.hardlink_to(written)
    for other in (written, link, hard, written.parent / "." / written.name):
        with pytest.raises(InvalidArgument, match="are one log; give two"):
            diff(written, other)


def test_one_log_twice_by_two_names_without_its_first_segment(tmp_path: Path) -> None:
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    log = run(folder / "late.txlog", segment_bytes=4096, keep_segments=1)
    assert not log.exists()
    with pytest.raises(InvalidArgument, match="are one log; give two"):
        diff(log, link / "late.txlog")


def test_logs_that_cannot_be_read(written: Path, tmp_path: Path) -> None:
    with pytest.raises(JournalUnavailable):
        diff(written, tmp_path / "missing.txlog")
    with pytest.raises(JournalUnavailable):
        diff(tmp_path / "missing.txlog", written)
    hurt = tmp_path / "hurt.txlog"
    data = bytearray(written.read_bytes())
    data[len(data) // 2] ^= 1
    hurt.write_bytes(data)
    with pytest.raises(JournalCorrupt):
        diff(written, hurt)
