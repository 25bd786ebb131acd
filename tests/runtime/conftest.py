"""Runtimes over the toy executor, and a tokenizer of letters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from txdecode.runtime import Runtime
from txdecode.runtime.stops import StopMatcher
from txdecode.transactions.toy import ToyExecutor

Open = Callable[..., Runtime]


class LetterStream:
    """Token i is one letter; nothing is held back."""

    special_tokens: Mapping[str, int] = {}

    def fork(self) -> LetterStream:
        return self

    def push(self, ids: Iterable[int]) -> str:
        return "".join(chr(ord("A") + token) for token in ids)

    def flush(self) -> str:
        return ""


class Letters:
    """The text of a runtime whose tokens are the letters from A on."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - ord("A") for letter in text]

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        return self.encode("".join(message["content"] for message in messages))

    def stop_matcher(self, stops: Sequence[str] = (), after: int = 0) -> StopMatcher:
        return StopMatcher(LetterStream(), stops, after)  # type: ignore[arg-type]


@pytest.fixture
def letters() -> Letters:
    return Letters()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where the runtimes of a test write."""
    return tmp_path / "run.txlog"


@pytest.fixture
def opened(log: Path) -> Iterator[Open]:
    """``opened(executor, **options)`` opens a runtime over ``log``; all are closed at the end."""
    made: list[Runtime] = []

    def make(executor: Any = None, **options: Any) -> Runtime:
        options = {"log": log, "overwrite": True, "draft": "none", **options}
        made.append(Runtime.open(ToyExecutor() if executor is None else executor, **options))
        return made[-1]

    yield make
    for runtime in made:
        runtime.close()
