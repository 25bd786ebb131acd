"""Threads that share one piece of work, met by counters.

A piece of work is a compiled function ``work(rank, threads, counters, *args)`` that every thread runs at once:
threads claim tiles from counters, so a thread that is held up takes fewer, and meet between stages. What is
computed does not depend on who computes it.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from txdecode.kernels.native.compiled import compiled
from txdecode.kernels.native.lanes import claim, give_way, seen

# One counter a cache line, or two threads would fight over lines that they do not share.
_LINE = 8
_PATIENCE = 20_000
# More than any work has tiles or meetings.
_OVER = 1 << 40

Work = Callable[..., None]
_Job = tuple[Work, int, tuple[Any, ...]]
"""The work, the number of its first meeting, its arguments."""


@compiled
def meet(counters: Any, threads: Any, meetings: Any) -> Any:
    """Wait until all threads are here for the ``meetings``-th time since the team was made; the next number."""
    if threads == 1:
        return meetings + 1
    place = counters.ctypes.data
    claim(place)
    turns = 0
    while seen(place) < threads * meetings:
        turns += 1
        if turns > _PATIENCE:
            give_way()
    return meetings + 1


@compiled
def take(counters: Any, stage: Any) -> Any:
    """The next tile of a stage (0, 1, …) that nobody has."""
    return claim(counters.ctypes.data + (1 + stage) * 64)


class Team:
    """``threads`` threads, the caller's among them. One piece of work at a time: a second caller works alone.

    Work must have been compiled before several threads run it: compiling takes a lock that others wait for.
    """

    def __init__(self, threads: int, stages: int) -> None:
        assert threads >= 1, threads
        self.threads = threads
        self._size = (1 + stages) * _LINE
        self._counters = np.zeros(self._size, np.int64)
        self._busy = threading.Lock()
        self._queues: list[queue.SimpleQueue[_Job | None]] = []
        self._members: list[threading.Thread] = []
        self._failures: list[BaseException] = []
        self._process = -1

    def run(self, work: Work, *args: Any) -> None:
        """``work(rank, threads, counters, meetings, *args)`` on every thread; back when all are done.

        ``meetings`` is the number of the first meeting; the work must end with one. What a thread raises is raised
        here; what the work leaves behind is then undefined, and no thread is still at it.
        """
        if self.threads > 1 and self._busy.acquire(blocking=False):
            try:
                self._together(work, args)
            except BaseException:
                # An interrupt, or no memory: the others wait for a meeting that will not be.
                self._dissolve()
                raise
            finally:
                self._busy.release()
        else:
            work(0, 1, np.zeros(self._size, np.int64), 1, *args)

    def _together(self, work: Work, args: tuple[Any, ...]) -> None:
        if self._process != os.getpid():
            self._gather()
        first = int(self._counters[0]) // self.threads + 1
        # All are past their last tile: the meeting that ended the last work came after it.
        self._counters[_LINE:] = 0
        for jobs in self._queues:
            jobs.put((work, first, args))
        work(0, self.threads, self._counters, first, *args)
        if self._failures:
            raise self._failures[0]

    def _gather(self) -> None:
        """Threads of this process: at first, after a failure, or in a child of a fork, where there are none."""
        self._counters = np.zeros(self._size, np.int64)
        self._failures = []
        self._queues = [queue.SimpleQueue() for _ in range(self.threads - 1)]
        self._members = [
            threading.Thread(
                # The parts, not the team, which may go while they wait.
                target=_serve,
                args=(rank, self.threads, self._counters, jobs, self._failures),
                name="txdecode-team",
                daemon=True,
            )
            for rank, jobs in enumerate(self._queues, 1)
        ]
        for member in self._members:
            member.start()
        self._process = os.getpid()

    def _dissolve(self) -> None:
        """Send everybody home: no tile is left, and every meeting has been."""
        self._counters[:] = _OVER
        for jobs in self._queues:
            jobs.put(None)
        for member in self._members:
            if member.is_alive():
                member.join()
        self._queues, self._members, self._process = [], [], -1

    def __del__(self) -> None:
        for jobs in getattr(self, "_queues", ()):
            jobs.put(None)


def _serve(
    rank: int,
    threads: int,
    counters: Any,
    jobs: queue.SimpleQueue[_Job | None],
    failures: list[BaseException],
) -> None:
    while (job := jobs.get()) is not None:
        work, first, args = job
        try:
            work(rank, threads, counters, first, *args)
        except BaseException as error:
            failures.append(error)
            counters[:] = _OVER
        # While it waits, the thread keeps nothing of a model alive.
        del job, work, args
