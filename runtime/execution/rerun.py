"""Execute: every round of a log run again by kernels, and compared."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from txdecode.runtime.drafters.spelling import learned_part
from txdecode.runtime.execution.driver import Counts, Reexecutor
from txdecode.runtime.execution.same import Agreement, agree, open_again
from txdecode.runtime.journal import JournalReader, Record, TornTail, iterate
from txdecode.runtime.replay import (
    Divergence,
    Folder,
    InvalidArgument,
    NotInLog,
    decoded,
    not_negative,
    options_of,
)
from txdecode.transactions.events import Event
from txdecode.transactions.executor import Executor, ExecutorFault

Progress = Callable[[int, int], None]
"""Told of bytes done and bytes in all."""


@attrs.frozen
class ExecutionReport:
    """A log that was executed again with nothing different.

    ``records`` read; ``counts`` of what was run and compared. ``numerics`` is ``exact`` where the fingerprints
    agree and every bit was compared, else the class that the executor declares; then only ids were compared, and
    ``differs`` says in which fields of the fingerprint, with what was recorded and what was found.
    """

    path: str
    records: int
    counts: Counts
    numerics: str
    differs: Mapping[str, tuple[str | None, str | None]]
    request: int | None
    torn_tail: TornTail | None

    def to_data(self) -> dict[str, Any]:
        """The JSON object of the report."""
        tail = None if self.torn_tail is None else attrs.asdict(self.torn_tail)
        return {
            "path": self.path,
            "records": self.records,
            **attrs.asdict(self.counts),
            "class": self.numerics,
            "differs": {field: list(pair) for field, pair in self.differs.items()},
            "request": self.request,
            "torn_tail": tail,
        }


def execute(
    log: str | os.PathLike[str],
    model: str | os.PathLike[str] | Executor | None = None,
    *,
    until: int | None = None,
    request: int | None = None,
    progress: Progress | None = None,
    threads: int | None = None,
) -> ExecutionReport:
    """Run a log again, up to and with record ``until``: recorded drafts, widths, pages and columns, new kernels.

    The model is the one that the header names, or ``model`` (an executor of your own must be given). With
    ``request`` only that one is run. Accepted drafts, emitted ids and clips are compared, and where the fingerprints
    agree logprobs and audits of device state too. ``progress(bytes done, bytes in all)`` is called now and then.

    Raises ``ExecutionDivergence`` at the first difference, ``Divergence`` where the log contradicts itself,
    ``ExecutionRefused`` for another model, ``ExecutorFault``, and the errors of the journal and of opening a model.
    """
    not_negative(until=until, request=request)
    session = Session(Path(log), model, threads)
    if request is not None and not session.executor.describe().capabilities.row_invariant:
        raise InvalidArgument(
            "one request alone cannot be executed where bits depend on the batch; execute the whole log"
        )
    with iterate(session.path) as reader:
        folder = Folder(reader.header, session.path)
        if until is not None and until < folder.first:
            raise NotInLog(
                f"'{session.path}' begins with record {folder.first}, not before; ask for a later one"
            )
        driver = session.driver(folder, request)
        records = session.drive(reader, folder, driver, until, progress)
    if request is not None and request not in driver.asked:
        raise NotInLog(
            f"'{session.path}' has no request {request} in the {records} records that were executed"
        )
    return ExecutionReport(
        str(session.path),
        records,
        driver.counts,
        session.agreement.numerics,
        session.agreement.differs,
        request,
        reader.tail,
    )


class Session:
    """A log and the executor to run it on. Raises as ``execute`` does."""

    def __init__(
        self, path: Path, model: str | os.PathLike[str] | Executor | None, threads: int | None = None
    ) -> None:
        self.path = path
        with iterate(path) as reader:
            self.header = reader.header
        self.options = options_of(self.header, path)
        opened = open_again(self.options, model, threads)
        self.executor = opened.executor
        self.agreement: Agreement = agree(self.header, opened, self.options)

    def driver(self, folder: Folder, request: int | None = None) -> Reexecutor:
        """A fresh run of the executor."""
        return Reexecutor(
            self.executor,
            folder.ledgers,
            self.path,
            request=request,
            exact=self.agreement.exact,
            own=bool(learned_part(self.options.draft)),
            note=self.agreement.note,
        )

    def drive(
        self,
        reader: JournalReader,
        folder: Folder,
        driver: Reexecutor,
        until: int | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Execute the records of ``reader`` up to and with ``until``; how many there were."""
        records = 0
        try:
            for record, event in events(reader, self.path, until, progress):
                step = driver.before(record.sequence, event)
                try:
                    folder.take(record)
                except Divergence:
                    # What ran before the bad record may have parted earlier.
                    driver.flush()
                    raise
                driver.after(event, step)
                records += 1
            driver.flush()
        except ExecutorFault as error:
            raise ExecutorFault(f"'{self.path}', after {records} records executed: {error}") from error
        return records


def events(
    reader: JournalReader, path: Path, until: int | None = None, progress: Progress | None = None
) -> Iterator[tuple[Record, Event | None]]:
    """Records of a log with what they say, up to and with record ``until``; ``None`` for an unknown one that may be
    ignored. Raises ``EventUndecodable``."""
    for read, record in enumerate(reader, 1):
        if until is not None and record.sequence > until:
            break
        yield record, decoded(record, path)
        if progress is not None and not read & 127:
            progress(reader.position, reader.size)
    if progress is not None:
        progress(reader.size, reader.size)
