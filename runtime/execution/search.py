"""Bisect: the first round of a log whose re-execution differs, and which ledger or piece of device state it is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from txdecode.runtime.execution.audits import Search, Survey, Wrong, entries_from
from txdecode.runtime.execution.compare import entries_differ
from txdecode.runtime.execution.driver import Reexecutor
from txdecode.runtime.execution.errors import ExecutionDivergence, again
from txdecode.runtime.execution.explain import Explainer, Explanation
from txdecode.runtime.execution.rerun import Progress, Session, events
from txdecode.runtime.journal import iterate
from txdecode.runtime.replay import Divergence, Folder
from txdecode.transactions.events import StateAudited
from txdecode.transactions.executor import Executor


@attrs.frozen
class Finding:
    """What went wrong first.

    ``by`` says how it was found: ``fold`` (the log contradicts itself), ``audit`` (device state, ``ledger`` is the
    group), ``round`` (what the round decided; ``ledger`` is ``rng``, ``tokens``, ``acceptance``, ``logits`` or
    ``drafter``; see ``txdecode.runtime.execution.explain``). ``sequence`` is the record, ``request``, ``epoch`` and
    ``ordinal`` the round.

    ``expected`` is what is right, by the ledgers or by the tokens, ``found`` what was recorded; of ``round`` what the
    ledger holds, and what it must have held for the recorded outcome. Of ``fold`` they are as in ``Divergence``.

    ``window``: the state went wrong after the round before the first of these and by the last, where there is not an
    audit each round. ``ids``: the first round in it that emitted something else. ``groups``: all device state groups
    that are wrong there. ``others``: further explanations that fit as well.
    """

    by: str
    sequence: int
    request: int | None
    epoch: int | None
    ordinal: int | None
    ledger: str
    field: str
    expected: object
    found: object
    layer: int | None = None
    index: int | None = None
    row: int | None = None
    window: tuple[int, int] | None = None
    ids: int | None = None
    groups: tuple[str, ...] = ()
    others: tuple[Explanation, ...] = ()
    command: str = ""


@attrs.frozen
class Bisection:
    """What ``bisect`` looked at: ``audits`` in the log, states ``rebuilt`` from tokens, ``rounds`` run again, plans
    ``tried`` to explain one. ``found`` is ``None`` where nothing differs. ``numerics`` and ``differs`` as in
    ``ExecutionReport``; ``None`` where nothing was executed, since the log contradicts itself."""

    path: str
    found: Finding | None
    audits: int
    rebuilt: int
    rounds: int
    tried: int
    numerics: str | None
    differs: Mapping[str, tuple[str | None, str | None]]

    def to_data(self) -> dict[str, Any]:
        """The JSON object of the report."""
        data = attrs.asdict(self)
        data["class"] = data.pop("numerics")
        return data


def bisect(
    log: str | os.PathLike[str],
    model: str | os.PathLike[str] | Executor | None = None,
    *,
    execute: bool = True,
    progress: Progress | None = None,
    threads: int | None = None,
) -> Bisection:
    """Find the first round of a log whose execution differs from what it recorded.

    First the log is folded: a ledger that contradicts itself is named by that. Then the audits are searched, by
    halves within each epoch of each request, for the first that the tokens contradict; device state is built
    again from them in canonical form. Then all rounds up to there are run again, for one that decided otherwise;
    it is explained by asking the executor again with other random positions, seeds and counts. Where the executor is
    not row-invariant, or fingerprints differ, audits are not searched. Without ``execute`` the log is folded alone,
    and no model is opened. The other arguments as for ``txdecode.runtime.execution.execute``.

    Raises ``ExecutionRefused`` for another model, ``ExecutorFault``, and the errors of the journal and of opening a
    model.
    """
    path = Path(log)
    survey, finding = _survey(path, progress)
    if finding is not None or not execute:
        return Bisection(str(path), finding, survey.audits, 0, 0, 0, None, {})
    session = Session(path, model, threads)
    search = Search(session.executor, survey)
    canonical = session.agreement.exact and session.executor.describe().capabilities.row_invariant
    wrong = search.first() if canonical else None
    until = None if wrong is None else wrong.mark.sequence - 1
    second = None if progress is None else (lambda done, size: progress(size + done, 2 * size))
    with iterate(path) as reader:
        folder = Folder(reader.header, path)
        driver = session.driver(folder)
        try:
            session.drive(reader, folder, driver, until, second)
        except ExecutionDivergence as error:
            return _parted(session, survey, search, driver, error)
    if wrong is None:
        return _result(session, survey, search, None, driver)
    return _result(session, survey, search, _audited(session, search, wrong), driver)


def _survey(path: Path, progress: Progress | None) -> tuple[Survey, Finding | None]:
    """Fold the log, and note where its audits are."""
    survey = Survey()
    first = None if progress is None else (lambda done, size: progress(done, 2 * size))
    with iterate(path) as reader:
        folder = Folder(reader.header, path)
        for record, event in events(reader, path, None, first):
            survey.take(record.sequence, event, folder.ledgers)
            try:
                folder.take(record)
            except Divergence as error:
                epoch = getattr(event, "epoch", None)
                where = error.sequence, error.request, epoch, error.ordinal, error.ledger, error.field
                command = f"txdecode replay {path} --until {error.sequence}"
                return survey, Finding("fold", *where, error.expected, error.found, command=command)
    survey.close(folder.ledgers)
    return survey, None


def _audited(session: Session, search: Search, wrong: Wrong, ids: int | None = None) -> Finding:
    """What is wrong in an audit."""
    with iterate(session.path) as reader:
        event = next(
            event
            for record, event in events(reader, session.path, wrong.mark.sequence)
            if record.sequence == wrong.mark.sequence
        )
    assert isinstance(event, StateAudited)
    request, epoch = wrong.key
    expected = entries_from(event.entries)
    found = search.audited(request, wrong.mark)
    at = entries_differ(request, expected, found)
    assert at is not None
    groups = [one.group for one, other in zip(expected, found, strict=False) if one != other]
    first = search.survey.starts.get(wrong.key, event.ordinal) if wrong.since is None else wrong.since + 1
    return Finding(
        "audit",
        wrong.mark.sequence,
        request,
        epoch,
        event.ordinal,
        at.ledger,
        at.field,
        at.found,
        at.expected,
        at.layer,
        at.index,
        at.row,
        (first, event.ordinal) if first < event.ordinal else None,
        ids,
        tuple(dict.fromkeys(groups)),
        (),
        again(session.path, wrong.mark.sequence),
    )


def _parted(
    session: Session, survey: Survey, search: Search, driver: Reexecutor, error: ExecutionDivergence
) -> Bisection:
    """A record that execution contradicts, while the audits up to there say what the tokens do."""
    at = error.difference
    where = error.sequence, error.request, error.epoch, error.ordinal
    failed = driver.failed
    if failed is None:
        place = at.layer, at.index, at.row
        finding = Finding(
            "audit",
            *where,
            at.ledger,
            at.field,
            at.found,
            at.expected,
            *place,
            groups=(at.ledger,),
            command=error.command,
        )
        return _result(session, survey, search, finding, driver)
    explainer = Explainer(session.executor, failed, driver.drew(failed.item.event), survey.seeds)
    best, *others = explainer.explanations()
    finding = Finding(
        "round",
        *where,
        best.ledger,
        best.field,
        best.expected,
        best.found,
        others=tuple(others),
        command=error.command,
    )
    # Last, since it takes the device: where the state itself is wrong soon after, that explains the ids.
    canonical = session.agreement.exact and session.executor.describe().capabilities.row_invariant
    wrong = search.next_wrong((error.request, error.epoch), error.sequence) if canonical else None
    if wrong is not None:
        finding = _audited(session, search, wrong, error.ordinal)
    return _result(session, survey, search, finding, driver, explainer.tried)


def _result(
    session: Session,
    survey: Survey,
    search: Search,
    finding: Finding | None,
    driver: Reexecutor,
    tried: int = 0,
) -> Bisection:
    return Bisection(
        str(session.path),
        finding,
        survey.audits,
        search.rebuilt,
        driver.counts.rounds,
        tried,
        session.agreement.numerics,
        session.agreement.differs,
    )
