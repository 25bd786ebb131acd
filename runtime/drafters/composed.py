"""A drafter of the host together with the one that an executor has: which of the two proposes, and what comes after.

The host is asked first. Where its match is long its copy replaces the learned drafts, whose cost is saved; else the
executor drafts, and a copy of what followed those drafts earlier in the text may extend them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

from txdecode.transactions.executor import Copy, Drafter, MatchingDrafter

REPLACE_MATCH = 3
"""Tokens that must agree for a copy to replace learned drafts."""

LEARNED_DEPTH = 3
"""Learned drafts of a composed round where nobody says how many: deep ones cost as much and are seldom right, and
copies after them cost nothing."""


class Copied(tuple[int, ...]):
    """Tokens that say which drafter copied them, where the one that was asked consists of several."""

    source: str

    def __new__(cls, tokens: Sequence[int], source: str) -> Copied:
        made = super().__new__(cls, tokens)
        made.source = source
        return made


def source_of(tokens: Sequence[Any], drafter: Drafter) -> str:
    """The name in the log of what ``drafter`` answered."""
    return tokens.source if isinstance(tokens, Copied) and tokens.source else drafter.name


def matches(drafter: Drafter) -> TypeGuard[MatchingDrafter]:
    """Whether a host drafter says how good its match is."""
    return callable(getattr(drafter, "match", None))


def replacement(drafter: Drafter, request: int, count: int) -> Sequence[object]:
    """What the host proposes in the place of learned drafts; empty where those are likelier. A drafter that does not
    say how good its match is keeps silent where it knows nothing, so what it proposes counts."""
    if not matches(drafter):
        return drafter.propose(request, count)
    copy = drafter.match(request, count)
    return Copied(copy.tokens, copy.source) if copy.length >= REPLACE_MATCH else ()


def extension(drafter: Drafter, request: int, count: int, after: Sequence[int]) -> Sequence[object]:
    """What the host expects after drafts ``after``; empty where it cannot tell."""
    copy = drafter.match(request, count, after) if matches(drafter) else Copy()
    return Copied(copy.tokens, copy.source)
