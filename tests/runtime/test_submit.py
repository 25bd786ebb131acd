"""What ``submit`` takes and refuses. A refusal is typed, one line long, and leaves other requests alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
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
from txdecode.runtime.configuration import Options
from txdecode.runtime.errors import InvalidDraftLength
from txdecode.runtime.intake import Intake
from txdecode.runtime.opening import Opened
from txdecode.transactions.target import Target
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
    "sampling of another type": ({"sampling": "greedy"}, InvalidRequest, "must be a Sampling .*, found str"),
    "unknown field of sampling": (
        {"sampling": {"temp": 1}},
        InvalidRequest,
        "no field 'temp'; the fields are",
    ),
    "negative temperature": ({"sampling": {"temperature": -1}}, InvalidRequest, "temperature must be .* -1"),
    "NaN": ({"sampling": {"top_p": math.nan}}, InvalidRequest, "top_p must be .*, found nan"),
    "seed of 65 bits": ({"sampling": {"seed": 2**64}}, InvalidRequest, "seed must be"),
    "law of a greedy request": ({"sampling": {"law": "chain"}}, InvalidRequest, "law has no effect"),
    "top_k of a greedy request": ({"sampling": {"top_k": 2}}, InvalidRequest, "top_k has no effect"),
    "bias on an unknown id": (
        {"sampling": {"logit_bias": {3: 1.0, VOCAB: 1.0}}},
        InvalidRequest,
        r"ids in 0..47, found 48",
    ),
    "minimum above max_tokens": (
        {"sampling": {"min_tokens": 5}},
        InvalidRequest,
        "min_tokens must be at most 4, found 5: max_tokens is 4",
    ),
    "minimum above the context": (
        {"prompt": [1] * 120, "sampling": {"min_tokens": 12}, "max_tokens": 50},
        InvalidRequest,
        "min_tokens must be at most 10, found 12: that is all the context leaves",
    ),
    "every token forbidden": (
        {"sampling": {"logit_bias": dict.fromkeys(range(VOCAB), -math.inf)}},
        InvalidRequest,
        "at least one of 48 tokens must be possible",
    ),
    "no token before the minimum": (
        {
            "sampling": {"logit_bias": dict.fromkeys(range(1, VOCAB), -math.inf), "min_tokens": 1},
            "stop_ids": [0],
        },
        InvalidRequest,
        "at least one of 48 tokens must be possible",
    ),
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
    context = 130 if name == "minimum above the context" else CONTEXT
    runtime = opened(ToyExecutor(page_count=40, context=context))
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


# Sampling.


def test_the_checkpoints_defaults_hold_where_the_caller_says_nothing(opened: Open, letters: Any) -> None:
    letters.assets = SimpleNamespace(
        sampling={"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.9}
    )
    runtime = opened(text=letters)
    theirs = runtime.submit("CAB", max_tokens=8)
    mine = runtime.submit("CAB", max_tokens=8, sampling={"temperature": 2.0, "top_k": 0, "seed": 5})
    greedy = runtime.submit("CAB", max_tokens=8, sampling={"temperature": 0})
    runtime.run()
    used = [handle.result().sampling for handle in (theirs, mine, greedy)]
    assert [(s.temperature, s.top_k, s.top_p, s.law) for s in used] == [
        (0.6, 20, 0.9, "coupled"),
        (2.0, 0, 0.9, "coupled"),
        (0.0, 0, 1.0, None),
    ]
    assert used[1].seed == 5
    for handle in (theirs, mine, greedy):
        result = handle.result()
        assert result.ids == tuple(plain([2, 0, 1], 8, 48, target=result.sampling.target(())))


def test_a_mapping_and_parameters_are_the_same_request(opened: Open) -> None:
    runtime = opened()
    fields = {"temperature": 1.5, "seed": 3, "logit_bias": {4: -math.inf}, "presence_penalty": 0.5}
    handles = [runtime.submit([1, 2], max_tokens=12, sampling=s) for s in (fields, Sampling(**fields))]
    runtime.run()
    first, second = (handle.result() for handle in handles)
    assert (first.ids, first.sampling) == (second.ids, second.sampling)
    assert 4 not in first.ids


def test_unseeded_requests_have_different_seeds(opened: Open) -> None:
    runtime = opened()
    handles = [runtime.submit([1, 2], max_tokens=16, sampling={"temperature": 2.0}) for _ in range(4)]
    runtime.run()
    results = [handle.result() for handle in handles]
    assert len({result.sampling.seed for result in results}) == 4
    assert len({result.ids for result in results}) == 4
    again = runtime.submit([1, 2], max_tokens=16, sampling=results[2].sampling)
    assert again.result().ids == results[2].ids


def test_the_entropy_is_a_port() -> None:
    drawn = itertools.count(40)
    intake = Intake(Opened(ToyExecutor(), "toy"), Options(), None, entropy=lambda: next(drawn))  # type: ignore[arg-type]
    asked = [{"temperature": 1}, None, {"temperature": 1, "seed": 7}, {"temperature": 1}]
    made = [intake.make([1], 4, sampling, (), (), False, None) for sampling in asked]
    assert [request.target.seed for request in made] == [40, 0, 7, 41]
    assert [request.parameters.sampling.seed for request in made] == [40, 0, 7, 41]


def test_stop_ids_are_held_back_while_there_is_a_minimum() -> None:
    intake = Intake(Opened(ToyExecutor(), "toy", eos_ids=frozenset({9})), Options(), None)  # type: ignore[arg-type]
    least = intake.make([1], 4, {"min_tokens": 2}, (), (5, 3), False, None)
    ignoring = intake.make([1], 4, {"min_tokens": 2}, (), (3,), True, None)
    none = intake.make([1], 4, None, (), (5, 3), False, None)
    assert least.target == Target(min_tokens=2, held=(3, 5, 9))
    assert ignoring.target == Target(min_tokens=2, held=(3,))
    assert none.target == Target()


def test_as_many_logprobs_as_there_are_tokens(opened: Open) -> None:
    runtime = opened(ToyExecutor(vocab_size=8))
    with pytest.raises(InvalidRequest, match="logprobs must be at most the vocabulary of 8 tokens, found 9"):
        runtime.submit([1], sampling={"logprobs": 9})
    result = runtime.submit([1], max_tokens=2, sampling={"logprobs": 8}).result()
    assert result.logprobs is not None
    assert [len(item.raw_top) for item in result.logprobs] == [8, 8]


def test_one_possible_token_is_enough_and_may_be_a_stop_id(opened: Open) -> None:
    bias = dict.fromkeys(range(1, VOCAB), -math.inf)
    runtime = opened()
    handle = runtime.submit([1, 2], max_tokens=4, stop_ids=[0], sampling={"logit_bias": bias})
    assert handle.result().ids == (0,)


def greedy_only() -> ToyExecutor:
    executor = ToyExecutor()
    described = executor.describe()
    executor._description = attrs.evolve(
        described, capabilities=attrs.evolve(described.capabilities, sampling=False)
    )
    return executor


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"sampling": {"temperature": 0.5}}, "law coupled, temperature 0.5"),
        ({"sampling": {"repetition_penalty": 1.1}}, "repetition_penalty 1.1"),
        ({"sampling": {"logit_bias": {1: 1.0}}}, "bias"),
        ({"sampling": {"logprobs": 0}}, "logprobs 0"),
        ({"sampling": {"min_tokens": 1}, "stop_ids": [3]}, "min_tokens 1, held"),
    ],
)
def test_an_executor_that_only_decodes_greedily_says_so(
    wanted: dict[str, Any], found: str, opened: Open
) -> None:
    runtime = opened(greedy_only())
    with pytest.raises(InvalidRequest, match=f"executor 'toy' decodes greedily only, found {found}"):
        runtime.submit([1, 2], max_tokens=4, **wanted)
    harmless = {"temperature": 0, "top_k": 3, "seed": 4, "min_tokens": 2, "logit_bias": {1: 0.0}}
    result = runtime.submit([1, 2], max_tokens=4, sampling=harmless).result()
    assert result.ids == tuple(plain([1, 2], 4, 48))


@pytest.mark.parametrize("draft_len", [0, 7])
def test_no_stop_id_comes_before_the_minimum(draft_len: int, opened: Open) -> None:
    text = plain([1, 2, 3], 20, 48)
    runtime = opened(ToyExecutor(accuracy=6), draft="executor", draft_len=draft_len, eos_ids=[text[1]])
    handle = runtime.submit([1, 2, 3], max_tokens=20, stop_ids=[text[3]], sampling={"min_tokens": 8})
    held = tuple(sorted({text[1], text[3]}))
    expected = plain([1, 2, 3], 20, 48, frozenset(held), Target(min_tokens=8, held=held))
    assert handle.result().ids == tuple(expected)
    assert len(expected) >= 8
    assert not set(expected[:8]) & set(held)


@pytest.mark.parametrize("steps", [1, 4, 9])
def test_no_stop_string_ends_a_text_before_the_minimum(
    steps: int, opened: Open, letters: Any, log: Path
) -> None:
    text = "".join(chr(65 + token) for token in plain([2, 0, 1], 60, 48))
    stop = next(letter for letter in text[:10] if letter in text[10:])
    runtime = opened(text=letters)
    runtime.submit("CAB", max_tokens=60, stop=stop, sampling={"min_tokens": 10})
    for _ in range(steps):
        runtime.step()
    runtime.close()
    # What was committed is counted again after a recovery.
    with Runtime.recover(log, ToyExecutor(), text=letters) as again:
        result = again.handles[0].result()
    assert result.finish == "stop"
    assert result.text == text[: text.index(stop, 10)]
