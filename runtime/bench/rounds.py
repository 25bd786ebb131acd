"""What the rounds of a request were: read from the log that a measured run wrote."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs

from txdecode.runtime.journal import iterate
from txdecode.transactions.codec import decode
from txdecode.transactions.events import RoundCommitted


@attrs.frozen
class RoundFacts:
    """Counts over rounds. ``widths``: by rows a round, how many rounds and their forwards' microseconds; ``depths``:
    by draft number, in how many rounds it was offered, reached (all before it were right) and accepted."""

    widths: Mapping[int, tuple[int, int]] = attrs.Factory(dict)
    depths: tuple[tuple[int, int, int], ...] = ()
    emitted: int = 0

    @property
    def rounds(self) -> int:
        """All rounds."""
        return sum(count for count, _ in self.widths.values())

    @property
    def rows(self) -> int:
        """All rows of all rounds."""
        return sum(width * count for width, (count, _) in self.widths.items())

    @property
    def mean_width(self) -> float:
        """Rows a round."""
        return self.rows / self.rounds if self.rounds else 0.0

    @property
    def tokens_a_round(self) -> float:
        """Emitted tokens a round."""
        return self.emitted / self.rounds if self.rounds else 0.0

    @property
    def forward_us(self) -> float:
        """Mean microseconds of a round's forward."""
        return sum(spent for _, spent in self.widths.values()) / self.rounds if self.rounds else 0.0

    def __add__(self, other: RoundFacts) -> RoundFacts:
        widths = dict(self.widths)
        for width, (count, spent) in other.widths.items():
            before = widths.get(width, (0, 0))
            widths[width] = before[0] + count, before[1] + spent
        deepest = max(len(self.depths), len(other.depths))
        nothing = (0, 0, 0)
        mine = (*self.depths, *[nothing] * (deepest - len(self.depths)))
        theirs = (*other.depths, *[nothing] * (deepest - len(other.depths)))
        depths = tuple((a[0] + b[0], a[1] + b[1], a[2] + b[2]) for a, b in zip(mine, theirs, strict=True))
        return RoundFacts(dict(sorted(widths.items())), depths, self.emitted + other.emitted)


NO_ROUNDS = RoundFacts()


def total(facts: Iterable[RoundFacts]) -> RoundFacts:
    """The sum of all."""
    return sum(facts, NO_ROUNDS)


def of_round(event: RoundCommitted) -> RoundFacts:
    """The facts of one round."""
    forward = event.times[2] if len(event.times) > 2 else 0
    depths = tuple(
        (1, int(event.accepted >= index), int(event.accepted > index)) for index in range(len(event.drafts))
    )
    return RoundFacts({event.width: (1, forward)}, depths, len(event.emitted))


def facts_by_request(log: str | os.PathLike[str]) -> dict[int, RoundFacts]:
    """The facts of every request of a log. Raises ``JournalError`` for a log that cannot be read."""
    found: dict[int, RoundFacts] = {}
    for record in iterate(Path(log)):
        event = decode(record.type, record.version, record.flags, record.payload)
        if isinstance(event, RoundCommitted):
            found[event.request] = found.get(event.request, NO_ROUNDS) + of_round(event)
    return found
