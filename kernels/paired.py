"""How two executors are one: whose groups, pages, columns and rings are whose, and what a failing drafter costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from txdecode.state.errors import TxDecodeError
from txdecode.state.groups import StateGroup, of_kind
from txdecode.transactions.audit import DRAFT_MODEL
from txdecode.transactions.binding import check_binding
from txdecode.transactions.executor import (
    Border,
    Capabilities,
    CapabilityMissing,
    Description,
    ExecutorFault,
    PrefillPlan,
    RoundPlan,
    SequenceView,
)
from txdecode.transactions.rebuild import GHOST

PREFIX = DRAFT_MODEL
"""What the drafter's groups, bytes and fields of the fingerprint are called by, before their own names."""

DRAFT_FAULTS_MAX = 3
"""Consecutive failures to draft after which a request is decoded without drafts."""

STATE_FAULTS_MAX = 2
"""Consecutive failures to follow the committed text, of one request or of all, after which the drafter is given up.
Below the number of faults that end a request."""


class VocabularyMismatch(TxDecodeError):
    """A drafter whose tokens are not the target's. ``expected`` and ``found`` are what differs."""

    def __init__(self, what: str, expected: object, found: object) -> None:
        super().__init__(
            f"the draft model speaks another vocabulary: expected {what} {expected!r}, as the target has, found "
            f"{found!r}; draft with a smaller model of the same family, or with draft_model='first:N'"
        )
        self.expected = expected
        self.found = found


@attrs.define(eq=False)
class Faults:
    """Failures of the drafter.

    A request for which drafting failed is drafted for alone until it works, and not at all after
    ``DRAFT_FAULTS_MAX`` failures in a row. A failure to read committed rows faults the verb, as one of the target's
    would, so the request is rebuilt; after ``STATE_FAULTS_MAX`` in a row the drafter is ``off`` for good: it is
    neither asked nor fed, and what it holds of the requests in ``stale`` means nothing. Such failures are counted
    in ``state``, and in ``states`` by request besides, which nothing but that request's own next round ends: another
    one's rounds say nothing of it, and it is dropped whenever it is rebuilt.
    """

    drafts: dict[int, int] = attrs.Factory(dict)
    state: int = 0
    states: dict[int, int] = attrs.Factory(dict)
    off: bool = False
    stale: set[int] = attrs.Factory(set)

    def fed(self, requests: Sequence[int], feed: Callable[[], None]) -> bool:
        """Run ``feed``; whether the drafter's state moved with the target's. Raises ``ExecutorFault`` where it fails,
        while the drafter is not given up. That it failed for ``GHOST`` is not counted: nobody needs that state, and
        a drafter given up between two audits would be in one of them alone."""
        if not self.off:
            try:
                feed()
                return True
            except AssertionError:
                raise
            except Exception as error:
                if GHOST in requests or not self._too_many(requests):
                    raise ExecutorFault(f"the draft model failed: {error}") from error
                self.off = True
                self.states.clear()
        self.stale.update(requests)
        return False

    def _too_many(self, requests: Sequence[int]) -> bool:
        self.state += 1
        for request in requests:
            self.states[request] = self.states.get(request, 0) + 1
        return max((self.state, *self.states.values())) >= STATE_FAULTS_MAX

    def followed(self, requests: Sequence[int]) -> None:
        """The drafter committed a round of each."""
        self.state = 0
        for request in requests:
            self.states.pop(request, None)


@attrs.frozen
class Part:
    """One executor's share of the units that a plan of both names: from ``first`` up to ``stop``, by kind."""

    pages: slice
    columns: slice
    slots: slice
    granularities: tuple[int, ...]

    def view(self, view: SequenceView) -> SequenceView:
        """Where its share of a sequence lies."""
        return attrs.evolve(
            view,
            pages=view.pages[self.pages],
            columns=view.columns[self.columns],
            slots=view.slots[self.slots],
        )

    def prefill(self, plan: PrefillPlan) -> PrefillPlan:
        """Its share of a prefill."""
        return PrefillPlan(
            self.view(plan.view), plan.tokens, plan.pages[self.pages], plan.columns[self.columns]
        )

    def round(self, plan: RoundPlan) -> RoundPlan:
        """Its share of a round."""
        return attrs.evolve(
            plan,
            view=self.view(plan.view),
            pages=plan.pages[self.pages],
            columns=plan.columns[self.columns],
            borders=tuple(Border(border.row, border.columns[self.columns]) for border in plan.borders),
        )

    def at(self, view: SequenceView, length: int, pages: Sequence[tuple[int, ...]]) -> SequenceView:
        """The view, a share already, once ``length`` tokens are consumed and lie in ``pages``; for pages alone."""
        tables = tuple(
            table[: -(-length // granularity)]
            for table, granularity in zip(pages, self.granularities, strict=True)
        )
        return attrs.evolve(view, length=length, pages=tables)


def parts(target: Description, drafter: Description) -> tuple[Part, Part]:
    """The target's share, and the drafter's, of units in the order of ``described(...).groups``."""
    counts = [
        [len(of_kind(description.groups, kind)) for description in (target, drafter)]
        for kind in ("pages", "column", "ring")
    ]
    pages = [
        tuple(group.granularity for group in of_kind(description.groups, "pages"))
        for description in (target, drafter)
    ]
    (p, more_p), (c, more_c), (s, more_s) = counts
    return (
        Part(slice(0, p), slice(0, c), slice(0, s), pages[0]),
        Part(slice(p, p + more_p), slice(c, c + more_c), slice(s, s + more_s), pages[1]),
    )


def described(target: Description, drafter: Description) -> Description:
    """Both as one executor: the state of both, the limits of the narrower. Raises ``VocabularyMismatch``, and
    ``CapabilityMissing`` where they can't be driven or committed as one."""
    for description in (target, drafter):
        if description.capabilities.fused:
            raise CapabilityMissing(
                f"executor '{description.name}' is fused: it cannot be paired with a drafter, which works between "
                f"its verbs; build it verb by verb"
            )
        check_binding(description)
    if drafter.vocab_size != target.vocab_size:
        raise VocabularyMismatch("vocab_size", target.vocab_size, drafter.vocab_size)
    return Description(
        name=f"{target.name}+{drafter.name}",
        vocab_size=target.vocab_size,
        context=min(target.context, drafter.context),
        rows_max=min(target.rows_max, drafter.rows_max),
        prefill_rows_max=min(target.prefill_rows_max, drafter.prefill_rows_max),
        batch_max=min(target.batch_max, drafter.batch_max),
        groups=(*target.groups, *(_drafting(group) for group in drafter.groups)),
        capabilities=_capabilities(target, drafter),
        memory={**target.memory, **{PREFIX + name: size for name, size in drafter.memory.items()}},
        fingerprint={
            **target.fingerprint,
            **{PREFIX + name: value for name, value in drafter.fingerprint.items()},
        },
    )


def _drafting(group: StateGroup) -> StateGroup:
    return attrs.evolve(group, name=PREFIX + group.name, owner="drafter")


def _capabilities(target: Description, drafter: Description) -> Capabilities:
    mine, its = target.capabilities, drafter.capabilities
    if mine.rollback and its.rollback and mine.rollback != its.rollback:
        raise CapabilityMissing(
            f"expected one rollback form for all recurrent state, found '{mine.rollback}' of '{target.name}' and "
            f"'{its.rollback}' of its drafter '{drafter.name}'; build both in the same form"
        )
    return attrs.evolve(
        mine,
        # Audits are of the state of both.
        row_invariant=mine.row_invariant and its.row_invariant,
        drafts=True,
        rollback=mine.rollback or its.rollback,
        commits=tuple(dict.fromkeys((*mine.commits, *its.commits))),
    )
