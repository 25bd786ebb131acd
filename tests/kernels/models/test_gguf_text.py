"""Tokenizers from GGUF metadata against transformers, and against the published patterns."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import regex
from gguf import GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers, pre_tokenizers

from txdecode.kernels.models.errors import DamagedModel, UnsupportedTokenizer
from txdecode.kernels.models.loading import load_text
from txdecode.kernels.models.source import ModelSource, resolve
from txdecode.kernels.models.text_assets import TextAssets

CORPUS = (
    "",
    " ",
    "Hello, world!",
    "def add(a: int, b: int) -> int:\n    return a + b  # 12 + 34 = 46\n\n\nclass X:\n\tpass\n",
    "1. First\n\n2. Second\n   10. Tenth 1234567890 3.14159 0xFF 1e-5\n",
    "I'll don't WE'RE they've I'm he'd it's 'tis",
    "naïve café — “quotes” … Ωμέγα привет мир 你好，世界 こんにちは 안녕하세요 שלום مرحبا",
    "emoji 😀👩‍👩‍👧‍👦🏳️‍🌈 flags 🇩🇪🇫🇷 ½ ² Ⅷ ٣٤٥ १२३ ①",
    "tabs\t\ttabs  two   three    four     \n \n\n \r\n\r\n end   ",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|><|im_end|> <repo_name>x<file_sep>y <gh_stars>",
    "<|im_start <| |> <|im_end",
    '{"key": [1, 2.5, null, true], "nested": {"a": "b\\n"}}',
    "https://example.org/path?query=1&x=%20#frag user@example.org",
    "e\u0301 combining, zero\u200bwidth, nbsp\u00a0here, \u2028 line \ufeff bom, \x00\x01\x7f control",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa ==================== ----- ......",
)
TEXT = st.text(
    st.one_of(
        st.sampled_from(" \n\t\r'019aAzé½٣😀<|>_-./:{}()"),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=60,
)
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def their_tokenizer(path: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)


@pytest.fixture(scope="module")
def smollm2_text(smollm2: ModelSource) -> TextAssets:
    return load_text(smollm2)


@pytest.fixture(scope="module")
def smollm2_theirs(smollm2: ModelSource) -> Any:
    return their_tokenizer(smollm2.path)


@pytest.fixture(scope="module")
def smollm2_corrected(smollm2_theirs: Any) -> Tokenizer:
    """Transformers' tokenizer with digits cut out first.

    Version 5.24 splits a ``smollm`` vocabulary by GPT-2's pattern alone, so that it reads ``"  1"`` and
    ``"\\n\\n1"`` in other tokens than the model was trained on. llama.cpp and the model's own
    ``tokenizer.json`` cut out digits first.
    """
    tokenizer = Tokenizer.from_str(smollm2_theirs.backend_tokenizer.to_str())
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, tokenizer.pre_tokenizer])
    return tokenizer


@pytest.mark.model
@pytest.mark.parametrize("text", CORPUS)
def test_smollm2_ids_equal_those_of_transformers(
    smollm2_text: TextAssets, smollm2_corrected: Tokenizer, text: str
) -> None:
    ids = smollm2_text.tokenizer.encode(text).ids
    assert ids == smollm2_corrected.encode(text).ids
    for skip in (True, False):
        ours = smollm2_text.tokenizer.decode(ids, skip_special_tokens=skip)
        assert ours == smollm2_corrected.decode(ids, skip_special_tokens=skip)


@pytest.mark.model
@settings(max_examples=300, deadline=None)
@given(text=TEXT)
def test_smollm2_ids_equal_those_of_transformers_on_any_text(
    smollm2_text: TextAssets, smollm2_corrected: Tokenizer, smollm2_theirs: Any, text: str
) -> None:
    ids = smollm2_text.tokenizer.encode(text).ids
    assert ids == smollm2_corrected.encode(text).ids
    if regex.search(r"\s\s\p{N}|[^\x00-\x7f]", text) is None:
        assert ids == smollm2_theirs.encode(text)
    # The vocabulary has no token for six control characters and the bytes F1 and F2; they are dropped.
    spelled = "".join(part for part, _ in pre_tokenizers.ByteLevel(False).pre_tokenize_str(text))
    if all(smollm2_text.tokenizer.token_to_id(character) is not None for character in spelled):
        assert smollm2_text.tokenizer.decode(ids, skip_special_tokens=False) == text


@pytest.mark.model
def test_smollm2_cuts_out_digits_before_words(smollm2_text: TextAssets) -> None:
    assert smollm2_text.tokenizer.encode("a  1\n\n12").tokens == ["a", "ĠĠ", "1", "ĊĊ", "1", "2"]


@pytest.mark.model
@settings(max_examples=200, deadline=None)
@given(
    text=st.text(
        " \n\t\r\u00a0\u2028019aAzßéЖ中あ٣½Ⅷ²😀'’<|>_-./:{}()$+\u0301\u200b\x00sStTlLdD", max_size=40
    )
)
def test_smollm2_splits_as_llama_cpp_says(smollm2_text: TextAssets, text: str) -> None:
    """Two patterns one after the other, as its source lists them: each digit, then GPT-2's."""
    pieces = [part for part in regex.split(r"(\p{N})", text) if part]
    expected = [word for piece in pieces for word in regex.findall(GPT2, piece)]
    found = smollm2_text.tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in found] == expected


@pytest.mark.model
def test_smollm2_assets(smollm2_text: TextAssets, smollm2_theirs: Any) -> None:
    assert smollm2_text.eos_ids == (2,) == (smollm2_theirs.eos_token_id,)
    assert smollm2_text.bos_id == smollm2_theirs.bos_token_id == 1
    assert smollm2_text.special_tokens["eos_token"] == "<|im_end|>"
    assert smollm2_text.chat_template == smollm2_theirs.chat_template
    assert smollm2_text.kind == "byte-level BPE (smollm)"
    assert smollm2_text.sampling == {}
    added = smollm2_text.tokenizer.get_added_tokens_decoder()
    assert {index: token.content for index, token in added.items() if token.special} == {
        index: token.content
        for index, token in smollm2_theirs.backend_tokenizer.get_added_tokens_decoder().items()
    }
    assert len(added) == 17


@pytest.mark.parametrize("pre", ["gpt-2", "default", "llama-bpe", "qwen2"])
@settings(max_examples=100, deadline=None)
@given(text=TEXT)
def test_other_families_equal_transformers(pairs: dict[str, tuple[Any, Any]], pre: str, text: str) -> None:
    ours, theirs = pairs[pre]
    if pre == "qwen2":
        # Qwen's own tokenizer composes characters first; transformers' reader of GGUF files does not.
        assert ours.tokenizer.encode(text).ids == ours.tokenizer.encode(nfc(text)).ids
        text = nfc(text)
    assert ours.tokenizer.encode(text, add_special_tokens=False).ids == theirs.encode(
        text, add_special_tokens=False
    )


def nfc(text: str) -> str:
    return str(normalizers.NFC().normalize_str(text))


@pytest.fixture(scope="module")
def pairs(
    folders: dict[str, Any],
    make_gguf: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, tuple[Any, Any]]:
    """Our tokenizer and that of transformers for each family."""
    folder = tmp_path_factory.mktemp("families")
    result = {}
    for pre in ("gpt-2", "default", "llama-bpe", "qwen2"):
        path = make_gguf(folder / f"{pre}.gguf", folders["llama"], pre=pre)
        result[pre] = (load_text(resolve(str(path))), their_tokenizer(path))
    return result


Make = Callable[..., TextAssets]


@pytest.fixture
def make_text(folders: dict[str, Any], make_gguf: Callable[..., Path], tmp_path: Path) -> Make:
    """Text assets of a tiny file whose metadata ``edit`` changed."""

    def make(edit: Callable[[GGUFWriter], None] = lambda _: None, **settings: Any) -> TextAssets:
        path = make_gguf(tmp_path / "tiny.gguf", folders["llama"], edit=edit, **settings)
        return load_text(resolve(str(path)))

    return make


def replaced(**values: Any) -> Callable[[GGUFWriter], None]:
    def edit(writer: GGUFWriter) -> None:
        for key, value in values.items():
            name = f"tokenizer.ggml.{key}"
            old = writer.kv_data[0].pop(name, None)
            new = value(old.value) if callable(value) and old is not None else value
            if new is None:
                continue
            {int: writer.add_uint32, bool: writer.add_bool, list: writer.add_array, str: writer.add_string}[
                type(new)
            ](name, new)

    return edit


@pytest.mark.parametrize(
    ("model", "pre", "words"),
    [("llama", "default", "'llama'"), ("gpt2", "tekken", "'tekken'"), ("bert", "gpt-2", "'bert'")],
)
def test_other_tokenizers_are_refused_by_name(make_text: Make, model: str, pre: str, words: str) -> None:
    with pytest.raises(UnsupportedTokenizer, match=words) as caught:
        make_text(tokenizer_model=model, pre=pre)
    assert "smollm" in str(caught.value)


def test_a_file_without_a_pre_tokenizer_is_refused(make_text: Make) -> None:
    with pytest.raises(UnsupportedTokenizer, match="none"):
        make_text(replaced(pre=None))


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": lambda tokens: [*tokens[:-1], tokens[5]]},
        {"tokens": [1, 2, 3]},
        {"tokens": None},
        {"merges": lambda merges: [*merges, "no-space"]},
        {"merges": lambda merges: [*merges, "zz qq"]},
        {"merges": None},
        {"token_type": lambda kinds: kinds[:-1]},
        {"token_type": None},
        {"eos_token_id": 100_000},
        {"model": None},
    ],
)
def test_contradicting_metadata_is_damage(make_text: Make, changes: dict[str, Any]) -> None:
    with pytest.raises(DamagedModel, match=re.escape("tiny.gguf")):
        make_text(replaced(**changes))


def test_a_token_listed_twice_is_damage(make_text: Make) -> None:
    doubled = replaced(tokens=lambda tokens: [*tokens[:-1], tokens[5]], merges=lambda merges: merges[:-1])
    with pytest.raises(DamagedModel, match="twice"):
        make_text(doubled)


def test_control_tokens_are_special(make_text: Make) -> None:
    tokenizer = make_text().tokenizer
    ids = tokenizer.encode("the<|end|>the").ids
    assert 0 in ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "thethe"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "the<|end|>the"


def test_end_tokens_are_those_of_sentence_turn_and_message(make_text: Make) -> None:
    assert make_text().eos_ids == (0,)
    assert make_text(replaced(eot_token_id=5, eom_token_id=0)).eos_ids == (0, 5)


def test_bos_begins_a_prompt_where_the_file_or_the_family_says_so(make_text: Make) -> None:
    def begins(assets: TextAssets) -> bool:
        assert assets.bos_id == 1
        assert assets.tokenizer.encode("the", add_special_tokens=False).ids[0] != 1
        return bool(assets.tokenizer.encode("the").ids[0] == 1)

    assert not begins(make_text())
    assert begins(make_text(replaced(add_bos_token=True)))
    assert begins(make_text(pre="llama-bpe"))
    assert not begins(make_text(replaced(add_bos_token=False), pre="llama-bpe"))


def test_user_defined_tokens_are_whole_but_have_text(make_text: Make) -> None:
    def edit(writer: GGUFWriter) -> None:
        replaced(
            tokens=lambda tokens: [*tokens[:-1], "<think on>"],
            token_type=lambda kinds: [*kinds[:-1], 4],
            merges=lambda merges: merges[:-1],
        )(writer)

    tokenizer = make_text(edit).tokenizer
    last = tokenizer.get_vocab_size() - 1
    ids = tokenizer.encode("the<think on>the").ids
    assert ids.count(last) == 1
    assert tokenizer.decode(ids, skip_special_tokens=True) == "the<think on>the"


def test_llama3_takes_a_word_that_is_a_token_as_it_is(make_text: Make) -> None:
    changes = {
        "tokens": lambda tokens: [*tokens[:-1], "zqx"],
        "merges": lambda merges: merges[:-1],
    }
    assert make_text(replaced(**changes), pre="llama-bpe").tokenizer.encode("zqx").tokens[1:] == ["zqx"]
    assert make_text(replaced(**changes)).tokenizer.encode("zqx").tokens == ["z", "q", "x"]


def test_the_digest_covers_tokenizer_and_template(make_text: Make) -> None:
    plain = make_text().digest()
    assert len(bytes.fromhex(plain)) == 16
    assert make_text().digest() == plain
    assert make_text(pre="qwen2").digest() != plain
    without = make_text(lambda writer: writer.kv_data[0].pop("tokenizer.chat_template"))
    assert without.chat_template is None
    assert without.digest() != plain
