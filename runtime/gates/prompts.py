"""Prompts for the gates and the demo: some whose answer repeats them, some whose answer does not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from txdecode.runtime.errors import InvalidRequest


@attrs.frozen
class GatePrompt:
    """What to decode and how many tokens of it: chat messages, or ``text`` that a model without a chat template
    goes on with. ``repeats``: the answer copies from the prompt, so that a lookup drafter must engage. ``category``
    is what a benchmark groups by."""

    name: str
    messages: Sequence[dict[str, Any]]
    max_tokens: int
    repeats: bool
    text: str = ""
    category: str = ""

    @property
    def content(self) -> str | list[dict[str, Any]]:
        """What ``Runtime.submit`` takes."""
        return self.text or list(self.messages)


def _user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


CODE = """def mean(values):
    total = 0
    for value in values:
        total += value
    return total / len(values)


def variance(values):
    center = mean(values)
    total = 0
    for value in values:
        total += (value - center) ** 2
    return total / len(values)


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2
"""

DEMO = GatePrompt(
    "code edit",
    _user(f"Rename the function mean to average everywhere and repeat the whole file:\n```python\n{CODE}```"),
    192,
    True,
)

BUILT_IN: tuple[GatePrompt, ...] = (
    DEMO,
    GatePrompt(
        "json",
        _user(
            'Repeat this list unchanged: [{"name": "oak", "height": 31}, {"name": "elm", "height": 24}, '
            '{"name": "ash", "height": 27}, {"name": "yew", "height": 12}]'
        ),
        96,
        True,
    ),
    GatePrompt(
        "quote",
        _user(
            "Quote the second sentence: The harbour froze in January. Two ships waited outside until the ice "
            "broke in March. Their crews played cards and mended sails."
        ),
        64,
        True,
    ),
    GatePrompt("chat", _user("What should I cook tonight with rice, eggs and spinach?"), 64, False),
    GatePrompt("short", _user("Hi."), 24, False),
    GatePrompt(
        "long",
        _user(
            "Summarise these notes in one sentence.\n"
            + "\n".join(
                f"Day {day}: measured {day * 7 % 23} samples at station {day % 5}, wind from the "
                f"{('north', 'east', 'south', 'west')[day % 4]}, water {day * 3 % 17} degrees."
                for day in range(1, 41)
            )
        ),
        48,
        False,
    ),
    GatePrompt(
        "reasoning", _user("A train leaves at 9:40 and arrives at 12:05. How long is the trip?"), 64, False
    ),
    GatePrompt("list", _user("List the numbers from 1 to 30, one a line."), 80, False),
)


# None of these is said to repeat: what a model that only goes on with a text will copy is for it to show.
CODE_PROMPTS: tuple[GatePrompt, ...] = (
    GatePrompt(
        "class",
        (),
        128,
        False,
        '''"""A queue of jobs that are run one at a time."""

import collections
import threading


class JobQueue:
    """Run callables in the order in which they were added.

    The queue can be shared between threads.
    """

    def __init__(self, maxsize=0):
        self.maxsize = maxsize
        self._jobs = collections.deque()
        self._lock = threading.Lock()
        self._closed = False

    def add(self, function, *args):
        """Add a job; raise ValueError if the queue is closed."""
        with self._lock:
            if self._closed:
                raise ValueError("the queue is closed")
            self._jobs.append((function, args))

    def run_one(self):
        """Run the oldest job and return its result."""
        with self._lock:
''',
    ),
    GatePrompt(
        "functions",
        (),
        128,
        False,
        f'''"""Simple statistics of sequences of numbers."""


{CODE}

def deviation(values):
    """Return the square root of the variance of values."""
''',
    ),
    GatePrompt(
        "options",
        (),
        128,
        False,
        """import argparse
import sys


def main():
    parser = argparse.ArgumentParser(description="Count the words of text files.")
    parser.add_argument("files", nargs="*", help="files to read")
    parser.add_argument("-l", "--lines", action="store_true", help="count lines instead of words")
    parser.add_argument("-v", "--verbose", action="store_true", help="say what is being read")
    parser.add_argument(
""",
    ),
    GatePrompt(
        "prose",
        (),
        96,
        False,
        '''"""Reading and writing of archives.

This module provides a class to read and write archive files. An archive holds any number of
members, each with a name and a size. To open an archive, call the function open() with the name
of the file and a mode. ''',
    ),
    GatePrompt("short", (), 48, False, "import "),
)
"""Text to go on with, for models without a chat template; written here, so no model was trained on it."""


def read_prompts(path: Path) -> tuple[GatePrompt, ...]:
    """Prompts of a JSON-lines file: ``id``, ``messages``, ``max_tokens`` and, where known, ``category`` a line.

    Raises ``InvalidRequest`` naming the line.
    """
    prompts: list[GatePrompt] = []
    seen: dict[str, int] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"prompts file '{path}' cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            prompt = _prompt(json.loads(line))
            if prompt.name in seen:
                raise ValueError(f"the id '{prompt.name}' of line {seen[prompt.name]} again")
            seen[prompt.name] = number
            prompts.append(prompt)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidRequest(
                f"prompts file '{path}', line {number}: expected an object with id, messages and max_tokens, "
                f"found {type(error).__name__}: {error}"
            ) from error
    if not prompts:
        raise InvalidRequest(f"prompts file '{path}' holds no prompts")
    return tuple(prompts)


def _prompt(row: dict[str, Any]) -> GatePrompt:
    """One line. Raises ``ValueError``, ``KeyError``, ``TypeError`` or ``AttributeError``."""
    category, messages, most = row.get("category", ""), row["messages"], row["max_tokens"]
    if not isinstance(category, str):
        raise TypeError(f"the category {category!r:.40}, which is no text")
    if not isinstance(messages, list) or not all(isinstance(item, dict) for item in messages):
        raise TypeError(f"messages {messages!r:.40}, which are no list of objects")
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise ValueError(f"max_tokens {most!r:.40}, which is no count")
    repeats = category in ("code_edit", "json", "quote", "tool_call")
    return GatePrompt(str(row["id"]), messages, most, repeats, category=category)
