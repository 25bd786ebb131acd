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

from txdecode.runtime import Divergence, Runtime, TxDecodeError, replay
from txdecode.runtime.errors import EventUndecodable
from txdecode.runtime.journal import Entry, Journal, JournalCorrupt, iterate, read_header
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
