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

    Work must have been compiled before several threads run it, and must not raise: the others would wait for ever.
    """

    def __init__(self, threads: int, stages: int) -> None:
        assert threads >= 1, threads
        self.threads = threads
        self._counters = np.zeros((1 + stages) * _LINE, np.int64)
        self._alone = np.zeros((1 + stages) * _LINE, np.int64)
        self._busy = threading.Lock()
        self._queues: list[queue.SimpleQueue[_Job | None]] = []
        self._process = -1

    def run(self, work: Work, *args: Any) -> None:
        """``work(rank, threads, counters, meetings, *args)`` on every thread; back when all are done.

        ``meetings`` is the number of the first meeting; the work must end with one.
        """
        if self.threads > 1 and self._busy.acquire(blocking=False):
            try:
                self._together(work, args)
            finally:
                self._busy.release()
        else:
            counters = self._alone if self.threads == 1 else np.zeros_like(self._alone)
            counters[:] = 0
            work(0, 1, counters, 1, *args)

    def _together(self, work: Work, args: tuple[Any, ...]) -> None:
        if self._process != os.getpid():
            # The first time, or in a child of a fork, where the threads do not exist.
            self._counters[:] = 0
            self._queues = [queue.SimpleQueue() for _ in range(self.threads - 1)]
            for rank, jobs in enumerate(self._queues, 1):
                # Holds the parts, not the team, which may go.
                threading.Thread(
                    target=_serve,
                    args=(rank, self.threads, self._counters, jobs),
                    name="txdecode-team",
                    daemon=True,
                ).start()
            self._process = os.getpid()
        met = int(self._counters[0])
        self._counters[_LINE:] = 0
        first = met // self.threads + 1
        for jobs in self._queues:
            jobs.put((work, first, args))
        work(0, self.threads, self._counters, first, *args)

    def __del__(self) -> None:
        for jobs in getattr(self, "_queues", ()):
            jobs.put(None)


def _serve(rank: int, threads: int, counters: Any, jobs: queue.SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        work, first, args = job
        work(rank, threads, counters, first, *args)
        # While it waits, the thread keeps nothing of a model alive.
        del job, work, args
