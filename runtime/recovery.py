"""Going on with a log: fold it, give back what its requests held, compute that again, continue."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from txdecode.runtime.configuration import Options, differing, fingerprint
from txdecode.runtime.drafters.spelling import learned_part
from txdecode.runtime.errors import EventUndecodable, InvalidRequest, RecoveryRefused
from txdecode.runtime.journal import FileStorage, Header, Journal, OpenStorage, Record, read_header
from txdecode.runtime.opening import Durability, Opened, drafter_named, open_model
from txdecode.runtime.replay import Folder, options_of
from txdecode.runtime.request import Parameters
from txdecode.runtime.runtime import Runtime
from txdecode.transactions.events import (
    Event,
    RequestFinished,
    RequestSubmitted,
    RoundCommitted,
    RuntimeNote,
    Snapshot,
)
from txdecode.transactions.executor import Drafter, Executor
from txdecode.transactions.target import TokenLogprobs
from txdecode.transactions.transaction import Observer


def recover_runtime(
    log: str | os.PathLike[str],
    model: str | os.PathLike[str] | Executor | None = None,
    *,
    draft: str | Drafter | None = None,
    draft_model: str | os.PathLike[str] | Executor | None = None,
    text: Any = None,
    eos_ids: Sequence[int] | None = None,
    threads: int | None = None,
    durability: Durability = "write",
    observer: Observer | None = None,
    paranoid: bool = False,
    audit_every: int = 0,
    storage: OpenStorage = FileStorage,
) -> Runtime:
    """Open the runtime that wrote ``log`` again and take up its unfinished requests.

    A torn tail is cut off. What was committed stays; the rest is decoded with the same text as if nothing had
    happened. ``Runtime.handles`` has the unfinished requests by number; their ``result`` is whole, from the first
    generated token on. Everything is opened as the log's header says unless given here; an executor, a tokenizer
    (``text``) and a drafter of your own must be given again, and so must a ``draft_model`` that is an executor.

    Raises ``JournalError`` for a log that is damaged or of another kind, ``RecoveryRefused`` where the model,
    the state groups or the numerics differ, ``Divergence`` where the log contradicts itself, ``TextUnavailable``
    where an unfinished request has stop strings and there is no tokenizer.
    """
    path = Path(log)
    header = read_header(path)
    options = options_of(header, path)
    drafting = drafter_named(options.draft, draft)
    opened = open_model(
        options.model if model is None else model,
        options.dtype,
        drafting,
        options.pages,
        options.batch_max,
        options.context,
        options.threads if threads is None else threads,
        text,
        frozenset(options.eos_ids if eos_ids is None else eos_ids),
        options.rollback,
        # The log's state groups, whatever drafts from here on.
        learned_part(options.draft) == "executor" or None,
        options.draft_model if draft_model is None else draft_model,
    )
    _check_same(header, opened, options)
    folder = Folder(header, path)
    known = _Known()

    def take(record: Record) -> None:
        event = folder.take(record)
        if event is not None:
            known.take(event)

    journal = Journal.resume(
        path,
        durability=durability,
        on_record=take,
        segment_bytes=options.segment_bytes,
        keep_segments=options.keep_segments,
        open_storage=storage,
    )
    try:
        folder.ledgers.check()
        runtime = Runtime(
            opened,
            journal,
            options,
            ledgers=folder.ledgers,
            observer=observer,
            paranoid=paranoid,
            audit_every=audit_every,
        )
        _take_up(runtime, journal, known, drafting if isinstance(drafting, str) else drafting.name)
        # Not before: until then the store does not know of all that is unfinished.
        journal.snapshot = runtime.snapshot
    except BaseException:
        journal.close()
        raise
    return runtime


def _check_same(header: Header, opened: Opened, options: Options) -> None:
    """The log's state groups, vocabulary and numerics must be those at hand."""
    description = opened.executor.describe()
    at = differing(header.configuration, description, options)
    if at is not None:
        raise RecoveryRefused(*at)
    now = fingerprint(description, opened.fingerprint)
    for field, value in header.fingerprint.items():
        # Another release of this code or of Python decodes the same text; another kernel may not.
        if field not in ("txdecode", "python") and now.get(field) != value:
            raise RecoveryRefused(f"fingerprint '{field}'", value, now.get(field))


@attrs.define
class _Known:
    """What a log says of its requests beyond the ledgers: how they were submitted, the logprobs of what they
    generated, the number of the next one."""

    submitted: dict[int, RequestSubmitted] = attrs.Factory(dict)
    logprobs: dict[int, list[TokenLogprobs]] = attrs.Factory(dict)
    requests: int = 0

    def take(self, event: Event) -> None:
        """Follow one event."""
        if isinstance(event, RoundCommitted):
            if event.clip:
                self._end(event.request)
            elif event.logprobs:
                self.logprobs.setdefault(event.request, []).extend(event.logprobs)
        elif isinstance(event, RequestSubmitted):
            self.submitted[event.request] = event
            self.requests = max(self.requests, event.request + 1)
        elif isinstance(event, RequestFinished):
            self._end(event.request)
        elif isinstance(event, Snapshot):
            self.submitted = {entry.submitted.request: entry.submitted for entry in event.unfinished}
            self.logprobs = {entry.submitted.request: list(entry.logprobs) for entry in event.unfinished}
            self.requests = event.requests

    def _end(self, request: int) -> None:
        self.submitted.pop(request, None)
        self.logprobs.pop(request, None)


def _take_up(runtime: Runtime, journal: Journal, known: _Known, draft: str) -> None:
    unfinished = sorted(runtime.ledgers.tokens.sequences)
    # Before anything is written: a recovery that is refused leaves the log as it was.
    parameters = {
        number: _parameters(runtime, known.submitted[number], len(known.logprobs.get(number, ())))
        for number in unfinished
    }
    tail = None if journal.tail is None else attrs.asdict(journal.tail)
    data = {"unfinished": len(unfinished), "torn_tail": tail, "draft": draft}
    runtime.note(RuntimeNote("recovered", data))
    for number in unfinished:
        event = known.submitted[number]
        if runtime.ledgers.tokens.sequences[number].resident:
            runtime.evict(number, "recovered")
        runtime.resume(event, parameters[number], tuple(known.logprobs.get(number, ())))
    runtime.start_at(known.requests)


def _parameters(runtime: Runtime, event: RequestSubmitted, logprobs: int) -> Parameters:
    """What an unfinished request asked for. Raises ``EventUndecodable``, and ``RecoveryRefused`` where it can't be
    gone on with."""
    try:
        parameters = Parameters.from_event(event)
    except (KeyError, TypeError, InvalidRequest) as error:
        raise EventUndecodable(
            f"request {event.request}: its recorded parameters cannot be read ({error}); "
            f"recover the log with the version that wrote it"
        ) from error
    generated = len(runtime.ledgers.tokens.sequences[event.request].generated)
    if parameters.sampling.logprobs is not None and logprobs != generated:
        raise RecoveryRefused(f"request {event.request} recorded logprobs", logprobs, generated)
    capabilities = runtime.description.capabilities
    if not capabilities.sampling and not parameters.sampling.target(event.stop_ids).plain:
        raise RecoveryRefused(f"sampling of request {event.request}", parameters.sampling, "greedy only")
    return parameters
