"""What goes wrong on purpose: verbs that fail, drafters that misbehave."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar, get_args

from txdecode.transactions.executor import (
    AuditEntry,
    Description,
    Executor,
    ExecutorFault,
    Outcome,
    PrefillPlan,
    Proposal,
    Round,
    RoundPlan,
    SequenceView,
    Settlement,
    Ticket,
)

T = TypeVar("T")
R = TypeVar("R")

Verb = Literal["prefill", "draft", "verify", "accept", "launch", "collect", "settle", "abandon"]
VERBS: tuple[Verb, ...] = get_args(Verb)
When = Literal["before", "half", "late"]
WHEN: tuple[When, ...] = get_args(When)

Tell = Callable[[str], None]
"""Told what happened, for statistics."""


def possible(verb: Verb, when: When) -> bool:
    """Whether a verb can fail so. A launch that raises has started nothing, and a program whose collection
    fails is over: otherwise nobody could say when its pages are free. What must not fail has done its work."""
    if verb == "launch":
        return when == "before"
    return when == "late" or verb not in ("collect", "abandon")


def possible_faults(fused: bool, drafts: bool) -> list[tuple[Verb, When]]:
    """All ways in which the verbs that a runtime calls may fail; ``drafts`` where the executor drafts."""
    unused: set[Verb] = {"draft", "verify", "accept"} if fused else {"launch", "collect"}
    if not drafts:
        unused.add("draft")
    return [(verb, when) for verb in VERBS for when in WHEN if verb not in unused and possible(verb, when)]


class Breaker:
    """An ``Executor`` whose verbs fail where asked; between faults it is the executor inside.

    ``before``: nothing is done; ``half``: the first half of the batch is done; ``late``: all is done and the
    answer is lost.
    """

    def __init__(self, inner: Executor, tell: Tell) -> None:
        self.inner = inner
        self.fired = 0
        self._tell = tell
        self._armed: dict[Verb, deque[When]] = {verb: deque() for verb in VERBS}

    def arm(self, verb: Verb, when: When, count: int) -> None:
        """Let ``count`` calls of ``verb`` fail, after those that fail already."""
        assert possible(verb, when), f"{verb} cannot fail {when}"
        self._armed[verb].extend([when] * count)

    def _take(self, verb: Verb) -> When | None:
        if not self._armed[verb]:
            return None
        when = self._armed[verb].popleft()
        self.fired += 1
        self._tell(f"fault {verb} {when}")
        return when

    def _fail(self, verb: Verb, when: When) -> Exception:
        # Whatever a verb raises is a fault; executors do not always wrap what their libraries raise.
        kind = ExecutorFault if self.fired % 2 else RuntimeError
        return kind(f"{verb} was made to fail ({when})")

    def _call(self, verb: Verb, batch: Sequence[T], work: Callable[[Sequence[T]], R]) -> R:
        when = self._take(verb)
        if when == "half" and len(batch) > 1:
            work(batch[: len(batch) // 2])
        answer = work(batch) if when in (None, "late") else None
        if when is not None:
            raise self._fail(verb, when)
        return answer  # type: ignore[return-value]

    def describe(self) -> Description:
        """Static facts."""
        return self.inner.describe()

    def prefill(self, batch: Sequence[PrefillPlan]) -> None:
        """May fail."""
        self._call("prefill", batch, self.inner.prefill)

    def draft(self, plans: Sequence[RoundPlan]) -> list[Proposal]:
        """May fail."""
        return self._call("draft", plans, self.inner.draft)

    def verify(self, rounds: Sequence[Round]) -> None:
        """May fail."""
        self._call("verify", rounds, self.inner.verify)

    def accept(self, rounds: Sequence[Round]) -> list[Outcome]:
        """May fail."""
        return self._call("accept", rounds, self.inner.accept)

    def launch(self, launch: int, rounds: Sequence[Round]) -> Ticket:
        """May fail, with nothing started."""
        return self._call("launch", rounds, lambda batch: self.inner.launch(launch, batch))

    def collect(self, ticket: Ticket) -> list[Outcome] | None:
        """May fail, once the program is over."""
        outcomes = self.inner.collect(ticket)
        if outcomes is not None and (when := self._take("collect")) is not None:
            raise self._fail("collect", when)
        return outcomes

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """May fail; the record is in the log by then."""
        self._call("settle", settlements, self.inner.settle)

    def abandon(self, plans: Sequence[RoundPlan]) -> None:
        """May fail, although it must not."""
        self._call("abandon", plans, self.inner.abandon)

    def drop(self, request: int) -> None:
        """As the executor does."""
        self.inner.drop(request)

    def audit(self, view: SequenceView, rows: bool = False) -> tuple[AuditEntry, ...]:
        """As the executor does."""
        return self.inner.audit(view, rows) if rows else self.inner.audit(view)


Behaviour = Literal[
    "right", "wrong", "part", "none", "many", "negative", "beyond", "junk", "raise", "commit", "begin", "end"
]
BEHAVIOURS: tuple[Behaviour, ...] = get_args(Behaviour)


class _Index:
    """An integer that is no ``int``, like those of array libraries."""

    def __init__(self, value: int) -> None:
        self._value = value

    def __index__(self) -> int:
        return self._value


Continuation = Callable[[int, Sequence[int], int], Sequence[int]]
"""``text(request, tokens, count)``: at most ``count`` tokens that follow the known ones."""


class ScriptedDrafter:
    """A host drafter that knows the text and does what its script says, one entry a call of ``propose``.

    ``right``, ``wrong``, ``part`` (right, then wrong) and ``none`` are what a drafter may do; ``many`` (one too
    many), ``negative`` and ``beyond`` (ids outside the vocabulary), ``junk`` (no integer) and ``raise`` are what
    it must not. ``begin``, ``commit`` and ``end`` raise in the verb of that name when it comes, and propose
    right.
    """

    name = "scripted"

    def __init__(self, text: Continuation, vocab_size: int, context: int, tell: Tell) -> None:
        self.script: tuple[Behaviour, ...] = ("right",)
        self._text = text
        self._vocab_size = vocab_size
        self._context = context
        self._tell = tell
        self._calls = 0
        self._texts: dict[int, tuple[int, ...]] = {}
        self._known: dict[int, int] = {}

    def follow(self, script: Sequence[Behaviour]) -> None:
        """A new script, from its first entry on."""
        self.script, self._calls = tuple(script), 0

    def _raise_at(self, verb: Behaviour) -> None:
        if verb in self.script:
            self._tell(f"drafter {verb}")
            raise RuntimeError(f"the drafter was made to fail at {verb}")

    def begin(self, request: int, tokens: Sequence[int]) -> None:
        """Look up how the text goes on."""
        self._raise_at("begin")
        rest = self._text(request, tokens, self._context - len(tokens))
        self._texts[request] = (*tokens, *rest)
        self._known[request] = len(tokens)

    def propose(self, request: int, count: int) -> tuple[int, ...]:
        """What the script says."""
        behaviour = self.script[self._calls % len(self.script)]
        self._calls += 1
        self._tell(f"drafter {behaviour}")
        known = self._known[request]
        right = self._texts[request][known : known + count + 1]
        wrong = tuple((token + 1) % self._vocab_size for token in right)
        half = -(-count // 2)
        if behaviour == "raise":
            raise RuntimeError("the drafter was made to fail")
        outside = {"negative": -1, "beyond": self._vocab_size}
        if behaviour in outside:
            return (*right[: count - 1], outside[behaviour])
        answers: dict[str, tuple[object, ...]] = {
            "wrong": wrong[:count],
            "part": right[:half] + wrong[half:count],
            "none": (),
            "many": right,
            "junk": (*right[: count - 1], 1.0),
        }
        # Also as integers of another type: array libraries have their own.
        default = tuple(map(_Index, right[:count]))
        return answers.get(behaviour, default)  # type: ignore[return-value]

    def commit(self, request: int, tokens: Sequence[int]) -> None:
        """The text went on, as it had to."""
        self._raise_at("commit")
        self._known[request] += len(tokens)

    def end(self, request: int) -> None:
        """The request is over."""
        self._raise_at("end")
        self._texts.pop(request, None)
        self._known.pop(request, None)
