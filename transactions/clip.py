"""Where a block ends: decided once, before anything is committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import attrs

ClipReason = Literal["none", "stop", "length"]
CLIP_REASONS: tuple[ClipReason, ...] = ("none", "stop", "length")
"""In the order of their numbers in the log."""


@attrs.frozen
class ClipRules:
    """What may end a sequence. ``budget``: tokens that may still be emitted (the least of the request's and
    the context's). ``stop_ids``: end-of-sequence and stop tokens. ``stop_text``: the index of the first of
    the candidates that completes a stop string, or ``None``; it must not change any state."""

    budget: int
    stop_ids: frozenset[int] = frozenset()
    stop_text: Callable[[Sequence[int]], int | None] | None = None


def clip(candidates: Sequence[int], rules: ClipRules) -> tuple[int, ClipReason]:
    """Number t of candidates to emit, and why no more.

    The first reason in order of index wins; at one index stop beats length, since a text that ends by
    itself on its last allowed token has ended by itself.
    """
    assert candidates, "a round has at least one candidate"
    assert rules.budget >= 1, "a round begins with budget left"
    within = candidates[: rules.budget]
    stop = next((i for i, token in enumerate(within) if token in rules.stop_ids), None)
    if rules.stop_text is not None:
        probed = within if stop is None else within[: stop + 1]
        text = rules.stop_text(probed)
        assert text is None or 0 <= text < len(probed), f"stop text at {text} of {len(probed)} candidates"
        if text is not None and (stop is None or text < stop):
            stop = text
    if stop is not None:
        return stop + 1, "stop"
    if len(candidates) >= rules.budget:
        return rules.budget, "length"
    return len(candidates), "none"
