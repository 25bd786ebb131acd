"""What a caller holds of a request: its text as it is committed, its result, its cancel button."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Literal, Protocol

import attrs

from txdecode.runtime.errors import RuntimeClosed, TextUnavailable
from txdecode.runtime.sampling import Sampling
from txdecode.transactions.target import TokenLogprobs

Finish = Literal["stop", "length", "cancelled"]


@attrs.frozen
class Stats:
    """Counts and times of one request.

    ``rounds`` are all committed rounds, ``plain_steps`` those of them in which nothing was offered.
    ``drafted`` tokens were offered, ``accepted`` of them agreed with the target, ``emitted`` is what the
    request got after the clip. Times are seconds: ``prefill_s`` of the launches that consumed its known
    tokens, ``decode_s`` of the steps that ran its rounds, ``host_s`` the part of those outside the executor.
    ``by_source``: tokens offered and accepted, by drafter; copies that extend learned drafts count for the host's.
    ``decisions``: rounds by the reason for which ``goodput`` gave them their drafts.
    """

    prompt_tokens: int = 0
    rounds: int = 0
    plain_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    preemptions: int = 0
    rollbacks: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    host_s: float = 0.0
    by_source: Mapping[str, tuple[int, int]] = attrs.Factory(dict)
    decisions: Mapping[str, int] = attrs.Factory(dict)

    @property
    def tok_s(self) -> float:
        """Emitted tokens a second of decode time."""
        return self.emitted / self.decode_s if self.decode_s else 0.0

    @property
    def host_share(self) -> float:
        """Share of decode time spent outside the executor."""
        return self.host_s / self.decode_s if self.decode_s else 0.0


@attrs.frozen
class Result:
    """A finished request: all generated ids (a stop token included), the text (stop tokens and stop strings
    excluded; ``None`` without a tokenizer), why it ended, its counts, how its tokens were chosen (``sampling``, with
    every field filled in and the seed that was drawn), and logprobs of every id where they were asked for."""

    request: int
    ids: tuple[int, ...]
    text: str | None
    finish: Finish
    stats: Stats
    sampling: Sampling = attrs.Factory(Sampling)
    logprobs: tuple[TokenLogprobs, ...] | None = None


class Driver(Protocol):
    """The side of the runtime that a handle needs."""

    @property
    def serving(self) -> bool:
        """Whether a thread runs the loop."""

    def step(self) -> bool:
        """Run one step by hand."""

    def cancel(self, request: int) -> None:
        """Ask for the end of a request."""


class Handle:
    """One submitted request.

    Iterating yields text as it is committed; it runs the loop itself unless ``Runtime.serve`` does. ``ids``
    iterates over token ids instead. Both raise ``RequestFailed`` where the request ended with an error, after
    all that was committed before it.
    """

    def __init__(self, request: int, driver: Driver, has_text: bool) -> None:
        self.request = request
        self._driver = driver
        self._has_text = has_text
        self._changed = threading.Condition()
        self._ids: list[int] = []
        self._pieces: list[str] = []
        self._result: Result | None = None
        self._error: Exception | None = None

    def __repr__(self) -> str:
        state = "failed" if self._error else self._result.finish if self._result else "running"
        return f"<Handle request={self.request} tokens={len(self._ids)} {state}>"

    # The runtime's side.

    def publish(self, ids: tuple[int, ...], piece: str) -> None:
        """Committed tokens and the text that they made final."""
        with self._changed:
            self._ids.extend(ids)
            if piece:
                self._pieces.append(piece)
            self._changed.notify_all()

    def finish(self, result: Result) -> None:
        """The request is over."""
        with self._changed:
            self._result = result
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """The request ended with an error."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    # The caller's side.

    @property
    def done(self) -> bool:
        """Whether the request is over."""
        return self._result is not None or self._error is not None

    @property
    def published(self) -> tuple[int, ...]:
        """Token ids committed so far; does not wait."""
        with self._changed:
            return tuple(self._ids)

    def _wait(self, seen: int, items: list[int] | list[str]) -> bool:
        """Wait for an item past ``seen``; false where the request is over and there is none."""
        while True:
            with self._changed:
                if len(items) > seen:
                    return True
                if self.done:
                    return False
                if self._driver.serving:
                    self._changed.wait(1.0)
                    continue
            try:
                self._driver.step()
            except RuntimeClosed:
                # Another thread closed the runtime; it tells its handles how their requests ended.
                with self._changed:
                    if not self._changed.wait_for(lambda: self.done, 1.0):
                        raise

    def ids(self) -> Iterator[int]:
        """Token ids as they are committed."""
        seen = 0
        while self._wait(seen, self._ids):
            yield self._ids[seen]
            seen += 1
        self._raise_error()

    def __iter__(self) -> Iterator[str]:
        if not self._has_text:
            raise TextUnavailable("this runtime has no tokenizer; iterate over handle.ids()")
        seen = 0
        while self._wait(seen, self._pieces):
            yield self._pieces[seen]
            seen += 1
        self._raise_error()

    async def __aiter__(self) -> AsyncIterator[str]:
        if not self._has_text:
            raise TextUnavailable("this runtime has no tokenizer; iterate over handle.ids()")
        seen = 0
        while await asyncio.to_thread(self._wait, seen, self._pieces):
            yield self._pieces[seen]
            seen += 1
        self._raise_error()

    def result(self) -> Result:
        """Wait for the end. Raises ``RequestFailed`` where the request ended with an error."""
        while not self.done:
            self._wait(len(self._ids), self._ids)
        self._raise_error()
        assert self._result is not None
        return self._result

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def cancel(self) -> None:
        """End the request at the next border between phases; what was committed stays. Idempotent, and may be
        called from any thread."""
        if not self.done:
            self._driver.cancel(self.request)
