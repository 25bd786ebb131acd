"""Small tokenizers of both kinds, and the real one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from txdecode.kernels.models.errors import ModelNotInstalled
from txdecode.kernels.models.loading import load_text
from txdecode.kernels.models.source import resolve
from txdecode.kernels.models.text_assets import TextAssets
from txdecode.runtime.text import Text

os.environ["HF_HUB_OFFLINE"] = "1"

# Tokens over the 256 bytes: words, parts of characters, a whole one, ends that begin others.
_WORDS = ("he", "hel", "hell", "hello", "wo", "wor", "world", "Ġw", "ab", "abc", "bc", "EN", "END")
_JOINED = (*_WORDS, "ðŁ", "ðŁĺ", "ðŁĺĢ", "âĤ")


def byte_level(special: tuple[str, ...] = ("<|end|>", "<|user|>")) -> Tokenizer:
    """Ids 0 and 1 are special, then come the 256 bytes in the order of their characters, then words."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*special, *alphabet, *_JOINED]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = [(token[:-1], token[-1]) for token in _JOINED if token[:-1] in vocabulary]
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    tokenizer.add_tokens([AddedToken("<plain 😀>", special=False)])
    return tokenizer


def byte_fallback(strips: bool = True) -> Tokenizer:
    """A tokenizer of the older Llama kind: ▁ for blanks, <0xNN> for bytes."""
    spelled = [f"<0x{byte:02X}>" for byte in range(256)]
    words = ["<s>", "</s>", *spelled, "▁", "▁he", "llo", "▁wor", "ld", "a", "b", "é"]
    tokenizer = Tokenizer(BPE(vocab={word: index for index, word in enumerate(words)}, merges=[]))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strips else steps)
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    return tokenizer


def assets_of(
    tokenizer: Tokenizer, template: str | None = None, special: Mapping[str, str] | None = None
) -> TextAssets:
    return TextAssets(
        tokenizer=tokenizer,
        kind="test",
        chat_template=template,
        special_tokens=special or {},
        eos_ids=(0,),
        bos_id=None,
        sampling={},
        digest="",
    )


@pytest.fixture(scope="session")
def make_text() -> Callable[..., Text]:
    """``make_text(template=None, special=None)``: a text over the byte-level tokenizer."""

    def make(template: str | None = None, special: Mapping[str, str] | None = None) -> Text:
        return Text(assets_of(byte_level(), template, special))

    return make


@pytest.fixture(scope="session")
def text() -> Text:
    return Text(assets_of(byte_level()))


@pytest.fixture(scope="session")
def fallback_texts() -> dict[bool, Text]:
    """By whether the tokenizer strips the first blank."""
    return {strips: Text(assets_of(byte_fallback(strips))) for strips in (True, False)}


@pytest.fixture(scope="session")
def smollm2() -> Text:
    """The real tokenizer, or a skip that says how to install it."""
    try:
        return Text(load_text(resolve("smollm2")))
    except ModelNotInstalled as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def smollm2_theirs(smollm2: Text) -> Any:
    """The same tokenizer by transformers, with digits cut out before words as the model was trained."""
    # What AutoTokenizer does with such a file, without its slow reading of the whole header.
    from transformers import PreTrainedTokenizerFast
    from transformers.integrations.gguf import convert_gguf_tokenizer, get_gguf_tokenizer

    architecture, described, named = get_gguf_tokenizer(str(resolve("smollm2").path))
    backend, _ = convert_gguf_tokenizer(architecture, described)
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=named["chat_template"],
        **{name: named[name] for name in ("bos_token", "eos_token", "unk_token", "pad_token")},
    )
