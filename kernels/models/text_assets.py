"""Everything about text that comes with a model; no tensors and no torch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import attrs
from tokenizers import Tokenizer

_DIGEST_BYTES = 16

# The entries of generation_config.json that say how the makers sample.
SAMPLING_KEYS = ("do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@attrs.frozen(eq=False)
class TextAssets:
    """Tokenizer, chat template and defaults of a model.

    ``tokenizer``: with its post-processor, so that ``encode(text)`` adds the tokens that the model wants
    before a plain prompt (BOS where it has one) and ``encode(text, add_special_tokens=False)`` does not.
    ``kind``: a short name of the tokenizer for people. ``special_tokens``: named tokens (``bos_token``,
    ``eos_token``, ...) as text, for the chat template. ``eos_ids``: any of these ends a generation.
    ``sampling``: the makers' defaults, a subset of ``SAMPLING_KEYS``; empty where they say nothing.
    """

    # Their representations would fill pages.
    tokenizer: Tokenizer = attrs.field(repr=False)
    kind: str
    chat_template: str | None = attrs.field(repr=False)
    special_tokens: Mapping[str, str]
    eos_ids: tuple[int, ...]
    bos_id: int | None
    sampling: Mapping[str, float | int | bool]
    _digest: str

    def digest(self) -> str:
        """blake2b-128 in hexadecimal over tokenizer and chat template as the files state them.

        Not over the tokenizer object: how the library writes that changes with its version.
        """
        return self._digest


def text_digest(parts: Iterable[bytes]) -> str:
    """The digest of what files state about text."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()
