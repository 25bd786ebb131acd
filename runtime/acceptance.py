"""How often a draft was right, by how deep in its round it stood: read from a log."""

from __future__ import annotations

import os
from pathlib import Path

import attrs

from txdecode.runtime.journal import iterate
from txdecode.transactions.codec import decode
from txdecode.transactions.events import RoundCommitted


@attrs.frozen
class Depth:
    """Rounds by their draft number ``depth`` (from 1): it was ``offered`` in so many, ``reached`` in those of them
    in which every draft before it was accepted, and ``accepted`` itself in those."""

    depth: int
    offered: int
    reached: int
    accepted: int

    @property
    def share(self) -> float:
        """Share of the rounds that offered it in which it was accepted."""
        return self.accepted / self.offered

    @property
    def conditional(self) -> float | None:
        """The same share of the rounds in which all before it were accepted; ``None`` where there was none."""
        return self.accepted / self.reached if self.reached else None


def acceptance_by_depth(log: str | os.PathLike[str]) -> tuple[Depth, ...]:
    """One entry for every depth that a round of ``log`` reached with a draft, the first depth first.

    A draft counts as accepted where the target agreed, whatever ended the text there. Raises ``JournalError`` for a
    log that cannot be read.
    """
    counts: list[tuple[int, int, int]] = []
    for record in iterate(Path(log)):
        event = decode(record.type, record.version, record.flags, record.payload)
        if not isinstance(event, RoundCommitted):
            continue
        for index in range(len(event.drafts)):
            if index == len(counts):
                counts.append((0, 0, 0))
            offered, reached, accepted = counts[index]
            counts[index] = (
                offered + 1,
                reached + (event.accepted >= index),
                accepted + (event.accepted > index),
            )
    return tuple(Depth(index + 1, *count) for index, count in enumerate(counts))
