"""Copies from what other requests were answered: the last committed tokens of all of them, indexed exactly.

Answers of one service resemble each other more than each resembles its prompt. Only committed output enters: no
prompts, which belong to whoever wrote them, and no drafts, which nobody confirmed.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from txdecode.transactions.executor import Copy

CAPACITY = 65_536
"""Tokens that are remembered."""

SIZES = (8, 4)
"""Tokens that must agree, the longer context first."""

COPY_MAX = 7
"""Most tokens of a copy."""

_TOKEN_BITS = 32
TOKEN_MAX = (1 << _TOKEN_BITS) - 1
_NONE = -1
_MASKS = tuple((1 << _TOKEN_BITS * size) - 1 for size in SIZES)


@attrs.define
class _Stream:
    """The end of one request's text. ``recent`` are its last ``max(SIZES)`` tokens as one integer, ``known`` how many
    tokens it has, prompt and all; ``last`` is the ring position of its newest token, ``run`` how many tokens
    in a row up to there have entered the ring (no more than matter)."""

    recent: int = 0
    known: int = 0
    last: int = _NONE
    run: int = 0


class SharedHistory:
    """Proposes what followed the last 8, else 4, tokens the latest time that any request generated them.

    The ring takes every committed token in the order of commits; a link leads from each token to the next one of the
    same request, so a copy never runs from one text into another, however their commits alternate. A context enters
    the index once a token follows it, so that none is empty, and leaves it when the ring overwrites its end. Keys are
    the tokens themselves: nothing is confused with anything.

    What was committed stays when its request is cancelled, preempted or over. ``begin`` adds nothing: its tokens are
    context, and each generated one came by ``commit``, once. So a runtime that was recovered from a log starts with
    an empty ring.

    Host drafter by the ``MatchingDrafter`` protocol. Deterministic. O(1) a token to ``commit``, O(``COPY_MAX`` +
    ``len(after)``) to ``match``; about 18 MB when full.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        assert capacity >= 1, capacity
        self._capacity = capacity
        self._written = 0
        self._tokens = [0] * capacity
        self._next = [_NONE] * capacity
        # The keys of the contexts that end at a place, to take them out of the index with it; -1 where there is none.
        self._keys = tuple([_NONE] * capacity for _ in SIZES)
        self._ends: tuple[dict[int, int], ...] = tuple({} for _ in SIZES)
        self._streams: dict[int, _Stream] = {}

    @property
    def name(self) -> str:
        """Name in the log."""
        return "shared_history"

    @property
    def indexed(self) -> tuple[int, ...]:
        """Contexts in the index, by size as in ``SIZES``."""
        return tuple(map(len, self._ends))

    def begin(self, request: int, tokens: Sequence[int]) -> None:
        """``tokens`` are the context from here on. A request that begins again where it stood goes on with its own
        text in the ring."""
        recent = 0
        for token in tokens[-max(SIZES) :]:
            recent = self._shifted(recent, token)
        before = self._streams.get(request)
        if before is None or (before.known, before.recent) != (len(tokens), recent):
            self._streams[request] = _Stream(recent, len(tokens))

    def propose(self, request: int, count: int) -> tuple[int, ...]:
        """At most ``count`` tokens that followed the last ones elsewhere; empty where they occur nowhere."""
        return self.match(request, count).tokens

    def match(self, request: int, count: int, after: Sequence[int] = ()) -> Copy:
        """At most ``count`` tokens, no more than ``COPY_MAX``, that followed the last 8, else 4, tokens of the stream
        with ``after`` behind it, and which of the two it was."""
        assert request in self._streams, f"request {request} has not begun"
        assert count >= 0, count
        stream = self._streams[request]
        recent, known = stream.recent, stream.known + len(after)
        for token in after[-max(SIZES) :]:
            recent = self._shifted(recent, token)
        for size, mask, ends in zip(SIZES, _MASKS, self._ends, strict=True):
            # Of a shorter stream the key would have zeros in front, which are tokens too.
            end = ends.get(recent & mask) if known >= size else None
            if end is not None:
                return Copy(self._following(end, min(count, COPY_MAX)), size)
        return Copy()

    def _following(self, end: int, count: int) -> tuple[int, ...]:
        tokens: list[int] = []
        while len(tokens) < count:
            # What follows a token is younger, so it is there as long as the token is.
            end = self._next[end % self._capacity]
            if end == _NONE:
                break
            tokens.append(self._tokens[end % self._capacity])
        return tuple(tokens)

    def commit(self, request: int, tokens: Sequence[int]) -> None:
        """Generated tokens of ``request`` enter the ring. Ids lie in 0..``TOKEN_MAX``."""
        assert request in self._streams, f"request {request} has not begun"
        stream = self._streams[request]
        for token in tokens:
            assert 0 <= token <= TOKEN_MAX, token
            self._enter(stream, token)

    def _enter(self, stream: _Stream, token: int) -> None:
        position, self._written = self._written, self._written + 1
        place = position % self._capacity
        self._forget(place, position - self._capacity)
        if stream.last != _NONE and stream.last > position - self._capacity:
            self._link(stream, position)
        else:
            # The token before has been overwritten, by itself perhaps: this one begins a text.
            stream.run = 0
        self._tokens[place] = token
        self._next[place] = _NONE
        stream.recent = self._shifted(stream.recent, token)
        stream.known += 1
        stream.last = position
        stream.run = min(stream.run + 1, max(SIZES))

    def _link(self, stream: _Stream, position: int) -> None:
        """The last token of the stream is followed: the contexts that end with it are worth finding."""
        last = stream.last % self._capacity
        self._next[last] = position
        for size, mask, ends, keys in zip(SIZES, _MASKS, self._ends, self._keys, strict=True):
            if stream.run >= size:
                keys[last] = stream.recent & mask
                ends[keys[last]] = stream.last

    def _forget(self, place: int, position: int) -> None:
        """``position``, which lies at ``place``, is about to be overwritten."""
        for ends, keys in zip(self._ends, self._keys, strict=True):
            if keys[place] != _NONE and ends.get(keys[place]) == position:
                del ends[keys[place]]
            keys[place] = _NONE

    @staticmethod
    def _shifted(recent: int, token: int) -> int:
        return (recent << _TOKEN_BITS | token) & _MASKS[0]

    def end(self, request: int) -> None:
        """The request is over; what it committed stays."""
        assert request in self._streams, f"request {request} has not begun"
        del self._streams[request]
