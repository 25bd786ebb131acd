"""A second set of ledgers that believes nothing but the log, and what the log says of every request."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs

from txdecode.runtime.journal import Record, iterate
from txdecode.runtime.journal.format import (
    FRAMING,
    HEAD_SIZE,
    MAGIC,
    PREFIX_SIZE,
    head_length,
    header_size,
    unframe,
)
from txdecode.runtime.replay import Folder
from txdecode.runtime.testing.faults import Tell
from txdecode.runtime.testing.promises import PromiseBroken, keep
from txdecode.state.digest import LEDGERS
from txdecode.state.ledgers import Ledgers
from txdecode.transactions.clip import CLIP_REASONS
from txdecode.transactions.events import (
    Event,
    RequestFinished,
    RequestPreempted,
    RequestSubmitted,
    RoundCommitted,
    RuntimeNote,
    Snapshot,
)


@attrs.define
class Line:
    """What the log says of one request. ``rounds`` are the lengths of ``ids`` after each round. ``finish`` is
    empty while it is unfinished."""

    submitted: RequestSubmitted
    ids: list[int] = attrs.Factory(list)
    rounds: list[int] = attrs.Factory(list)
    finish: str = ""


class Shadow:
    """Ledgers folded from the log at ``path``, record by record as the bytes are written."""

    def __init__(self, path: Path, tell: Tell) -> None:
        self.lines: dict[int, Line] = {}
        # What was told when it was written is not told again.
        self._tell: Tell = lambda what: None
        self._path = path
        self._buffer = b""
        reader = iterate(path)
        self._folder = Folder(reader.header, path)
        for record in reader:
            self._take(record)
        self._sequence = reader.sequence
        self._tell = tell

    @property
    def ledgers(self) -> Ledgers:
        """The folded ledgers."""
        return self._folder.ledgers

    @property
    def unfinished(self) -> set[int]:
        """Numbers of the requests that the log has not ended."""
        return set(self.ledgers.tokens.sequences)

    def feed(self, data: bytes) -> None:
        """Bytes that were appended to the file. Raises ``Divergence`` and ``PromiseBroken``."""
        buffer = self._buffer + data
        index = 0
        while len(buffer) - index >= HEAD_SIZE:
            if buffer.startswith(MAGIC, index):
                # The log goes on in a new segment, whose header comes with its first records.
                size = header_size(buffer[index : index + PREFIX_SIZE], self._path)
                if len(buffer) - index < size:
                    break
                index += size
                continue
            length = head_length(buffer, index)
            keep(length is not None, "the log is a sequence of records", f"{buffer[index : index + 20]!r}")
            assert length is not None
            if len(buffer) - index < length + FRAMING:
                break
            record = unframe(buffer, index, length, 0)
            if record is None or record.sequence != self._sequence:
                raise PromiseBroken("the log is a sequence of records", f"record {self._sequence}")
            self._sequence += 1
            self._take(record)
            index += length + FRAMING
        self._buffer = buffer[index:]

    def _take(self, record: Record) -> None:
        residents = sorted(r for r, s in self.ledgers.tokens.sequences.items() if s.resident)
        event = self._folder.take(record)
        if event is not None:
            self._follow(event, residents)

    def _follow(self, event: Event, residents: Sequence[int]) -> None:
        if isinstance(event, RoundCommitted):
            line = self.lines[event.request]
            line.ids.extend(event.emitted)
            line.rounds.append(len(line.ids))
            drawn = len(event.drafts) - event.copied
            if event.copied:
                self._tell("drafts extended, and accepted" if event.accepted > drawn else "drafts extended")
            if event.clip:
                line.finish = CLIP_REASONS[event.clip]
        elif isinstance(event, RequestSubmitted):
            keep(event.request not in self.lines, "a number is used once", f"request {event.request}")
            self.lines[event.request] = Line(event)
        elif isinstance(event, RequestFinished):
            self.lines[event.request].finish = event.reason
        elif isinstance(event, RequestPreempted):
            self._tell(f"preempted {event.reason}")
            if event.reason == "pages":
                detail = f"request {event.request} went, resident were {residents}"
                keep(
                    len(residents) > 1 and event.request == residents[-1],
                    "only the youngest makes room",
                    detail,
                )
        elif isinstance(event, Snapshot):
            self._tell("rotated")
        elif isinstance(event, RuntimeNote):
            self._tell(f"note {event.kind}")

    def compare(self, live: Ledgers, promise: str) -> None:
        """The live ledgers must be these; raises ``PromiseBroken`` naming ledger, field and key."""
        if live.digests == self.ledgers.digests:
            return
        here = {(c.ledger, c.field, c.key): c.value for c in live.cells()}
        there = {(c.ledger, c.field, c.key): c.value for c in self.ledgers.cells()}
        for place in sorted(
            here.keys() | there.keys(), key=lambda place: (LEDGERS.index(place[0]), *place[1:])
        ):
            if here.get(place) != there.get(place):
                ledger, field, key = place
                detail = f"ledger '{ledger}', {field} {key}: log {there.get(place)}, live {here.get(place)}"
                raise PromiseBroken(promise, detail)
        names = [n for n, a, b in zip(LEDGERS, live.digests, self.ledgers.digests, strict=True) if a != b]
        raise PromiseBroken(promise, f"digests of {names} differ, their cells do not")
