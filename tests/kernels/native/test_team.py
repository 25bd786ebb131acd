"""Threads that share work: every tile is taken once, and nobody passes a meeting alone."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import numpy as np
import pytest
from numba import njit

from txdecode.kernels.native.team import Team, meet, take


@njit(nogil=True)
def shared(rank: Any, threads: Any, counters: Any, meetings: Any, taken: Any, seen: Any) -> None:
    """Two stages: the second sums what the first left."""
    for stage in range(2):
        while True:
            tile = take(counters, stage)
            if tile >= taken.shape[1]:
                break
            if stage == 0:
                taken[0, tile] += 1
            else:
                taken[1, tile] = taken[0].sum()
        meetings = meet(counters, threads, meetings)
    seen[rank] += 1
    meet(counters, threads, meetings)


def run(team: Team, tiles: int = 60) -> tuple[Any, Any]:
    taken, seen = np.zeros((2, tiles), np.int64), np.zeros(team.threads, np.int64)
    team.run(shared, taken, seen)
    return taken, seen


@njit(nogil=True)
def endless(_rank: Any, threads: Any, counters: Any, meetings: Any, _taken: Any, _seen: Any) -> None:
    """A worker that waits for a meeting which the caller does not come to."""
    meet(counters, threads, meetings)


@pytest.fixture(autouse=True)
def ready() -> None:
    run(Team(1, 2))
    endless(0, 1, np.zeros(8, np.int64), 1, None, None)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_tile_is_taken_once_and_stages_do_not_overlap(threads: int) -> None:
    team = Team(threads, 2)
    for _ in range(200):
        taken, seen = run(team)
        assert np.array_equal(taken[0], np.ones(60))
        assert np.array_equal(taken[1], np.full(60, 60))
        assert np.array_equal(seen, np.ones(threads))


def test_a_second_caller_works_alone() -> None:
    team = Team(2, 2)
    run(team)
    with team._busy:
        taken, seen = run(team)
    assert np.array_equal(taken[1], np.full(60, 60))
    assert seen.tolist() == [1, 0]
    assert run(team)[1].tolist() == [1, 1]


def test_threads_of_a_team_end_with_it() -> None:
    def alive() -> int:
        return sum(thread.name == "txdecode-team" for thread in threading.enumerate())

    before = alive()
    team = Team(3, 2)
    run(team)
    assert alive() == before + 2
    del team
    for _ in range(200):
        if alive() == before:
            return
        time.sleep(0.01)
    raise AssertionError("a thread outlives its team")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_process_has_threads_of_its_own() -> None:
    team = Team(2, 2)
    run(team)
    child = os.fork()
    if child == 0:
        os._exit(0 if run(team)[1].tolist() == [1, 1] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert run(team)[1].tolist() == [1, 1]


@pytest.mark.parametrize("failing", [0, 1])
def test_what_a_thread_raises_is_raised_and_nobody_waits_for_ever(failing: int) -> None:
    """Rank 0 is the caller (an interrupt, say); the other one meets nobody."""
    team = Team(2, 2)
    run(team)

    def work(rank: int, *args: Any) -> None:
        if rank == failing:
            raise KeyboardInterrupt if rank == 0 else MemoryError
        endless(rank, *args)

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt if failing == 0 else MemoryError):
            team.run(work, None, None)
        assert not any(thread.name == "txdecode-team" and thread.is_alive() for thread in team._members)
        for _ in range(3):
            taken, seen = run(team)
            assert np.array_equal(taken[1], np.full(60, 60))
            assert seen.tolist() == [1, 1]
