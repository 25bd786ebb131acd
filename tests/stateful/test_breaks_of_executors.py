"""Deliberate faults of an executor: each forgets one kind of state, and the audit or the text tells which.

The scenarios pass on the unbroken toy (``test_breaks.py`` runs those that are not run here).
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from txdecode.runtime.testing import PromiseBroken, Setting, check_executor, programs, toy_harness
from txdecode.runtime.testing.checks import DEVICE
from txdecode.state.errors import LedgerCorrupt
from txdecode.transactions.toy import ToyExecutor
from txdecode.transactions.toy_model import recur

Play = Callable[..., None]
Scenario = tuple[programs.Program, dict[str, object], Setting]

DECODE: Scenario = (programs.decode, {"accuracy": 6}, Setting(draft="executor", draft_len=5))
PLAIN: Scenario = (programs.decode, {"accuracy": 0}, Setting())
COPYING: Scenario = (programs.decode, {"accuracy": 0}, Setting(draft="scripted", draft_len=5))


REPLAY: Scenario = (programs.decode, {"accuracy": 6, "rollback": "replay"}, DECODE[2])
RESTORE: Scenario = (programs.decode, {"accuracy": 6, "rollback": "restore"}, DECODE[2])
COMPOSED: Scenario = (
    programs.repeat,
    {"accuracy": 7},
    Setting(draft="mtp+lookup", draft_len=5, draft_depth=1),
)
REPLACED: Scenario = (programs.repeat, {"accuracy": 7}, Setting(draft="mtp+lookup", draft_len=5))
ONE_TOKEN: Scenario = (programs.begin_with_one_token, {"rollback": "replay"}, Setting())
FLOWN: Scenario = (programs.decode, {"accuracy": 6, "rollback": "replay", "fused": True}, DECODE[2])


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


class DrafterMissesCopies(ToyExecutor):
    """Rows that the host proposed do not reach the drafter's cache, as if nobody but it drafted."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.drawn: dict[int, int] = {}

    def _forward(self, plan, proposal):  # type: ignore[no-untyped-def]
        own = proposal.source.startswith("toy")
        self.drawn[plan.request] = proposal.drawn + 1 if own else 1
        super()._forward(plan, proposal)

    def settle(self, settlements):  # type: ignore[no-untyped-def]
        pairs = [list(page) for page in self.pairs]
        super().settle(settlements)
        for settlement in settlements:
            start = settlement.plan.view.length
            for row in settlement.path[self.drawn[settlement.plan.request] :]:
                index, offset = divmod(start + row, self.page)
                page = settlement.plan.pages[1][index]
                self.pairs[page][offset] = pairs[page][offset]


class ReadsPastTheLength(ToyExecutor):
    """Attention sees all rows of its last page, also rejected ones."""

    def _read(self, view):  # type: ignore[no-untyped-def]
        state = super()._read(view)
        extra = sum(self.kv[view.pages[0][-1]][view.length % self.page :]) if view.length % self.page else 0
        return attrs.evolve(state, attention=state.attention + extra)


class ReplaysOneRowTooFew(ToyExecutor):
    """The record of the last committed row is left out where drafts were accepted."""

    def _replayed(self, settlement, scratch):  # type: ignore[no-untyped-def]
        path = settlement.path[:-1] or settlement.path
        return super()._replayed(attrs.evolve(settlement, path=path), scratch)


class ReplaysOnWhatLies(ToyExecutor):
    """Records are folded onto the column as it lies, which a new sequence has from its last owner."""

    def _replayed(self, settlement, scratch):  # type: ignore[no-untyped-def]
        recurrent = self.columns[settlement.plan.view.columns[0]]
        for row in settlement.path:
            recurrent = recur(recurrent, scratch.rows[row].conv)
        return recurrent


class ReplaysBackwards(ToyExecutor):
    """Records are folded from the last one on."""

    def _replayed(self, settlement, scratch):  # type: ignore[no-untyped-def]
        return super()._replayed(attrs.evolve(settlement, path=settlement.path[::-1]), scratch)


class RestoresFromARejectedRow(ToyExecutor):
    """The accepted rows run again from the state that verification ended with, the snapshot being gone."""

    def _restored(self, settlement, scratch):  # type: ignore[no-untyped-def]
        if len(scratch.rows) > len(settlement.path):
            self.columns[settlement.plan.view.columns[0]] = scratch.rows[-1].state.recurrent
        return super()._restored(settlement, scratch)


class ConvOneBehind(ToyExecutor):
    """After accepted drafts the ring ends one row before the recurrence does."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.behind: dict[int, int] = {}

    def settle(self, settlements):  # type: ignore[no-untyped-def]
        super().settle(settlements)
        for settlement in settlements:
            self.behind[settlement.plan.view.slots[0]] = int(len(settlement.path) > 1)

    def _window(self, slot: int, end: int) -> tuple[int, ...]:
        return super()._window(slot, end - self.behind.get(slot, 0))


BREAKS: dict[str, tuple[type[ToyExecutor], Scenario, type[Exception], str]] = {
    "forget the conv rollback": (ConvNotRolledBack, DECODE, PromiseBroken, f"{DEVICE}.*group 'conv'"),
    "forget the n-gram rollback": (ContextNotRolledBack, DECODE, PromiseBroken, f"{DEVICE}.*group 'ngram'"),
    "plain step reads column 0": (PlainStepReadsColumnZero, PLAIN, PromiseBroken, f"{DEVICE}.*group 'gdn'"),
    "attention reads past the length": (ReadsPastTheLength, COPYING, PromiseBroken, f"{DEVICE}.*'tail'"),
    "drafter misses copies behind its own drafts": (
        DrafterMissesCopies,
        COMPOSED,
        PromiseBroken,
        f"{DEVICE}.*group 'pairs'",
    ),
    "drafter misses copies in their place": (
        DrafterMissesCopies,
        REPLACED,
        PromiseBroken,
        f"{DEVICE}.*group 'pairs'",
    ),
    "replay one row too few": (ReplaysOneRowTooFew, REPLAY, PromiseBroken, f"{DEVICE}.*group 'gdn'"),
    "replay one row too few, fused": (ReplaysOneRowTooFew, FLOWN, PromiseBroken, f"{DEVICE}.*group 'gdn'"),
    "replay on what lies there": (ReplaysOnWhatLies, ONE_TOKEN, PromiseBroken, f"{DEVICE}.*group 'gdn'"),
    "replay from the last row on": (ReplaysBackwards, REPLAY, PromiseBroken, f"{DEVICE}.*group 'gdn'"),
    "restore from a rejected row": (
        RestoresFromARejectedRow,
        RESTORE,
        PromiseBroken,
        f"{DEVICE}.*group 'gdn'",
    ),
    "conv ring one behind": (ConvOneBehind, REPLAY, PromiseBroken, f"{DEVICE}.*group 'conv'"),
    "conv ring one behind, restored": (ConvOneBehind, RESTORE, PromiseBroken, f"{DEVICE}.*group 'conv'"),
    "drafter keeps its scratch": (DrafterKeepsScratch, DECODE, PromiseBroken, f"{DEVICE}.*group 'pairs'"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_break_is_caught(name: str, play: Play) -> None:
    toy, scenario, error, message = BREAKS[name]
    with pytest.raises(error, match=message):
        play(*scenario, toy)


@pytest.mark.parametrize(
    "scenario",
    [REPLAY, RESTORE, FLOWN, ONE_TOKEN, COMPOSED, REPLACED],
    ids=["replay", "restore", "fused", "one token", "composed", "replaced"],
)
def test_scenario_passes_unbroken(scenario: Scenario, play: Play) -> None:
    play(*scenario)


@pytest.mark.parametrize("name", ["forget the n-gram rollback", "drafter keeps its scratch"])
def test_the_machine_finds_it_by_itself(name: str) -> None:
    toy, _, error, message = BREAKS[name]
    # By the machine's own audit, or by that of a runtime that audits itself: both name the group.
    group = message[message.index("group '") :]
    with pytest.raises((error, LedgerCorrupt), match=group):
        check_executor(toy_harness(accuracy=6, toy=toy), examples=200, steps=30, seed=1, shrink=False)
