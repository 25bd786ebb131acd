"""Tokenizer, chat template and defaults of a folder in Hugging Face layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from txdecode.kernels.models.errors import DamagedModel, UnsupportedTokenizer
from txdecode.kernels.models.fields import Fields, read_json_object
from txdecode.kernels.models.folder_model import CONFIG
from txdecode.kernels.models.pieces import piece_form
from txdecode.kernels.models.text_assets import SAMPLING_KEYS, TextAssets, text_digest

_TOKENIZER = "tokenizer.json"
_TOKENIZER_CONFIG = "tokenizer_config.json"
_SPECIAL_TOKENS = "special_tokens_map.json"
_TEMPLATE = "chat_template.jinja"
_GENERATION = "generation_config.json"
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def folder_text(folder: Path) -> TextAssets:
    """Raises ``DamagedModel``, and ``UnsupportedTokenizer`` where there is no ``tokenizer.json`` or where its
    tokens cannot be turned into text one by one.

    The end tokens are those of ``generation_config.json``, else of ``config.json``, else ``eos_token``.
    """
    tokenizer = _tokenizer(folder)
    settings = _optional(folder / _TOKENIZER_CONFIG)
    named = _named_tokens(_optional(folder / _SPECIAL_TOKENS)) | _named_tokens(settings)
    generation = _optional(folder / _GENERATION)
    ends = generation.tokens("eos_token_id") or _configured_ends(folder / CONFIG)
    if not ends and "eos_token" in named:
        end = tokenizer.token_to_id(named["eos_token"])
        ends = () if end is None else (end,)
    bos = named.get("bos_token")
    template = _template(folder, settings)
    stated = json.dumps([template, named], sort_keys=True).encode()
    return TextAssets(
        tokenizer=tokenizer,
        kind=f"{piece_form(tokenizer).kind} {type(tokenizer.model).__name__}",
        chat_template=template,
        special_tokens=named,
        eos_ids=ends,
        bos_id=None if bos is None else tokenizer.token_to_id(bos),
        sampling=_sampling(generation),
        digest=text_digest([(folder / _TOKENIZER).read_bytes(), stated]),
    )


def _configured_ends(path: Path) -> tuple[int, ...]:
    config = Fields(path, read_json_object(path))
    text_part = config.values.get("text_config")
    of_text = Fields(path, text_part if isinstance(text_part, dict) else {})
    return config.tokens("eos_token_id") or of_text.tokens("eos_token_id")


def _tokenizer(folder: Path) -> Tokenizer:
    path = folder / _TOKENIZER
    if not path.is_file():
        others = [name for name in ("tokenizer.model", "vocab.json") if (folder / name).is_file()]
        if others:
            raise UnsupportedTokenizer(f"{others[0]} without {_TOKENIZER}", [_TOKENIZER])
        raise DamagedModel(path, "the file is missing")
    read_json_object(path)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # The library raises plain Exception for whatever it cannot read.
        raise DamagedModel(path, f"not a tokenizer ({' '.join(str(error).split())})") from error
    # Settings of training batches: they would cut or pad a prompt.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _optional(path: Path) -> Fields:
    return Fields(path, read_json_object(path) if path.is_file() else {})


def _named_tokens(fields: Fields) -> dict[str, str]:
    named = {}
    for name in _NAMED:
        value = fields.values.get(name)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            named[name] = content
        elif content is not None:
            raise fields.wrong(name, "a string", content)
    return named


def _template(folder: Path, settings: Fields) -> str | None:
    path = folder / _TEMPLATE
    if path.is_file():
        try:
            return path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DamagedModel(path, f"cannot be read ({error})") from error
    value: Any = settings.values.get("chat_template")
    if isinstance(value, list):
        # Several templates: the one for plain chat is called "default".
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        value = named.get("default")
    if value is not None and not isinstance(value, str):
        raise settings.wrong("chat_template", "a string", value)
    return value


def _sampling(generation: Fields) -> dict[str, float | int | bool]:
    defaults: dict[str, float | int | bool] = {}
    for key in SAMPLING_KEYS:
        value = generation.values.get(key)
        if isinstance(value, bool | int | float):
            defaults[key] = value
        elif value is not None:
            raise generation.wrong(key, "a number", value)
    return defaults
