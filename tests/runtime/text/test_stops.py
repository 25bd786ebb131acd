"""Stop strings: the same decision for every split into rounds, and text that ends exactly before them."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from txdecode.runtime.stops import StopMatcher
from txdecode.runtime.text import Text
from txdecode.runtime.text_errors import InvalidStop, TextError


def reference(
    text: Text, ids: list[int], stops: list[str], after: int = 0
) -> tuple[int | None, str, str | None]:
    """By search in the whole text from token ``after`` on: index of the stopping token, the text to show, the stop
    string."""
    stream, lengths = text.stream(), []
    free, whole = stream.push(ids[:after]), ""
    for token in ids[after:]:
        whole += stream.push([token])
        lengths.append(len(whole))
    if len(ids) <= after:
        free += stream.flush()
    whole += stream.flush()
    for end in range(1, len(whole) + 1):
        ending = [stop for stop in stops if whole[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            reached = [after + index for index, length in enumerate(lengths) if length >= end]
            return (reached[0] if reached else None), free + whole[: end - len(stop)], stop
    return None, free + whole, None


def run(matcher: StopMatcher, ids: list[int], sizes: list[int]) -> tuple[int | None, list[str]]:
    """As a runtime does: probe each block, clip it at the stop, commit; flush at the end."""
    shown, start = [], 0
    for size in [*sizes, len(ids)]:
        block = ids[start : start + size]
        index = matcher.probe(block)
        if index is not None:
            shown.append(matcher.commit(block[: index + 1]))
            return start + index, [*shown, matcher.flush()]
        shown.append(matcher.commit(block))
        start += size
    return None, [*shown, matcher.flush()]


ids_of = st.lists(st.integers(0, 273), max_size=40)
sizes_of = st.lists(st.integers(0, 7), max_size=20)
stops_of = st.lists(st.text("abchel o€😀\ufffd", min_size=1, max_size=4), max_size=4)
words_of = st.text("abchel o€😀", max_size=40)


@settings(max_examples=400)
@given(words=words_of, noise=ids_of, stops=stops_of, sizes=sizes_of, after=st.just(0) | st.integers(0, 20))
def test_every_split_gives_the_text_before_the_earliest_stop(
    text: Text, words: str, noise: list[int], stops: list[str], sizes: list[int], after: int
) -> None:
    ids = text.encode(words) + noise
    index, expected, stop = reference(text, ids, stops, after)
    matcher = text.stop_matcher(stops, after)
    found, shown = run(matcher, ids, sizes)
    assert found == index
    assert "".join(shown) == expected
    assert matcher.stopped == stop


@given(words=words_of, stops=stops_of, sizes=sizes_of)
def test_committing_past_the_stop_shows_nothing_more(
    text: Text, words: str, stops: list[str], sizes: list[int]
) -> None:
    ids = text.encode(words)
    _, expected, _ = reference(text, ids, stops)
    matcher, shown, start = text.stop_matcher(stops), "", 0
    for size in [*sizes, len(ids)]:
        shown += matcher.commit(ids[start : start + size])
        start += size
    assert shown + matcher.flush() == expected


@given(words=words_of, stops=stops_of)
def test_shown_text_never_ends_inside_a_stop_and_no_more_is_held_back(
    text: Text, words: str, stops: list[str]
) -> None:
    matcher, shown, whole = text.stop_matcher(stops), "", text.stream()
    final = ""
    for token in text.encode(words):
        if matcher.probe([token]) is not None:
            return
        shown += matcher.commit([token])
        final += whole.push([token])
        held = final[len(shown) :]
        assert final.startswith(shown)
        longest = max(
            (length for stop in stops for length in range(1, len(stop)) if final.endswith(stop[:length])),
            default=0,
        )
        assert len(held) == longest


@given(words=words_of, more=words_of, stops=stops_of)
def test_probe_changes_nothing_and_forks_are_independent(
    text: Text, words: str, more: str, stops: list[str]
) -> None:
    ids, candidates = text.encode(words), text.encode(more)
    matcher = text.stop_matcher(stops)
    assume(matcher.probe(ids) is None)
    matcher.commit(ids)
    first = matcher.probe(candidates)
    fork = matcher.fork()
    assert fork.commit(text.encode("xyz")) is not None
    assert fork.flush() is not None
    assert matcher.probe(candidates) == first
    plain = text.stop_matcher(stops)
    plain.commit(ids)
    assert matcher.commit(candidates) + matcher.flush() == plain.commit(candidates) + plain.flush()


def test_a_fork_has_its_own_unfinished_character(text: Text) -> None:
    half = text.assets.tokenizer.token_to_id("ðŁ")
    matcher = text.stop_matcher(["x"])
    assert matcher.fork().commit([half]) == ""
    assert matcher.commit(text.encode("ab")) == "ab"


def test_f1_a_stop_at_the_first_of_six_accepted_tokens_is_found(text: Text) -> None:
    stop = text.encode("END")
    assert len(stop) == 1
    matcher = text.stop_matcher(["END"])
    block = [*stop, *text.encode("hello")[:1] * 5]
    assert matcher.probe(block) == 0
    assert matcher.commit(block[:1]) == ""
    assert matcher.stopped == "END"


def test_f1_a_stop_that_began_rounds_ago_is_found(text: Text) -> None:
    matcher = text.stop_matcher(["a b c d e"])
    shown = ""
    for character in "xx a b c d ":
        (token,) = text.encode(character)
        assert matcher.probe([token]) is None
        shown += matcher.commit([token])
    assert shown == "xx "
    last = text.encode("e hello")
    assert matcher.probe(last) == 0
    assert matcher.commit(last[:1]) == ""


def test_f2_the_index_of_the_stop_is_known_before_any_budget_is_applied(text: Text) -> None:
    ids = [text.encode(part)[0] for part in ("a", "b", "END", "c", "h", "o")]
    assert text.stop_matcher(["END"]).probe(ids) == 2


def test_f3_ids_and_text_end_at_the_same_token(text: Text) -> None:
    ids = text.encode("hello") + text.encode("abc") + text.encode("world")
    matcher = text.stop_matcher(["b"])
    index = matcher.probe(ids)
    assert index is not None
    kept = ids[: index + 1]
    assert text.decode(kept) == "helloabc"
    # The stop lies inside a token: the token is kept, the text is cut inside it.
    assert matcher.commit(kept) == "helloa"
    assert matcher.flush() == ""


def test_f5_text_held_back_is_shown_at_the_end(text: Text) -> None:
    matcher = text.stop_matcher(["hello world"])
    assert matcher.commit(text.encode("hello wor")) == ""
    assert matcher.flush() == "hello wor"
    assert matcher.flush() == ""
    assert matcher.stopped is None


def test_f5_an_unfinished_character_is_shown_at_the_end(text: Text) -> None:
    matcher = text.stop_matcher(["zzz"])
    assert matcher.commit([text.assets.tokenizer.token_to_id("ðŁ")]) == ""
    assert matcher.flush() == "\ufffd"


@pytest.mark.parametrize(
    ("stops", "words", "shown", "stop"),
    [
        (["abc", "b"], "xabcx", "xa", "b"),
        (["abc", "bc"], "xabcx", "x", "abc"),
        (["bc", "abc"], "xabcx", "x", "abc"),
        (["aab"], "aaab", "a", "aab"),
        (["abab"], "ababab", "", "abab"),
        (["😀"], "a😀b", "a", "😀"),
        (["\n\n"], "a\n\n\nb", "a", "\n\n"),
    ],
)
def test_the_first_to_be_complete_wins_and_of_two_the_longer(
    text: Text, stops: list[str], words: str, shown: str, stop: str
) -> None:
    matcher = text.stop_matcher(stops)
    found, pieces = run(matcher, text.encode(words), [1] * 20)
    assert found is not None
    assert ("".join(pieces), matcher.stopped) == (shown, stop)


def test_a_special_token_as_a_stop_string_means_that_token(text: Text) -> None:
    ids = [*text.encode("ab"), 1, *text.encode("cd")]
    matcher = text.stop_matcher(["<|user|>", "abX"])
    assert matcher.probe(ids) == 1
    assert matcher.commit(ids) == "ab"
    assert (matcher.stopped, matcher.flush()) == ("<|user|>", "")
    assert text.stop_matcher(["abX"]).probe(ids) is None


def test_without_stop_strings_text_passes_as_it_comes(text: Text) -> None:
    matcher = text.stop_matcher()
    assert matcher.probe([1, 2, 3]) is None
    assert matcher.commit(text.encode("hello")) == "hello"
    assert matcher.commit([text.assets.tokenizer.token_to_id("ðŁ")]) == ""
    assert matcher.flush() == "\ufffd"


def test_a_character_that_completes_only_at_the_end_can_stop(text: Text) -> None:
    matcher = text.stop_matcher(["a\ufffd"])
    assert matcher.commit([*text.encode("xa"), text.assets.tokenizer.token_to_id("ðŁ")]) == "x"
    assert matcher.flush() == ""
    assert matcher.stopped == "a\ufffd"


@pytest.mark.parametrize(
    ("after", "index", "shown"),
    [
        (0, 1, "a"),
        (1, 1, "a"),
        (2, 4, "abca"),
        (3, 4, "abca"),
        (4, 4, "abca"),
        (5, 7, "abcabca"),
        (8, None, "abcabcabc"),
    ],
)
@pytest.mark.parametrize("sizes", [[1] * 9, [9], [2, 3, 4]])
def test_nothing_stops_before_so_many_tokens(
    text: Text, after: int, index: int | None, shown: str, sizes: list[int]
) -> None:
    ids = [text.encode(letter)[0] for letter in "abcabcabc"]
    matcher = text.stop_matcher(["b"], after)
    found, pieces = run(matcher, ids, sizes)
    assert (found, "".join(pieces)) == (index, shown)
    assert matcher.stopped == (None if index is None else "b")


def test_a_stop_string_that_began_too_early_does_not_count(text: Text) -> None:
    ids = [text.encode(letter)[0] for letter in "abab"]
    assert text.stop_matcher(["ab"], 0).probe(ids) == 1
    matcher = text.stop_matcher(["ab"], 1)
    assert matcher.probe(ids) == 3
    # Text before the border is not held back, whatever it could become.
    assert matcher.commit(ids[:1]) == "a"
    assert matcher.commit(ids[1:2]) == "b"
    assert matcher.probe(ids[2:]) == 1
    assert matcher.commit(ids[2:]) == ""
    assert matcher.stopped == "ab"


def test_a_special_token_does_not_stop_too_early(text: Text) -> None:
    ids = [1, *text.encode("a"), 1, *text.encode("b")]
    matcher = text.stop_matcher(["<|user|>"], 2)
    assert matcher.probe(ids) == 2
    assert matcher.commit(ids) == "a"
    assert matcher.stopped == "<|user|>"


def test_what_is_unfinished_at_the_border_is_not_searched_at_the_end(text: Text) -> None:
    half = text.assets.tokenizer.token_to_id("ðŁ")
    early, late = text.stop_matcher(["\ufffd"], 1), text.stop_matcher(["\ufffd"], 0)
    assert (early.commit([half]), early.flush(), early.stopped) == ("", "\ufffd", None)
    assert (late.commit([half]), late.flush(), late.stopped) == ("", "", "\ufffd")


def test_a_fork_counts_for_itself(text: Text) -> None:
    ids = [text.encode(letter)[0] for letter in "aab"]
    matcher = text.stop_matcher(["a"], 1)
    matcher.fork().commit(ids[:1])
    assert matcher.probe(ids) == 1
    assert matcher.commit(ids[:1]) == "a"
    assert matcher.fork().probe(ids) == 0


@pytest.mark.parametrize("stops", ["END", [""], ["a", ""], [3], [None]])
def test_unusable_stop_strings_are_refused(text: Text, stops: list[str]) -> None:
    with pytest.raises(InvalidStop) as caught:
        text.stop_matcher(stops)
    assert isinstance(caught.value, TextError)
    assert "\n" not in str(caught.value)


def test_use_after_the_end_is_a_programmer_error(text: Text) -> None:
    matcher = text.stop_matcher(["a"])
    matcher.commit(text.encode("a"))
    with pytest.raises(AssertionError):
        matcher.probe([1])
    other = text.stop_matcher()
    other.flush()
    with pytest.raises(AssertionError):
        other.commit([1])


@pytest.mark.model
@settings(max_examples=100, deadline=None)
@given(
    words=st.text("the brown fox.\n\n1 2€😀", max_size=60),
    stops=st.lists(st.sampled_from(["\n\n", "fox", "the b", ".", "1", "€😀", "x\n", "own f"]), max_size=3),
    sizes=sizes_of,
)
def test_smollm2_every_split_gives_the_same(
    smollm2: Text, words: str, stops: list[str], sizes: list[int]
) -> None:
    ids = smollm2.encode(words)
    index, expected, stop = reference(smollm2, ids, stops)
    matcher = smollm2.stop_matcher(stops)
    found, shown = run(matcher, ids, sizes)
    assert (found, "".join(shown), matcher.stopped) == (index, expected, stop)
