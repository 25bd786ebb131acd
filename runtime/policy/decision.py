"""What a controller decided, in the form that the log keeps it (specs/events.md, event 4)."""

from __future__ import annotations

from typing import Any

import attrs

KINDS = ("none", "fixed", "additive", "goodput")
"""Controllers by their number in the log."""

REASONS = ("none", "pays", "nothing", "fallback", "probe", "held")
"""Why a round has the drafts that it has, by number: they are expected to pay; nothing was proposed; they are not
expected to pay; to learn whether they pay; they would pay, but may cost more than was gained so far."""


@attrs.frozen
class Decision:
    """``asked`` drafts for ``reason``. ``expected``: tokens that the round is expected to emit; ``cost``: what it
    costs in plain rounds; ``survival``: chance that all of its drafts are accepted."""

    kind: str
    asked: int
    reason: str = "none"
    expected: float = 1.0
    cost: float = 1.0
    survival: float = 1.0

    def ids(self) -> tuple[int, ...]:
        """Numbers for the log: kind, asked, reason, and where there are drafts or there might have been expected and
        cost in thousandths and survival in hundredths."""
        kind = KINDS.index(self.kind)
        if self.kind != "goodput":
            return kind, self.asked
        short = kind, self.asked, REASONS.index(self.reason)
        if self.reason == "nothing":
            return short
        return *short, round(self.expected * 1000), round(self.cost * 1000), round(self.survival * 100)


def read(ids: tuple[int, ...]) -> dict[str, Any]:
    """The decision of an event for people; empty where there is none. Numbers that this version does not know stand
    as they are."""
    if not ids:
        return {}
    made: dict[str, Any] = {"controller": _named(KINDS, ids[0])}
    for name, value in zip(("asked", "reason", "expected", "cost", "survival"), ids[1:], strict=False):
        if name == "reason":
            made[name] = _named(REASONS, value)
        elif name == "asked":
            made[name] = value
        else:
            made[name] = value / (100 if name == "survival" else 1000)
    return made


def _named(names: tuple[str, ...], number: int) -> str | int:
    return names[number] if 0 <= number < len(names) else number
