"""Opening a runtime: which executor, which tokenizer, which drafter, which log."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import attrs

from txdecode.runtime.configuration import Options, fingerprint, to_data
from txdecode.runtime.drafters.composed import LEARNED_DEPTH
from txdecode.runtime.drafters.spelling import is_spelled, learned_part, parse_draft
from txdecode.runtime.errors import InvalidRequest
from txdecode.runtime.journal import SEGMENT_BYTES, FileStorage, Journal, JournalExists, OpenStorage
from txdecode.runtime.journal.segments import list_segments, place_of
from txdecode.runtime.policy.controllers import parse
from txdecode.runtime.text import Text
from txdecode.state.groups import of_kind
from txdecode.transactions.binding import check_binding
from txdecode.transactions.executor import ROLLBACKS, Drafter, Executor, Rollback
from txdecode.transactions.transaction import Observer

if TYPE_CHECKING:
    from txdecode.runtime.runtime import Runtime

SEGMENT_BYTES_MIN = 1 << 12

Durability = Literal["none", "write", "fsync"]


@attrs.frozen
class Opened:
    """What a runtime runs on. ``drafts`` says that the executor's own drafters are to be used: where there is a
    ``drafter`` too, in the rounds that it leaves to them."""

    executor: Executor
    name: str
    text: Text | None = None
    eos_ids: frozenset[int] = frozenset()
    drafter: Drafter | None = None
    drafts: bool = False
    fingerprint: dict[str, str] = attrs.Factory(dict)


def open_runtime(
    model: str | os.PathLike[str] | Executor = "bundled",
    *,
    log: str | os.PathLike[str] | None = None,
    dtype: str = "bf16",
    draft: str | Drafter = "lookup",
    draft_len: int | str = "goodput",
    pages: int | None = None,
    batch_max: int = 8,
    context: int | None = None,
    threads: int | None = None,
    durability: Durability = "write",
    overwrite: bool = False,
    text: Text | None = None,
    eos_ids: Sequence[int] = (),
    observer: Observer | None = None,
    paranoid: bool = False,
    audit_every: int = 0,
    segment_bytes: int = SEGMENT_BYTES,
    keep_segments: int | None = None,
    rollback: str | None = None,
    draft_depth: int | None = None,
    draft_model: str | os.PathLike[str] | Executor | None = None,
    spec_fallback: float = 1.0,
    storage: OpenStorage = FileStorage,
) -> Runtime:
    """Open a runtime.

    ``model``: ``"bundled"``, ``"smollm2"``, a folder in Hugging Face layout, a ``.gguf`` file, or an ``Executor`` of
    your own (then ``text`` and ``eos_ids`` are yours to give, and ``dtype``, ``pages``, ``batch_max``, ``context``
    and ``threads`` are not used). ``log``: path of the event log; an existing file is refused unless ``overwrite``.
    ``durability``: what publishing waits for (``none``, ``write``, ``fsync``). ``dtype``: ``bf16`` or ``fp32``.
    ``draft``: ``none``; ``lookup`` (copies what followed the last 3, 2 or 1 tokens earlier; ``lookup:MIN`` where
    MIN agree), ``suffix`` (the same with matches of any length; ``suffix:MIN``), ``shared`` (what followed them in
    other requests), ``lookup+shared`` and ``suffix+shared`` (the longer match); ``mtp`` (the executor's own
    drafter; ``executor`` is the same), ``model`` (``draft_model``), one of these two with copies, ``mtp+lookup``
    say (a copy with a long match replaces what the model drafts, another may follow it); or a ``Drafter``.
    ``draft_model``: a model beside ``model`` with the same vocabulary, ``first:N`` for its own first N layers, or,
    where ``model`` is an ``Executor``, another one. ``draft_depth``: most drafts a round of the model's own
    drafter, for an executor that is driven verb by verb (3 with copies, else all). ``draft_len``: 0 to 15,
    ``goodput`` (as many as are expected to pay), ``additive``, or one of these with
    ``:CAP``. ``spec_fallback``: how many times as fast as plain a round of ``goodput`` must be expected to be, else
    it is plain. ``pages``: KV pages in the pool. ``batch_max``: most requests that decode
    together. ``context``: most tokens of a request. ``observer`` is told of every phase
    transition; ``paranoid`` compares device audits after every rollback. ``audit_every``: after so many rounds of a
    request its device state is recorded, as digests by layer and page, column or ring; with ``paranoid`` by row
    too, and it is computed again from the tokens and compared where the pools have room for it (0: never).
    ``segment_bytes``: past that size the log goes on in a new file beside it, which begins with a snapshot;
    ``keep_segments``: how many of them stay (all). ``rollback``: the form of a hybrid model's recurrent state,
    ``columns``, ``replay`` or ``restore``: equal to the bit in committed state, different in memory and time.
    ``storage`` is the port to the log's disk, for tests.

    Raises ``ModelError``, ``JournalError``, ``InvalidDraftLength``, ``InvalidRequest``, ``CapabilityMissing``.
    """
    from txdecode.runtime.runtime import Runtime

    check_ratio("spec_fallback", spec_fallback)
    parse(draft_len, spec_fallback)
    check_count("audit_every", audit_every, 0)
    check_count("segment_bytes", segment_bytes, SEGMENT_BYTES_MIN)
    if keep_segments is not None:
        check_count("keep_segments", keep_segments, 1)
    if draft_depth is not None:
        check_count("draft_depth", draft_depth, 1)
        if not learned_part(draft):
            raise InvalidRequest(
                f"draft_depth limits the model's own drafter, which draft={draft!r} does not use; leave it out, "
                f"or draft with 'mtp'"
            )
    check_draft_model(model, draft, draft_model)
    if durability not in get_args(Durability):
        raise InvalidRequest(
            f"durability must be one of {', '.join(get_args(Durability))}, found {durability!r}"
        )
    if log is not None and not overwrite:
        # Refused before minutes go into a large model; creation refuses it again, under its lock.
        for segment in list_segments(place_of(log)):
            if segment.size:
                raise JournalExists(segment.path, segment.size)
    opened = open_model(
        model,
        dtype,
        draft,
        pages,
        batch_max,
        context,
        threads,
        text,
        frozenset(eos_ids),
        rollback,
        draft_model=draft_model,
    )
    description = opened.executor.describe()
    if draft_depth is not None and description.capabilities.fused:
        raise InvalidRequest(
            f"executor '{description.name}' is fused and drafts as deep as its rounds are wide; leave draft_depth "
            f"out, or lower draft_len"
        )
    composed = isinstance(draft, str) and parse_draft(draft).composed
    if composed and draft_depth is None and not description.capabilities.fused:
        draft_depth = LEARNED_DEPTH
    pooled = of_kind(description.groups, "pages")
    options = Options(
        opened.name,
        dtype,
        draft if isinstance(draft, str) else draft.name,
        draft_len,
        pooled[0].capacity if pooled else pages,
        batch_max,
        context,
        threads,
        tuple(eos_ids),
        segment_bytes,
        keep_segments,
        rollback,
        draft_depth,
        _name_of(draft_model),
        float(spec_fallback),
    )
    journal = None
    if log is not None:
        journal = Journal.create(
            Path(log),
            fingerprint=fingerprint(description, opened.fingerprint),
            configuration=to_data(description, options),
            durability=durability,
            overwrite=overwrite,
            segment_bytes=segment_bytes,
            keep_segments=keep_segments,
            open_storage=storage,
        )
    try:
        runtime = Runtime(
            opened, journal, options, observer=observer, paranoid=paranoid, audit_every=audit_every
        )
        if journal is not None:
            journal.snapshot = runtime.snapshot
        return runtime
    except Exception:
        if journal is not None:
            journal.close()
        raise


def check_count(name: str, value: object, least: int) -> None:
    """Raises ``InvalidRequest`` unless ``value`` is an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidRequest(f"{name} must be an integer of at least {least}, found {value!r}")


def check_ratio(name: str, value: object) -> None:
    """Raises ``InvalidRequest`` unless ``value`` is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise InvalidRequest(f"{name} must be a finite number above 0, found {value!r:.80}")


def open_model(
    model: str | os.PathLike[str] | Executor,
    dtype: str = "bf16",
    draft: str | Drafter = "lookup",
    pages: int | None = None,
    batch_max: int = 8,
    context: int | None = None,
    threads: int | None = None,
    text: Text | None = None,
    eos_ids: frozenset[int] = frozenset(),
    rollback: str | None = None,
    learned: bool | None = None,
    draft_model: str | os.PathLike[str] | Executor | None = None,
) -> Opened:
    """The executor with tokenizer and drafter; arguments as for ``open_runtime``.

    ``learned``: whether a model's executor keeps the state of the model's own drafter; by default where ``draft``
    uses it, since every commit pays for that state. The state of a ``draft_model`` is kept wherever one is given.
    """
    spelled = parse_draft(draft) if isinstance(draft, str) else None
    if rollback is not None and rollback not in ROLLBACKS:
        raise InvalidRequest(f"rollback must be one of {', '.join(ROLLBACKS)}, found {rollback!r}")
    if not isinstance(model, str | os.PathLike):
        opened = Opened(_with_drafter(model, draft_model), model.describe().name, text, eos_ids)
    else:
        if learned is None:
            learned = learned_part(draft) == "executor"
        opened = _open_dense(
            os.fspath(model),
            dtype,
            pages,
            batch_max,
            context,
            threads,
            rollback,
            learned,
            _name_of(draft_model),
        )
    description = opened.executor.describe()
    if rollback is not None and not of_kind(description.groups, "column"):
        raise InvalidRequest(
            f"rollback '{rollback}' is a form of recurrent state, and '{opened.name}' has none; leave it out"
        )
    check_binding(description, rollback)
    if spelled is None:
        name = getattr(draft, "name", None)
        if not isinstance(name, str) or not name.isprintable():
            raise InvalidRequest(f"draft must be a name or a Drafter with a printable name, found {draft!r}")
        if is_spelled(name):
            raise InvalidRequest(f"a Drafter must not be named '{name}', which means something else in a log")
        assert not isinstance(draft, str)
        return attrs.evolve(opened, drafter=draft)
    if spelled.learned and not description.capabilities.drafts:
        raise InvalidRequest(
            f"draft '{draft}' needs an executor that drafts, and '{description.name}' has no drafter of its own; "
            f"use 'lookup'"
        )
    return attrs.evolve(opened, drafts=bool(spelled.learned), drafter=spelled.host())


def check_draft_model(
    model: str | os.PathLike[str] | Executor,
    draft: str | Drafter,
    draft_model: str | os.PathLike[str] | Executor | None,
) -> None:
    """A second model is given where one is to draft, and only there, and of the kind of the first. Raises
    ``InvalidRequest``."""
    named = isinstance(model, str | os.PathLike)
    drafting = learned_part(draft) == "model"
    if draft_model is None:
        if drafting and named:
            raise InvalidRequest(
                f"draft={draft!r} needs the model that drafts; give draft_model= a folder, a .gguf file, a name, or "
                f"'first:10' for the first 10 layers of the model itself"
            )
        return
    if not drafting:
        raise InvalidRequest(
            f"draft_model is the model that drafts, which draft={draft!r} does not use; leave it out, or draft with "
            f"'model'"
        )
    if isinstance(draft_model, str | os.PathLike) != named:
        kinds = ("a name or path", "an Executor")
        raise InvalidRequest(
            f"draft_model must be {kinds[0 if named else 1]} where model is, found {draft_model!r:.80}"
        )


def _name_of(draft_model: str | os.PathLike[str] | Executor | None) -> str | None:
    if draft_model is None or isinstance(draft_model, str | os.PathLike):
        return None if draft_model is None else os.fspath(draft_model)
    return draft_model.describe().name


def _with_drafter(model: Executor, draft_model: str | os.PathLike[str] | Executor | None) -> Executor:
    """A caller's executor with the one that drafts for it; where a log has a name alone, the caller's has both."""
    if draft_model is None or isinstance(draft_model, str | os.PathLike):
        return model
    from txdecode.kernels.paired_executor import PairedExecutor

    return PairedExecutor(model, draft_model)


def _open_dense(
    name: str,
    dtype: str,
    pages: int | None,
    batch_max: int,
    context: int | None,
    threads: int | None,
    rollback: Rollback | None,
    learned: bool,
    draft_model: str | None,
) -> Opened:
    # Only here does the runtime touch torch: replay and inspection must not load it.
    from txdecode.runtime.dense import open_dense

    return open_dense(name, dtype, pages, batch_max, context, threads, rollback, learned, draft_model)


def drafter_named(name: str, supplied: Any) -> str | Drafter:
    """The drafter that a log names, or the one that the caller supplies for recovery."""
    if supplied is not None:
        drafter: str | Drafter = supplied
        return drafter
    return name if is_spelled(name) else "none"
