"""Opening a runtime over an executor of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from txdecode.runtime import InvalidRequest, Runtime, replay
from txdecode.runtime.errors import CapabilityMissing, InvalidDraftLength
from txdecode.runtime.journal import JournalExists, JournalLocked, JournalUnavailable
from txdecode.transactions.toy import ToyExecutor


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"draft": "guess"}, InvalidRequest, "draft must be 'lookup', 'none', .*; found 'guess'"),
        ({"draft": "executor"}, InvalidRequest, "an executor that drafts"),
        ({"draft_len": 16}, InvalidDraftLength, "found 16"),
        ({"draft_len": "fast"}, InvalidDraftLength, "found 'fast'"),
    ],
)
def test_options_that_make_no_sense(
    options: Any, error: type[Exception], message: str, tmp_path: Path
) -> None:
    log = tmp_path / "run.txlog"
    with pytest.raises(error, match=message):
        Runtime.open(ToyExecutor(), log=log, **options)
    assert not log.exists()


def test_an_executor_that_advances_by_itself_is_refused(tmp_path: Path) -> None:
    executor = ToyExecutor()
    capabilities = attrs.evolve(executor._description.capabilities, advance="on_device")
    executor._description = attrs.evolve(executor._description, capabilities=capabilities)
    log = tmp_path / "run.txlog"
    for _ in range(2):
        # The log is let go of, so the second attempt meets the same error.
        with pytest.raises(CapabilityMissing, match="advances its state on the device"):
            Runtime.open(executor, log=log, overwrite=True, draft="none")


def test_a_log_is_not_overwritten_unless_told(tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"
    with Runtime.open(ToyExecutor(), log=log, draft="none") as runtime:
        with pytest.raises(JournalLocked):
            Runtime.open(ToyExecutor(), log=log, overwrite=True, draft="none")
        runtime.submit([1], max_tokens=2)
        runtime.run()
    with pytest.raises(JournalExists):
        Runtime.open(ToyExecutor(), log=log, draft="none")
    assert replay(log).requests[0].finish == "length"
    Runtime.open(ToyExecutor(), log=log, overwrite=True, draft="none").close()
    assert replay(log).requests == {}


def test_a_log_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(JournalUnavailable, match="cannot create"):
        Runtime.open(ToyExecutor(), log=tmp_path / "none" / "run.txlog", draft="none")


def test_the_header_says_how_it_was_opened(tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"
    Runtime.open(ToyExecutor(), log=log, draft="lookup", draft_len=3).close()
    report = replay(log)
    assert report.configuration["options"]["draft"] == "lookup"
    assert report.configuration["options"]["draft_len"] == 3
    assert report.fingerprint["rng"] == "philox4x32-10/position/1"
    assert report.fingerprint["numerics"] == "exact"
    assert report.events == {"RuntimeNote": 1}
