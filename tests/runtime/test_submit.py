"""What ``submit`` takes and refuses. A refusal is typed, one line long, and leaves other requests alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from txdecode.runtime import (
    InvalidRequest,
    PromptTooLong,
    RequestTooLarge,
    Runtime,
    Sampling,
    TextUnavailable,
    TxDecodeError,
    replay,
)
from txdecode.runtime.errors import InvalidDraftLength
from txdecode.transactions.toy import ToyExecutor, plain

Open = Callable[..., Runtime]
VOCAB, CONTEXT = 48, 256

REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "empty prompt": ({"prompt": []}, InvalidRequest, "prompt is empty"),
    "no prompt": ({"prompt": None}, InvalidRequest, "found NoneType"),
    "a number as prompt": ({"prompt": 7}, InvalidRequest, "found int"),
    "bytes as prompt": ({"prompt": b"ab"}, InvalidRequest, "found bytes"),
    "a map as prompt": ({"prompt": {"role": "user"}}, InvalidRequest, "found dict"),
    "text without tokenizer": ({"prompt": "AB"}, TextUnavailable, "pass token ids"),
    "messages without tokenizer": ({"prompt": [{"role": "user"}]}, TextUnavailable, "pass token ids"),
    "id too high": ({"prompt": [1, VOCAB]}, InvalidRequest, rf"prompt\[1\] is {VOCAB}, expected .* 0..47"),
    "id below zero": ({"prompt": [-1]}, InvalidRequest, r"prompt\[0\] is -1"),
    "bool as id": ({"prompt": [True]}, InvalidRequest, r"prompt\[0\] must be a token id, found True"),
    "float as id": ({"prompt": [1.0]}, InvalidRequest, r"prompt\[0\] must be a token id, found 1.0"),
    "endless ids": ({"prompt": range(10**12)}, InvalidRequest, rf"prompt\[{VOCAB}\]"),
    "no tokens wanted": ({"max_tokens": 0}, InvalidRequest, "at least 1, found 0"),
    "less than none": ({"max_tokens": -3}, InvalidRequest, "at least 1, found -3"),
    "bool as max_tokens": ({"max_tokens": True}, InvalidRequest, "found True"),
    "float as max_tokens": ({"max_tokens": 2.0}, InvalidRequest, "found 2.0"),
    "text as max_tokens": ({"max_tokens": "2"}, InvalidRequest, "found '2'"),
    "prompt fills the context": ({"prompt": [1] * CONTEXT}, PromptTooLong, "has 256 tokens, .* takes 256"),
    "never fits": ({"prompt": [1] * 90, "max_tokens": 90}, RequestTooLarge, "needs 45 of .* 'kv'.* has 40"),
    "sampling of another type": ({"sampling": "greedy"}, InvalidRequest, "must be a Sampling, found str"),
    "stop strings without tokenizer": ({"stop": ["A"]}, TextUnavailable, "use stop_ids"),
    "empty stop string": ({"stop": [""]}, InvalidRequest, "non-empty strings, found ''"),
    "a number as stop": ({"stop": 3}, InvalidRequest, "stop must be strings, found 3"),
    "numbers in stop": ({"stop": [3]}, InvalidRequest, "non-empty strings, found 3"),
    "stop id too high": ({"stop_ids": [VOCAB]}, InvalidRequest, r"stop_ids\[0\] is 48"),
    "a number as stop_ids": ({"stop_ids": 3}, InvalidRequest, "stop_ids must be token ids, found 3"),
    "draft_len too high": ({"draft_len": 16}, InvalidDraftLength, "found 16"),
    "draft_len below zero": ({"draft_len": -1}, InvalidDraftLength, "found -1"),
    "unknown controller": ({"draft_len": "fast"}, InvalidDraftLength, "found 'fast'"),
    "float as draft_len": ({"draft_len": 2.0}, InvalidDraftLength, "found 2.0"),
    "bool as draft_len": ({"draft_len": False}, InvalidDraftLength, "found False"),
    "list as draft_len": ({"draft_len": [2]}, InvalidDraftLength, r"found \[2\]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_and_others_go_on(name: str, opened: Open, log: Path) -> None:
    wrong, error, message = REFUSED[name]
    arguments = {"prompt": [1, 2], "max_tokens": 4, **wrong}
    runtime = opened(ToyExecutor(page_count=40))
    first = runtime.submit([1, 2], max_tokens=6)
    runtime.step()
    with pytest.raises(error, match=message) as refused:
        runtime.submit(**arguments)
    assert isinstance(refused.value, TxDecodeError)
    assert isinstance(refused.value, TextUnavailable | ValueError)
    assert "\n" not in str(refused.value)
    second = runtime.submit([3], max_tokens=2)
    runtime.run()
    assert [first.result().ids, second.result().ids] == [
        tuple(plain([1, 2], 6, 48)),
        tuple(plain([3], 2, 48)),
    ]
    runtime.close()
    assert replay(log).events["RequestSubmitted"] == 2


def test_errors_carry_their_figures(opened: Open) -> None:
    runtime = opened(ToyExecutor(page_count=40))
    with pytest.raises(PromptTooLong) as long:
        runtime.submit([1] * 300)
    assert (long.value.tokens, long.value.context) == (300, 256)
    with pytest.raises(RequestTooLarge) as large:
        runtime.submit([1], max_tokens=255)
    assert (large.value.group, large.value.needed, large.value.capacity) == ("kv", 64, 40)


def test_the_largest_that_fits_is_served(opened: Open) -> None:
    runtime = opened(ToyExecutor(page_count=10), draft_len=7)
    # 40 rows of cache: 41 tokens, since the last one is never consumed.
    with pytest.raises(RequestTooLarge):
        runtime.submit([1] * 20, max_tokens=22)
    handle = runtime.submit([1] * 20, max_tokens=21)
    runtime.run()
    assert handle.result().ids == tuple(plain([1] * 20, 21, 48))


def test_a_column_pool_without_a_spare_is_refused() -> None:
    executor = ToyExecutor(batch_max=1, rows_max=1)
    groups = executor._description.groups
    tight = tuple(
        type(g)(g.name, g.kind, g.granularity, g.layers, g.row_bytes, g.owner, min(g.capacity, 1))
        if g.kind == "column"
        else g
        for g in groups
    )
    object.__setattr__(executor._description, "groups", tight)
    with Runtime.open(executor, draft="none") as runtime, pytest.raises(RequestTooLarge, match="'gdn'"):
        runtime.submit([1])


def test_the_context_ends_a_text(opened: Open) -> None:
    runtime = opened(ToyExecutor(context=12))
    handle = runtime.submit([5] * 11)
    runtime.run()
    result = handle.result()
    assert (result.ids, result.finish) == (tuple(plain([5] * 11, 1, 48)), "length")


def test_stop_ids_and_end_of_sequence(opened: Open) -> None:
    text = plain([1, 2, 3], 20, 48)
    first, second = text[2], next(token for token in text if token not in text[:3])
    runtime = opened(eos_ids=[second])
    ends = {
        "stop id": runtime.submit([1, 2, 3], max_tokens=20, stop_ids=[first]),
        "end of sequence": runtime.submit([1, 2, 3], max_tokens=20),
        "ignored": runtime.submit([1, 2, 3], max_tokens=20, ignore_eos=True),
    }
    runtime.run()
    cut = text.index(second) + 1
    assert ends["stop id"].result().ids == tuple(text[: text.index(first) + 1])
    assert ends["end of sequence"].result().ids == tuple(text[:cut])
    assert ends["end of sequence"].result().finish == "stop"
    assert (ends["ignored"].result().ids, ends["ignored"].result().finish) == (tuple(text), "length")


def test_text_and_messages_with_a_tokenizer(opened: Open, letters: Any) -> None:
    runtime = opened(text=letters)
    handles = [
        runtime.submit("CAB", max_tokens=5),
        runtime.submit([{"role": "user", "content": "CAB"}], max_tokens=5),
        runtime.submit([2, 0, 1], max_tokens=5),
    ]
    runtime.run()
    assert {handle.result().text for handle in handles} == {
        "".join(chr(65 + t) for t in plain([2, 0, 1], 5, 48))
    }


def test_a_stop_string_ends_a_text_in_the_round_that_completes_it(opened: Open, letters: Any) -> None:
    text = "".join(chr(65 + token) for token in plain([2, 0, 1], 30, 48))
    stop = text[7:10]
    runtime = opened(text=letters, draft="lookup", draft_len=7)
    handle = runtime.submit("CAB", max_tokens=30, stop=stop)
    runtime.run()
    result = handle.result()
    assert (result.text, result.finish) == (text[: text.index(stop)], "stop")
    assert len(result.ids) == text.index(stop) + 3


def test_an_impossible_stop_string_is_refused_at_once(opened: Open, letters: Any) -> None:
    runtime = opened(text=letters)
    with pytest.raises(InvalidRequest):
        runtime.submit("CAB", stop=["ok", ""])


def test_sampling_other_than_greedy_is_refused() -> None:
    for temperature in (0.7, -1, float("nan"), True, "0"):
        with pytest.raises(InvalidRequest, match="temperature must be"):
            Sampling(temperature=temperature)  # type: ignore[arg-type]
    assert Sampling(temperature=0) == Sampling()
