"""The disk, the breaker, the scripted drafter and the harness of the toy, each alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from txdecode.runtime.testing import (
    BEHAVIOURS,
    VERBS,
    WHEN,
    Breaker,
    Disk,
    ScriptedDrafter,
    Setting,
    World,
    toy_harness,
)
from txdecode.runtime.testing.faults import possible, possible_faults
from txdecode.transactions.executor import ExecutorFault
from txdecode.transactions.toy import plain


class Recorder:
    """An executor that only notes what it was asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> str:
            self.calls.append((verb, len(arguments[-1]) if isinstance(arguments[-1], list) else 1))
            return f"{verb} done"

        return call


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    seen: list[bytes] = []
    disk = Disk(lambda: None, seen.append, lambda what: None)
    disk.seen = seen  # type: ignore[attr-defined]
    path = tmp_path / "file"
    return disk.open(os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND), path)


@pytest.mark.parametrize(
    ("fault", "kept", "raises"),
    [("refused", b"", True), ("torn", b"ab", True), ("whole", b"abcd", True), ("short", b"ab", False)],
)
def test_writes_that_fail(fault: Any, kept: bytes, raises: bool, disk: Disk, tmp_path: Path) -> None:
    disk.write(b"first")
    disk.arm(fault, 1)
    assert disk.write(b"second") == 6
    if raises:
        with pytest.raises(OSError, match="no space left"):
            disk.write(b"abcd")
    else:
        assert disk.write(b"abcd") == 2
    assert (tmp_path / "file").read_bytes() == b"firstsecond" + kept
    assert b"".join(disk.seen) == b"firstsecond" + kept  # type: ignore[attr-defined]
    assert disk.size == 11 + len(kept)
    assert disk.write(memoryview(b"x")) == 1
    disk.close()


def test_only_a_new_append_is_announced(tmp_path: Path) -> None:
    announced: list[int] = []
    disk = Disk(lambda: announced.append(1), lambda data: None, lambda what: None)
    path = tmp_path / "file"
    disk.open(os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND), path)
    disk.arm("short", 0)
    assert disk.write(b"abcd") == 2
    disk.write(b"cd")
    assert len(announced) == 1
    disk.write(b"ef")
    assert len(announced) == 2
    disk.close()


def test_what_a_machine_crash_leaves(disk: Disk) -> None:
    disk.write(b"abcd")
    assert disk.synced == 0
    disk.fsync()
    disk.write(b"ef")
    assert (disk.synced, disk.size) == (4, 6)
    disk.arm("fsync", 0)
    with pytest.raises(OSError, match="input/output"):
        disk.fsync()
    assert disk.synced == 4
    disk.truncate(3)
    assert (disk.synced, disk.size) == (3, 3)
    disk.arm("refused", 0)
    disk.disarm()
    disk.write(b"g")
    disk.crash()
    disk.crash()


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("when", WHEN)
def test_verbs_that_fail(verb: Any, when: Any) -> None:
    told: Counter[str] = Counter()
    inner = Recorder()
    breaker = Breaker(inner, lambda what: told.update([what]))  # type: ignore[arg-type]
    if not possible(verb, when):
        with pytest.raises(AssertionError, match="cannot fail"):
            breaker.arm(verb, when, 1)
        return
    breaker.arm(verb, when, 2)
    call = getattr(breaker, verb)
    arguments: list[Any] = [1, [1, 2, 3]] if verb == "launch" else [[1, 2, 3]]
    for kind in (ExecutorFault, RuntimeError):
        with pytest.raises(kind, match=f"{verb} was made to fail"):
            call(*arguments)
    done = {"before": [], "half": [(verb, 1)] * 2, "late": [(verb, 3)] * 2}[when]
    assert inner.calls == done
    call(*arguments)
    assert inner.calls == [*done, (verb, 3)]
    assert (breaker.fired, told) == (2, Counter({f"fault {verb} {when}": 2}))


def test_half_of_one_is_nothing() -> None:
    inner = Recorder()
    breaker = Breaker(inner, lambda what: None)  # type: ignore[arg-type]
    breaker.arm("verify", "half", 1)
    with pytest.raises(ExecutorFault):
        breaker.verify([None])  # type: ignore[list-item]
    assert inner.calls == []


def test_possible_faults_are_those_of_the_style() -> None:
    assert {verb for verb, _ in possible_faults(True, True)} == {
        "prefill",
        "launch",
        "collect",
        "settle",
        "abandon",
    }
    hosted = {verb for verb, _ in possible_faults(False, False)}
    assert hosted == {"prefill", "verify", "accept", "settle", "abandon"}
    assert {verb for verb, _ in possible_faults(False, True)} == hosted | {"draft"}


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_what_a_scripted_drafter_proposes(behaviour: Any) -> None:
    drafter = ScriptedDrafter(lambda request, known, n: plain(known, n, 48), 48, 64, lambda what: None)
    tokens = [3, 1, 4]
    text = plain(tokens, 20, 48)
    drafter.begin(0, tokens)
    drafter.follow([behaviour])
    if behaviour in ("commit", "begin", "end"):
        call = {"commit": drafter.commit, "begin": drafter.begin, "end": lambda r, t: drafter.end(r)}[
            behaviour
        ]
        with pytest.raises(RuntimeError, match=f"made to fail at {behaviour}"):
            call(0, text[:1])
        return
    if behaviour == "raise":
        with pytest.raises(RuntimeError):
            drafter.propose(0, 4)
        return
    proposed = drafter.propose(0, 4)
    right = [int(getattr(token, "__index__", lambda: -9)()) for token in proposed]
    expected = {
        "right": text[:4],
        "wrong": [(token + 1) % 48 for token in text[:4]],
        "part": text[:2] + [(token + 1) % 48 for token in text[2:4]],
        "none": [],
        "many": text[:5],
        "negative": [*text[:3], -1],
        "beyond": [*text[:3], 48],
        "junk": [*text[:3], -9],
    }
    assert right == expected[behaviour]


def test_a_scripted_drafter_follows_the_text() -> None:
    drafter = ScriptedDrafter(lambda request, known, n: plain(known, n, 48), 48, 64, lambda what: None)
    text = plain([3, 1, 4], 20, 48)
    drafter.begin(0, [3, 1, 4])
    drafter.commit(0, text[:3])
    assert [int(token.__index__()) for token in drafter.propose(0, 2)] == text[3:5]
    drafter.end(0)


@pytest.mark.parametrize("draft", ["executor", "scripted", "lookup", "none"])
def test_a_world_opens_as_it_is_set(draft: Any, tmp_path: Path) -> None:
    world = World(toy_harness(accuracy=6), Setting(draft=draft, draft_len=3), tmp_path, lambda what: None)
    expected = {"executor": "toy", "scripted": "scripted", "lookup": "prompt_lookup", "none": "none"}
    assert world.runtime._intake.drafter_name == expected[draft]
    world.finish()


def test_without_hypothesis_only_the_machine_is_missing() -> None:
    program = """
import sys
sys.modules["hypothesis"] = None
from txdecode.runtime.testing import TestExtraMissing, World, toy_harness
import txdecode.runtime.testing as testing
for name in ("machine_for", "check_executor", "TransactionMachine"):
    try:
        getattr(testing, name)
    except TestExtraMissing as error:
        assert isinstance(error, ImportError) and "txdecode[test]" in str(error)
    else:
        raise SystemExit(f"{name} was there")
assert not hasattr(testing, "nothing")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
