"""A log of several segments: snapshots begin them, old ones can go, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from txdecode.runtime import Divergence, InvalidRequest, Runtime, replay
from txdecode.runtime import runtime as runtime_module
from txdecode.runtime.journal import Journal, Record, iterate
from txdecode.runtime.replay import Folder
from txdecode.state.ledgers import Ledgers
from txdecode.transactions.codec import decode, encode
from txdecode.transactions.events import Snapshot
from txdecode.transactions.fold import fold
from txdecode.transactions.toy import ToyExecutor, plain

PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6, 5, 3, 5], [8, 9], [7]]
SAMPLING: list[dict[str, Any] | None] = [
    None,
    {"temperature": 1.0, "seed": 5, "logprobs": 2},
    {"temperature": 1.3, "seed": 2**64 - 1, "top_k": 9, "repetition_penalty": 1.4},
    {"temperature": 0.0, "frequency_penalty": 1.0, "logprobs": 0},
]


def toy() -> ToyExecutor:
    return ToyExecutor(accuracy=6, page_count=96)


def submit(runtime: Runtime, tokens: int = 60) -> list[Any]:
    return [
        runtime.submit(prompt, max_tokens=tokens, sampling=sampling)
        for prompt, sampling in zip(PROMPTS, SAMPLING, strict=True)
    ]


@pytest.fixture(scope="module")
def whole() -> list[Any]:
    """What the requests come to without a log."""
    with Runtime.open(toy(), draft="none") as runtime:
        handles = submit(runtime)
        runtime.run()
    return [handle.result() for handle in handles]


def files(log: Path) -> list[str]:
    return sorted(path.name for path in log.parent.iterdir())


def events(log: Path) -> list[Any]:
    return [decode(r.type, r.version, r.flags, r.payload) for r in iterate(log)]


def write(log: Path, **options: Any) -> list[Any]:
    with Runtime.open(
        toy(), log=log, draft="executor", draft_len=3, segment_bytes=4096, **options
    ) as runtime:
        handles = submit(runtime)
        runtime.run()
    return [handle.result() for handle in handles]


def test_segments_change_neither_texts_nor_the_fold(log: Path, tmp_path: Path, whole: list[Any]) -> None:
    results = write(log)
    assert len(files(log)) > 2
    assert [r.ids for r in results] == [r.ids for r in whole]
    assert [r.logprobs for r in results] == [r.logprobs for r in whole]
    report = replay(log)
    assert report.events["Snapshot"] == len(files(log)) - 1
    assert [tuple(report.requests[n].ids) for n in range(4)] == [r.ids for r in whole]


def test_the_fold_of_all_is_the_fold_of_a_snapshot_and_the_tail(log: Path) -> None:
    write(log)
    made = events(log)
    groups = toy().describe().groups
    ledgers = Ledgers(groups)
    begun: list[Ledgers] = []
    for event in made:
        fold(ledgers, event)
        if isinstance(event, Snapshot):
            begun.append(Ledgers(groups))
        for other in begun:
            fold(other, event)
            assert other.digests == ledgers.digests
    assert len(begun) > 1
    for other in begun:
        other.check()
        assert other.snapshot() == ledgers.snapshot()


@pytest.mark.parametrize("steps", [12, 25, 33])
def test_recovery_from_the_segments_that_are_left(log: Path, steps: int, whole: list[Any]) -> None:
    runtime = Runtime.open(
        toy(), log=log, draft="executor", draft_len=3, segment_bytes=4096, keep_segments=1, audit_every=1
    )
    submit(runtime)
    for _ in range(steps):
        runtime.step()
    unfinished = set(runtime.handles)
    runtime.log.close()
    assert files(log)[0] != log.name
    assert isinstance(events(log)[0], Snapshot)
    with Runtime.recover(log, toy()) as again:
        handles = again.handles
        assert handles.keys() == unfinished
        again.run()
        for number, handle in handles.items():
            result = handle.result()
            assert result.ids == whole[number].ids
            assert result.logprobs == whole[number].logprobs
        # Numbers are not used twice, though the log does not name the first requests any more.
        assert again.submit([1], max_tokens=1).request == 4


def test_a_snapshot_that_contradicts_the_log_is_found(log: Path) -> None:
    write(log)
    made = events(log)
    index = next(i for i, event in enumerate(made) if isinstance(event, Snapshot))
    ledgers = Ledgers(toy().describe().groups)
    for event in made[: index - 1]:
        fold(ledgers, event)
    with pytest.raises(Exception, match="digest"):
        fold(ledgers, made[index])


def test_a_log_of_one_segment_has_no_snapshot(log: Path) -> None:
    with Runtime.open(toy(), log=log) as runtime:
        handle = runtime.submit([3, 1, 4], max_tokens=20)
        assert list(handle.result().ids) == plain([3, 1, 4], 20, 48)
    assert files(log) == [log.name]
    assert "Snapshot" not in replay(log).events


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("segment_bytes", 0),
        ("segment_bytes", 4095),
        ("segment_bytes", True),
        ("segment_bytes", 1e6),
        ("keep_segments", 0),
        ("keep_segments", "1"),
        ("audit_every", -1),
        ("audit_every", True),
        ("audit_every", 1.5),
    ],
)
def test_options_out_of_range(log: Path, field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"{field} must be an integer"):
        Runtime.open(toy(), log=log, **{field: value})
    assert not log.exists()


def test_a_first_snapshot_that_lacks_a_request_is_refused(log: Path) -> None:
    runtime = Runtime.open(toy(), log=log, draft="none", segment_bytes=4096, keep_segments=1)
    submit(runtime)
    for _ in range(30):
        runtime.step()
    runtime.log.close()
    first = events(log)[0]
    assert isinstance(first, Snapshot)
    assert first.unfinished
    assert isinstance(runtime.log, Journal)
    folder = Folder(runtime.log.header, log)
    record = next(iter(iterate(log)))
    spoiled = msgspec.structs.replace(first, unfinished=first.unfinished[1:])
    kind, version, flags, payload = encode(spoiled)
    folder.first = record.sequence
    with pytest.raises(Divergence, match="unfinished requests"):
        folder.take(Record(record.sequence, kind, version, flags, payload, 0, bytes(8)))


def test_an_audit_of_another_size_does_not_fill_a_segment_with_snapshots(log: Path) -> None:
    """Segments grow with their snapshots: else every record would begin one."""
    results = write(log, audit_every=1)
    assert results
    assert len(files(log)) < len(events(log)) // 4


def test_a_snapshot_that_no_record_can_hold_is_left_out(
    log: Path, monkeypatch: pytest.MonkeyPatch, whole: list[Any]
) -> None:
    monkeypatch.setattr(runtime_module, "PAYLOAD_MAX", 100)
    results = write(log, keep_segments=1)
    assert [result.ids for result in results] == [result.ids for result in whole]
    # Nothing to begin with stands in the later ones, so the earlier ones stay.
    assert files(log)[0] == log.name
    assert len(files(log)) > 2
    assert "Snapshot" not in replay(log).events
