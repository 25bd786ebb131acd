"""Executors and drafters that fail: who is hurt by it, and who is not."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from txdecode.runtime import RequestFailed, Runtime, RuntimeClosed, replay
from txdecode.runtime.handle import Handle
from txdecode.runtime.journal import FileStorage, JournalFailed, iterate
from txdecode.runtime.loop import FAULTS_MAX
from txdecode.runtime.testing import BEHAVIOURS, Breaker, ScriptedDrafter
from txdecode.transactions.codec import decode
from txdecode.transactions.events import RequestFinished, RoundCommitted
from txdecode.transactions.executor import ExecutorFault
from txdecode.transactions.phase import Phase, Signal
from txdecode.transactions.toy import ToyExecutor, plain

Open = Callable[..., Runtime]
PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6], [5, 3], [5, 8, 9, 7]]


def events(log: Path) -> list[Any]:
    return [decode(r.type, r.version, r.flags, r.payload) for r in iterate(log)]


class Poisoned(ToyExecutor):
    """One request makes every batch fail in which it is."""

    def __init__(self, poison: int, verb: str, **options: Any) -> None:
        super().__init__(**options)
        self.poison, self.verb = poison, verb

    def _check(self, verb: str, batch: Sequence[Any]) -> None:
        requests = [getattr(entry, "plan", entry).view.request for entry in batch]
        if verb == self.verb and self.poison in requests:
            raise ValueError(f"request {self.poison} is poison")

    def prefill(self, batch):  # type: ignore[no-untyped-def]
        self._check("prefill", batch)
        super().prefill(batch)

    def draft(self, plans):  # type: ignore[no-untyped-def]
        self._check("draft", plans)
        return super().draft(plans)

    def verify(self, rounds):  # type: ignore[no-untyped-def]
        self._check("verify", rounds)
        super().verify(rounds)

    def accept(self, rounds):  # type: ignore[no-untyped-def]
        self._check("accept", rounds)
        return super().accept(rounds)

    def launch(self, launch, rounds):  # type: ignore[no-untyped-def]
        self._check("launch", rounds)
        return super().launch(launch, rounds)

    def collect(self, ticket):  # type: ignore[no-untyped-def]
        rounds = self._programs[ticket.launch][1]
        outcomes = super().collect(ticket)
        if outcomes is not None:
            self._check("collect", rounds)
        return outcomes


@pytest.mark.parametrize("poison", range(len(PROMPTS)))
@pytest.mark.parametrize("verb", ["prefill", "draft", "verify", "accept", "launch", "collect"])
def test_only_the_poisoned_request_ends(verb: str, poison: int, opened: Open, log: Path) -> None:
    fused = verb in ("launch", "collect")
    runtime = opened(Poisoned(poison, verb, accuracy=6, fused=fused), draft="executor", draft_len=4)
    handles = [runtime.submit(prompt, max_tokens=15) for prompt in PROMPTS]
    runtime.run()
    runtime.check()
    with pytest.raises(
        RequestFailed, match=f"failed {FAULTS_MAX} times in a row: .*{poison} is poison"
    ) as failed:
        handles[poison].result()
    assert "poison" in str(failed.value.__cause__)
    for handle, prompt in zip(handles, PROMPTS, strict=True):
        if handle.request != poison:
            assert list(handle.result().ids) == plain(prompt, 15, 48)
    runtime.close()
    finished = [event for event in events(log) if isinstance(event, RequestFinished)]
    assert [(event.request, event.reason) for event in finished] == [(poison, "error")]
    # Its mates pay for the first fault, and for no other: after it the poisoned one goes alone. A fault of
    # prefill costs a preemption, since rings may be overwritten.
    mates = [handle.result().stats for handle in handles if handle.request != poison]
    assert max(stats.rollbacks + stats.preemptions for stats in mates) <= 1


def test_a_poisoned_prompt_shares_no_batch_again(opened: Open) -> None:
    runtime = opened(Poisoned(1, "prefill"))
    healthy, _ = [runtime.submit(prompt, max_tokens=15) for prompt in PROMPTS[:2]]
    runtime.step()
    runtime.step()
    # It has left its fault behind; now its prompt has to be consumed again, beside the poisoned one's.
    assert len(healthy.published) == 1
    runtime.preempt(healthy)
    runtime.run()
    assert healthy.result().stats.preemptions == 2


def test_a_good_round_forgets_the_faults_before_it(opened: Open) -> None:
    breaker = Breaker(ToyExecutor(), lambda what: None)
    runtime = opened(breaker)
    handle = runtime.submit(PROMPTS[0], max_tokens=12)
    while len(handle.published) < 12:
        before = len(handle.published)
        breaker.arm("verify", "late", FAULTS_MAX - 1)
        while len(handle.published) == before:
            runtime.step()
    assert list(handle.result().ids) == plain(PROMPTS[0], 12, 48)
    assert handle.result().stats.rollbacks == 12 * (FAULTS_MAX - 1)


@pytest.mark.parametrize("when", ["before", "half", "late"])
def test_a_device_that_never_settles_slows_down_and_changes_nothing(when: Any, opened: Open) -> None:
    breaker = Breaker(ToyExecutor(), lambda what: None)
    breaker.arm("settle", when, 1000)
    runtime = opened(breaker)
    handles = [runtime.submit(prompt, max_tokens=6) for prompt in PROMPTS[:2]]
    runtime.run()
    for handle, prompt in zip(handles, PROMPTS, strict=False):
        assert list(handle.result().ids) == plain(prompt, 6, 48)
        # Every round but the last leaves a dirty device, which is computed again.
        assert handle.result().stats.preemptions == 5


# Drafters.


def scripted(*behaviours: Any) -> ScriptedDrafter:
    drafter = ScriptedDrafter(lambda request, known, n: plain(known, n, 48), 48, 256, lambda what: None)
    drafter.follow(behaviours)
    return drafter


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_no_drafter_can_change_a_text(behaviour: Any, opened: Open) -> None:
    runtime = opened(draft=scripted(behaviour), draft_len=5)
    handles = [runtime.submit(prompt, max_tokens=20) for prompt in PROMPTS]
    runtime.run()
    for handle, prompt in zip(handles, PROMPTS, strict=True):
        result = handle.result()
        assert list(result.ids) == plain(prompt, 20, 48)
        if behaviour in ("right", "end"):
            assert 0 < result.stats.drafted == result.stats.accepted
        elif behaviour == "wrong":
            assert (result.stats.accepted, result.stats.drafted > 0) == (0, True)
        elif behaviour == "part":
            assert 0 < result.stats.accepted < result.stats.drafted
        else:
            assert result.stats.drafted == 0


@pytest.mark.parametrize("behaviour", ["many", "negative", "beyond", "junk", "raise"])
def test_a_drafter_that_keeps_failing_is_left_out(behaviour: Any, opened: Open) -> None:
    drafter = scripted(behaviour)
    runtime = opened(draft=drafter, draft_len=5)
    runtime.submit(PROMPTS[0], max_tokens=20)
    runtime.run()
    assert drafter._calls == 3


@pytest.mark.parametrize("behaviour", ["begin", "commit"])
def test_a_drafter_that_lost_the_text_is_left_out_at_once(behaviour: Any, opened: Open) -> None:
    drafter = scripted(behaviour)
    runtime = opened(draft=drafter, draft_len=5)
    runtime.submit(PROMPTS[0], max_tokens=20)
    runtime.run()
    # The first round asks for no drafts, and commits.
    assert drafter._calls == 0


def test_a_drafter_that_failed_twice_is_still_asked(opened: Open) -> None:
    drafter = scripted("raise", "raise", *["right"] * 50)
    handle = opened(draft=drafter, draft_len=2).submit(PROMPTS[0], max_tokens=20)
    assert handle.result().stats.accepted > 10


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("draft", ["none", "lookup", "broken"])
def test_the_executor_drafts_only_where_it_was_asked_to(
    draft: str, fused: bool, opened: Open, log: Path
) -> None:
    chosen = scripted("raise") if draft == "broken" else draft
    runtime = opened(ToyExecutor(accuracy=8, fused=fused), draft=chosen, draft_len=5)
    runtime.submit(PROMPTS[0], max_tokens=20)
    runtime.run()
    runtime.close()
    rounds = [event for event in events(log) if isinstance(event, RoundCommitted)]
    sources = {event.source for event in rounds if event.drafts}
    assert sources == ({"prompt_lookup"} if draft == "lookup" else set())


class Watched(ToyExecutor):
    """Notes the width of every plan, and whether it was asked to draft."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.widths: list[int] = []
        self.asked = 0

    def draft(self, plans):  # type: ignore[no-untyped-def]
        self.asked += 1
        return super().draft(plans)

    def verify(self, rounds):  # type: ignore[no-untyped-def]
        self.widths += [entry.plan.width for entry in rounds]
        super().verify(rounds)

    def launch(self, launch, rounds):  # type: ignore[no-untyped-def]
        self.widths += [entry.plan.width for entry in rounds]
        self.asked += sum(entry.proposal is None for entry in rounds)
        return super().launch(launch, rounds)


@pytest.mark.parametrize("fused", [False, True])
def test_a_request_without_its_drafter_is_a_plain_one(fused: bool, opened: Open) -> None:
    toy = Watched(accuracy=8, fused=fused)
    runtime = opened(toy, draft=scripted("raise"), draft_len=5)
    runtime.submit(PROMPTS[0], max_tokens=20)
    runtime.run()
    # Three rounds are begun in good faith; after them nothing is reserved for drafts.
    assert toy.widths == [1, 6, 6, 6] + [1] * 16
    assert toy.asked == 0


def test_a_preemption_behind_a_fault_is_honoured(opened: Open, log: Path) -> None:
    breaker = Breaker(ToyExecutor(), lambda what: None)
    asked: list[Phase] = []

    def observe(request: int, before: Phase, signal: Signal, after: Phase) -> None:
        if signal is Signal.FAULT:
            asked.append(before)
            runtime.preempt(handle)

    runtime = opened(breaker, observer=observe)
    handle = runtime.submit(PROMPTS[0], max_tokens=6)
    breaker.arm("verify", "before", 1)
    runtime.run()
    assert asked == [Phase.VERIFY]
    assert (handle.result().stats.preemptions, handle.result().stats.rollbacks) == (1, 1)
    assert list(handle.result().ids) == plain(PROMPTS[0], 6, 48)


# The log.


class Full(FileStorage):
    """A disk with room for so many writes."""

    def __init__(self, descriptor: int, path: Path) -> None:
        super().__init__(descriptor, path)
        self.left = 18

    def write(self, data: bytes | memoryview) -> int:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, "no space left on device")
        return super().write(data)


def test_a_full_disk_ends_everything_and_publishes_nothing(log: Path) -> None:
    runtime = Runtime.open(ToyExecutor(), log=log, draft="none", storage=Full)
    handles: list[Handle] = [runtime.submit(prompt, max_tokens=15) for prompt in PROMPTS]
    with pytest.raises(JournalFailed, match="no space left") as full:
        runtime.run()
    for handle in handles:
        with pytest.raises(RequestFailed, match=r"the runtime stopped: .*no space left") as failed:
            handle.result()
        assert failed.value.__cause__ is full.value
    for act in (runtime.step, lambda: runtime.submit([1])):
        with pytest.raises(RuntimeClosed, match="recover from the log") as refused:
            act()
        assert refused.value.__cause__ is full.value
    runtime.close()
    said = replay(log).requests
    assert any(handle.published for handle in handles)
    for handle in handles:
        assert handle.published == tuple(said[handle.request].ids)
    with Runtime.recover(log, ToyExecutor()) as again:
        again.run()
    for number, prompt in enumerate(PROMPTS):
        assert replay(log).requests[number].ids == plain(prompt, 15, 48)


def test_a_drop_that_fails_costs_nobody_else_anything() -> None:
    class Stubborn(ToyExecutor):
        def drop(self, request: int) -> None:
            raise ExecutorFault("cannot let go")

    with Runtime.open(Stubborn(), draft="none") as runtime:
        first = runtime.submit([1, 2, 3], max_tokens=30)
        second = runtime.submit([4, 5, 6], max_tokens=8)
        runtime.step()
        first.cancel()
        assert list(second.result().ids) == plain([4, 5, 6], 8, 48)
        runtime.check()
