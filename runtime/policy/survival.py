"""How far drafts of one source get: estimates of prefix survival by depth, from what was offered and accepted.

Draft j survives where drafts 1..j were all accepted. The survival of a prefix is a product of conditional chances,
and those are what is counted: draft j was judged in the rounds in which all before it were right.
"""

from __future__ import annotations

import math

import attrs

DECAY = 0.97
"""Weight that a count keeps for each newer one at its depth: about 33 observations are remembered."""

SHARED = 2.0
"""Observations that the chance one draft earlier stands for at a depth with few of its own."""

SURPRISE = 0.0005
"""A run of equal results at depth one that was less likely than this means that the text has changed."""

HOPE = 1.0
"""Standard errors by which a chance may be better than its estimate."""

_LIKELIEST = 0.995


@attrs.frozen
class Prior:
    """What is believed of a source before it was tried: the ``chance`` of a draft, worth ``strength`` rounds."""

    chance: float
    strength: float = 2.0


@attrs.define
class Survival:
    """Decayed counts by depth for one request and one source.

    ``seen[j]``: rounds in which draft j+1 was judged; ``right[j]``: in which it was accepted. A depth without counts
    of its own takes the chance of the depth before it, so that every depth has an estimate.
    """

    prior: Prior
    seen: list[float] = attrs.field(factory=list, init=False)
    right: list[float] = attrs.field(factory=list, init=False)
    _run: int = attrs.field(default=0, init=False)
    _run_right: bool = attrs.field(default=False, init=False)
    _run_chance: float = attrs.field(default=1.0, init=False)
    _curve: tuple[float, ...] = attrs.field(default=(), init=False)
    _hopeful: tuple[float, ...] = attrs.field(default=(), init=False)

    def curve(self, most: int) -> tuple[float, ...]:
        """Chances that at least 1, 2, .. ``most`` drafts are accepted: not rising."""
        if len(self._curve) < most:
            self._curve = self._survivals(most)
        return self._curve if len(self._curve) == most else self._curve[:most]

    def hopeful(self, most: int) -> tuple[float, ...]:
        """The same where each chance is better than it looks by what so few observations leave open."""
        if len(self._hopeful) < most:
            self._hopeful = self._survivals(most, HOPE)
        return self._hopeful if len(self._hopeful) == most else self._hopeful[:most]

    def chance(self, depth: int) -> float:
        """Chance that draft ``depth`` (from 1) is right where all before it were."""
        chance = self._first()
        for index in range(1, depth):
            chance = self._conditional(index, chance)
        return chance

    def observe(self, offered: int, accepted: int) -> None:
        """A round offered so many drafts of this source, of which so many were accepted."""
        assert 0 <= accepted <= offered, (offered, accepted)
        if not offered:
            return
        self._watch(accepted > 0)
        reached = min(offered, accepted + 1)
        while len(self.seen) < reached:
            self.seen.append(0.0)
            self.right.append(0.0)
        for index in range(reached):
            self.seen[index] = self.seen[index] * DECAY + 1.0
            self.right[index] = self.right[index] * DECAY + (index < accepted)
        self._curve = self._hopeful = ()

    def _first(self) -> float:
        prior = self.prior
        if not self.seen:
            return prior.chance
        return (self.right[0] + prior.strength * prior.chance) / (self.seen[0] + prior.strength)

    def _conditional(self, index: int, before: float) -> float:
        if index >= len(self.seen):
            return before
        return (self.right[index] + SHARED * before) / (self.seen[index] + SHARED)

    def _survivals(self, most: int, hope: float = 0.0) -> tuple[float, ...]:
        if not hope:
            return self._expected(most)
        chance = self._first()
        alive = min(self._hoped(chance, 0, hope), _LIKELIEST)
        made = [alive]
        for index in range(1, most):
            chance = self._conditional(index, chance)
            alive *= min(self._hoped(chance, index, hope), _LIKELIEST)
            made.append(alive)
        return tuple(made)

    def _expected(self, most: int) -> tuple[float, ...]:
        """The same without hope, for every round: no calls."""
        chance = self._first()
        alive = chance if chance < _LIKELIEST else _LIKELIEST
        made = [alive]
        for index in range(1, most):
            if index < len(self.seen):
                chance = (self.right[index] + SHARED * chance) / (self.seen[index] + SHARED)
            alive *= chance if chance < _LIKELIEST else _LIKELIEST
            made.append(alive)
        return tuple(made)

    def _hoped(self, chance: float, index: int, hope: float) -> float:
        seen = (self.seen[index] if index < len(self.seen) else 0.0) + SHARED
        return chance + hope * math.sqrt(chance * (1.0 - chance) / seen)

    def _watch(self, right: bool) -> None:
        """Follow the run of equal results at depth one; past what chance explains, older counts fade to its length.

        The chance is that of before the run: the run itself must not explain it.
        """
        if right is not self._run_right or not self._run:
            self._run, self._run_right, self._run_chance = 0, right, self._first()
        self._run += 1
        chance = self._run_chance if right else 1.0 - self._run_chance
        if self.seen and self._run * math.log(max(chance, 1e-9)) < math.log(SURPRISE):
            keep = 1.0 / max(self.seen[0], 1.0)
            # Depths beyond the first say what follows a right draft; less is known of them now, not nothing.
            for index, seen in enumerate(self.seen):
                shrink = keep if index == 0 else min(1.0, SHARED / max(seen, 1e-9))
                self.seen[index] *= shrink
                self.right[index] *= shrink
            self._run_chance = self._first()
            self._run = 1
