"""Replay: the log folded into ledgers. No kernels, no torch; exact on any machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from txdecode.runtime.configuration import Options, groups_from
from txdecode.runtime.errors import EventUndecodable
from txdecode.runtime.journal import Header, JournalCorrupt, Record, TornTail, iterate
from txdecode.state.digest import LEDGERS
from txdecode.state.errors import LedgerCorrupt, TxDecodeError
from txdecode.state.ledgers import Ledgers
from txdecode.state.rng import LAWS
from txdecode.transactions.codec import decode
from txdecode.transactions.events import (
    Event,
    RequestFinished,
    RequestPreempted,
    RequestSubmitted,
    RoundCommitted,
    RoundRolledBack,
)
from txdecode.transactions.fold import change, fold


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
        where = f"request {self.request}" + ("" if self.ordinal is None else f", round {self.ordinal}")
        super().__init__(
            f"record {self.sequence} ({self.event}, {where}) diverges: ledger '{cause.ledger}', {cause.field}: "
            f"expected {cause.expected!r}, found {cause.found!r}; "
            f"see it again with: txdecode replay {path} --until {self.sequence}"
        )


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
    """Ledgers that follow a log, record by record."""

    def __init__(self, header: Header, path: Path) -> None:
        self.path = path
        try:
            self.ledgers = Ledgers(groups_from(header.configuration))
        except (KeyError, TypeError, AssertionError) as error:
            reason = f"its configuration has no usable 'groups' ({error})"
            raise JournalCorrupt(path, 0, None, reason) from error

    def take(self, record: Record) -> Event | None:
        """Decode a record and apply it; ``None`` for an unknown one that may be ignored.

        Raises ``EventUndecodable`` and ``Divergence``.
        """
        try:
            event = decode(record.type, record.version, record.flags, record.payload)
        except EventUndecodable as error:
            raise EventUndecodable(f"'{self.path}', record {record.sequence}: {error}") from error
        if event is not None:
            try:
                fold(self.ledgers, event)
            except LedgerCorrupt as error:
                raise Divergence(self.path, record, event, error) from error
        return event


@attrs.define
class RequestHistory:
    """What a log says of one request: ``law`` and ``seed`` of its draws, its text so far, its counts. ``finish`` is
    ``None`` while it is unfinished."""

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

    def take(self, event: Event) -> None:
        """Count an event of this request."""
        if isinstance(event, RoundCommitted):
            self.ids.extend(event.emitted)
            self.rounds += 1
            self.plain_steps += not event.drafts
            self.drafted += len(event.drafts)
            self.accepted += event.accepted
            if event.clip:
                self.finish = ("", "stop", "length")[event.clip]
        elif isinstance(event, RoundRolledBack):
            self.rollbacks += 1
        elif isinstance(event, RequestPreempted):
            self.preemptions += 1
        elif isinstance(event, RequestFinished):
            self.finish = event.reason


@attrs.frozen
class ReplayReport:
    """A folded log: ``records`` read, ``checked`` of them with the digests of every ledger, ``events`` by kind,
    ``digests`` of every ledger at the end (zero for a ledger that no unfinished request is in), ``chain`` of the
    log there, histories of all requests, and the torn tail where there was one."""

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


def replay(
    log: str | os.PathLike[str],
    *,
    until: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ReplayReport:
    """Fold a log and check every digest that it recorded, up to and with record ``until``.

    ``progress(bytes done, bytes in all)`` is called now and then. Raises ``JournalError`` for a file that is
    damaged or no log, ``Divergence`` at the first record that contradicts the ledgers, ``LedgerCorrupt`` where the
    ledgers contradict themselves at the end.
    """
    path = Path(log)
    reader = iterate(path)
    size = path.stat().st_size
    folder = Folder(reader.header, path)
    kinds: dict[str, int] = {}
    requests: dict[int, RequestHistory] = {}
    records = checked = 0
    chain = reader.chain
    for record in reader:
        if until is not None and record.sequence > until:
            reader.close()
            break
        event = folder.take(record)
        records += 1
        checked += event is not None and change(event) is not None
        chain = record.chain
        name = "unknown" if event is None else type(event).__name__
        kinds[name] = kinds.get(name, 0) + 1
        if isinstance(event, RequestSubmitted):
            requests[event.request] = RequestHistory(
                event.request, len(event.prompt), LAWS[event.law], event.seed
            )
        elif event is not None and (number := getattr(event, "request", None)) in requests:
            requests[number].take(event)
        if progress is not None and not records & 1023:
            progress(reader.offset, size)
    folder.ledgers.check()
    if progress is not None:
        progress(size, size)
    digests = dict(zip(LEDGERS, (f"{digest:016x}" for digest in folder.ledgers.digests), strict=True))
    return ReplayReport(
        str(path),
        records,
        checked,
        chain.hex(),
        kinds,
        digests,
        requests,
        reader.tail,
        dict(reader.header.fingerprint),
        dict(reader.header.configuration),
    )
