"""Deliberate faults of an executor: each forgets one kind of state, and the audit or the text tells which.

The scenarios pass on the unbroken toy (``test_breaks.py`` runs them).
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from txdecode.runtime.testing import PromiseBroken, Setting, check_executor, programs, toy_harness
from txdecode.runtime.testing.checks import DEVICE
from txdecode.state.errors import LedgerCorrupt
from txdecode.transactions.toy import ToyExecutor

Play = Callable[..., None]
Scenario = tuple[programs.Program, dict[str, object], Setting]

DECODE: Scenario = (programs.decode, {"accuracy": 6}, Setting(draft="executor", draft_len=5))
PLAIN: Scenario = (programs.decode, {"accuracy": 0}, Setting())
COPYING: Scenario = (programs.decode, {"accuracy": 0}, Setting(draft="scripted", draft_len=5))


class ConvNotRolledBack(ToyExecutor):
    """The conv window is read at the end of what was written."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.heads: dict[int, int] = {}

    def _write_row(self, view, pages, made):  # type: ignore[no-untyped-def]
        super()._write_row(view, pages, made)
        self.heads[view.slots[0]] = made.state.position

    def _window(self, slot: int, end: int) -> tuple[int, ...]:
        return super()._window(slot, self.heads.get(slot, end))


class ContextNotRolledBack(ToyExecutor):
    """The n-gram context is that of the last row."""

    def settle(self, settlements):  # type: ignore[no-untyped-def]
        last = {
            s.plan.request: self._scratch[s.plan.request, s.plan.view.epoch].rows[-1] for s in settlements
        }
        super().settle(settlements)
        for settlement in settlements:
            self.contexts[settlement.plan.view.slots[0]] = last[settlement.plan.request].state.context


class PlainStepReadsColumnZero(ToyExecutor):
    """A round of width one starts from the first column of the pool."""

    def _forward(self, plan, proposal):  # type: ignore[no-untyped-def]
        if not proposal.tokens:
            plan = attrs.evolve(plan, view=attrs.evolve(plan.view, columns=(0,)))
        super()._forward(plan, proposal)


class DrafterKeepsScratch(ToyExecutor):
    """What the drafter wrote for its own guesses stays."""

    def settle(self, settlements):  # type: ignore[no-untyped-def]
        pairs = [list(page) for page in self.pairs]
        super().settle(settlements)
        self.pairs = pairs


class ReadsPastTheLength(ToyExecutor):
    """Attention sees all rows of its last page, also rejected ones."""

    def _read(self, view):  # type: ignore[no-untyped-def]
        state = super()._read(view)
        extra = sum(self.kv[view.pages[0][-1]][view.length % self.page :]) if view.length % self.page else 0
        return attrs.evolve(state, attention=state.attention + extra)


BREAKS: dict[str, tuple[type[ToyExecutor], Scenario, type[Exception], str]] = {
    "forget the conv rollback": (ConvNotRolledBack, DECODE, PromiseBroken, f"{DEVICE}.*group 'conv'"),
    "forget the n-gram rollback": (ContextNotRolledBack, DECODE, PromiseBroken, f"{DEVICE}.*group 'ngram'"),
    "plain step reads column 0": (PlainStepReadsColumnZero, PLAIN, PromiseBroken, f"{DEVICE}.*group 'gdn'"),
    "attention reads past the length": (ReadsPastTheLength, COPYING, PromiseBroken, f"{DEVICE}.*'tail'"),
    "drafter keeps its scratch": (DrafterKeepsScratch, DECODE, PromiseBroken, f"{DEVICE}.*group 'pairs'"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_break_is_caught(name: str, play: Play) -> None:
    toy, scenario, error, message = BREAKS[name]
    with pytest.raises(error, match=message):
        play(*scenario, toy)


@pytest.mark.parametrize("name", ["forget the n-gram rollback", "drafter keeps its scratch"])
def test_the_machine_finds_it_by_itself(name: str) -> None:
    toy, _, error, message = BREAKS[name]
    # By the machine's own audit, or by that of a runtime that audits itself: both name the group.
    group = message[message.index("group '") :]
    with pytest.raises((error, LedgerCorrupt), match=group):
        check_executor(toy_harness(accuracy=6, toy=toy), examples=200, steps=30, seed=1, shrink=False)
