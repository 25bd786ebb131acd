"""The events. Every struct has a number and a version; fields are only ever appended.

Numbers, never reused: 1 RequestSubmitted, 2 RequestAdmitted, 3 PrefillCommitted, 4 RoundCommitted,
5 RoundRolledBack, 6 PrefixPublished (reserved), 7 PrefixEvicted (reserved), 8 RequestPreempted,
9 RequestFinished, 10 Snapshot, 11 RuntimeNote, 12 StateAudited. Normative text: specs/events.md.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from txdecode.transactions.target import TokenLogprobs

Ids = tuple[int, ...]
PerGroup = tuple[Ids, ...]


class Event(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Base of all events. ``digests`` are the packed digests of every ledger after the event."""

    NUMBER: ClassVar[int]
    VERSION: ClassVar[int] = 1
    IGNORABLE: ClassVar[bool] = False


class RequestSubmitted(Event, array_like=True, frozen=True):
    """A request with every parameter that recovery needs. ``parameters`` are plain data by name:
    ``sampling``, ``stop``, ``draft_len``, ``max_tokens``. ``budget`` is already the least of ``max_tokens``
    and what the context leaves. ``law`` numbers the acceptance law, ``seed`` is what it draws from: the caller's,
    or a fresh one. ``time`` is microseconds of the Unix clock."""

    NUMBER = 1
    VERSION = 2
    request: int
    prompt: Ids
    budget: int
    stop_ids: Ids
    roles: int
    parameters: dict[str, Any]
    time: int
    digests: bytes = b""
    law: int = 0
    seed: int = 0


class RequestAdmitted(Event, array_like=True, frozen=True):
    """The request becomes resident with these columns and rings."""

    NUMBER = 2
    request: int
    epoch: int
    columns: Ids
    slots: Ids
    digests: bytes = b""


class PrefillCommitted(Event, array_like=True, frozen=True):
    """``count`` known tokens from ``start`` on were consumed. ``times`` are microseconds: forward."""

    NUMBER = 3
    request: int
    epoch: int
    launch: int
    start: int
    count: int
    adopted: PerGroup
    columns: Ids
    times: Ids
    digests: bytes = b""


class RoundCommitted(Event, array_like=True, frozen=True):
    """One round. ``drafts`` are offered, ``accepted`` of them are right, ``emitted`` is what was committed
    after the clip (t tokens). ``law`` 0 point, 1 sampled. ``clip`` indexes ``CLIP_REASONS``; other than 0
    it ends the request. ``path`` is empty for a chain (rows 0..t-1). ``times`` are microseconds: since the
    journal was opened, draft, verify, accept; replay ignores them. ``logprobs`` has one entry an emitted token
    where the request wants them: token, raw, target, pairs of the likeliest by either. The last ``copied`` drafts
    were appended by the host to those of the executor's drafter: ``source`` names both then, and ``law`` is of the
    drafts before them. ``decision``: what the draft-length controller decided and by what, as numbers; empty where
    none was asked."""

    NUMBER = 4
    VERSION = 4
    request: int
    epoch: int
    ordinal: int
    launch: int
    source: str
    law: int
    drafts: Ids
    width: int
    accepted: int
    clip: int
    emitted: Ids
    path: Ids
    adopted: PerGroup
    released: PerGroup
    columns: Ids
    rng: Ids
    times: Ids
    digests: bytes = b""
    logprobs: tuple[TokenLogprobs, ...] = ()
    copied: int = 0
    decision: Ids = ()


class RoundRolledBack(Event, array_like=True, frozen=True):
    """A round ended without effect. ``phase`` is where it stood, ``signal`` what ended it."""

    NUMBER = 5
    IGNORABLE = True
    request: int
    epoch: int
    ordinal: int
    launch: int
    phase: int
    signal: int
    detail: str


class RequestPreempted(Event, array_like=True, frozen=True):
    """The request gave up its state and will be recomputed. ``epoch`` is the new one. ``reason``: pages,
    asked, fault, dirty, recovered."""

    NUMBER = 8
    request: int
    epoch: int
    reason: str
    released: PerGroup
    digests: bytes = b""


class RequestFinished(Event, array_like=True, frozen=True):
    """The request ended outside a round. ``reason``: cancelled, error."""

    NUMBER = 9
    request: int
    epoch: int
    reason: str
    detail: str
    released: PerGroup
    digests: bytes = b""


class Unfinished(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What is needed of an unfinished request beyond the ledgers: its first event (digests left empty), logprobs of
    what it has generated, and how many rounds it began in its epoch."""

    submitted: RequestSubmitted
    logprobs: tuple[TokenLogprobs, ...] = ()
    attempts: int = 0


class Snapshot(Event, array_like=True, frozen=True):
    """All committed state: ledgers as plain data, and every unfinished request. The first record of a segment that
    can be read without the segments before it. ``requests`` numbers the next request."""

    NUMBER = 10
    ledgers: dict[str, Any]
    unfinished: tuple[Unfinished, ...]
    requests: int
    digests: bytes = b""


class StateAudited(Event, array_like=True, frozen=True):
    """Digests of the device state of a request that has consumed ``consumed`` tokens, after round ``ordinal``:
    ``entries`` are group, layer, index (page ordinal, or 0), row (position, or -1 for the whole), digest."""

    NUMBER = 12
    IGNORABLE = True
    request: int
    epoch: int
    ordinal: int
    consumed: int
    entries: tuple[tuple[str, int, int, int, int], ...]


class RuntimeNote(Event, array_like=True, frozen=True):
    """Something worth knowing that changes no ledger: a recovery, a dropped result, a clean close."""

    NUMBER = 11
    IGNORABLE = True
    kind: str
    data: dict[str, Any]


EVENTS: dict[int, type[Event]] = {
    event.NUMBER: event
    for event in (
        RequestSubmitted,
        RequestAdmitted,
        PrefillCommitted,
        RoundCommitted,
        RoundRolledBack,
        RequestPreempted,
        RequestFinished,
        Snapshot,
        RuntimeNote,
        StateAudited,
    )
}

RESERVED = {6: "PrefixPublished", 7: "PrefixEvicted"}
