"""Streaming text: the pieces are the whole, and nothing is shown that changes later."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE

from txdecode.kernels.models.errors import UnsupportedTokenizer
from txdecode.kernels.models.pieces import Pieces, piece_form
from txdecode.runtime.text import Text

REAL = (
    "The bread — naïve, 50 €, “quoted” 😀👩‍👩‍👧‍👦 — was 12 days old.\n\n1. Mix\n2. Wait  \t\n"
    "def f(x):\n    return x ** 2\n你好，世界 привет мир Ωμέγα 🇩🇪 e\u0301 \U0001f3f3\ufe0f\u200d\U0001f308"
)


def streamed(text: Text, ids: list[int], sizes: list[int]) -> list[str]:
    """Pieces of a stream that is fed in blocks of the given sizes, then the rest."""
    stream = text.stream()
    pieces, start = [], 0
    for size in [*sizes, len(ids)]:
        pieces.append(stream.push(ids[start : start + size]))
        start += size
    return [*pieces, stream.flush()]


ids_of = st.lists(st.integers(0, 280), max_size=40)
sizes_of = st.lists(st.integers(0, 7), max_size=20)


@given(ids=ids_of, sizes=sizes_of)
def test_pieces_are_the_whole(text: Text, ids: list[int], sizes: list[int]) -> None:
    expected = text.assets.tokenizer.decode(ids, skip_special_tokens=True)
    assert "".join(streamed(text, ids, sizes)) == expected == text.decode(ids)


@given(words=st.text(max_size=30), sizes=sizes_of)
def test_real_text_shows_no_replacement_character(text: Text, words: str, sizes: list[int]) -> None:
    words = words.encode("utf-8", "replace").decode().replace("\ufffd", "?")
    assert streamed(text, text.encode(words), sizes)[-1] == ""
    assert "".join(streamed(text, text.encode(words), sizes)) == words


def test_a_character_over_several_tokens_is_shown_once_it_is_whole(text: Text) -> None:
    first, second, third, fourth = (text.assets.tokenizer.token_to_id(c) for c in "ðŁĺĢ")
    stream = text.stream()
    assert stream.push([first]) == ""
    assert stream.push([second, third]) == ""
    assert stream.push([fourth]) == "😀"
    assert stream.push([first, second]) == ""
    # The next byte cannot continue the character: what was held is one replacement.
    assert stream.push([text.assets.tokenizer.token_to_id("a")]) == "\ufffda"
    assert stream.push([first]) == ""
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""


def test_special_tokens_have_no_text_and_do_not_split_a_character(text: Text) -> None:
    tokenizer = text.assets.tokenizer
    begin, rest = tokenizer.token_to_id("ðŁ"), [tokenizer.token_to_id(c) for c in "ĺĢ"]
    plain = tokenizer.token_to_id("<plain 😀>")
    assert text.decode([0, begin, 1, *rest, 0, plain, 100_000]) == "😀<plain 😀>"


@given(ids=ids_of, more=ids_of)
def test_probe_and_fork_leave_the_stream_alone(text: Text, ids: list[int], more: list[int]) -> None:
    stream = text.stream()
    head = stream.push(ids)
    copy = stream.fork()
    probed = stream.probe(more)
    copy.push([3, 4, 5])
    copy.flush()
    assert stream.push(more) == probed
    assert head + probed + stream.flush() == text.decode(ids + more)


_FALLBACK_WORDS = ["▁", "▁he", "llo", "▁wor", "ld", "a", "<s>", "</s>", "é", "😀", "€"]


@given(
    strips=st.booleans(),
    words=st.lists(st.sampled_from(_FALLBACK_WORDS), max_size=20),
    sizes=sizes_of,
)
def test_byte_fallback_equals_the_library(
    fallback_texts: dict[bool, Text], strips: bool, words: list[str], sizes: list[int]
) -> None:
    text = fallback_texts[strips]
    ids: list[int] = []
    for word in words:
        found = text.assets.tokenizer.token_to_id(word)
        ids.extend([found] if found is not None else [2 + byte for byte in word.encode()])
    expected = text.assets.tokenizer.decode(ids, skip_special_tokens=True)
    assert "".join(streamed(text, ids, sizes)) == expected


_BLANKS, _FALLBACK, _FUSE = decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        decoders.WordPiece(),
        decoders.Metaspace(),
        decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)]),
        decoders.Sequence([_BLANKS, _FALLBACK, _FUSE, decoders.Strip(" ", 2, 0)]),
        decoders.Sequence([decoders.Replace("▁", "_"), _FALLBACK, _FUSE]),
    ],
)
def test_a_decoder_that_cannot_stream_is_refused_by_name(decoder: decoders.Decoder | None) -> None:
    tokenizer = Tokenizer(BPE())
    if decoder is not None:
        tokenizer.decoder = decoder
    with pytest.raises(UnsupportedTokenizer, match="none" if decoder is None else "the decoder"):
        piece_form(tokenizer)


def test_a_token_is_spelled_once(text: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work for a token does not grow with the text: nothing is decoded twice."""
    spelled: list[int] = []
    original: Callable[[Pieces, int], bytes] = Pieces._spell
    monkeypatch.setattr(Pieces, "_spell", lambda self, token: spelled.append(token) or original(self, token))
    stream = type(text)(text.assets).stream()
    for _ in range(50):
        for token in (5, 6, 7, 0):
            stream.push([token])
    assert spelled == [5, 6, 7, 0]


@pytest.mark.model
@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 49_151), max_size=40), sizes=sizes_of)
def test_smollm2_random_ids(smollm2: Text, ids: list[int], sizes: list[int]) -> None:
    expected = smollm2.assets.tokenizer.decode(ids, skip_special_tokens=True)
    assert "".join(streamed(smollm2, ids, sizes)) == expected


@pytest.mark.model
def test_smollm2_real_text_in_every_split(smollm2: Text) -> None:
    ids = smollm2.encode(REAL)
    for size in (1, 2, 3, 5, 8, 13):
        assert "".join(streamed(smollm2, ids, [size] * (len(ids) // size))) == REAL


@pytest.mark.model
def test_smollm2_spells_every_token_as_the_library(smollm2: Text) -> None:
    tokenizer = smollm2.assets.tokenizer
    pieces = Pieces(tokenizer)
    for token in range(tokenizer.get_vocab_size()):
        assert pieces.of(token).decode("utf-8", "replace") == tokenizer.decode(
            [token], skip_special_tokens=True
        )


def test_a_token_by_itself_for_people(text: Text) -> None:
    token_of = text.assets.tokenizer.token_to_id
    assert text.token_text(token_of("hello")) == "hello"
    assert text.token_text(token_of("Ġw")) == " w"
    assert text.token_text(1) == "<|user|>"
    assert text.token_text(token_of("ðŁ")) == "\ufffd"
    assert text.token_text(100_000) == ""
