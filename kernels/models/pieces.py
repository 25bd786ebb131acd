"""The bytes that each token stands for, so that text can be built token by token."""

from __future__ import annotations

import json
import re
from typing import Any

import attrs
from tokenizers import Tokenizer

from txdecode.kernels.models.errors import UnsupportedTokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SUPPORTED = ("ByteLevel", "Replace + ByteFallback + Fuse", "Replace + ByteFallback + Fuse + Strip")


@attrs.frozen
class PieceForm:
    """How tokens spell bytes.

    ``byte_level``: each character of a token stands for one byte (GPT-2's alphabet). Otherwise tokens are
    text in which ``space`` stands for a blank, and ``<0xNN>`` for a byte. ``strips_lead``: one blank at the
    very beginning of a text is an artefact of the tokenizer and dropped.
    """

    byte_level: bool
    space: str = ""
    strips_lead: bool = False

    @property
    def kind(self) -> str:
        """A short name for people."""
        return "byte-level" if self.byte_level else "byte-fallback"


def piece_form(tokenizer: Tokenizer) -> PieceForm:
    """The form that the tokenizer's decoder asks for. Raises ``UnsupportedTokenizer`` naming the decoder."""
    decoder = tokenizer.decoder
    described: dict[str, Any] = {} if decoder is None else json.loads(decoder.__getstate__())
    steps = described.get("decoders", [described] if described else [])
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return PieceForm(byte_level=True)
    if kinds[:3] == ["Replace", "ByteFallback", "Fuse"] and steps[0]["content"] == " ":
        space = steps[0]["pattern"].get("String")
        strips = [(step["content"], step["start"], step["stop"]) for step in steps[3:] if "start" in step]
        if space and len(steps) == 3 + len(strips) and strips in ([], [(" ", 1, 0)]):
            return PieceForm(byte_level=False, space=space, strips_lead=bool(strips))
    found = " + ".join(str(kind) for kind in kinds) or "none"
    raise UnsupportedTokenizer(f"the decoder {found}", _SUPPORTED)


class Pieces:
    """Token id to bytes; special tokens and ids without a token are empty. Grows as tokens are met."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.form = piece_form(tokenizer)
        added = tokenizer.get_added_tokens_decoder()
        self.special = {token.content: index for index, token in added.items() if token.special}
        self._special_ids = frozenset(self.special.values())
        self._tokenizer = tokenizer
        self._known: dict[int, bytes] = {}

    def of(self, token: int) -> bytes:
        """The bytes of one token."""
        piece = self._known.get(token)
        if piece is None:
            piece = self._known[token] = self._spell(token)
        return piece

    def _spell(self, token: int) -> bytes:
        text = None if token in self._special_ids else self._tokenizer.id_to_token(token)
        if text is None:
            return b""
        if self.form.byte_level:
            # A token with a character outside the alphabet was added as plain text.
            spelled = [_BYTE_OF_CHARACTER.get(character) for character in text]
            known = [byte for byte in spelled if byte is not None]
            return bytes(known) if len(known) == len(spelled) else text.encode()
        match = _BYTE_TOKEN.fullmatch(text)
        return bytes([int(match[1], 16)]) if match else text.replace(self.form.space, " ").encode()


def _alphabet() -> dict[str, int]:
    """GPT-2's printable character for each byte: itself where it prints, else from U+0100 upwards."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    characters = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(0x100) if byte not in printable]
    characters.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return characters


_BYTE_OF_CHARACTER = _alphabet()
