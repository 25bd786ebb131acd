"""The ``[spec]`` line and what else the runtime says."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest

from txdecode.runtime import Runtime
from txdecode.runtime.testing import Breaker, ScriptedDrafter
from txdecode.transactions.toy import ToyExecutor, plain

Open = Callable[..., Runtime]
FIELDS = [
    "event",
    "request",
    "finish",
    "drafter",
    "rounds",
    "drafted",
    "accepted",
    "plain_steps",
    "emitted",
    "fallback",
    "decisions",
]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[dict[str, str]]]:
    """``said(event)``: the fields of every line of an event, in order."""
    caplog.set_level(logging.INFO, "txdecode")

    def lines(event: str) -> list[dict[str, str]]:
        parsed = [
            dict(re.findall(r"(\w+)=(.*?)(?= \w+=|$)", record.getMessage()))
            for record in caplog.records
            if record.name == "txdecode"
        ]
        return [line for line in parsed if line["event"] == event]

    return lines


def broken(behaviour: Any) -> ScriptedDrafter:
    drafter = ScriptedDrafter(lambda request, known, n: plain(known, n, 48), 48, 256, lambda what: None)
    drafter.follow([behaviour])
    return drafter


@pytest.mark.parametrize(
    ("draft", "name"), [("none", "none"), ("lookup", "prompt_lookup"), ("executor", "toy")]
)
def test_one_spec_line_a_request(draft: str, name: str, opened: Open, said: Any) -> None:
    runtime = opened(ToyExecutor(accuracy=6), draft=draft, draft_len=4)
    handles = [runtime.submit([i, i + 1], max_tokens=10 + i) for i in range(3)]
    runtime.run()
    lines = said("[spec]")
    assert len(lines) == 3
    for handle in handles:
        (line,) = [line for line in lines if line["request"] == str(handle.request)]
        stats = handle.result().stats
        assert list(line) == FIELDS
        assert line == {
            "event": "[spec]",
            "request": str(handle.request),
            "finish": "length",
            "drafter": name,
            "rounds": str(stats.rounds),
            "drafted": str(stats.drafted),
            "accepted": str(stats.accepted),
            "plain_steps": str(stats.plain_steps),
            "emitted": str(stats.emitted),
            "fallback": "none",
            "decisions": "none",
        }


def test_other_ends_have_their_line_too(opened: Open, said: Any) -> None:
    breaker = Breaker(ToyExecutor(), lambda what: None)
    runtime = opened(breaker)
    stop = plain([1], 3, 48)[2]
    runtime.submit([1], stop_ids=[stop], max_tokens=9)
    runtime.submit([2]).cancel()
    runtime.run()
    breaker.arm("verify", "before", 3)
    runtime.submit([3])
    runtime.run()
    assert [(line["request"], line["finish"]) for line in said("[spec]")] == [
        ("1", "cancelled"),
        ("0", "stop"),
        ("2", "error"),
    ]
    faults = said("executor fault")
    assert [(line["request"], line["faults"]) for line in faults] == [("2", "1"), ("2", "2"), ("2", "3")]


@pytest.mark.parametrize("behaviour", ["many", "negative", "junk", "raise", "begin", "commit"])
def test_a_broken_drafter_is_told(behaviour: str, opened: Open, said: Any) -> None:
    expected = {
        "many": "ValueError: 5 tokens proposed, at most 4 asked",
        "negative": "ValueError: an id outside 0..47 proposed",
        "junk": "TypeError: 'float' object cannot be interpreted as an integer",
        "raise": "RuntimeError: the drafter was made to fail",
        "begin": "RuntimeError: the drafter was made to fail at begin",
        "commit": "RuntimeError: the drafter was made to fail at commit",
    }
    runtime = opened(draft=broken(behaviour), draft_len=4)
    runtime.submit([1, 2], max_tokens=12)
    runtime.run()
    (line,) = said("[spec]")
    assert (line["drafter"], line["drafted"], line["plain_steps"]) == ("scripted", "0", "12")
    assert line["fallback"] == expected[behaviour]


def test_a_preemption_is_told(opened: Open, said: Any) -> None:
    runtime = opened()
    handle = runtime.submit([1, 2], max_tokens=5)
    runtime.step()
    runtime.preempt(handle)
    runtime.run()
    (line,) = said("preempted")
    assert (line["request"], line["reason"]) == ("0", "asked")


def test_nothing_is_said_below_the_level(opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "txdecode")
    opened().submit([1], max_tokens=2).result()
    assert caplog.records == []
