"""Replay: the log folded into ledgers. No kernels, no torch; exact on any machine."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from txdecode.runtime.configuration import Options, groups_from
from txdecode.runtime.errors import EventUndecodable
from txdecode.runtime.journal import Header, JournalCorrupt, JournalReader, Record, TornTail, iterate
from txdecode.state.digest import LEDGERS
from txdecode.state.errors import LedgerCorrupt, TxDecodeError
from txdecode.state.ledgers import Ledgers
from txdecode.state.rng import LAWS
from txdecode.state.tokens import TokensLedger, TokenState
from txdecode.transactions.clip import CLIP_REASONS
from txdecode.transactions.codec import decode
from txdecode.transactions.events import (
    EVENTS,
    Event,
    RequestFinished,
    RequestPreempted,
    RequestSubmitted,
    RoundCommitted,
    RoundRolledBack,
    Snapshot,
    StateAudited,
)
from txdecode.transactions.fold import fold

_CHECKED = frozenset(event for event in EVENTS.values() if "digests" in event.__struct_fields__)


class Divergence(TxDecodeError):
    """The log and the ledgers folded from it part.

    ``sequence`` is the record, ``event`` its kind, ``request`` and ``ordinal`` the round (``None`` where it is
    none), ``ledger`` and ``field`` the place, ``expected`` and ``found`` both values.
    """

    def __init__(self, path: Path, record: Record, event: Event, cause: LedgerCorrupt) -> None:
        self.sequence = record.sequence
        self.event = type(event).__name__
        self.request: int | None = getattr(event, "request", None)
        self.ordinal: int | None = getattr(event, "ordinal", None)
        self.ledger = cause.ledger
        self.field = cause.field
        self.expected = cause.expected
        self.found = cause.found
        where = "" if self.request is None else f", request {self.request}"
        where += "" if self.ordinal is None else f", round {self.ordinal}"
        super().__init__(
            f"record {self.sequence} ({self.event}{where}) diverges: ledger '{cause.ledger}', {cause.field}: "
            f"expected {cause.expected!r}, found {cause.found!r}; "
            f"see it again with: txdecode replay {path} --until {self.sequence}"
        )


class NotInLog(TxDecodeError, LookupError):
    """A request, round or record was asked for that the log does not have."""


class InvalidArgument(TxDecodeError, ValueError):
    """A question that no log could answer: a number below zero, a ledger that does not exist, one log twice."""


def options_of(header: Header, path: Path) -> Options:
    """How the runtime that wrote a log was opened. Raises ``JournalCorrupt``."""
    try:
        options: Mapping[str, Any] = header.configuration["options"]  # type: ignore[assignment]
        known = {field.name for field in attrs.fields(Options)}
        found = {name: value for name, value in options.items() if name in known}
        return Options(**{**found, "eos_ids": tuple(found.get("eos_ids", ()))})
    except (KeyError, TypeError, AttributeError) as error:
        raise JournalCorrupt(path, 0, None, f"its configuration has no usable 'options' ({error})") from error


class Folder:
    """Ledgers that follow a log, record by record, from the first one that is there."""

    def __init__(self, header: Header, path: Path) -> None:
        self.path = path
        self.first = header.place.first_sequence
        try:
            self.ledgers = Ledgers(groups_from(header.configuration))
        except (KeyError, TypeError, AssertionError) as error:
            reason = f"its configuration has no usable 'groups' ({error})"
            raise JournalCorrupt(path, 0, None, reason) from error

    def take(self, record: Record) -> Event | None:
        """Decode a record and apply it; ``None`` for an unknown one that may be ignored.

        A snapshot that is not the first record must say what the records before it led to. Raises
        ``EventUndecodable`` and ``Divergence``.
        """
        event = decoded(record, self.path)
        if event is not None:
            try:
                if type(event) is Snapshot and record.sequence != self.first:
                    _check_repeats(event, self.ledgers)
                fold(self.ledgers, event)
                if type(event) is Snapshot:
                    _check_unfinished(event, self.ledgers)
            except LedgerCorrupt as error:
                raise Divergence(self.path, record, event, error) from error
        return event


def decoded(record: Record, path: Path) -> Event | None:
    """The event of a record; ``None`` for an unknown one that may be ignored. Raises ``EventUndecodable``."""
    try:
        return decode(record.type, record.version, record.flags, record.payload)
    except EventUndecodable as error:
        raise EventUndecodable(f"'{path}', record {record.sequence}: {error}") from error


def _check_repeats(event: Snapshot, ledgers: Ledgers) -> None:
    now = ledgers.snapshot()
    for name in LEDGERS:
        if event.ledgers.get(name) != now[name]:
            raise LedgerCorrupt(name, "snapshot", "what the records before it led to", "something else")


def _check_unfinished(event: Snapshot, ledgers: Ledgers) -> None:
    held = sorted(ledgers.tokens.sequences)
    found = sorted(item.submitted.request for item in event.unfinished)
    if held != found:
        raise LedgerCorrupt("tokens", "snapshot's unfinished requests", held, found)


@attrs.define
class RequestHistory:
    """What a log says of one request: ``law`` and ``seed`` of its draws, its text so far, its counts.

    ``emitted`` counts the tokens of ``ids``, which stays empty where ids are not collected. ``finish`` is ``None``
    while it is unfinished. ``first_round`` is above zero where the log begins with a snapshot, after so many rounds
    of the request: text, rounds and preemptions are whole, the other counts are of the rounds from there on.
    """

    request: int
    prompt_tokens: int
    law: str = "greedy"
    seed: int = 0
    ids: list[int] = attrs.Factory(list)
    finish: str | None = None
    rounds: int = 0
    plain_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    rollbacks: int = 0
    preemptions: int = 0
    emitted: int = 0
    audits: int = 0
    first_round: int = 0

    @classmethod
    def of(cls, event: RequestSubmitted, ids: bool = True, state: TokenState | None = None) -> RequestHistory:
        """A request that begins, or that a snapshot found in ``state``."""
        made = cls(event.request, len(event.prompt), LAWS[event.law], event.seed)
        if state is not None:
            made.emitted = len(state.generated)
            made.rounds = made.first_round = state.rounds
            made.preemptions = state.epoch
            if ids:
                made.ids.extend(state.generated)
        return made

    def take(self, event: Event, ids: bool = True) -> None:
        """Count an event of this request; without ``ids`` its text is counted only."""
        if type(event) is RoundCommitted:
            drafts = len(event.drafts)
            self.emitted += len(event.emitted)
            self.rounds += 1
            self.plain_steps += not drafts
            self.drafted += drafts
            self.accepted += event.accepted
            if ids:
                self.ids.extend(event.emitted)
            if event.clip:
                self.finish = CLIP_REASONS[event.clip]
        elif type(event) is RoundRolledBack:
            self.rollbacks += 1
        elif type(event) is RequestPreempted:
            self.preemptions += 1
        elif type(event) is StateAudited:
            self.audits += 1
        elif type(event) is RequestFinished:
            self.finish = event.reason


@attrs.define
class Totals:
    """Sums over requests; ``finished`` counts them by their end."""

    requests: int = 0
    finished: dict[str, int] = attrs.Factory(dict)
    rounds: int = 0
    plain_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    rollbacks: int = 0
    preemptions: int = 0
    audits: int = 0

    def add(self, history: RequestHistory) -> None:
        """Count one request."""
        self.requests += 1
        if history.finish is not None:
            self.finished[history.finish] = self.finished.get(history.finish, 0) + 1
        for name in ("rounds", "plain_steps", "drafted", "accepted", "emitted", "rollbacks"):
            setattr(self, name, getattr(self, name) + getattr(history, name))
        self.preemptions += history.preemptions
        self.audits += history.audits


class Histories:
    """Histories of the requests of a log, event by event: of ``request`` alone where it is given, with their ``ids``
    or without. Of the finished ones the latest ``keep`` stay, or all; ``totals`` has them all."""

    def __init__(self, request: int | None = None, ids: bool = True, keep: int | None = None) -> None:
        self.requests: dict[int, RequestHistory] = {}
        self._request = request
        self._ids = ids
        self._keep = keep
        self._finished: deque[int] = deque()
        self._dropped = Totals()

    def take(self, event: Event) -> None:
        """Count an event; of a request that is not known only what begins it."""
        kind = type(event)
        if kind is RequestSubmitted:
            self._begin(event, None)  # type: ignore[arg-type]
        elif kind is Snapshot:
            self._begin_all(event)  # type: ignore[arg-type]
        else:
            history = self.requests.get(getattr(event, "request", -1))
            if history is not None:
                history.take(event, self._ids)
                if history.finish is not None and self._keep is not None:
                    self._drop(history.request)

    def _begin(self, event: RequestSubmitted, state: TokenState | None) -> None:
        if self._request is None or event.request == self._request:
            self.requests[event.request] = RequestHistory.of(event, self._ids, state)

    def _begin_all(self, event: Snapshot) -> None:
        fresh = [item.submitted for item in event.unfinished if item.submitted.request not in self.requests]
        if fresh:
            tokens = TokensLedger()
            tokens.restore(event.ledgers["tokens"])
            for submitted in fresh:
                self._begin(submitted, tokens.get(submitted.request))

    def _drop(self, number: int) -> None:
        assert self._keep is not None
        # A round that was in flight when its request ended is told of after the end.
        if number not in self._finished:
            self._finished.append(number)
        while len(self._finished) > self._keep:
            self._dropped.add(self.requests.pop(self._finished.popleft()))

    @property
    def totals(self) -> Totals:
        """Sums over all requests so far."""
        totals = attrs.evolve(self._dropped, finished=dict(self._dropped.finished))
        for history in self.requests.values():
            totals.add(history)
        return totals


@attrs.frozen
class ReplayReport:
    """A folded log: ``records`` read from ``first_sequence`` on, ``checked`` of them with the digests of every
    ledger, ``events`` by kind, ``digests`` of every ledger at the end (zero for a ledger that no unfinished request
    is in), ``chain`` of the log there, histories of the requests asked for, and their ``totals``. What a crash left
    at the end: ``torn_tail``, or in ``unfinished_rotation`` the name of a segment that nothing was written to."""

    path: str
    records: int
    checked: int
    chain: str
    events: dict[str, int]
    digests: dict[str, str]
    requests: dict[int, RequestHistory]
    torn_tail: TornTail | None
    fingerprint: dict[str, str]
    configuration: dict[str, Any]
    first_sequence: int = 0
    unfinished_rotation: str | None = None
    totals: Totals = attrs.Factory(Totals)


def replay(
    log: str | os.PathLike[str],
    *,
    until: int | None = None,
    request: int | None = None,
    ids: bool = True,
    keep: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ReplayReport:
    """Fold a log and check every digest that it recorded, up to and with record ``until``.

    All of it is folded; ``request`` collects the history of that one alone. Without ``ids`` and with ``keep``
    finished requests at most, memory does not grow with the log. ``progress(bytes done, bytes in all)`` is called
    now and then. Raises ``JournalError`` for a file that is damaged or no log, ``Divergence`` at the first record
    that contradicts the ledgers, ``LedgerCorrupt`` where the ledgers contradict themselves at the end, ``NotInLog``
    where the log begins after ``until`` or has no ``request``, ``InvalidArgument`` for numbers below zero.
    """
    path = Path(log)
    not_negative(until=until, request=request, keep=keep)
    with iterate(path) as reader:
        folder = Folder(reader.header, path)
        if until is not None and until < folder.first:
            raise NotInLog(f"'{path}' begins with record {folder.first}, not before; ask for a later one")
        histories = Histories(request, ids, keep if request is None else None)
        kinds: dict[type, int] = {}
        _fold_all(reader, folder, until, histories, kinds, progress)
        folder.ledgers.check()
        if progress is not None:
            progress(reader.size, reader.size)
        if request is not None and request not in histories.requests:
            raise NotInLog(
                f"'{path}' has no request {request} in records {folder.first} to {reader.sequence - 1}"
            )
        names = {kind: "unknown" if kind is type(None) else kind.__name__ for kind in kinds}
        return ReplayReport(
            path=str(path),
            records=reader.sequence - folder.first,
            checked=sum(count for kind, count in kinds.items() if kind in _CHECKED),
            chain=reader.chain.hex(),
            events={names[kind]: count for kind, count in kinds.items()},
            digests=dict(zip(LEDGERS, (f"{d:016x}" for d in folder.ledgers.digests), strict=True)),
            requests=histories.requests,
            torn_tail=reader.tail,
            fingerprint=dict(reader.header.fingerprint),
            configuration=dict(reader.header.configuration),
            first_sequence=folder.first,
            unfinished_rotation=None if reader.unfinished is None else reader.unfinished.segment,
            totals=histories.totals,
        )


def _fold_all(
    reader: JournalReader,
    folder: Folder,
    until: int | None,
    histories: Histories,
    kinds: dict[type, int],
    progress: Callable[[int, int], None] | None,
) -> None:
    for record in reader:
        event = folder.take(record)
        kind = type(event)
        kinds[kind] = kinds.get(kind, 0) + 1
        if event is not None:
            histories.take(event)
        if progress is not None and not record.sequence & 1023:
            progress(reader.position, reader.size)
        if record.sequence == until:
            break


def not_negative(**numbers: int | None) -> None:
    """Raises ``InvalidArgument`` naming the first number below zero."""
    for name, number in numbers.items():
        if number is not None and number < 0:
            raise InvalidArgument(f"{name} must be at least 0, found {number}")
