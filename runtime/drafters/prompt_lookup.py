"""Prompt lookup: what followed the last tokens the last time they occurred is proposed to follow again.

Source: Saxena, "Prompt Lookup Decoding" (2023); here the latest occurrence is taken, not the first, since
text that is being edited repeats its newest form. Copied tokens are a point mass.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from txdecode.transactions.executor import Copy

# Keys are n tokens packed into one integer: half the memory of a tuple, and computed from the key before.
_TOKEN_BITS = 32
TOKEN_MAX = (1 << _TOKEN_BITS) - 1


@attrs.define
class _Stream:
    """Known tokens of one request and where their n-grams ended.

    ``ends[i]`` maps each n-gram with n = ``min_match + i`` to the position after its latest occurrence that
    has a token after it. The index is one token behind the stream: the n-gram that ends the stream enters
    when the next token comes, so a suffix never finds itself. ``suffix[i]`` is the key of the last
    ``min_match + i`` tokens.
    """

    tokens: list[int]
    ends: tuple[dict[int, int], ...]
    suffix: list[int]


class PromptLookup:
    """Proposes the tokens that followed the latest earlier occurrence of the stream's last tokens.

    The longest match is taken: the last ``max_match`` tokens, then one less, down to ``min_match``. The
    occurrence may overlap the suffix. Only known tokens are proposed: an occurrence near the end of the
    stream yields fewer than asked for, and copying never goes on through the proposal itself.

    Host drafter by the ``MatchingDrafter`` protocol. Deterministic. A ``commit`` costs O(max_match) a token, a
    ``propose`` O(max_match + count), a ``match`` O(max_match * len(after)) besides, whatever the length of the
    stream.
    """

    def __init__(self, min_match: int = 1, max_match: int = 3) -> None:
        assert 1 <= min_match <= max_match, (min_match, max_match)
        self._min = min_match
        self._masks = tuple((1 << _TOKEN_BITS * n) - 1 for n in range(min_match, max_match + 1))
        self._streams: dict[int, _Stream] = {}

    @property
    def name(self) -> str:
        """Name in the log."""
        return "prompt_lookup"

    def begin(self, request: int, tokens: Sequence[int]) -> None:
        """Index ``tokens``; what was known of ``request`` before is forgotten."""
        sizes = range(len(self._masks))
        self._streams[request] = _Stream([], tuple({} for _ in sizes), [0 for _ in sizes])
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
        for size, mask in reversed(tuple(enumerate(self._masks))):
            key = stream.suffix[size]
            for token in after:
                key = (key << _TOKEN_BITS | token) & mask
            # A suffix longer than the stream has zeros in front, but an index that short has no entries.
            end = stream.ends[size].get(key)
            if end is not None:
                return Copy(tuple(stream.tokens[end : end + count]), self._min + size)
        return Copy()

    def commit(self, request: int, tokens: Sequence[int]) -> None:
        """Append ``tokens`` to the stream. Ids lie in 0..``TOKEN_MAX``."""
        assert request in self._streams, f"request {request} has not begun"
        stream = self._streams[request]
        known, ends, suffix = stream.tokens, stream.ends, stream.suffix
        for token in tokens:
            assert 0 <= token <= TOKEN_MAX, token
            length = len(known)
            for size, mask in enumerate(self._masks):
                if length >= self._min + size:
                    ends[size][suffix[size]] = length
                suffix[size] = (suffix[size] << _TOKEN_BITS | token) & mask
            known.append(token)

    def end(self, request: int) -> None:
        """Free everything held for ``request``."""
        assert request in self._streams, f"request {request} has not begun"
        del self._streams[request]
