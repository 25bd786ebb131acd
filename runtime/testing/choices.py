"""Decisions of a simulation: from a list, from a seed, or all there are, one after the other."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence


class Choices:
    """A sequence of decisions that can be told and taken again.

    The decisions are those of ``given``, and beyond them drawn from ``seed``, or 0 where there is none. ``taken``
    has every decision with the number of options there was; ``Choices([c for c, _ in taken])`` decides alike.
    """

    def __init__(self, given: Sequence[int] = (), seed: int | None = None) -> None:
        self.taken: list[tuple[int, int]] = []
        self._given = tuple(given)
        self._random = None if seed is None else random.Random(seed)

    def choose(self, options: int) -> int:
        """A number from 0 to ``options`` - 1."""
        assert options > 0, options
        at = len(self.taken)
        if at < len(self._given):
            chosen = self._given[at]
            assert 0 <= chosen < options, (at, chosen, options)
        else:
            chosen = 0 if self._random is None else self._random.randrange(options)
        self.taken.append((chosen, options))
        return chosen


def every_choice(limit: int | None = None) -> Iterator[Choices]:
    """All sequences of decisions, at most ``limit``; use each before asking for the next.

    Each sequence is the one before with its last decision that can still grow raised by one and all after it left to
    come out as 0, so whatever a decision leads to may ask for other decisions than its sister did.
    """
    given: list[int] = []
    done = 0
    while limit is None or done < limit:
        choices = Choices(given)
        yield choices
        done += 1
        taken = choices.taken
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken.pop()
        if not taken:
            return
        given = [chosen for chosen, _ in taken]
        given[-1] += 1
