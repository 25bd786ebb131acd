"""Logs of every released schema are read as they were meant, by every later version."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from txdecode.runtime import Runtime, replay
from txdecode.runtime.journal import iterate
from txdecode.transactions.codec import decode
from txdecode.transactions.events import EVENTS, RoundCommitted
from txdecode.transactions.toy import ToyExecutor

FOLDER = Path(__file__).parent
GOLDEN = sorted(FOLDER.glob("*.txlog"))


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("log", GOLDEN, ids=lambda log: log.stem)
def test_a_golden_log_replays_as_when_it_was_written(log: Path) -> None:
    assert load("write").expected(log) == json.loads(log.with_suffix(".json").read_text())


def test_there_is_one_for_every_schema() -> None:
    found = {(record.type, record.version) for log in GOLDEN for record in iterate(log)}
    released = {
        (number, version) for number, event in EVENTS.items() for version in range(1, event.VERSION + 1)
    }
    assert found == released


@pytest.mark.parametrize("log", GOLDEN, ids=lambda log: log.stem)
def test_a_golden_log_can_be_gone_on_with(log: Path, tmp_path: Path) -> None:
    for path in FOLDER.glob(f"{log.name}*"):
        shutil.copy(path, tmp_path)
    before = replay(log)
    unfinished = {number for number, said in before.requests.items() if said.finish is None}
    assert unfinished
    with Runtime.recover(
        tmp_path / log.name, ToyExecutor(**OPTIONS.get(log.stem, {"accuracy": 6}))
    ) as runtime:
        assert runtime.handles.keys() == unfinished
        handles = runtime.handles
        runtime.run()
        for number, handle in handles.items():
            ids = list(handle.result().ids)
            assert ids[: len(before.requests[number].ids)] == before.requests[number].ids


OPTIONS: dict[str, dict[str, Any]] = {"schema-1": {"accuracy": 6, "context": 128, "page_count": 40}}
"""The executors that wrote them, where they were not the default one."""


def test_the_writer_of_golden_logs_writes_one_of_everything(tmp_path: Path) -> None:
    """So that the next one is as good: every event that there is, in more than one segment."""
    module = load("write")
    module.write(tmp_path / "new.txlog")
    records = list(iterate(tmp_path / "new.txlog"))
    assert {record.type for record in records} == set(EVENTS)
    events = [decode(record.type, record.version, record.flags, record.payload) for record in records]
    rounds = [event for event in events if isinstance(event, RoundCommitted)]
    assert {event.source for event in rounds} == {"none", "toy", "prompt_lookup", "toy+prompt_lookup"}
    assert {event.law for event in rounds if event.copied} == {0, 1}
    assert module.expected(tmp_path / "new.txlog")["requests"]["5"]["finish"] is None
