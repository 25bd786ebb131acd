"""Audits of device state: what the device says it holds, in the log, and against the tokens."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from txdecode.state.groups import StateGroup
from txdecode.transactions.codec import printable
from txdecode.transactions.events import RuntimeNote, StateAudited
from txdecode.transactions.executor import AuditEntry, Executor
from txdecode.transactions.rebuild import GHOST, compare, give_back, rebuild, spare_places
from txdecode.transactions.store import Store
from txdecode.transactions.transaction import view

Entries = tuple[tuple[str, int, int, int, int], ...]
Audited = tuple[AuditEntry, ...]

DRAFT_MODEL = "draft."
"""How the names of the state groups of a second model that drafts begin, in descriptions and in audits."""


def entries(audited: Audited) -> Entries:
    """As they are recorded."""
    return tuple((entry.group, entry.layer, entry.index, entry.row, entry.digest) for entry in audited)


def entries_from(recorded: Entries) -> Audited:
    """Inverse of ``entries``."""
    return tuple(
        AuditEntry(group, layer, index, digest, row) for group, layer, index, row, digest in recorded
    )


def has_draft_model(names: Iterable[str]) -> bool:
    """Whether any of these groups is a second model's."""
    return any(name.startswith(DRAFT_MODEL) for name in names)


def as_recorded(groups: Iterable[StateGroup], drafts: bool, found: Audited) -> Audited:
    """An executor's audit as it is to be compared with a record. ``drafts``: whether the record ``has_draft_model``.

    A record that says nothing at all of the second model was written after it was given up, and is compared without
    what the executor holds of it. One that says anything of it is compared whole, and so is every other executor's.
    """
    if drafts or not has_draft_model(group.name for group in groups if group.owner == "drafter"):
        return found
    return tuple(entry for entry in found if not entry.group.startswith(DRAFT_MODEL))


def audit(executor: Executor, store: Store, request: int, *, recompute: bool) -> None:
    """Record the digests of a request's device state after its last round.

    With ``recompute`` they have one entry a row besides, and are compared with those of a state that is built anew
    from the tokens in spare places, where the executor is row-invariant and has room for it. Raises
    ``LedgerCorrupt`` for the first piece that differs, with the record already in the log. An executor that fails at
    it has a note in the log: the round is committed, and no request must end because somebody looked.
    """
    state = store.ledgers.tokens.sequences[request]
    try:
        where = view(store.ledgers, request)
        found = executor.audit(where, True) if recompute else executor.audit(where)
        recorded = entries(found)
    except AssertionError:
        raise
    except Exception as error:
        _failed(store, request, error)
        return
    store.note(StateAudited(request, state.epoch, state.rounds - 1, state.consumed, recorded))
    if recompute and executor.describe().capabilities.row_invariant:
        expected = _again(executor, store, request)
        if expected is not None:
            compare(request, expected, found)


def _again(executor: Executor, store: Store, request: int) -> Audited | None:
    """The audit that the tokens call for; ``None`` where it can't be had now."""
    state = store.ledgers.tokens.sequences[request]
    places = spare_places(store.pools, store.ledgers.groups, state.consumed)
    if places is None:
        store.note(RuntimeNote("audit not recomputed", {"request": request, "consumed": state.consumed}))
        return None
    try:
        return executor.audit(rebuild(executor, state.ids(0, state.consumed), places), True)
    except AssertionError:
        raise
    except Exception as error:
        _failed(store, request, error)
        return None
    finally:
        with contextlib.suppress(Exception):
            executor.drop(GHOST)
        give_back(store.pools, places)


def _failed(store: Store, request: int, error: Exception) -> None:
    reason = printable(f"{type(error).__name__}: {error}", 200)
    store.note(RuntimeNote("audit failed", {"request": request, "error": reason}))
