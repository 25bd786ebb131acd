"""Stop strings over the text of a generation, decided token by token and independent of rounds."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from txdecode.runtime.text_errors import InvalidStop
from txdecode.runtime.text_stream import TextStream

_ROOT = 0


class StopMatcher:
    """Finds the first stop string of a generation, and holds back what may yet become one.

    The first stop is the one whose last character comes first; of several that end there, the longest. It
    may begin and end anywhere inside tokens. A stop string that is the name of a special token, such as
    ``<|im_end|>``, means that token, which has no text of its own. Derived state: a function of the ids
    committed so far, cheap to ``fork``.

    Nothing stops before ``after`` tokens: their text is shown as it comes, and a stop string counts only if
    all of it is text of later tokens. A character is text of the token that completes it.
    """

    def __init__(self, stream: TextStream, stops: Sequence[str] = (), after: int = 0) -> None:
        """``stream`` must be fresh. Raises ``InvalidStop``."""
        texts = _checked(stops)
        special = stream.special_tokens
        self._automaton = _Automaton([stop for stop in texts if stop not in special])
        self._stop_tokens = {special[stop]: stop for stop in texts if stop in special}
        self._stream = stream
        self._after = after
        self._count = 0
        self._node = _ROOT
        self._held = ""
        self._stopped: str | None = None
        self._flushed = False

    @property
    def stopped(self) -> str | None:
        """The stop string that was completed, or ``None``."""
        return self._stopped

    def fork(self) -> StopMatcher:
        """An independent copy."""
        other = object.__new__(StopMatcher)
        other.__dict__.update(self.__dict__)
        other._stream = self._stream.fork()
        return other

    def probe(self, candidates: Sequence[int]) -> int | None:
        """Index of the first candidate that completes a stop string if all were committed; changes nothing.

        Clip a round to ``index + 1`` tokens. ``None`` where no stop string is completed.
        """
        assert self._stopped is None, "probe after the stop"
        if not self._automaton.stops and not self._stop_tokens:
            return None
        stream, node = self._stream.fork(), self._node
        for index, token in enumerate(candidates):
            if self._count + index < self._after:
                stream.push((token,))
                continue
            if token in self._stop_tokens:
                return index
            for character in stream.push((token,)):
                node = self._automaton.step(node, character)
                if self._automaton.match(node):
                    return index
        return None

    def commit(self, ids: Sequence[int]) -> str:
        """Take committed tokens; the text that may be shown now. Text from a stop string on is dropped."""
        assert not self._flushed, "commit after flush"
        shown = []
        for token in ids:
            if self._stopped is not None:
                break
            self._count += 1
            if self._count <= self._after:
                shown.append(self._stream.push((token,)))
                continue
            if token in self._stop_tokens:
                shown.append(self._scan(self._stream.flush()) + self._release())
                self._stopped = self._stopped or self._stop_tokens[token]
                break
            shown.append(self._scan(self._stream.push((token,))))
        return "".join(shown)

    def flush(self) -> str:
        """The generation is over: the rest of the text, empty after a stop."""
        if self._flushed or self._stopped is not None:
            return ""
        self._flushed = True
        if self._count <= self._after:
            return self._stream.flush()
        return self._scan(self._stream.flush()) + self._release()

    def _scan(self, text: str) -> str:
        """Run new text through the automaton; the part that no stop string can claim any more."""
        if not self._automaton.stops:
            return text
        shown = []
        for character in text:
            self._node = self._automaton.step(self._node, character)
            self._held += character
            length = self._automaton.match(self._node)
            if length:
                cut = len(self._held) - length
                self._stopped = self._held[cut:]
                shown.append(self._held[:cut])
                self._held = ""
                break
            free = len(self._held) - self._automaton.depth(self._node)
            if free:
                shown.append(self._held[:free])
                self._held = self._held[free:]
        return "".join(shown)

    def _release(self) -> str:
        released, self._held, self._node = self._held, "", _ROOT
        return released


class _Automaton:
    """Aho and Corasick's string matcher (CACM 18, 1975): one step a character, amortised constant time.

    A node stands for the longest suffix of the text that begins some stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = tuple(stops)
        self._next: list[dict[str, int]] = [{}]
        self._fail = [_ROOT]
        self._depth = [0]
        self._match = [0]
        for stop in stops:
            node = _ROOT
            for character in stop:
                if character not in self._next[node]:
                    self._next[node][character] = len(self._next)
                    self._next.append({})
                    self._fail.append(_ROOT)
                    self._depth.append(self._depth[node] + 1)
                    self._match.append(0)
                node = self._next[node][character]
            self._match[node] = len(stop)
        self._link()

    def step(self, node: int, character: str) -> int:
        """The node after one more character."""
        while node and character not in self._next[node]:
            node = self._fail[node]
        return self._next[node].get(character, _ROOT)

    def match(self, node: int) -> int:
        """Length of the longest stop string that ends here, 0 for none."""
        return self._match[node]

    def depth(self, node: int) -> int:
        """Number of last characters that may still become a stop string."""
        return self._depth[node]

    def _link(self) -> None:
        # Breadth first: the link of a node is known before those of its children, which build on it.
        queue = deque(self._next[_ROOT].values())
        while queue:
            node = queue.popleft()
            self._match[node] = self._match[node] or self._match[self._fail[node]]
            for character, child in self._next[node].items():
                self._fail[child] = self.step(self._fail[node], character)
                queue.append(child)


def _checked(stops: Sequence[str]) -> list[str]:
    if isinstance(stops, str):
        raise InvalidStop("a list of strings", stops)
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            raise InvalidStop("strings of at least one character", stop)
    return list(dict.fromkeys(stops))
