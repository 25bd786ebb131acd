"""Opening a runtime over an executor of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from txdecode.runtime import InvalidRequest, Runtime, replay
from txdecode.runtime.configuration import Options
from txdecode.runtime.errors import CapabilityMissing, InvalidDraftLength, RecoveryRefused
from txdecode.runtime.journal import JournalExists, JournalLocked, JournalUnavailable
from txdecode.runtime.opening import Opened, open_model
from txdecode.transactions.executor import ROLLBACKS, Capabilities
from txdecode.transactions.toy import ToyExecutor


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"draft": "guess"}, InvalidRequest, "draft must be 'lookup', 'none', .*; found 'guess'"),
        ({"draft": "executor"}, InvalidRequest, "an executor that drafts"),
        (
            {"rollback": "snapshots"},
            InvalidRequest,
            "rollback must be one of columns, replay, restore, found",
        ),
        (
            {"rollback": "replay"},
            CapabilityMissing,
            "'gdn' in the form 'columns', and 'replay' was asked for",
        ),
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


class Dense(ToyExecutor):
    """Says that it has pages only."""

    def __init__(self) -> None:
        super().__init__()
        pages = tuple(group for group in self._description.groups if group.kind == "pages")
        self._description = attrs.evolve(
            self._description, groups=pages, capabilities=Capabilities(row_invariant=True)
        )


def test_a_form_of_state_that_is_not_there(tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"
    with pytest.raises(InvalidRequest, match="form of recurrent state, and 'toy' has none; leave it out"):
        Runtime.open(Dense(), log=log, rollback="replay", draft="none")
    assert not log.exists()
    Runtime.open(Dense(), draft="none").close()


@pytest.mark.parametrize("bound", [open_model, lambda executor: Runtime(Opened(executor, "toy"))])
def test_what_cannot_be_committed_does_not_bind(bound: Any) -> None:
    executor = ToyExecutor()
    capabilities = attrs.evolve(executor._description.capabilities, commits=("pages", "ring", "tokens"))
    executor._description = attrs.evolve(executor._description, capabilities=capabilities)
    with pytest.raises(CapabilityMissing, match="cannot commit group 'gdn'"):
        bound(executor)


def test_the_form_that_was_asked_for_is_that_of_the_runtime() -> None:
    with pytest.raises(CapabilityMissing, match="'restore' was asked for"):
        Runtime(Opened(ToyExecutor(), "toy"), options=Options(rollback="restore"))


@pytest.mark.parametrize("form", ROLLBACKS)
def test_the_form_is_in_the_header(form: Any, tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"
    Runtime.open(ToyExecutor(rollback=form), log=log, draft="none", rollback=form).close()
    report = replay(log)
    assert report.configuration["options"]["rollback"] == form
    assert report.fingerprint["rollback"] == form
    # And it is opened again so.
    with pytest.raises((CapabilityMissing, RecoveryRefused)):
        Runtime.recover(log, ToyExecutor(rollback="replay" if form != "replay" else "columns"))
    with Runtime.recover(log, ToyExecutor(rollback=form)) as runtime:
        assert runtime.options.rollback == form


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
