"""Events to ledger changes: the one mapping that the live runtime and replay share."""

from __future__ import annotations

from txdecode.state.changes import Admit, Advance, Change, Close, Evict, Submit
from txdecode.state.digest import LEDGERS, PACKED_SIZE, Digests, pack, unpack
from txdecode.state.errors import LedgerCorrupt
from txdecode.state.ledgers import Delta, Ledgers
from txdecode.state.tokens import TokenState
from txdecode.transactions.clip import CLIP_REASONS
from txdecode.transactions.events import (
    Event,
    PrefillCommitted,
    RequestAdmitted,
    RequestFinished,
    RequestPreempted,
    RequestSubmitted,
    RoundCommitted,
    Snapshot,
)


def change(event: Event) -> Change | None:
    """What ``event`` asks of the ledgers; ``None`` where it changes none."""
    if type(event) is RoundCommitted:
        return Advance(
            event.request,
            len(event.emitted),
            event.emitted,
            event.adopted,
            event.columns,
            event.rng,
            True,
            event.clip != 0,
            event.released,
        )
    if type(event) is PrefillCommitted:
        return Advance(event.request, event.count, (), event.adopted, event.columns, (), False)
    if type(event) is RequestSubmitted:
        return Submit(event.request, event.prompt, event.budget, event.roles, event.law, event.seed)
    if type(event) is RequestAdmitted:
        return Admit(event.request, event.columns, event.slots)
    if type(event) is RequestPreempted:
        return Evict(event.request, event.released)
    if type(event) is RequestFinished:
        return Close(event.request, event.released)
    return None


def check_event(ledgers: Ledgers, event: Event) -> None:
    """What an event says beyond its change must agree with the ledgers: epoch, ordinal, start, counts.

    Raises ``LedgerCorrupt``.
    """
    if type(event) is RoundCommitted:
        _check_round(ledgers.tokens.get(event.request), event)
    elif type(event) is PrefillCommitted:
        state = ledgers.tokens.get(event.request)
        _agree(event.request, "epoch", state.epoch, event.epoch)
        _agree(event.request, "start", state.consumed, event.start)
    elif type(event) is RequestPreempted:
        _agree(event.request, "epoch", ledgers.tokens.get(event.request).epoch + 1, event.epoch)
    elif type(event) is RequestAdmitted or type(event) is RequestFinished:
        _agree(event.request, "epoch", ledgers.tokens.get(event.request).epoch, event.epoch)


def _agree(request: int, field: str, expected: int, found: int) -> None:
    if expected != found:
        raise LedgerCorrupt("tokens", f"request {request} {field}", expected, found)


def _check_round(state: TokenState, event: RoundCommitted) -> None:
    where = f"request {event.request}"
    drafts, accepted, emitted = len(event.drafts), event.accepted, len(event.emitted)
    _agree(event.request, "epoch", state.epoch, event.epoch)
    _agree(event.request, "ordinal", state.rounds, event.ordinal)
    _agree(event.request, "width", drafts + 1, event.width)
    if not 0 <= event.clip < len(CLIP_REASONS):
        raise LedgerCorrupt("tokens", f"{where} clip", f"below {len(CLIP_REASONS)}", event.clip)
    if not (0 <= accepted <= drafts and 1 <= emitted <= accepted + 1):
        raise LedgerCorrupt("tokens", f"{where} accepted, emitted", f"at most {drafts}", (accepted, emitted))
    matched = min(emitted, accepted)
    if event.emitted[:matched] != event.drafts[:matched]:
        raise LedgerCorrupt("tokens", f"{where} emitted", event.drafts[:matched], event.emitted[:matched])
    if event.logprobs and tuple(entry.token for entry in event.logprobs) != event.emitted:
        found = tuple(entry.token for entry in event.logprobs)
        raise LedgerCorrupt("tokens", f"{where} logprobs", event.emitted, found)
    if event.clip == 0 and emitted != accepted + 1:
        raise LedgerCorrupt("tokens", f"{where} emitted without a clip", accepted + 1, emitted)


def fold(ledgers: Ledgers, event: Event) -> Delta | None:
    """Apply ``event`` to ``ledgers``, checking what it says and the digests that it recorded.

    Raises ``LedgerCorrupt`` naming the ledger and the field; the ledgers are then as before the event.
    """
    if type(event) is Snapshot:
        _fold_snapshot(ledgers, event)
        return None
    wanted = change(event)
    if wanted is None:
        return None
    check_event(ledgers, event)
    delta = ledgers.delta(wanted)
    _check_digests(event.digests, delta.digests)  # type: ignore[attr-defined]
    ledgers.apply(delta)
    return delta


def _check_digests(recorded: bytes, folded: Digests) -> None:
    if recorded == pack(folded):
        return
    if len(recorded) != PACKED_SIZE:
        raise LedgerCorrupt("tokens", "digests", f"{PACKED_SIZE} bytes", f"{len(recorded)} bytes")
    for name, expected, found in zip(LEDGERS, unpack(recorded), folded, strict=True):
        if expected != found:
            raise LedgerCorrupt(name, "digest", f"{expected:016x} (recorded)", f"{found:016x} (folded)")


def _fold_snapshot(ledgers: Ledgers, event: Snapshot) -> None:
    """A snapshot begins ledgers that are empty; of others it must say what they are."""
    if ledgers.tokens.sequences:
        _check_digests(event.digests, ledgers.digests)
        return
    fresh = Ledgers(ledgers.groups)
    try:
        fresh.restore(event.ledgers)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LedgerCorrupt("tokens", "snapshot", "the content of five ledgers", str(error)) from error
    _check_digests(event.digests, fresh.digests)
    ledgers.restore(event.ledgers)
