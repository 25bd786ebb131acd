"""The loop on a thread, callers on others, and the end of a runtime."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from txdecode.runtime import RequestFailed, Runtime, RuntimeClosed, replay
from txdecode.runtime.handle import Handle
from txdecode.runtime.journal import JournalLocked
from txdecode.runtime.testing import Breaker
from txdecode.state.errors import LedgerCorrupt
from txdecode.transactions.toy import ToyExecutor, plain

Open = Callable[..., Runtime]
LONG = 30.0
"""Seconds after which a thread that should have ended hangs; nothing comes near."""


def joined(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(LONG)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("fused", [False, True])
def test_threads_submit_and_cancel_while_it_serves(fused: bool, opened: Open, log: Path) -> None:
    toy = ToyExecutor(accuracy=6, fused=fused, page_count=24, delay=lambda launch: launch % 3)
    runtime = opened(toy, draft="executor", draft_len=5)
    runtime.serve()
    runtime.serve()
    done: dict[tuple[int, int], tuple[Handle, list[int]]] = {}

    def call(caller: int) -> None:
        for turn in range(5):
            prompt = [(caller * 11 + turn * 5 + i) % 48 for i in range(1 + 3 * turn)]
            handle = runtime.submit(prompt, max_tokens=12)
            done[caller, turn] = (handle, plain(prompt, 12, 48))
            ids = handle.ids()
            if turn % 2:
                next(ids)
                handle.cancel()
            list(ids)

    threads = [threading.Thread(target=call, args=(caller,)) for caller in range(4)]
    for thread in threads:
        thread.start()
    joined(threads)
    assert runtime.serving
    runtime.check()
    runtime.close()
    assert not runtime.serving
    numbers = set()
    for (_, turn), (handle, text) in done.items():
        result = handle.result()
        numbers.add(result.request)
        assert result.finish == "length" or turn % 2
        assert list(result.ids) == text[: len(result.ids)]
        assert len(result.ids) == 12 or result.finish == "cancelled"
    assert numbers == set(range(20))
    report = replay(log)
    assert {number: tuple(said.ids) for number, said in report.requests.items()} == {
        handle.request: handle.result().ids for handle, _ in done.values()
    }


def test_close_ends_those_who_wait(opened: Open) -> None:
    gate, inside = threading.Event(), threading.Event()

    def hook(verb: str) -> None:
        if verb == "verify":
            inside.set()
            assert gate.wait(LONG)

    runtime = opened(ToyExecutor(hook=hook))
    runtime.serve()
    handle = runtime.submit([1, 2])
    errors: list[Exception] = []

    def wait() -> None:
        try:
            handle.result()
        except RequestFailed as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    closing = threading.Thread(target=runtime.close)
    waiting.start()
    assert inside.wait(LONG)
    closing.start()
    gate.set()
    joined([closing, waiting])
    assert [str(error) for error in errors] == ["request 0 failed: the runtime was closed before it finished"]


def test_a_failure_while_serving_reaches_every_caller(opened: Open) -> None:
    def hook(verb: str) -> None:
        assert verb != "accept", "broken on purpose"

    runtime = opened(ToyExecutor(hook=hook))
    handles = [runtime.submit([1]), runtime.submit([2])]
    runtime.serve()
    for handle in handles:
        with pytest.raises(RequestFailed, match="broken on purpose") as failed:
            handle.result()
        assert isinstance(failed.value.__cause__, AssertionError)
    with pytest.raises(RuntimeClosed, match="broken on purpose"):
        runtime.submit([3])


class HookedLock:
    """A lock that calls a hook the first time it is taken."""

    def __init__(self, inner: Any, hook: Callable[[], None]) -> None:
        self.inner = inner
        self.hook: Callable[[], None] | None = hook

    def __enter__(self) -> None:
        self.inner.acquire()
        hook, self.hook = self.hook, None
        if hook is not None:
            hook()

    def __exit__(self, *ignored: object) -> None:
        self.inner.release()


def test_a_request_that_comes_in_while_closing_is_not_forgotten(opened: Open) -> None:
    runtime = opened()
    arriving = threading.Event()
    handles: list[Handle] = []

    class SlowInbox(type(runtime._inbox)):  # type: ignore[misc]
        def append(self, request: Any) -> None:
            arriving.set()
            # Close is past its first look by now, and has to wait for this one.
            threading.Event().wait(0.1)
            super().append(request)

    submitting = threading.Thread(target=lambda: handles.append(runtime.submit([1])))

    def meet() -> None:
        submitting.start()
        assert arriving.wait(LONG)

    runtime._inbox = SlowInbox()
    runtime._lock = HookedLock(runtime._lock, meet)  # type: ignore[assignment]
    runtime.close()
    joined([submitting])
    assert [handle.done for handle in handles] == [True]


def test_close_is_idempotent_and_final(opened: Open, log: Path) -> None:
    runtime = opened()
    handle = runtime.submit([1, 2])
    runtime.step()
    late = runtime.submit([3])
    runtime.close()
    runtime.close()
    for act in (runtime.step, runtime.run, runtime.serve, lambda: runtime.submit([1])):
        with pytest.raises(RuntimeClosed, match="closed; open a new one"):
            act()
    for unfinished in (handle, late):
        with pytest.raises(RequestFailed, match="closed before it finished"):
            unfinished.result()
        unfinished.cancel()
    runtime.check()
    assert runtime.handles == {}
    # Also what had not been taken in yet is in the log, and can be recovered.
    report = replay(log)
    assert sorted(report.requests) == [0, 1]
    assert report.torn_tail is None


def test_the_context_manager_closes_also_after_an_error(log: Path) -> None:
    handles: list[Handle] = []

    def use() -> None:
        with Runtime.open(ToyExecutor(), log=log, draft="none") as runtime:
            handles.append(runtime.submit([1]))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use()
    assert handles[0].done
    with Runtime.recover(log, ToyExecutor()) as runtime:
        assert sorted(runtime.handles) == [0]


def test_the_log_is_held_while_open(opened: Open, log: Path) -> None:
    runtime = opened()
    with pytest.raises(JournalLocked):
        Runtime.recover(log, ToyExecutor())
    runtime.close()
    Runtime.recover(log, ToyExecutor()).close()


def test_an_interrupt_in_a_step_ends_the_runtime(opened: Open, log: Path) -> None:
    def hook(verb: str) -> None:
        if verb == "verify:late":
            raise KeyboardInterrupt

    runtime = opened(ToyExecutor(hook=hook))
    handle = runtime.submit([1, 2], max_tokens=5)
    with pytest.raises(KeyboardInterrupt):
        runtime.run()
    # A round was open: going on would be wrong, so nothing does.
    with pytest.raises(LedgerCorrupt, match="open when idle"):
        runtime.check()
    with pytest.raises(RuntimeClosed):
        runtime.step()
    with pytest.raises(RequestFailed):
        handle.result()
    runtime.close()
    with Runtime.recover(log, ToyExecutor()) as again:
        again.run()
    assert tuple(replay(log).requests[0].ids) == tuple(plain([1, 2], 5, 48))


def test_handles_names_the_unfinished(opened: Open) -> None:
    runtime = opened()
    handles = [runtime.submit([i], max_tokens=1 + 3 * i) for i in range(3)]
    assert runtime.handles == dict(enumerate(handles))
    handles[0].result()
    assert sorted(runtime.handles) == [1, 2]


def test_without_a_log_nothing_is_written(tmp_path: Path) -> None:
    breaker = Breaker(ToyExecutor(), lambda what: None)
    with Runtime.open(breaker, draft="none") as runtime:
        assert runtime.submit([1], max_tokens=3).result().ids == tuple(plain([1], 3, 48))
        assert runtime.log.path is None
        assert runtime.log.sequence > 4
    assert list(tmp_path.iterdir()) == []
