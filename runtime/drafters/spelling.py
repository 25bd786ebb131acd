"""How drafters are spelled: ``draft=`` of ``Runtime.open``, ``--draft``, and the configuration in a log.

::

    draft   = "none" | copies | learned [ "+" copies ]
    learned = "mtp" | "executor" | "model"
    copies  = own | "shared" | own "+" "shared"
    own     = "lookup" [ ":" MIN ] | "suffix" [ ":" MIN ]

``mtp`` and ``executor`` both mean the drafter that the executor has itself, ``model`` a second model beside it.
MIN is how many tokens must agree for a copy.
"""

from __future__ import annotations

import re
from typing import Literal

import attrs

from txdecode.runtime.drafters.longest import LongestMatch
from txdecode.runtime.drafters.prompt_lookup import PromptLookup
from txdecode.runtime.drafters.shared_history import SharedHistory
from txdecode.runtime.drafters.suffix_automaton import SuffixAutomaton
from txdecode.runtime.errors import InvalidRequest
from txdecode.transactions.executor import Drafter, MatchingDrafter

MIN_MATCH_MAX = 64
"""Most tokens that may be asked to agree."""

LOOKUP_MATCH_MAX = 3
"""Longest context that prompt lookup tries, unless a longer one is asked for."""

Learned = Literal["", "executor", "model"]
_LEARNED: dict[str, Learned] = {"mtp": "executor", "executor": "executor", "model": "model"}
_OWN = re.compile(r"(lookup|suffix)(?::([0-9]{1,3}))?", re.ASCII)
SHARED = "shared"

HOSTED = frozenset({"none", PromptLookup().name, SuffixAutomaton().name, SharedHistory(1).name})
"""Sources of proposals in a log that are not the executor's."""

SPELLINGS = (
    "'lookup', 'none', 'suffix' (or 'lookup:MIN', 'suffix:MIN', which copy where MIN tokens agree), 'shared', "
    "'lookup+shared', 'suffix+shared', a Drafter, or, for an executor that drafts, 'mtp' (the same as 'executor'), "
    "or, with draft_model, 'model'; copies may follow these: 'mtp+lookup', 'model+suffix', 'mtp+suffix+shared'"
)


@attrs.frozen
class Spelled:
    """What a spelling says: the ``learned`` drafter, what copies from the request's own text and with which minimum
    match (0: nothing does), and whether there are copies from other requests."""

    learned: Learned = ""
    own: Literal["", "lookup", "suffix"] = ""
    min_match: int = 0
    shared: bool = False

    @property
    def composed(self) -> bool:
        """Whether learned drafts and copies may meet in one round."""
        return bool(self.learned and (self.own or self.shared))

    def host(self) -> Drafter | None:
        """A fresh drafter of the host; ``None`` where nothing is copied."""
        drafters: list[MatchingDrafter] = []
        if self.own == "lookup":
            drafters.append(PromptLookup(self.min_match, max(self.min_match, LOOKUP_MATCH_MAX)))
        elif self.own == "suffix":
            drafters.append(SuffixAutomaton(self.min_match))
        if self.shared:
            drafters.append(SharedHistory())
        if len(drafters) > 1:
            return LongestMatch(drafters)
        return drafters[0] if drafters else None


def parse_draft(name: str) -> Spelled:
    """What ``name`` says. Raises ``InvalidRequest`` with all spellings."""
    if name == "none":
        return Spelled()
    parts = name.split("+")
    learned: Learned = _LEARNED.get(parts[0], "")
    if learned:
        parts = parts[1:]
    made = _copies(name, parts)
    if made is None or not (learned or parts):
        raise InvalidRequest(f"draft must be {SPELLINGS}; found {name!r:.80}")
    return attrs.evolve(made, learned=learned)


def _copies(name: str, parts: list[str]) -> Spelled | None:
    """The copying drafters of a spelling; ``None`` where a part is none, or comes in the wrong place."""
    shared = bool(parts) and parts[-1] == SHARED
    if shared:
        parts = parts[:-1]
    if len(parts) > 1:
        return None
    if not parts:
        return Spelled(shared=shared)
    match = _OWN.fullmatch(parts[0])
    if match is None:
        return None
    least = 1 if match[2] is None else int(match[2])
    if not 1 <= least <= MIN_MATCH_MAX:
        raise InvalidRequest(
            f"the minimum match of draft '{match[1]}' must be 1 to {MIN_MATCH_MAX} tokens, found {least} in "
            f"{name!r:.80}; write '{match[1]}:2', say"
        )
    return Spelled("", "lookup" if match[1] == "lookup" else "suffix", least, shared)


def is_spelled(name: str) -> bool:
    """Whether ``name`` says which drafters are meant, as names of a caller's own drafters don't."""
    try:
        parse_draft(name)
    except InvalidRequest:
        return False
    return True


def learned_part(name: object) -> Learned:
    """The learned drafter that a name in a configuration means; none for a drafter of the caller's own."""
    return parse_draft(name).learned if isinstance(name, str) and is_spelled(name) else ""
