"""Where two runs part: event by event, and by the text of each request.

Left out of the comparison, since they cannot matter to what was decoded: times, launch numbers (they count the
launches of a process, whatever is in them), digests (a function of the rest; replay checks them), salt and chain.
``RuntimeNote`` and ``Snapshot`` records are passed over; audits are compared where both runs made one at the same
place, and passed over where one did.

Requests are matched by number. Memory: the text by which one run is ahead of the other in a request; both logs are
read side by side.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import attrs

from txdecode.runtime.export import plain
from txdecode.runtime.journal import Header, iterate
from txdecode.runtime.replay import Histories, InvalidArgument, RequestHistory, decoded
from txdecode.transactions.events import (
    Event,
    RoundCommitted,
    RuntimeNote,
    Snapshot,
    StateAudited,
)

IGNORED = frozenset({"time", "times", "launch", "digests"})
"""Fields of events that are not compared."""

TextVerdict = Literal["equal", "differs", "A is longer", "B is longer", "only in A", "only in B"]


@attrs.frozen
class FieldDifference:
    """One named value on both sides; ``None`` where a side has none."""

    field: str
    a: Any
    b: Any


@attrs.frozen
class EventDifference:
    """The first event that differs: its sequence numbers, kinds and request (``None`` at the end of a log, or where
    it is of no request), the first field that differs (``event`` where kind or request do), and both values."""

    sequence_a: int | None
    sequence_b: int | None
    event_a: str | None
    event_b: str | None
    request: int | None
    field: str
    a: Any
    b: Any


@attrs.frozen
class RoundDifference:
    """The first round of a request whose drafts or outcome differ; a sequence number is ``None`` where a run has no
    such round."""

    ordinal: int
    sequence_a: int | None
    sequence_b: int | None


@attrs.frozen
class RequestComparison:
    """One request in both runs. ``token`` is the index of the first generated token that differs, or where the
    shorter text ends. ``histories`` have no ids."""

    request: int
    text: TextVerdict
    token: int | None
    tokens: tuple[int | None, int | None]
    rounds: RoundDifference | None
    a: RequestHistory | None
    b: RequestHistory | None

    @property
    def equal(self) -> bool:
        """Whether text and end are equal."""
        return (
            self.text == "equal"
            and self.a is not None
            and self.b is not None
            and self.a.finish == self.b.finish
        )


@attrs.frozen
class DiffReport:
    """Two runs: what their headers differ in, the first event that differs after ``events`` equal ones, and every
    request."""

    a: str
    b: str
    header: tuple[FieldDifference, ...]
    events: int
    event: EventDifference | None
    requests: tuple[RequestComparison, ...]

    @property
    def text_equal(self) -> bool:
        """Whether all requests have the same text and end."""
        return all(one.equal for one in self.requests)

    @property
    def equal(self) -> bool:
        """Whether events and texts are equal; headers may differ."""
        return self.event is None and self.text_equal


def diff(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> DiffReport:
    """Compare two logs.

    Raises ``JournalError`` and ``EventUndecodable`` for what cannot be read, ``InvalidArgument`` for one log twice.
    """
    paths = Path(a), Path(b)
    if os.path.realpath(paths[0]) == os.path.realpath(paths[1]) or _same_file(*paths):
        raise InvalidArgument(f"'{paths[0]}' and '{paths[1]}' are one log; give two")
    texts = _Texts()
    sides = _Side(paths[0], texts, 0), _Side(paths[1], texts, 1)
    events, found = 0, None
    while True:
        heads = sides[0].head, sides[1].head
        if heads == (None, None):
            break
        passed = [] if found is not None else _lone_audits(*heads)
        for index in passed:
            sides[index].step()
        if passed:
            continue
        if found is None:
            found = _first_difference(*heads)
        if found is None:
            events += 1
            sides[0].step()
            sides[1].step()
        else:
            # The texts go on; the run that has told less of them goes first.
            first = heads[1] is None or (heads[0] is not None and sides[0].told <= sides[1].told)
            sides[0 if first else 1].step()
    histories = sides[0].histories.requests, sides[1].histories.requests
    numbers = sorted({*histories[0], *histories[1]})
    return DiffReport(
        str(paths[0]),
        str(paths[1]),
        tuple(header_differences(sides[0].header, sides[1].header)),
        events,
        found,
        tuple(
            texts.compare(number, histories[0].get(number), histories[1].get(number)) for number in numbers
        ),
    )


def _same_file(a: Path, b: Path) -> bool:
    try:
        return os.path.samefile(a, b)
    except OSError:
        # A log without its first segment, or none at all, which reading it will tell.
        return False


def header_differences(a: Header, b: Header) -> Iterator[FieldDifference]:
    """What two headers say differently: format version, features, fingerprint, configuration down to its leaves."""
    flat = [
        {
            "version": header.version,
            "required": list(header.required),
            "optional": list(header.optional),
            **_leaves("fingerprint", header.fingerprint),
            **_leaves("configuration", header.configuration),
        }
        for header in (a, b)
    ]
    for name in {**flat[0], **flat[1]}:
        left, right = flat[0].get(name), flat[1].get(name)
        if left != right:
            yield FieldDifference(name, left, right)


def _leaves(name: str, value: object) -> dict[str, object]:
    if not isinstance(value, Mapping):
        return {name: value}
    return {leaf: found for key in value for leaf, found in _leaves(f"{name}.{key}", value[key]).items()}


Head = tuple[int, Event]


def _lone_audits(a: Head | None, b: Head | None) -> list[int]:
    """The sides whose audit has no counterpart."""
    audits = [head[1] if head is not None and type(head[1]) is StateAudited else None for head in (a, b)]
    left, right = audits
    if (
        left is not None
        and right is not None
        and (left.request, left.ordinal) == (right.request, right.ordinal)
    ):
        return []
    return [index for index, audit in enumerate(audits) if audit is not None]


def _first_difference(a: Head | None, b: Head | None) -> EventDifference | None:
    if a is None or b is None:
        left, right = (None if head is None else _described(head[1]) for head in (a, b))
        return _difference(a, b, "event", left, right)
    left_event, right_event = a[1], b[1]
    same_request = getattr(left_event, "request", None) == getattr(right_event, "request", None)
    if type(left_event) is not type(right_event) or not same_request:
        return _difference(a, b, "event", _described(left_event), _described(right_event))
    for name in left_event.__struct_fields__:
        left, right = getattr(left_event, name), getattr(right_event, name)
        if name not in IGNORED and left != right:
            return _difference(a, b, name, left, right)
    return None


def _described(event: Event) -> str:
    request = getattr(event, "request", None)
    return type(event).__name__ + ("" if request is None else f" of request {request}")


def _difference(a: Head | None, b: Head | None, field: str, left: Any, right: Any) -> EventDifference:
    names = [None if head is None else type(head[1]).__name__ for head in (a, b)]
    requests = [None if head is None else getattr(head[1], "request", None) for head in (a, b)]
    same = requests[0] if requests[0] == requests[1] or b is None else requests[1] if a is None else None
    return EventDifference(
        None if a is None else a[0],
        None if b is None else b[0],
        names[0],
        names[1],
        same,
        field,
        plain(left),
        plain(right),
    )


class _Side:
    """One log: the event that comes next, and what was said so far. ``told`` counts generated tokens."""

    def __init__(self, path: Path, texts: _Texts, side: int) -> None:
        self.path = path
        self.reader = iterate(path)
        self.header = self.reader.header
        self.histories = Histories(ids=False)
        self.told = 0
        self.head: Head | None = None
        self._texts = texts
        self._side = side
        self._pull()

    def _pull(self) -> None:
        self.head = None
        for record in self.reader:
            event = decoded(record, self.path)
            if type(event) is Snapshot:
                # Only the one that a log begins with says anything new.
                if record.sequence == self.header.place.first_sequence:
                    self.histories.take(event)
                    self._texts.begin(self._side, event)
            elif event is not None and type(event) is not RuntimeNote:
                self.head = record.sequence, event
                return

    def step(self) -> None:
        """Take the head in and go on to the next."""
        assert self.head is not None
        sequence, event = self.head
        self.histories.take(event)
        if type(event) is RoundCommitted:
            self.told += len(event.emitted)
            self._texts.take(self._side, sequence, event)
        self._pull()


Round = tuple[int, int, tuple[int, ...], int, int]
"""Ordinal, sequence, drafts, accepted, emitted."""


@attrs.define
class _Pair:
    """A request's text and rounds as far as one side is ahead of the other, up to the first difference."""

    ids: tuple[deque[int], deque[int]] = attrs.Factory(lambda: (deque(), deque()))
    rounds: tuple[deque[Round], deque[Round]] = attrs.Factory(lambda: (deque(), deque()))
    matched: int = 0
    parted: tuple[int, int] | None = None
    round_parted: RoundDifference | None = None


class _Texts:
    """Texts and rounds of all requests, matched as they come."""

    def __init__(self) -> None:
        self._pairs: dict[int, _Pair] = {}

    def begin(self, side: int, snapshot: Snapshot) -> None:
        """What the requests of a snapshot had generated before it; their rounds before it are not known."""
        for number, state in snapshot.ledgers["tokens"].items():
            self._extend(self._pairs.setdefault(int(number), _Pair()), side, tuple(state[6]))

    def take(self, side: int, sequence: int, event: RoundCommitted) -> None:
        """One more round."""
        pair = self._pairs.setdefault(event.request, _Pair())
        self._extend(pair, side, event.emitted)
        if pair.round_parted is not None:
            return
        pair.rounds[side].append((event.ordinal, sequence, event.drafts, event.accepted, len(event.emitted)))
        while pair.rounds[0] and pair.rounds[1]:
            a, b = pair.rounds[0].popleft(), pair.rounds[1].popleft()
            if (a[0], *a[2:]) != (b[0], *b[2:]):
                pair.round_parted = RoundDifference(min(a[0], b[0]), a[1], b[1])
                pair.rounds[0].clear()
                pair.rounds[1].clear()

    @staticmethod
    def _extend(pair: _Pair, side: int, ids: tuple[int, ...]) -> None:
        if pair.parted is not None:
            return
        mine, other = pair.ids[side], pair.ids[1 - side]
        mine.extend(ids)
        while mine and other:
            if mine[0] != other[0]:
                pair.parted = pair.ids[0][0], pair.ids[1][0]
                mine.clear()
                other.clear()
                return
            mine.popleft()
            other.popleft()
            pair.matched += 1

    def compare(self, number: int, a: RequestHistory | None, b: RequestHistory | None) -> RequestComparison:
        """What is to be said of a request in the end."""
        pair = self._pairs.get(number, _Pair())
        tokens: tuple[int | None, int | None] = (None, None)
        token: int | None = pair.matched
        text: TextVerdict
        if a is None or b is None:
            text, token = ("only in B" if a is None else "only in A"), None
        elif pair.parted is not None:
            text, tokens = "differs", pair.parted
        elif pair.ids[0] or pair.ids[1]:
            text = "A is longer" if pair.ids[0] else "B is longer"
            tokens = tuple(side[0] if side else None for side in pair.ids)  # type: ignore[assignment]
        else:
            text, token = "equal", None
        rounds = pair.round_parted
        left = next((side for side in pair.rounds if side), None)
        if rounds is None and left and a is not None and b is not None:
            ordinal, sequence = left[0][:2]
            in_a = left is pair.rounds[0]
            rounds = RoundDifference(ordinal, sequence if in_a else None, None if in_a else sequence)
        return RequestComparison(number, text, token, tokens, rounds, a, b)


__all__ = [
    "IGNORED",
    "DiffReport",
    "EventDifference",
    "FieldDifference",
    "RequestComparison",
    "RoundDifference",
    "diff",
    "header_differences",
]
