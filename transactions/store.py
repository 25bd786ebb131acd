"""The log and the ledgers as one thing: nothing is applied before it is appended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from txdecode.state.digest import pack
from txdecode.state.ledgers import Delta, Ledgers
from txdecode.state.reservations import Pools
from txdecode.transactions.codec import Framed, encode
from txdecode.transactions.events import Event, RequestSubmitted, Snapshot, Unfinished
from txdecode.transactions.fold import change, check_event
from txdecode.transactions.target import TokenLogprobs


class Log(Protocol):
    """Where records go. ``append`` takes a batch in one write and returns its first sequence number; when it
    returns, the batch is as durable as the log promises. It raises where it can't, then refuses for good."""

    def append(self, records: Sequence[Framed]) -> int:
        """Append a batch of records."""


class Store:
    """Committed state with its log. ``unfinished`` are the requests that the log has not ended, as they were
    submitted, with the logprobs of what they generated; ``requests`` is the number of the next one."""

    def __init__(self, ledgers: Ledgers, log: Log) -> None:
        self.ledgers = ledgers
        self.pools = Pools(ledgers)
        self.log = log
        self.unfinished: dict[int, tuple[RequestSubmitted, list[TokenLogprobs]]] = {}
        self.requests = 0
        self._rounds: dict[int, tuple[int, int]] = {}

    def prepare(self, events: Sequence[Event]) -> tuple[list[Delta], list[Framed]]:
        """Deltas and records of a batch over distinct sequences, digests filled in; changes nothing.

        Raises ``LedgerCorrupt`` where replay would refuse the record, so that it is never appended.
        """
        deltas: list[Delta] = []
        records: list[Framed] = []
        base = self.ledgers.digests
        for event in events:
            wanted = change(event)
            assert wanted is not None, f"{type(event).__name__} changes no ledger"
            check_event(self.ledgers, event)
            delta = self.ledgers.delta(wanted, base)
            base = delta.digests
            deltas.append(delta)
            records.append(encode(msgspec.structs.replace(event, digests=pack(base))))
        return deltas, records

    def commit(self, events: Sequence[Event]) -> None:
        """Append and apply a batch that needs nothing from the device in between."""
        deltas, records = self.prepare(events)
        self.log.append(records)
        for delta in deltas:
            self.ledgers.apply(delta)

    def begin(self, event: RequestSubmitted, logprobs: Sequence[TokenLogprobs] = ()) -> None:
        """A request is known from here on."""
        self.unfinished[event.request] = event, list(logprobs)
        self.requests = max(self.requests, event.request + 1)

    def end(self, request: int) -> None:
        """A request is over."""
        self.unfinished.pop(request, None)
        self._rounds.pop(request, None)

    def attempt(self, request: int, epoch: int) -> int:
        """Rounds that the request has begun and ended in this epoch. A drafter's draws must not be met again by a
        later proposal, whose length may depend on what was seen of this one."""
        began, count = self._rounds.get(request, (epoch, 0))
        return count if began == epoch else 0

    def ended(self, request: int, epoch: int) -> None:
        """A round is over, and its record is in the log: so a snapshot counts what the records before it say."""
        state = self.ledgers.tokens.sequences.get(request)
        # A program of an earlier epoch may end late.
        if state is not None and state.epoch == epoch and request in self.unfinished:
            self._rounds[request] = (epoch, self.attempt(request, epoch) + 1)

    def snapshot(self) -> list[Framed]:
        """The record from which all committed state can be built again."""
        ledgers = self.ledgers
        unfinished = tuple(
            Unfinished(event, tuple(logprobs), self.attempt(request, ledgers.tokens.sequences[request].epoch))
            for request, (event, logprobs) in sorted(self.unfinished.items())
        )
        return [encode(Snapshot(ledgers.snapshot(), unfinished, self.requests, pack(ledgers.digests)))]

    def note(self, event: Event) -> None:
        """Append an event that changes no ledger."""
        self.log.append([encode(event)])
