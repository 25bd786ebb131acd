"""The fold of a log: what it reports, and how it names where a log and its ledgers part."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from txdecode.runtime import Divergence, Runtime, Sampling, TxDecodeError, replay
from txdecode.runtime.errors import EventUndecodable
from txdecode.runtime.journal import Entry, Journal, JournalCorrupt, iterate, read_header
from txdecode.runtime.journal.segments import segment_path
from txdecode.runtime.replay import Histories, InvalidArgument, NotInLog
from txdecode.state.digest import LEDGERS
from txdecode.state.errors import LedgerCorrupt
from txdecode.state.pages import PagesLedger
from txdecode.transactions.codec import IGNORABLE, decode, encode
from txdecode.transactions.events import (
    Event,
    PrefillCommitted,
    RequestAdmitted,
    RequestFinished,
    RequestPreempted,
    RequestSubmitted,
    RoundCommitted,
    RoundRolledBack,
    Snapshot,
)
from txdecode.transactions.toy import ToyExecutor, plain


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log = tmp_path_factory.mktemp("written") / "run.txlog"
    with Runtime.open(ToyExecutor(accuracy=6), log=log, draft="executor", draft_len=3) as runtime:
        first = runtime.submit([3, 1, 4, 1, 5], max_tokens=12)
        second = runtime.submit([9, 2, 6], max_tokens=12)
        for _ in range(3):
            runtime.step()
        runtime.preempt(first)
        runtime.step()
        second.cancel()
        runtime.run()
    return log


def rewritten(written: Path, log: Path, change: Callable[[int, Any], list[Entry]]) -> Path:
    """The log with each event replaced, framed anew: checksums and chain are right."""
    header = read_header(written)
    with Journal.create(log, fingerprint=header.fingerprint, configuration=header.configuration) as journal:
        for record in iterate(written):
            event = decode(record.type, record.version, record.flags, record.payload)
            journal.append(change(record.sequence, event))
    return log


def where(written: Path, kind: type[Event], skip: int = 0, **fields: Any) -> int:
    """Sequence number of an event of a kind."""
    found = [
        record.sequence
        for record in iterate(written)
        if isinstance(event := decode(record.type, record.version, record.flags, record.payload), kind)
        and all(getattr(event, name) == value for name, value in fields.items())
    ]
    return found[skip]


def shifted(values: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(value + 1 for value in values)


Change = Callable[[Any], dict[str, Any]]

TAMPERED: dict[str, tuple[type[Event], Change, str, str]] = {
    "an emitted token": (
        RoundCommitted,
        lambda e: {"emitted": (*e.emitted[:-1], (e.emitted[-1] + 1) % 48)},
        "tokens",
        "digest",
    ),
    "a token that was accepted": (
        RoundCommitted,
        lambda e: {"drafts": shifted(e.drafts)} if e.accepted else {"accepted": 9},
        "tokens",
        "request . (emitted|accepted)",
    ),
    "fewer emitted": (RoundCommitted, lambda e: {"emitted": ()}, "tokens", "request . accepted, emitted"),
    "a column": (RoundCommitted, lambda e: {"columns": shifted(e.columns)}, "recurrent", "digest"),
    "no column": (RoundCommitted, lambda e: {"columns": ()}, "recurrent", "request . groups"),
    "a random position": (
        RoundCommitted,
        lambda e: {"rng": shifted(e.rng)},
        "rng",
        "request . role 'target'",
    ),
    "an ordinal": (RoundCommitted, lambda e: {"ordinal": e.ordinal + 1}, "tokens", "request . ordinal"),
    "an epoch": (RoundCommitted, lambda e: {"epoch": e.epoch + 1}, "tokens", "request . epoch"),
    "a width": (RoundCommitted, lambda e: {"width": e.width + 1}, "tokens", "request . width"),
    "another request": (RoundCommitted, lambda e: {"request": 7}, "tokens", "request 7"),
    "a page": (PrefillCommitted, lambda e: {"adopted": tuple(map(shifted, e.adopted))}, "pages", "digest"),
    "no pages": (PrefillCommitted, lambda e: {"adopted": ((), ())}, "pages", "request . group 'kv' pages"),
    "a prefill's start": (PrefillCommitted, lambda e: {"start": e.start + 1}, "tokens", "request . start"),
    "a prefill's count": (PrefillCommitted, lambda e: {"count": 99}, "tokens", "request . prefill"),
    "a ring": (RequestAdmitted, lambda e: {"slots": shifted(e.slots)}, "history", "digest"),
    "a prompt": (RequestSubmitted, lambda e: {"prompt": shifted(e.prompt)}, "tokens", "digest"),
    "a budget": (RequestSubmitted, lambda e: {"budget": 0}, "tokens", "request . budget"),
    "what was released": (RequestPreempted, lambda e: {"released": ((), ())}, "pages", "request . released"),
    "an end's epoch": (RequestFinished, lambda e: {"epoch": 5}, "tokens", "request . epoch"),
    "a cut digest": (RoundCommitted, lambda e: {"digests": e.digests[:-1]}, "tokens", "digests"),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_divergence_names_record_ledger_and_field(name: str, written: Path, tmp_path: Path) -> None:
    kind, change, ledger, field = TAMPERED[name]
    skip = 2 if kind is RoundCommitted else 0
    sequence = where(written, kind, skip)

    def tamper(number: int, event: Any) -> list[Entry]:
        changed = msgspec.structs.replace(event, **change(event)) if number == sequence else event
        return [encode(changed)]

    log = rewritten(written, tmp_path / "tampered.txlog", tamper)
    with pytest.raises(Divergence) as found:
        replay(log)
    error = found.value
    assert (error.sequence, error.event, error.ledger) == (sequence, kind.__name__, ledger)
    assert re.match(field, error.field), error.field
    assert (error.ordinal is None) == (kind is not RoundCommitted)
    assert error.expected != error.found
    text = str(error)
    assert "\n" not in text
    assert f"record {sequence} ({kind.__name__}, request {error.request}" in text
    assert f"txdecode replay {log} --until {sequence}" in text
    # Up to the record before it the log is right.
    if sequence:
        assert replay(log, until=sequence - 1).records == sequence


@pytest.mark.parametrize("ledger", LEDGERS)
def test_a_wrong_digest_is_named_by_ledger(ledger: str, written: Path, tmp_path: Path) -> None:
    sequence = where(written, RoundCommitted, 4)
    index = 8 * LEDGERS.index(ledger)

    def tamper(number: int, event: Any) -> list[Entry]:
        if number == sequence:
            digests = bytearray(event.digests)
            digests[index] ^= 1
            event = msgspec.structs.replace(event, digests=bytes(digests))
        return [encode(event)]

    with pytest.raises(Divergence) as found:
        replay(rewritten(written, tmp_path / "tampered.txlog", tamper))
    assert (found.value.ledger, found.value.field, found.value.sequence) == (ledger, "digest", sequence)
    assert str(found.value.expected).endswith("(recorded)")
    assert str(found.value.found).endswith("(folded)")


@pytest.mark.parametrize("kind", [RequestSubmitted, RequestAdmitted, PrefillCommitted, RoundCommitted])
def test_a_record_that_is_left_out_is_noticed(kind: type[Event], written: Path, tmp_path: Path) -> None:
    sequence = where(written, kind, 1)
    log = rewritten(written, tmp_path / "short.txlog", lambda n, e: [] if n == sequence else [encode(e)])
    with pytest.raises(Divergence) as found:
        replay(log)
    assert found.value.sequence >= sequence


def test_a_record_that_comes_twice_is_noticed(written: Path, tmp_path: Path) -> None:
    sequence = where(written, RoundCommitted, 3)
    log = rewritten(written, tmp_path / "twice.txlog", lambda n, e: [encode(e)] * (2 if n == sequence else 1))
    with pytest.raises(Divergence, match=r"ordinal|epoch") as found:
        replay(log)
    assert found.value.sequence == sequence + 1


def test_what_replay_reports(written: Path) -> None:
    report = replay(written)
    records = list(iterate(written))
    assert report.records == len(records) == sum(report.events.values())
    assert report.torn_tail is None
    assert report.path == str(written)
    assert report.fingerprint["executor"] == "toy-1"
    assert report.configuration["vocab_size"] == 48
    first, second = report.requests[0], report.requests[1]
    assert first.ids == plain([3, 1, 4, 1, 5], 12, 48)
    assert (first.finish, first.prompt_tokens, first.preemptions) == ("length", 5, 1)
    assert second.finish == "cancelled"
    assert second.ids == plain([9, 2, 6], 12, 48)[: len(second.ids)]
    # Everything is over, so every ledger is empty.
    assert report.digests == dict.fromkeys(LEDGERS, "0" * 16)


def test_replay_reaches_the_live_digests(tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"
    with Runtime.open(ToyExecutor(), log=log, draft="lookup") as runtime:
        runtime.submit([3, 1, 4], max_tokens=30)
        for _ in range(7):
            runtime.step()
            digests = [f"{digest:016x}" for digest in runtime.ledgers.digests]
            assert [*replay(log).digests.values()] == digests
            assert len({*digests}) == len(LEDGERS)


def test_ledgers_that_contradict_themselves_at_the_end(written: Path, monkeypatch: Any) -> None:
    apply = PagesLedger.apply

    def forgetful(self: PagesLedger, change: Any) -> None:
        apply(self, change)
        self.references[0][-1] = 1

    # The digests follow the changes, so only the check of the cells sees it.
    monkeypatch.setattr(PagesLedger, "apply", forgetful)
    with pytest.raises(LedgerCorrupt, match=r"ledger 'pages'.*references"):
        replay(written)


@pytest.mark.parametrize("until", [0, 1, 7, 10**6])
def test_until_ends_after_a_record(until: int, written: Path) -> None:
    whole = replay(written)
    report = replay(written, until=until)
    assert report.records == min(until + 1, whole.records)


def test_a_torn_tail_is_reported_and_not_cut(written: Path, tmp_path: Path) -> None:
    log = tmp_path / "torn.txlog"
    data = written.read_bytes()
    log.write_bytes(data[:-5])
    report = replay(log)
    assert report.records == replay(written).records - 1
    assert report.torn_tail is not None
    assert report.torn_tail.offset + report.torn_tail.size == len(data) - 5
    assert log.stat().st_size == len(data) - 5


def test_progress_ends_at_the_end(written: Path) -> None:
    seen: list[tuple[int, int]] = []
    replay(written, progress=lambda done, total: seen.append((done, total)))
    size = written.stat().st_size
    assert seen[-1] == (size, size)


def test_records_of_later_versions(written: Path, tmp_path: Path) -> None:
    def with_extra(flags: int) -> Callable[[int, Any], list[Entry]]:
        return lambda n, e: [encode(e), (200, 1, flags, b"\xc0")] if n == 2 else [encode(e)]

    log = rewritten(written, tmp_path / "ignorable.txlog", with_extra(IGNORABLE))
    report = replay(log)
    assert report.events["unknown"] == 1
    assert report.digests == replay(written).digests
    log = rewritten(written, tmp_path / "needed.txlog", with_extra(0))
    with pytest.raises(EventUndecodable, match=r"needed\.txlog', record 3: event number 200"):
        replay(log)


@pytest.mark.parametrize("missing", ["groups", "options"])
def test_a_header_without_its_configuration(missing: str, written: Path, tmp_path: Path) -> None:
    header = read_header(written)
    configuration = {name: value for name, value in header.configuration.items() if name != missing}
    log = tmp_path / "bare.txlog"
    Journal.create(log, fingerprint={}, configuration=configuration).close()
    with pytest.raises(JournalCorrupt, match=f"no usable '{missing}'") as found:
        replay(log) if missing == "groups" else Runtime.recover(log, ToyExecutor())
    assert isinstance(found.value, TxDecodeError)


def test_replay_loads_no_kernels(written: Path) -> None:
    program = (
        "import sys; from txdecode.runtime import replay, Runtime; import txdecode.runtime.recovery; "
        f"report = replay({str(written)!r}); assert report.records; "
        "assert not {'torch', 'numpy', 'transformers'} & sys.modules.keys(), "
        "sorted({'torch', 'numpy', 'transformers'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# Segments and snapshots.


def run_in_segments(log: Path, **options: Any) -> Path:
    """Requests that live through rotations, with a preemption; 4 KiB a segment."""
    executor = ToyExecutor(accuracy=6)
    with Runtime.open(
        executor, log=log, draft="executor", draft_len=3, segment_bytes=4096, **options
    ) as runtime:
        first = runtime.submit([3, 1, 4, 1, 5], max_tokens=100)
        for _ in range(5):
            runtime.step()
        runtime.preempt(first)
        for number in range(12):
            runtime.submit([number, 2, 6], max_tokens=20 + number)
        runtime.run()
    return log


def files(log: Path) -> list[int]:
    """Numbers of the segments that are there."""
    return [number for number in range(100) if segment_path(log, number).exists()]


def test_a_log_of_segments_folds_as_one(tmp_path: Path) -> None:
    log = run_in_segments(tmp_path / "run.txlog")
    assert len(files(log)) > 2
    report = replay(log)
    assert report.first_sequence == 0
    assert report.events["Snapshot"] == len(files(log)) - 1
    assert report.checked == report.records - report.events["RuntimeNote"]
    assert report.requests[0].ids == plain([3, 1, 4, 1, 5], 100, 48)
    assert report.requests[0].first_round == 0
    assert {history.finish for history in report.requests.values()} == {"length"}


def test_a_log_whose_beginning_was_dropped(tmp_path: Path) -> None:
    # One run, its oldest files deleted: where a segment ends depends on the times in its records.
    log = run_in_segments(tmp_path / "run.txlog")
    whole = replay(log)
    for number in files(log)[:-2]:
        segment_path(log, number).unlink()
    assert len(files(log)) == 2
    assert 0 not in files(log)
    report = replay(log)
    assert report.first_sequence > 0
    assert report.first_sequence + report.records == whole.records
    assert report.digests == whole.digests
    begun = {n: h for n, h in report.requests.items() if h.first_round}
    assert begun
    for number, history in report.requests.items():
        expected = whole.requests[number]
        for name in ("ids", "finish", "rounds", "emitted", "prompt_tokens", "preemptions", "law", "seed"):
            assert getattr(history, name) == getattr(expected, name), (number, name)
        assert (history.drafted < expected.drafted) == (number in begun)
        assert history.first_round < history.rounds
    with pytest.raises(NotInLog, match=f"begins with record {report.first_sequence}"):
        replay(log, until=report.first_sequence - 1)
    assert replay(log, until=report.first_sequence).events == {"Snapshot": 1}
    with pytest.raises(NotInLog, match="no request 0 in"):
        replay(log, request=0)
    assert not any(history.ids for history in replay(log, ids=False).requests.values())


def test_a_preemption_before_the_beginning_is_counted(tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"
    with Runtime.open(ToyExecutor(), log=log, draft="none", segment_bytes=4096, keep_segments=1) as runtime:
        handle = runtime.submit([1, 2], max_tokens=150)
        runtime.step()
        runtime.preempt(handle)
        runtime.run()
    history = replay(log).requests[0]
    assert (history.preemptions, history.finish) == (1, "length")
    assert history.first_round > 1


Twist = Callable[[Snapshot], dict[str, Any]]

LIES: dict[str, tuple[Twist, str, str]] = {
    "of tokens": (
        lambda e: {"ledgers": {**e.ledgers, "tokens": {}}},
        "tokens",
        "snapshot",
    ),
    "of pages": (lambda e: {"ledgers": {**e.ledgers, "pages": {}}}, "pages", "snapshot"),
    "of a ledger left out": (
        lambda e: {"ledgers": {n: v for n, v in e.ledgers.items() if n != "rng"}},
        "rng",
        "snapshot",
    ),
    "of the unfinished": (lambda e: {"unfinished": ()}, "tokens", "snapshot's unfinished requests"),
    "of digests": (lambda e: {"digests": bytes(40)}, "tokens", "digest"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_snapshot_must_say_what_the_records_before_it_led_to(name: str, tmp_path: Path) -> None:
    twist, ledger, field = LIES[name]
    written = run_in_segments(tmp_path / "run.txlog")
    sequence = where(written, Snapshot)

    def lie(number: int, event: Any) -> list[Entry]:
        return [encode(msgspec.structs.replace(event, **twist(event)) if number == sequence else event)]

    with pytest.raises(Divergence) as found:
        replay(rewritten(written, tmp_path / "lie.txlog", lie))
    assert (found.value.sequence, found.value.ledger, found.value.field) == (sequence, ledger, field)
    assert "(Snapshot) diverges" in str(found.value)


# What is collected.


def test_one_request_alone(written: Path) -> None:
    whole = replay(written)
    report = replay(written, request=1)
    assert report.requests == {1: whole.requests[1]}
    assert (report.records, report.checked, report.digests) == (whole.records, whole.checked, whole.digests)
    assert report.totals.requests == 1
    with pytest.raises(NotInLog, match=r"no request 7 in records 0 to \d+"):
        replay(written, request=7)
    with pytest.raises(NotInLog, match="no request 1 in records 0 to 0"):
        replay(written, request=1, until=0)
    assert replay(written, request=1, keep=0).requests == report.requests


def test_without_ids_the_text_is_counted_only(written: Path) -> None:
    whole, report = replay(written), replay(written, ids=False)
    for number, history in report.requests.items():
        assert history.ids == []
        assert history.emitted == len(whole.requests[number].ids) > 0


@pytest.mark.parametrize("keep", [0, 1, 2, 100])
def test_finished_requests_are_dropped_beyond_keep(keep: int, tmp_path: Path) -> None:
    log = run_in_segments(tmp_path / "run.txlog")
    whole, report = replay(log), replay(log, keep=keep)
    assert len(report.requests) == min(keep, 13)
    assert report.totals == whole.totals
    assert whole.totals.requests == 13
    assert whole.totals.emitted == sum(len(history.ids) for history in whole.requests.values())
    assert whole.totals.finished == {"length": 13}
    assert {n: whole.requests[n] for n in report.requests} == report.requests


def test_unfinished_requests_are_never_dropped(written: Path) -> None:
    report = replay(written, keep=0, until=6)
    assert len(report.requests) == 2
    assert report.totals.finished == {}


def test_what_a_fold_holds_does_not_grow_with_the_log(written: Path) -> None:
    events = [decode(r.type, r.version, r.flags, r.payload) for r in iterate(written)]
    histories = Histories(ids=False, keep=2)
    for turn in range(50):
        for event in events:
            assert event is not None
            if hasattr(event, "request"):
                event = msgspec.structs.replace(event, request=event.request + 2 * turn)  # type: ignore[call-arg]
            histories.take(event)
        assert len(histories.requests) == 2
        assert not any(history.ids for history in histories.requests.values())
    assert histories.totals.requests == 100
    assert histories.totals.finished == {"length": 50, "cancelled": 50}


def test_what_is_told_of_a_request_after_its_end() -> None:
    histories = Histories(keep=1)
    for number in range(3):
        histories.take(RequestSubmitted(number, (1,), 4, (), 1, {}, 0))
        histories.take(RequestFinished(number, 0, "cancelled", "", ()))
        histories.take(RoundRolledBack(number, 0, 0, 1, 1, 6, "stale epoch"))
    assert [*histories.requests] == [2]
    assert histories.totals.finished == {"cancelled": 3}
    assert histories.totals.rollbacks == 3


@pytest.mark.parametrize("name", ["until", "request", "keep"])
def test_numbers_below_zero(name: str, written: Path) -> None:
    with pytest.raises(InvalidArgument, match=f"{name} must be at least 0, found -1"):
        replay(written, **{name: -1})  # type: ignore[arg-type]


def test_until_does_not_look_past_the_record(written: Path, tmp_path: Path) -> None:
    log = tmp_path / "hurt.txlog"
    data = bytearray(written.read_bytes())
    offsets = [record.offset for record in iterate(written)]
    data[offsets[8] + 25] ^= 1
    log.write_bytes(data)
    assert replay(log, until=7).records == 8
    with pytest.raises(JournalCorrupt):
        replay(log, until=8)


def test_law_seed_and_audits_are_told(tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"
    with Runtime.open(ToyExecutor(), log=log, draft="lookup", audit_every=2) as runtime:
        runtime.submit([1, 2], max_tokens=9, sampling=Sampling(temperature=1.0, seed=77, law="chain"))
        runtime.submit([1, 2], max_tokens=9, sampling=Sampling(temperature=1.0, seed=5))
        runtime.run()
    report = replay(log)
    assert [(h.law, h.seed) for h in report.requests.values()] == [("chain", 77), ("coupled", 5)]
    assert report.events["StateAudited"] == report.totals.audits > 0
    assert sum(history.audits for history in report.requests.values()) == report.totals.audits
    assert report.checked == report.records - report.events["StateAudited"] - report.events["RuntimeNote"]
