"""Several copying drafters as one: the longest match proposes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from txdecode.runtime.drafters.composed import Copied
from txdecode.transactions.executor import Copy, MatchingDrafter


class LongestMatch:
    """Asks all of ``drafters`` and takes the copy with the longest match; of equal ones that of the first drafter.

    A member that fails at one call has failed for all, so that what calls it counts the failure and goes on plain.
    Its copies say which member made them, and that is what the log has.
    """

    def __init__(self, drafters: Sequence[MatchingDrafter]) -> None:
        assert drafters, "no drafters"
        self._drafters = tuple(drafters)

    @property
    def name(self) -> str:
        """Names of the members; a single proposal has that of one of them."""
        return "+".join(drafter.name for drafter in self._drafters)

    def begin(self, request: int, tokens: Sequence[int]) -> None:
        """All members begin."""
        for drafter in self._drafters:
            drafter.begin(request, tokens)

    def propose(self, request: int, count: int) -> tuple[int, ...]:
        """At most ``count`` tokens of the member whose match is the longest."""
        copy = self.match(request, count)
        return Copied(copy.tokens, copy.source)

    def match(self, request: int, count: int, after: Sequence[int] = ()) -> Copy:
        """The longest match of all members that comes with tokens."""
        best = Copy()
        for drafter in self._drafters:
            copy = drafter.match(request, count, after)
            if copy.tokens and copy.length > best.length:
                best = Copy(copy.tokens, copy.length, copy.source or drafter.name)
        return best

    def commit(self, request: int, tokens: Sequence[int]) -> None:
        """All members take the tokens, also where one of them fails."""
        self._all(lambda drafter: drafter.commit(request, tokens))

    def end(self, request: int) -> None:
        """All members forget the request, also where one of them fails."""
        self._all(lambda drafter: drafter.end(request))

    def _all(self, call: Callable[[MatchingDrafter], None]) -> None:
        failed: Exception | None = None
        for drafter in self._drafters:
            try:
                call(drafter)
            except Exception as error:
                failed = error
        if failed is not None:
            raise failed
