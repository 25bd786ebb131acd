"""A log as trace events (Chrome's trace event format, which Perfetto reads), one track a request.

A round spans its phases and ends when it was committed; within it lie ``draft``, ``verify`` and ``accept``. A log has
no times but those of rounds and prefills, so everything else stands at the time of the last commit before it, and
so does the beginning of a prefill. ``ts`` and ``dur`` are microseconds since the journal was opened; a recovery goes
on from the last commit before it. On each track ``ts`` never falls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from txdecode.runtime.journal import Header
from txdecode.transactions.clip import CLIP_REASONS
from txdecode.transactions.events import (
    Event,
    PrefillCommitted,
    RequestFinished,
    RequestPreempted,
    RequestSubmitted,
    RoundCommitted,
    RoundRolledBack,
    RuntimeNote,
    Snapshot,
)
from txdecode.transactions.phase import Phase, Signal

PROCESS = 1
COUNTERS = 0
"""Track of counters and notes; request r has track r + 1."""

Item = dict[str, Any]


class Trace:
    """Turns events into trace events, in order."""

    def __init__(self, header: Header) -> None:
        groups = header.configuration.get("groups", ())
        self._groups = [str(group[0]) for group in groups if group[1] == "pages"]  # type: ignore[attr-defined]
        self._name = str(header.fingerprint.get("executor", "txdecode"))
        self._now = 0
        self._base = 0
        self._since = 0
        self._ends: dict[int, int] = {}
        self._pages = [0] * len(self._groups)
        self._begun = False

    def take(self, sequence: int, event: Event) -> Iterator[Item]:
        """The trace events of one event."""
        if not self._begun:
            self._begun = True
            yield self._item("M", "process_name", COUNTERS, {"name": self._name})
            yield self._item("M", "thread_name", COUNTERS, {"name": "runtime"})
        request = getattr(event, "request", None)
        if request is not None and request + 1 not in self._ends:
            yield from self._track(request)
        if type(event) is RoundCommitted:
            yield from self._round(sequence, event)
        elif type(event) is PrefillCommitted:
            yield from self._prefill(sequence, event)
        elif type(event) is RequestSubmitted:
            yield self._mark(request, "submit", {"sequence": sequence, "prompt": len(event.prompt)})
        elif type(event) is RoundRolledBack:
            said = {"phase": _name(Phase, event.phase), "signal": _name(Signal, event.signal)}
            yield self._mark(request, "rollback", {"sequence": sequence, **said, "detail": event.detail})
        elif type(event) is RequestPreempted:
            yield self._mark(request, "preempt", {"sequence": sequence, "reason": event.reason})
        elif type(event) is RequestFinished:
            yield self._mark(request, "finish", {"sequence": sequence, "reason": event.reason})
            del self._ends[event.request + 1]
        elif type(event) is RuntimeNote:
            yield self._mark(None, event.kind, {"sequence": sequence})
            if event.kind == "recovered":
                self._base, self._since = self._now, 0
        yield from self._page_counts(event)

    def _item(self, phase: str, name: str, track: int, args: dict[str, Any], **more: Any) -> Item:
        return {
            "ph": phase,
            "name": name,
            "pid": PROCESS,
            "tid": track,
            "ts": self._now,
            **more,
            "args": args,
        }

    def _track(self, request: int) -> Iterator[Item]:
        self._ends[request + 1] = self._now
        yield self._item("M", "thread_name", request + 1, {"name": f"request {request}"})
        yield self._item("M", "thread_sort_index", request + 1, {"sort_index": request + 1})

    def _mark(self, request: int | None, name: str, args: dict[str, Any]) -> Item:
        return self._item("i", name, COUNTERS if request is None else request + 1, args, s="t")

    def _commit(self, since: int) -> int:
        """The time of a commit. Where the clock of the log goes back another process has opened it."""
        if since < self._since:
            self._base = self._now
        self._since = since
        self._now = max(self._now, self._base + since)
        return self._now

    def _round(self, sequence: int, event: RoundCommitted) -> Iterator[Item]:
        since, *phases = (*event.times, 0, 0, 0, 0)[:4]
        track, emitted = event.request + 1, len(event.emitted)
        end = self._commit(since)
        start = max(end - sum(phases), self._ends[track])
        args = {
            "sequence": sequence,
            "ordinal": event.ordinal,
            "launch": event.launch,
            "source": event.source,
            "drafted": len(event.drafts),
            "copied": event.copied,
            "accepted": event.accepted,
            "emitted": emitted,
        }
        yield self._item("X", "round", track, args, ts=start, dur=end - start)
        at = start
        for name, spent in zip(("draft", "verify", "accept"), phases, strict=True):
            # A round that was shortened because the one before it ended late shortens its last phases.
            within = min(spent, end - at)
            if within > 0:
                yield self._item("X", name, track, {}, ts=at, dur=within)
                at += within
        self._ends[track] = end
        yield self._item("C", "accepted", COUNTERS, {"accepted": event.accepted})
        yield self._item("C", "emitted", COUNTERS, {"emitted": emitted})
        if event.clip:
            reason = CLIP_REASONS[event.clip] if event.clip < len(CLIP_REASONS) else str(event.clip)
            yield self._mark(event.request, "finish", {"sequence": sequence, "reason": reason})
            del self._ends[track]

    def _prefill(self, sequence: int, event: PrefillCommitted) -> Iterator[Item]:
        track = event.request + 1
        start = self._ends[track]
        spent = event.times[0] if event.times else 0
        args = {"sequence": sequence, "start": event.start, "count": event.count}
        yield self._item("X", "prefill", track, args, ts=start, dur=spent)
        self._ends[track] = start + spent
        self._now = max(self._now, start + spent)

    def _page_counts(self, event: Event) -> Iterator[Item]:
        before = list(self._pages)
        if type(event) is Snapshot:
            tables = [table for table, _ in event.ledgers["pages"].values()]
            self._pages = [sum(len(table[g]) for table in tables) for g in range(len(self._groups))]
        for g in range(len(self._groups)):
            for field, sign in (("adopted", 1), ("released", -1)):
                groups = getattr(event, field, ())
                self._pages[g] += sign * len(groups[g]) if g < len(groups) else 0
        if self._pages != before:
            yield self._item("C", "pages", COUNTERS, dict(zip(self._groups, self._pages, strict=True)))


def _name(kind: type[Phase] | type[Signal], number: int) -> str:
    return kind(number).name.lower() if number in {*kind} else str(number)
