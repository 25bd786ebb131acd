"""From requests to drafts: what ``goodput`` is asked before a launch begins, and what it is told after it.

A copy is free to ask for, so host drafters are asked first, and the copy is cut to what pays for its source and the
length of its match. The executor's own drafter costs, so how deep it goes is decided before it runs; copies that
follow its drafts are cut when they are there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from txdecode.runtime.policy.costs import Costs, Spent
from txdecode.runtime.policy.decision import Decision
from txdecode.runtime.policy.goodput import LEARNED, Goodput, Wish, bucket, decide
from txdecode.transactions.executor import NO_PROPOSAL, Description, Proposal
from txdecode.transactions.transaction import Launch, Transaction

if TYPE_CHECKING:
    from txdecode.runtime.request import Request


@attrs.frozen
class Planned:
    """What a request asks for in its next round: at most ``drafts`` drafts, which are the ``copies`` at hand or, with
    ``depth``, those of the executor's own drafter, perhaps with copies after them."""

    drafts: int
    copies: Proposal = NO_PROPOSAL
    depth: int = 0


PLAIN = Planned(0)


class Planner:
    """Decides for all requests of a launch together, and learns from what launches took.

    ``costs`` are made when the first request needs them, and ``note`` is told of them once.
    """

    def __init__(
        self, description: Description, make: Callable[[], Costs], note: Callable[[dict[str, Any]], None]
    ) -> None:
        self._description = description
        self._make = make
        self._note = note
        self._costs: Costs | None = None

    def plan(self, requests: Sequence[tuple[Request, int, int]]) -> None:
        """Set ``planned`` and ``decision`` of every request of a launch: requests with the most drafts that budget
        and executor leave each, and its context."""
        adaptive: list[tuple[Request, list[Wish], Proposal]] = []
        others: list[int] = []
        for request, most, _ in requests:
            request.planned = request.decision = None
            controller = request.controller
            if not isinstance(controller, Goodput):
                others.append(min(controller.next(request.id), most) if most else 0)
                if most and request.drafts:
                    # One of the caller's own may have no name in the log.
                    request.decision = Decision(getattr(controller, "kind", "none"), others[-1])
            elif not most or not request.drafts:
                others.append(0)
                request.planned = PLAIN
            else:
                adaptive.append((request, *self._wishes(request, controller, most)))
        if not adaptive:
            return
        context = sum(length for _, _, length in requests) // len(requests)
        found = decide(
            [wishes for _, wishes, _ in adaptive], self._costs_now(), context=context, others=others
        )
        most_of = {request.id: most for request, most, _ in requests}
        for (request, _, copies), wish in zip(adaptive, found, strict=True):
            request.planned = self._planned(request, wish, copies, most_of[request.id])
            request.decision = wish.state.decision

    def _wishes(self, request: Request, controller: Goodput, most: int) -> tuple[list[Wish], Proposal]:
        most = min(most, controller.next(request.id))
        copies, length = request.copies(most)
        wishes = []
        if copies.tokens or not request.learned:
            key = copies.source, bucket(length)
            wishes.append(controller.wish(request.id, key, len(copies.tokens)))
        if request.learned:
            depth = most if request.draft_depth is None else min(request.draft_depth, most)
            wishes.append(controller.wish(request.id, LEARNED, depth))
        return wishes, copies

    def _planned(self, request: Request, wish: Wish, copies: Proposal, most: int) -> Planned:
        if not wish.drafts:
            return PLAIN
        if not wish.learned:
            return Planned(wish.drafts, attrs.evolve(copies, tokens=copies.tokens[: wish.drafts]))
        extends = request.drafter is not None and not self._description.capabilities.fused
        return Planned(
            min(most, request.controller.next(request.id)) if extends else wish.drafts, depth=wish.drafts
        )

    def _costs_now(self) -> Costs:
        if self._costs is None:
            self._costs = self._make()
            self._note(self._costs.data())
        return self._costs

    def observe(self, launch: Launch, committed: Sequence[Transaction], settled_ns: int) -> None:
        """A launch was committed; ``settled_ns`` is what settling it took. A fused program says nothing of its parts,
        so nothing is learned from it."""
        if self._costs is None or not launch.times[1] or not committed:
            return
        proposals = [tx.proposal or NO_PROPOSAL for tx in committed]
        rows = sum(len(proposal.tokens) + 1 for proposal in proposals)
        depth = max(
            (
                proposal.drawn
                for tx, proposal in zip(committed, proposals, strict=True)
                if tx.ask.depth is not None or tx.ask.propose is None
            ),
            default=0,
        )
        context = sum(tx.plan.view.length for tx in committed) // len(committed)
        drafting, verify, accept = launch.times
        forward = verify + accept + settled_ns / 1000
        self._costs.observe(Spent(len(committed), rows, context, forward, depth, drafting))
