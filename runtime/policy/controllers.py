"""Draft-length controllers: how many drafts a request asks for in its next round.

The log has what was decided, and not how; so a controller must be a deterministic function of what it observed: no
clock, no draws, no state shared between requests. ``goodput`` is in a module of its own.
"""

from __future__ import annotations

import re
from typing import ClassVar, Protocol

import attrs

from txdecode.runtime.policy.bounds import DRAFT_MAX, InvalidDraftLength
from txdecode.runtime.policy.goodput import Goodput

_ADAPTIVE = re.compile(r"(additive|goodput)(?::([0-9]{1,3}))?", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,3}", re.ASCII)


class Controller(Protocol):
    """Chooses draft lengths, request by request."""

    kind: ClassVar[str]
    """Its name in the log, one of ``decision.KINDS``."""

    @property
    def name(self) -> str:
        """How ``parse`` would spell it."""

    def begin(self, request: int) -> None:
        """A request starts, or starts again after a preemption."""

    def next(self, request: int) -> int:
        """How many drafts to ask for in the next round; asking twice gives the same answer."""

    def observe(self, request: int, offered: int, accepted: int) -> None:
        """A round was committed: ``accepted`` of the ``offered`` drafts were, before any clip."""

    def end(self, request: int) -> None:
        """The request is over."""


class Fixed:
    """The same draft length ``k`` in every round; 0 never drafts. Raises ``InvalidDraftLength``."""

    kind: ClassVar[str] = "fixed"

    def __init__(self, k: int) -> None:
        if not 0 <= k <= DRAFT_MAX:
            raise InvalidDraftLength(k)
        self._k = k
        self._requests: set[int] = set()

    @property
    def name(self) -> str:
        """How ``parse`` would spell it."""
        return str(self._k)

    def begin(self, request: int) -> None:
        """A request starts, or starts again."""
        self._requests.add(request)

    def next(self, request: int) -> int:
        """``k``."""
        assert request in self._requests, f"request {request} has not begun"
        return self._k

    def observe(self, request: int, offered: int, accepted: int) -> None:
        """Changes nothing."""
        assert request in self._requests, f"request {request} has not begun"
        assert 0 <= accepted <= offered, (offered, accepted)

    def end(self, request: int) -> None:
        """The request is over."""
        assert request in self._requests, f"request {request} has not begun"
        self._requests.remove(request)


@attrs.define
class Additive:
    """Starts at ``start``; ``+up`` after a round whose drafts were all accepted, ``-down`` after a rejection.

    Held in 1..``cap``. A round that was offered nothing says nothing, and changes nothing. Raises
    ``InvalidDraftLength`` for a ``cap`` outside 1..15.

    The asymmetry is on purpose: text that repeats does so in runs, where a long draft pays for several
    short ones that failed.
    """

    kind: ClassVar[str] = "additive"

    cap: int = 7
    start: int = 1
    up: int = 2
    down: int = 1
    _lengths: dict[int, int] = attrs.field(factory=dict, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if not 1 <= self.cap <= DRAFT_MAX:
            raise InvalidDraftLength(self.name)
        assert 1 <= self.start <= self.cap, (self.start, self.cap)
        assert self.up >= 0, self.up
        assert self.down >= 0, self.down

    @property
    def name(self) -> str:
        """How ``parse`` would spell it."""
        return f"additive:{self.cap}"

    def begin(self, request: int) -> None:
        """A request starts, or starts again, at ``start``."""
        self._lengths[request] = self.start

    def next(self, request: int) -> int:
        """The length reached."""
        assert request in self._lengths, f"request {request} has not begun"
        return self._lengths[request]

    def observe(self, request: int, offered: int, accepted: int) -> None:
        """Move by the result of one round."""
        assert request in self._lengths, f"request {request} has not begun"
        assert 0 <= accepted <= offered, (offered, accepted)
        if offered == 0:
            return
        step = self.up if accepted == offered else -self.down
        self._lengths[request] = min(self.cap, max(1, self._lengths[request] + step))

    def end(self, request: int) -> None:
        """The request is over."""
        assert request in self._lengths, f"request {request} has not begun"
        del self._lengths[request]


def parse(spec: str | int, fallback: float = 1.0) -> Controller:
    """The controller that ``spec`` names: ``goodput``, ``goodput:CAP``, ``additive``, ``additive:CAP``, or a length
    0..15. ``fallback``: how many times as fast as plain a round must be expected to be, for ``goodput``.

    Raises ``InvalidDraftLength``, which is a ``ValueError``.
    """
    if isinstance(spec, bool):
        raise InvalidDraftLength(spec)
    if isinstance(spec, int):
        return Fixed(spec)
    if not isinstance(spec, str):
        raise InvalidDraftLength(spec)
    match = _ADAPTIVE.fullmatch(spec)
    if match is not None:
        kind, cap = match.groups()
        if kind == "goodput":
            return Goodput(DRAFT_MAX if cap is None else int(cap), fallback)
        return Additive() if cap is None else Additive(cap=int(cap))
    if _NUMBER.fullmatch(spec) is None:
        raise InvalidDraftLength(spec)
    return Fixed(int(spec))
