"""Text of requests: from prompts and chat messages to token ids, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from txdecode.kernels.models.pieces import Pieces
from txdecode.kernels.models.text_assets import TextAssets
from txdecode.runtime.chat import ChatTemplate
from txdecode.runtime.stops import StopMatcher
from txdecode.runtime.text_errors import ChatTemplateMissing, InvalidText
from txdecode.runtime.text_stream import TextStream


class Text:
    """The tokenizer and the chat template of a model. Safe to use from several threads.

    Raises ``UnsupportedTokenizer`` where tokens cannot be turned into text one by one, and ``ChatRefused``
    where the chat template is not valid.
    """

    def __init__(self, assets: TextAssets) -> None:
        self.assets = assets
        self._pieces = Pieces(assets.tokenizer)
        self._names = {token: name for name, token in self._pieces.special.items()}
        template = assets.chat_template
        self._template = None if template is None else ChatTemplate(template, assets.special_tokens)

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Any of these tokens ends a generation."""
        return self.assets.eos_ids

    @property
    def has_chat(self) -> bool:
        """Whether ``encode_chat`` can be used."""
        return self._template is not None

    def encode(self, text: str) -> list[int]:
        """Ids of a plain prompt, with the tokens that the model wants before one. Names of special tokens
        in the text become those tokens. Raises ``InvalidText``."""
        return self._ids(text, "prompt", add_special_tokens=True)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Ids of a conversation, ending where the assistant begins to speak.

        ``messages`` are objects with ``role`` and ``content`` (strings), and what else the template reads.
        Raises ``ChatTemplateMissing``, ``InvalidMessages``, ``ChatRefused``, ``InvalidText``.
        """
        # The template writes the special tokens itself.
        return self._ids(self.render_chat(messages), "chat prompt", add_special_tokens=False)

    def render_chat(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The text of a conversation before it is encoded. Raises as ``encode_chat`` does."""
        if self._template is None:
            raise ChatTemplateMissing
        return self._template.render(messages)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, special tokens left out: what a ``stream`` gives for them in all."""
        stream = self.stream()
        return stream.push(ids) + stream.flush()

    def token_text(self, token: int) -> str:
        """One token for people: a special one by its name, a part of a character as U+FFFD."""
        return self._names.get(token) or self.decode([token])

    def stream(self) -> TextStream:
        """A fresh incremental decoder."""
        return TextStream(self._pieces)

    def stop_matcher(self, stops: Sequence[str] = (), after: int = 0) -> StopMatcher:
        """A fresh matcher over a fresh stream; nothing stops before ``after`` tokens. Raises ``InvalidStop``."""
        return StopMatcher(self.stream(), stops, after)

    def _ids(self, text: str, where: str, *, add_special_tokens: bool) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidText(where, error.start) from error
        return list(self.assets.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)
