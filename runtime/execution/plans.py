"""Plans of a log's events, as their run must have made them. Pure.

A plan is made on the ledgers before its event; the units of rows that the log does not name, because they were
rejected, are found when it is about to be run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import attrs

from txdecode.state.changes import PerGroup
from txdecode.state.groups import StateGroup, of_kind
from txdecode.state.ledgers import Ledgers
from txdecode.transactions.clip import CLIP_REASONS, ClipRules, clip
from txdecode.transactions.events import PrefillCommitted, RoundCommitted
from txdecode.transactions.executor import Outcome, PrefillPlan, Proposal, RoundPlan, SequenceView
from txdecode.transactions.target import Target
from txdecode.transactions.transaction import extended, history, view


@attrs.frozen
class Asked:
    """What a request asked for, as far as its rounds depend on it. ``text`` says that strings of text can end it,
    which only its tokenizer can tell."""

    target: Target
    stop_ids: frozenset[int]
    text: bool


@attrs.frozen
class Prefill:
    """A recorded prefill, ready to run."""

    sequence: int
    event: PrefillCommitted
    plan: PrefillPlan


@attrs.frozen
class Planned:
    """A recorded round. ``plan`` lacks units for rows that the log does not name, until ``completed``. ``exact``:
    its device state has the bits of the recorded run. ``generated``: tokens before it."""

    sequence: int
    event: RoundCommitted
    plan: RoundPlan
    asked: Asked
    generated: int
    exact: bool = True

    @property
    def path(self) -> tuple[int, ...]:
        """The committed rows."""
        return self.event.path or tuple(range(len(self.event.emitted)))


Step = Prefill | Planned


def plan_prefill(ledgers: Ledgers, sequence: int, event: PrefillCommitted) -> Prefill | None:
    """``None`` where the event does not fit the ledgers: folding it says so."""
    state = ledgers.tokens.sequences.get(event.request)
    if state is None or not state.resident:
        return None
    where = view(ledgers, event.request)
    if len(event.adopted) != len(where.pages):
        return None
    tokens = state.ids(where.length, where.length + event.count)
    return Prefill(
        sequence, event, PrefillPlan(where, tokens, extended(where.pages, event.adopted), event.columns)
    )


def plan_round(
    ledgers: Ledgers, sequence: int, event: RoundCommitted, asked: Asked | None, attempt: int, exact: bool
) -> Planned | None:
    """``None`` where the event does not fit the ledgers: folding it says so."""
    state = ledgers.tokens.sequences.get(event.request)
    if state is None or not state.resident or asked is None:
        return None
    where = view(ledgers, event.request)
    adopted = event.adopted or tuple(() for _ in where.pages)
    if len(adopted) != len(where.pages):
        return None
    target = asked.target.after(len(state.generated))
    plan = RoundPlan(
        where,
        event.ordinal,
        state.pending,
        tuple(range(-1, event.width - 1)),
        extended(where.pages, adopted),
        tuple((column,) for column in event.columns),
        (state.known, state.known + event.width),
        state.budget - len(state.generated),
        target,
        history(ledgers, event.request, target),
        attempt,
    )
    return Planned(sequence, event, plan, asked, len(state.generated), exact)


def asked_of(event: RoundCommitted, plan: RoundPlan) -> RoundPlan:
    """What the executor's drafter was asked for: the drafts before those that the host copied."""
    return plan.narrowed(len(event.drafts) - event.copied)


def with_copies(event: RoundCommitted, proposal: Proposal) -> Proposal:
    """What the executor's drafter proposes, with the recorded copies of the host after it."""
    if not event.copied:
        return proposal
    copies = event.drafts[len(event.drafts) - event.copied :]
    return attrs.evolve(
        proposal, tokens=(*proposal.tokens, *copies), source=event.source, copied=event.copied
    )


def completed(ledgers: Ledgers, group: Sequence[Planned]) -> list[Planned]:
    """The rounds of one launch with units for every row. ``ledgers`` are those after their events, hence what is
    free in them and was held by none of these rounds was free when they ran."""
    page_groups, column_groups = of_kind(ledgers.groups, "pages"), of_kind(ledgers.groups, "column")
    pages = [
        _Spare(lambda g=g: ledgers.pages.free(g), _held(item.plan.pages[g] for item in group))  # type: ignore[misc]
        for g in range(len(page_groups))
    ]
    columns = [
        _Spare(
            lambda g=g: ledgers.recurrent.free(g),  # type: ignore[misc]
            _held((item.plan.view.columns[g], *item.event.columns[g : g + 1]) for item in group),
        )
        for g in range(len(column_groups))
    ]
    done = []
    for item in group:
        plan, rows = item.plan, item.plan.view.length + item.plan.width
        tables = tuple(
            table + spare.take(-(-rows // kind.granularity) - len(table))
            for table, spare, kind in zip(plan.pages, pages, page_groups, strict=True)
        )
        last = len(item.event.emitted) - 1
        made = []
        for g, (kind, spare) in enumerate(zip(column_groups, columns, strict=True)):
            named, count = item.event.columns[g : g + 1], kind.reserved_columns(plan.width)
            at = last if kind.columns == "row" else 0
            made.append(_with_named(spare.take(count - len(named)), named, at))
        done.append(attrs.evolve(item, plan=attrs.evolve(plan, pages=tables, columns=tuple(made))))
    return done


def _with_named(spare: tuple[int, ...], named: tuple[int, ...], last: int) -> tuple[int, ...]:
    """Columns of a group: the recorded one, where there is one, is number ``last``."""
    return (*spare[:last], *named, *spare[last:])


def _held(units: Iterable[Iterable[int]]) -> frozenset[int]:
    return frozenset(unit for some in units for unit in some)


class _Spare:
    """Free units of a group, looked for only once some are needed."""

    def __init__(self, free: Callable[[], list[int]], held: frozenset[int]) -> None:
        self._find = free
        self._held = held
        self._free: list[int] | None = None

    def take(self, count: int) -> tuple[int, ...]:
        if count <= 0:
            return ()
        if self._free is None:
            self._free = [unit for unit in self._find() if unit not in self._held]
            self._free.reverse()
        assert count <= len(self._free), f"{count} units for rejected rows, {len(self._free)} free"
        return tuple(self._free.pop() for _ in range(count))


def restoring(ledgers: Ledgers, request: int, rows_max: int) -> list[PrefillPlan]:
    """Prefills that put the state of a resident request where the ledgers say it lies (after a snapshot that the
    log begins with), ``rows_max`` tokens at a time."""
    state = ledgers.tokens.sequences[request]
    where = view(ledgers, request)
    count = -(-where.length // rows_max)
    spare = tuple(ledgers.recurrent.free(g)[0] for g in range(len(where.columns))) if count > 1 else ()
    kinds = of_kind(ledgers.groups, "pages")
    plans = []
    for number in range(count):
        start, stop = number * rows_max, min((number + 1) * rows_max, where.length)
        # Columns alternate, so that the last chunk ends in the one that the ledger names.
        ends_here = (count - number) % 2 == 1
        now, then = (spare, where.columns) if ends_here else (where.columns, spare)
        before = SequenceView(
            request, state.epoch, start, _tables(where.pages, kinds, start), now or where.columns, where.slots
        )
        plans.append(PrefillPlan(before, state.ids(start, stop), _tables(where.pages, kinds, stop), then))
    return plans


def _tables(pages: PerGroup, kinds: Sequence[StateGroup], length: int) -> PerGroup:
    return tuple(table[: -(-length // kind.granularity)] for table, kind in zip(pages, kinds, strict=True))


def clip_agrees(item: Planned, outcome: Outcome) -> tuple[object, object] | None:
    """What the log and the rules say of the clip, where they differ: pairs of tokens emitted and reason. A string
    of text may end a block earlier than the rules that are known here."""
    event = item.event
    candidates = (*outcome.proposal.tokens[: outcome.accepted], outcome.next_token)
    count, reason = clip(candidates, ClipRules(item.plan.budget, item.asked.stop_ids))
    recorded = len(event.emitted), CLIP_REASONS[event.clip]
    if recorded == (count, reason) or (item.asked.text and recorded[1] == "stop" and recorded[0] <= count):
        return None
    return recorded, (count, reason)
