"""The bundled hybrid by name: what its executor keeps depends on who drafts, and a log brings that back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from txdecode.runtime import Runtime, execute
from txdecode.runtime.errors import RecoveryRefused
from txdecode.runtime.opening import open_model

PROMPT = "def read_lines(path):\n    "
SIZES: dict[str, Any] = {"batch_max": 2, "context": 256, "threads": 1}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("draft", "kept"), [("none", False), ("lookup", False), ("mtp", True), ("mtp+lookup", True)]
)
def test_pairs_are_kept_where_the_model_drafts(draft: str, kept: bool) -> None:
    description = open_model("bundled", draft=draft, **SIZES).executor.describe()
    assert ("pairs" in {group.name for group in description.groups}) == kept
    assert description.capabilities.drafts == kept


def cut(log: Path, draft: str) -> tuple[int, ...]:
    """A log whose one request is unfinished; returns the text that it should get."""
    with Runtime.open("bundled", draft="none", **SIZES) as runtime:
        whole = runtime.submit(PROMPT, max_tokens=24).result().ids
    with Runtime.open("bundled", draft=draft, draft_len=3, log=log, **SIZES) as runtime:
        runtime.submit(PROMPT, max_tokens=24)
        for _ in range(5):
            runtime.step()
    return tuple(whole)


@pytest.mark.parametrize("draft", ["mtp", "lookup"])
@pytest.mark.parametrize("then", [None, "none"])
def test_a_log_is_recovered_with_the_state_that_it_had(tmp_path: Path, draft: str, then: str | None) -> None:
    log = tmp_path / "run.txlog"
    whole = cut(log, draft)
    with Runtime.recover(log, draft=then) as runtime:
        (handle,) = runtime.handles.values()
        runtime.run()
        assert tuple(handle.result().ids) == whole
    assert not execute(log).differs


def test_a_log_without_the_drafters_state_cannot_go_on_with_it(tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"
    cut(log, "lookup")
    with pytest.raises(RecoveryRefused, match="groups"):
        Runtime.recover(log, draft="mtp")
