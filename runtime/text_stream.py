"""Text of a generation as its tokens come."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping

from txdecode.kernels.models.pieces import Pieces


class TextStream:
    """Turns token ids into text piece by piece; the pieces together are the text of all ids at once.

    Special tokens have no text. Bytes that begin a character are held back until the character is whole or
    cannot become one; each malformed sequence becomes one U+FFFD, as in WHATWG's UTF-8 decoder. The work
    is constant for a token. Derived state: a function of the ids pushed so far.
    """

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._pending = b""
        self._at_start = pieces.form.strips_lead

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Text to id of the special tokens."""
        return self._pieces.special

    def fork(self) -> TextStream:
        """An independent copy."""
        other = object.__new__(TextStream)
        other._pieces, other._pending, other._at_start = self._pieces, self._pending, self._at_start
        return other

    def probe(self, ids: Iterable[int]) -> str:
        """What ``push`` would return; changes nothing."""
        return self.fork().push(ids)

    def push(self, ids: Iterable[int]) -> str:
        """Take tokens; the text that is final now."""
        return self._decode(self._pending + b"".join(map(self._pieces.of, ids)), final=False)

    def flush(self) -> str:
        """The text of bytes held back; call it once, at the end."""
        return self._decode(self._pending, final=True)

    def _decode(self, data: bytes, final: bool) -> str:
        text, consumed = codecs.utf_8_decode(data, "replace", final)
        self._pending = data[consumed:]
        if self._at_start and text:
            self._at_start = False
            return text.removeprefix(" ")
        return text
