"""A tokenizer from GGUF metadata: byte-level BPE with the pre-tokenizers that are known exactly."""

from __future__ import annotations

import json
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from txdecode.kernels.models.errors import DamagedModel, UnsupportedTokenizer
from txdecode.kernels.models.gguf_file import GgufFile
from txdecode.kernels.models.text_assets import TextAssets, text_digest

_MODEL = "tokenizer.ggml.model"
_PRE = "tokenizer.ggml.pre"
_TOKENS = "tokenizer.ggml.tokens"
_TYPES = "tokenizer.ggml.token_type"
_MERGES = "tokenizer.ggml.merges"
_CONTROL, _USER_DEFINED = 3, 4

_FAMILIES = {
    "smollm": "smollm",
    "gpt-2": "gpt-2",
    "default": "gpt-2",
    "llama-bpe": "llama-bpe",
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
    "qwen2": "qwen2",
    "deepseek-r1-qwen": "qwen2",
}

# The two published patterns differ in the length of a run of digits alone.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def gguf_text(gguf: GgufFile) -> TextAssets:
    """Tokenizer, template and end tokens. Raises ``UnsupportedTokenizer`` and ``DamagedModel``.

    Generation ends at the file's end-of-sequence, end-of-turn and end-of-message tokens.
    """
    fields = gguf.fields
    family = gguf_tokenizer_family(gguf)
    tokenizer = _tokenizer(gguf, family)
    bos_id = fields.token("tokenizer.ggml.bos_token_id")
    # Where the file is silent, Llama 3 alone begins a prompt with BOS.
    if fields.flag("tokenizer.ggml.add_bos_token", default=family == "llama-bpe") and bos_id is not None:
        bos = _token_text(gguf, bos_id)
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", bos, "$B"], special_tokens=[(bos, bos_id)]
        )
    named = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token = fields.token(f"tokenizer.ggml.{key}_token_id")
        if token is not None:
            named[f"{name}_token"] = _token_text(gguf, token)
    ends = [fields.token(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    has_template = fields.has("tokenizer.chat_template")
    stated = {key: value for key, value in gguf.metadata.items() if key.startswith("tokenizer.")}
    return TextAssets(
        tokenizer=tokenizer,
        kind=f"byte-level BPE ({family})",
        chat_template=fields.text("tokenizer.chat_template") if has_template else None,
        special_tokens=named,
        eos_ids=tuple(dict.fromkeys(token for token in ends if token is not None)),
        bos_id=bos_id,
        sampling={},
        digest=text_digest([json.dumps(stated, sort_keys=True).encode()]),
    )


def gguf_tokenizer_family(gguf: GgufFile) -> str:
    """Which pre-tokenizer the file asks for. Raises ``UnsupportedTokenizer`` and ``DamagedModel``."""
    fields = gguf.fields
    model = fields.text(_MODEL)
    pre = fields.text(_PRE, default="none")
    if model != "gpt2" or pre not in _FAMILIES:
        found = f"{_MODEL} '{model}' with {_PRE} '{pre}'"
        raise UnsupportedTokenizer(found, [f"gpt2 with {name}" for name in _FAMILIES])
    return _FAMILIES[pre]


def _tokenizer(gguf: GgufFile, family: str) -> Tokenizer:
    tokens = _strings(gguf, _TOKENS)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise DamagedModel(gguf.path, f"'{_TOKENS}' lists a token twice")
    merges = []
    for merge in _strings(gguf, _MERGES):
        left, space, right = merge.partition(" ")
        # The library would panic on a part or a product that is no token.
        if not space or any(part not in vocabulary for part in (left, right, left + right)):
            raise DamagedModel(gguf.path, f"'{_MERGES}' holds {merge[:40]!r}, which joins no two tokens")
        merges.append((left, right))
    # Llama 3 takes a whole word that is a token as it is, whatever the merges would make of it.
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges, ignore_merges=family == "llama-bpe"))
    tokenizer.normalizer = normalizers.NFC() if family == "qwen2" else None
    tokenizer.pre_tokenizer = _pre_tokenizer(family)
    tokenizer.decoder = decoders.ByteLevel()
    kinds = gguf.metadata.get(_TYPES)
    if not isinstance(kinds, list) or len(kinds) != len(tokens):
        raise DamagedModel(gguf.path, f"'{_TYPES}' should be a list of {len(tokens)} numbers")
    whole = [
        AddedToken(token, normalized=False, special=kind == _CONTROL)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind in (_CONTROL, _USER_DEFINED) and token
    ]
    tokenizer.add_tokens(whole)
    return tokenizer


def _pre_tokenizer(family: str) -> Any:
    if family == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if family == "smollm":
        # Digits are cut out before words are: "  1" is two spaces and a one, not a space and " 1".
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    pattern = Regex(_SPLIT % ("{1,3}" if family == "llama-bpe" else ""))
    split = pre_tokenizers.Split(pattern, behavior="isolated")
    spelling = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split, spelling])


def _strings(gguf: GgufFile, key: str) -> list[str]:
    value = gguf.metadata.get(key)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise gguf.fields.wrong(key, "a list of strings", value)
    return value


def _token_text(gguf: GgufFile, token: int) -> str:
    tokens = _strings(gguf, _TOKENS)
    if token >= len(tokens):
        raise DamagedModel(gguf.path, f"special token {token} is not among the {len(tokens)} tokens")
    return tokens[token]
