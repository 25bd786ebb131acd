"""Copies behind the longest match: a suffix automaton over each request's text, grown a token at a time.

The automaton (Blumer et al., "The smallest automaton recognizing the subwords of a text", 1985) has one state for
all substrings that end at the same positions, at most 2n of them, and its suffix link leads from a substring to the
longest suffix of it that ends in more places. So the link of the state of the whole text is its longest suffix that
occurred earlier: a match of any length, found without a search.

It doesn't say where the match ended last, and to keep that by state would mean a walk along all suffixes for every
token. It is kept by position instead. Position e *owns* the suffixes of the text up to e that have not occurred
since: those longer than ``floor[e]``; shorter ones have passed on to ``heir[e]``, which came later and ends with the
same ``floor[e]`` tokens. A new position takes over every suffix that occurred before, which raises the floors of
their owners, longest suffix first. These owners are few: they are the stretches of one colour on a path that is
painted anew, as in the analysis of link-cut trees, O(log n) a token amortised whatever the text.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import attrs

from txdecode.transactions.executor import Copy

TOKEN_MAX = (1 << 32) - 1
_NONE = -1
_ROOT = 0


def _integers() -> array[int]:
    # Eight bytes an entry where a list has a pointer and an object.
    return array("q")


@attrs.define(eq=False)
class Automaton:
    """The suffix automaton of ``tokens``, and which position owns which suffix.

    By state: ``length`` of its longest substring, suffix ``link``, ``seen`` (a position where its substrings ended;
    later owners are found from there). Most states have one edge, kept in ``edge`` and ``target``; those of a state
    with more of them are in ``more``. By position: ``floor`` and ``heir``. ``match`` is the length of the longest
    suffix of all tokens that occurred earlier, ``owners`` the pairs (longest length, owner) of it and of its
    suffixes before the last token came, longest first. ``steps`` counts the inner loops, for tests.
    """

    tokens: list[int] = attrs.Factory(list)
    length: array[int] = attrs.Factory(_integers)
    link: array[int] = attrs.Factory(_integers)
    seen: array[int] = attrs.Factory(_integers)
    edge: array[int] = attrs.Factory(_integers)
    target: array[int] = attrs.Factory(_integers)
    more: dict[int, dict[int, int]] = attrs.Factory(dict)
    floor: array[int] = attrs.Factory(_integers)
    heir: array[int] = attrs.Factory(_integers)
    last: int = _ROOT
    match: int = 0
    owners: list[tuple[int, int]] = attrs.Factory(list)
    steps: int = 0

    def __attrs_post_init__(self) -> None:
        self._state(0, _NONE, _NONE)

    @property
    def states(self) -> int:
        """How many there are."""
        return len(self.length)

    def append(self, token: int) -> None:
        """One more token."""
        position = len(self.tokens)
        self.tokens.append(token)
        self._grow(token, position)
        self._take_over(position)

    # The automaton.

    def _state(self, length: int, link: int, seen: int) -> int:
        self.length.append(length)
        self.link.append(link)
        self.seen.append(seen)
        self.edge.append(_NONE)
        self.target.append(_NONE)
        return len(self.length) - 1

    def _next(self, state: int, token: int) -> int:
        if self.edge[state] == token:
            return self.target[state]
        more = self.more.get(state)
        return _NONE if more is None else more.get(token, _NONE)

    def _connect(self, state: int, token: int, target: int) -> None:
        if self.edge[state] in (token, _NONE):
            self.edge[state], self.target[state] = token, target
        else:
            self.more.setdefault(state, {})[token] = target

    def _grow(self, token: int, position: int) -> None:
        made = self._state(position + 1, _ROOT, position)
        state = self.last
        while state != _NONE and self._next(state, token) == _NONE:
            self.steps += 1
            self._connect(state, token, made)
            state = self.link[state]
        if state != _NONE:
            self.link[made] = self._exact(state, token)
        self.last = made

    def _exact(self, state: int, token: int) -> int:
        """The state of ``state``'s longest substring with ``token`` behind it, split off where it shares one."""
        found = self._next(state, token)
        wanted = self.length[state] + 1
        if self.length[found] == wanted:
            return found
        # What is copied stays for good, and an automaton has at most 3n edges: all copies together are O(n).
        clone = self._state(wanted, self.link[found], self.seen[found])
        self.edge[clone], self.target[clone] = self.edge[found], self.target[found]
        if found in self.more:
            self.more[clone] = dict(self.more[found])
        self.link[found] = clone
        while state != _NONE and self._next(state, token) == found:
            self.steps += 1
            self._connect(state, token, clone)
            state = self.link[state]
        return clone

    # Where substrings ended last.

    def owner(self, position: int, length: int) -> int:
        """Where the last ``length`` tokens up to ``position`` ended last."""
        floor, heir = self.floor, self.heir
        while floor[position] >= length:
            self.steps += 1
            following = heir[position]
            if floor[following] >= floor[position]:
                # All that ``position`` passed on has been passed on again: the next one need not come this way.
                heir[position] = heir[following]
            position = following
        return position

    def _take_over(self, position: int) -> None:
        """``position`` becomes the owner of all suffixes that end there."""
        self.floor.append(0)
        self.heir.append(_NONE)
        state = self.link[self.last]
        length = self.match = self.length[state]
        owners: list[tuple[int, int]] = []
        before = self.seen[state]
        while length:
            self.steps += 1
            before = self.owner(before, length)
            owners.append((length, before))
            # Its heir of old ends with the ``floor`` tokens that it had passed on, which come next.
            heir, shorter = self.heir[before], self.floor[before]
            self.floor[before], self.heir[before] = length, position
            before, length = heir, shorter
        if owners:
            self.seen[state] = position
        self.owners = owners

    def find(self, after: Sequence[int]) -> tuple[int, int]:
        """The longest suffix of all tokens with ``after`` behind them that ended at a position with a token after
        it: its length, and the latest such position. Nothing is changed but how fast owners are found."""
        if not after:
            return self.owners[0] if self.owners else (0, _NONE)
        state, length = self.last, self.length[self.last]
        for token in after:
            while state != _ROOT and self._next(state, token) == _NONE:
                state = self.link[state]
                length = self.length[state]
            following = self._next(state, token)
            if following != _NONE:
                state, length = following, length + 1
        final = len(self.tokens) - 1
        while length:
            end = self.owner(self.seen[state], length)
            if end != final:
                return length, end
            if length <= self.match:
                # It ends the text too; before the last token somebody else owned it.
                return length, next(owner for longest, owner in reversed(self.owners) if longest >= length)
            state = self.link[state]
            length = self.length[state]
        return 0, _NONE


class SuffixAutomaton:
    """Proposes the tokens that followed the latest earlier occurrence of the longest suffix of the stream that
    occurred earlier, whatever its length; nothing where that is shorter than ``min_match``.

    Only known tokens are proposed, as with ``PromptLookup``, and the occurrence may overlap the suffix. A ``commit``
    takes two to four steps a token on common text, O(log n) amortised on any, and 200 to 350 bytes; a ``match`` as
    many for each token of ``after``. Host drafter by the ``MatchingDrafter`` protocol. Deterministic.
    """

    def __init__(self, min_match: int = 1) -> None:
        assert min_match >= 1, min_match
        self._min = min_match
        self._streams: dict[int, Automaton] = {}

    @property
    def name(self) -> str:
        """Name in the log."""
        return "suffix_automaton"

    def begin(self, request: int, tokens: Sequence[int]) -> None:
        """Index ``tokens``; what was known of ``request`` before is forgotten."""
        self._streams[request] = Automaton()
        self.commit(request, tokens)

    def propose(self, request: int, count: int) -> tuple[int, ...]:
        """At most ``count`` tokens that followed the longest, then latest, match; empty where none is."""
        return self.match(request, count).tokens

    def match(self, request: int, count: int, after: Sequence[int] = ()) -> Copy:
        """At most ``count`` tokens that followed the longest, then latest, earlier occurrence of the last tokens of
        the stream with ``after`` behind it, and how many tokens agreed. ``after`` is not indexed: only known tokens
        are matched and copied."""
        assert request in self._streams, f"request {request} has not begun"
        assert count >= 0, count
        stream = self._streams[request]
        length, end = stream.find(after)
        if length < self._min:
            return Copy()
        return Copy(tuple(stream.tokens[end + 1 : end + 1 + count]), length)

    def commit(self, request: int, tokens: Sequence[int]) -> None:
        """Append ``tokens`` to the stream. Ids lie in 0..``TOKEN_MAX``."""
        assert request in self._streams, f"request {request} has not begun"
        stream = self._streams[request]
        for token in tokens:
            assert 0 <= token <= TOKEN_MAX, token
            stream.append(token)

    def end(self, request: int) -> None:
        """Free everything held for ``request``."""
        assert request in self._streams, f"request {request} has not begun"
        del self._streams[request]
