"""Deliberate faults of the loop, the scheduler, the handles, the log and recovery, and what catches them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from txdecode.runtime.errors import PromptTooLong
from txdecode.runtime.handle import Handle
from txdecode.runtime.intake import Intake
from txdecode.runtime.journal import Journal
from txdecode.runtime.loop import Loop
from txdecode.runtime.request import Request
from txdecode.runtime.runtime import Runtime
from txdecode.runtime.scheduler import Scheduler
from txdecode.runtime.testing import PromiseBroken, Setting, programs
from txdecode.runtime.testing.checks import CANCEL, ENDS, FOLD, LOST, ORDER_PUBLISH, TEXT
from txdecode.state.errors import LedgerExhausted
from txdecode.transactions.phase import Signal

Patch = pytest.MonkeyPatch
Play = Callable[..., None]
Scenario = tuple[programs.Program, dict[str, object], Setting]

VERBS = {"accuracy": 6}
EXECUTOR = Setting(draft="executor", draft_len=5)

DECODE: Scenario = (programs.decode, VERBS, EXECUTOR)
PAGES: Scenario = (programs.run_out_of_pages, {"accuracy": 6, "page_count": 12}, EXECUTOR)
REOPEN: Scenario = (programs.reopen, VERBS, EXECUTOR)
CLOSE: Scenario = (programs.close_in_the_middle, VERBS, EXECUTOR)
CRASH: Scenario = (programs.crash, VERBS, EXECUTOR)
POWER: Scenario = (programs.lose_power, VERBS, Setting(draft="executor", draft_len=5, durability="fsync"))
DISK: Scenario = (programs.fill_the_disk, VERBS, EXECUTOR)
MUCH: Scenario = (programs.ask_for_too_much, {"context": 32}, Setting())
BEHIND: Scenario = (programs.cancel_behind_a_fault, VERBS, EXECUTOR)


def published_before_append(patch: Patch) -> None:
    drive = Loop._drive

    def eager(self: Loop, launch):  # type: ignore[no-untyped-def]
        commit = self._coordinator._commit

        def publish_and_commit(launch, rounds):  # type: ignore[no-untyped-def]
            for tx in rounds:
                self.requests[tx.request].handle.publish(tx.emitted, "")
            commit(launch, rounds)

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self._coordinator, "_commit", publish_and_commit)
            drive(self, launch)

    patch.setattr(Loop, "_drive", eager)
    patch.setattr(Loop, "_publish", lambda self, request, tx: None)


def numbering_restarted(patch: Patch) -> None:
    patch.setattr(Runtime, "start_at", lambda self, number: None)


def oldest_preempted(patch: Patch) -> None:
    def make_room(self: Scheduler, request: Request, reserve):  # type: ignore[no-untyped-def]
        try:
            return reserve()
        except LedgerExhausted:
            # The one that asks: the oldest of those that have not begun.
            self.preempt(request, "pages")
            return None

    patch.setattr(Scheduler, "_with_room", make_room)


def cancel_forgotten(patch: Patch) -> None:
    def forget(self: Loop, request: int, honoured: Signal | None) -> None:
        self._coordinator.interrupts.pop(request, None)

    patch.setattr(Loop, "_forget_interrupt", forget)


def published_twice(patch: Patch) -> None:
    publish = Handle.publish

    def twice(self: Handle, ids, piece):  # type: ignore[no-untyped-def]
        publish(self, ids[:1], piece)
        publish(self, ids, piece)

    patch.setattr(Handle, "publish", twice)


def recovery_forgets_a_request(patch: Patch) -> None:
    resume = Runtime.resume

    def forgetful(self: Runtime, event, parameters, logprobs):  # type: ignore[no-untyped-def]
        if event.request != 1:
            resume(self, event, parameters, logprobs)

    patch.setattr(Runtime, "resume", forgetful)


def recovery_forgets_the_text(patch: Patch) -> None:
    patch.setattr(Request, "restore", lambda self, emitted, logprobs: "")


def written_later(patch: Patch) -> None:
    append = Journal.append

    def lazy(self: Journal, entries):  # type: ignore[no-untyped-def]
        self._durability = "none"
        return append(self, entries)

    patch.setattr(Journal, "append", lazy)


def never_synced(patch: Patch) -> None:
    append = Journal.append

    def careless(self: Journal, entries):  # type: ignore[no-untyped-def]
        self._durability = "write"
        return append(self, entries)

    patch.setattr(Journal, "append", careless)


def nobody_is_told(patch: Patch) -> None:
    patch.setattr(Handle, "fail", lambda self, error: None)


def failure_is_no_end(patch: Patch) -> None:
    patch.setattr(Runtime, "_check_open", lambda self: None)


def nobody_is_admitted(patch: Patch) -> None:
    patch.setattr(Scheduler, "admit", lambda self: None)


def everything_is_taken(patch: Patch) -> None:
    patch.setattr(Intake, "_check_size", lambda self, ids, max_tokens: max_tokens)


def too_much_is_refused(patch: Patch) -> None:
    check = Intake._check_size

    def strict(self: Intake, ids: tuple[int, ...], max_tokens: int) -> int:
        if len(ids) + 1 >= self.description.context:
            raise PromptTooLong(len(ids), self.description.context)
        return check(self, ids, max_tokens)

    patch.setattr(Intake, "_check_size", strict)


BREAKS: dict[str, tuple[Callable[[Patch], None], Scenario, type[Exception], str]] = {
    "publish before append": (published_before_append, DECODE, PromiseBroken, ORDER_PUBLISH),
    "recovery restarts numbering": (numbering_restarted, REOPEN, PromiseBroken, "a number is used once"),
    "oldest preempted": (oldest_preempted, PAGES, PromiseBroken, "only the youngest makes room"),
    "cancel forgotten behind a fault": (cancel_forgotten, BEHIND, PromiseBroken, CANCEL),
    "publish a token twice": (published_twice, DECODE, PromiseBroken, TEXT),
    "recovery forgets a request": (
        recovery_forgets_a_request,
        CRASH,
        PromiseBroken,
        "recovery takes up the unfinished",
    ),
    "recovery forgets the text": (recovery_forgets_the_text, CRASH, PromiseBroken, "the result is what was"),
    "records are written later": (written_later, DECODE, PromiseBroken, f"{FOLD}.*'tokens'"),
    "nothing is ever synced": (never_synced, POWER, PromiseBroken, LOST),
    "nobody is told of the close": (
        nobody_is_told,
        CLOSE,
        PromiseBroken,
        "a closed runtime ends its handles",
    ),
    "nobody is told of the failure": (
        nobody_is_told,
        DISK,
        PromiseBroken,
        "a failed journal ends every request",
    ),
    "work after a failure": (failure_is_no_end, DISK, PromiseBroken, "takes no more work"),
    "nobody is admitted": (nobody_is_admitted, DECODE, PromiseBroken, ENDS),
    "everything is taken": (everything_is_taken, MUCH, PromiseBroken, "what cannot fit is refused"),
    "too much is refused": (too_much_is_refused, MUCH, PromiseBroken, "what fits is taken"),
}

SCENARIOS = {id(scenario): scenario for _, scenario, _, _ in BREAKS.values()}.values()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario[0].__name__)
def test_scenario_passes_unbroken(scenario: Scenario, play: Play) -> None:
    play(*scenario)


@pytest.mark.parametrize("name", BREAKS)
def test_break_is_caught(name: str, play: Play, monkeypatch: Patch) -> None:
    broken, scenario, error, message = BREAKS[name]
    broken(monkeypatch)
    with pytest.raises(error, match=message):
        play(*scenario)
