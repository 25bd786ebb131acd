"""``Sampling``: what it takes and refuses, where each field comes from, and its form in the log."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from txdecode.kernels.sampling import judge
from txdecode.runtime.errors import InvalidRequest
from txdecode.runtime.sampling import Sampling
from txdecode.transactions.codec import decode, encode
from txdecode.transactions.events import RuntimeNote
from txdecode.transactions.target import GREEDY, NO_LOGPROBS, History, Target

INF, NAN = math.inf, math.nan
HUGE = 10**5000  # Python refuses to write it out.

ACCEPTED: dict[str, list[Any]] = {
    "temperature": [0, 0.0, -0.0, 1e-4, 1, 2.5, 1e6],
    "top_k": [0, 1, 2**31 - 1],
    "top_p": [1e-300, 0.5, 1, 1.0],
    "min_p": [0, 0.0, 0.5, 1],
    "repetition_penalty": [0.01, 1, 100],
    "presence_penalty": [-2, 0, 2.0],
    "frequency_penalty": [-2.0, 0.5, 2],
    "logit_bias": [{}, {0: 1}, {3: -1e4, 1: 1e4, 2: -INF}],
    "seed": [0, 2**64 - 1],
    "min_tokens": [0, 7, 2**31 - 1],
    "logprobs": [0, 20],
    "law": ["coupled", "chain"],
}

WRONG_TYPE = [
    True,
    False,
    "1",
    b"1",
    NAN,
    np.float64(1.0),
    np.int64(1),
    np.float32(1),
    1j,
    [1],
    np.zeros((3, 3)),
    "1" * 500,
    object(),
]
NUMBERS: dict[str, list[Any]] = {
    "temperature": [-1, -1e-9, 5e-5, 9.9e-5, 1.0001e6, 1e31, INF, -INF, HUGE],
    "top_p": [0, 0.0, -0.1, 1.0000001, INF],
    "min_p": [-1e-9, 1.0000001, INF],
    "repetition_penalty": [0, 0.0099, 100.1, -1, INF],
    "presence_penalty": [-2.01, 2.01, -INF, INF],
    "frequency_penalty": [-2.01, 2.01, -INF, INF],
}
INTEGERS: dict[str, list[Any]] = {
    "top_k": [-1, -HUGE, 2**31, HUGE],
    "seed": [-1, 2**64, HUGE],
    "min_tokens": [-1, 2**31, HUGE],
    "logprobs": [-1, 21],
}


def name_of(part: Any) -> str:
    return part if isinstance(part, str) else type(part).__name__


REFUSED = [
    *((name, value) for name in NUMBERS for value in [*NUMBERS[name], *WRONG_TYPE]),
    *((name, value) for name in INTEGERS for value in [*INTEGERS[name], 0.0, 1.0, INF, *WRONG_TYPE]),
    *(("law", value) for value in ["greedy", "", "Chain", 0, True, b"chain", ["chain"], np.str_("chain")]),
]


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in ACCEPTED for value in ACCEPTED[name]])
def test_what_is_in_range_is_taken(name: str, value: Any) -> None:
    made = Sampling(**{name: value})
    expected = tuple(sorted(value.items())) if name == "logit_bias" else value
    assert getattr(made, name) == expected
    assert Sampling.of({name: value}) == made
    assert hash(Sampling.of({name: value})) == hash(made)


@pytest.mark.parametrize(("name", "value"), REFUSED, ids=name_of)
def test_what_is_not_is_refused_in_one_line(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=rf"^{name} must be .*, found .*; ") as refused:
        Sampling(**{name: value})
    assert isinstance(refused.value, ValueError)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 240


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([(1, 2.0)], "logit_bias must be a mapping"),
        ("1=2", "logit_bias must be a mapping"),
        (3, "logit_bias must be a mapping"),
        (((1, 2.0, 3),), "logit_bias must be a mapping"),
        (([1, 2.0],), "logit_bias must be a mapping"),
        (((1, 2.0), (1, 3.0)), "one value for each token id, found 1"),
        *(
            ({key: 1.0}, "a token id in logit_bias must be")
            for key in (-1, True, 1.0, "1", np.int64(1), None)
        ),
        *(
            ({7: number}, r"logit_bias\[7\] must be")
            for number in (INF, NAN, 10001, -10001.0, True, "1", None, np.float64(1))
        ),
    ],
)
def test_bias_is_checked(value: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        Sampling(logit_bias=value)
    assert "\n" not in str(refused.value)


def test_bias_is_a_value_of_its_own() -> None:
    given = {5: 1, 2: -0.0}
    made = Sampling(logit_bias=given)  # type: ignore[arg-type]
    given[9] = 3
    assert made.logit_bias == ((2, 0.0), (5, 1.0))
    assert made == Sampling(logit_bias={2: 0, 5: 1.0})  # type: ignore[arg-type]
    assert attrs.evolve(made, top_k=3).logit_bias == made.logit_bias


def test_numbers_are_floats_and_zero_has_no_sign() -> None:
    made = Sampling(temperature=-0.0, presence_penalty=-0.0, min_p=0)
    assert [str(made.temperature), str(made.presence_penalty)] == ["0.0", "0.0"]
    assert type(made.min_p) is float


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("greedy", "must be a Sampling or a mapping of its fields, found str"),
        (0.8, "found float"),
        ([("temperature", 1)], "found list"),
        ({"temprature": 1}, r"no field 'temprature'; the fields are temperature, top_k, .*, law"),
        ({3: 1}, "no field 3"),
        ({"temperature": -1}, "temperature must be"),
        ({"to_data": 1}, "no field 'to_data'"),
    ],
)
def test_what_is_no_sampling_is_refused(value: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Sampling.of(value)


def test_what_submit_takes() -> None:
    made = Sampling(temperature=0.5)
    assert Sampling.of(None) == Sampling()
    assert Sampling.of(made) is made
    assert Sampling.of({"temperature": 0.5, "top_p": None}) == made


# Where a field comes from.


def resolve(sampling: Sampling, defaults: Mapping[str, Any] | None = None, seed: int = 99) -> Sampling:
    return sampling.resolved(defaults or {}, lambda: seed)


def no_seed() -> int:
    raise AssertionError("no seed is needed")


@pytest.mark.parametrize(
    ("name", "explicit", "checkpoint", "neutral"),
    [
        ("top_k", 5, 20, 0),
        ("top_p", 0.5, 0.9, 1.0),
        ("min_p", 0.2, 0.1, 0.0),
        ("repetition_penalty", 1.5, 1.1, 1.0),
        ("presence_penalty", 1.0, None, 0.0),
        ("frequency_penalty", -1.0, None, 0.0),
        ("logit_bias", ((1, 2.0),), None, ()),
        ("min_tokens", 3, None, 0),
        ("logprobs", 4, None, None),
        ("law", "chain", None, "coupled"),
        ("seed", 7, None, 99),
    ],
)
def test_the_callers_value_wins_then_the_checkpoints_then_the_neutral_one(
    name: str, explicit: Any, checkpoint: Any, neutral: Any
) -> None:
    wants = Sampling(temperature=0.7)
    assert getattr(resolve(wants), name) == neutral
    assert getattr(resolve(wants, {"do_sample": False}), name) == neutral
    says = {"do_sample": True, "temperature": 0.6, name: checkpoint}
    assert getattr(resolve(attrs.evolve(wants, **{name: explicit}), says), name) == explicit
    if checkpoint is not None:
        assert getattr(resolve(wants, says), name) == checkpoint
        # A temperature of the caller's brings in the rest even where the checkpoint would decode greedily.
        assert getattr(resolve(wants, {name: checkpoint}), name) == checkpoint
    assert getattr(resolve(wants, {name: None}), name) == neutral


@pytest.mark.parametrize(
    ("given", "defaults", "temperature"),
    [
        (0.3, {"do_sample": True, "temperature": 0.6}, 0.3),
        (0, {"do_sample": True, "temperature": 0.6}, 0),
        (None, {"do_sample": True, "temperature": 0.6}, 0.6),
        (None, {"do_sample": True}, 1.0),
        (None, {"do_sample": True, "temperature": None}, 1.0),
        (None, {"do_sample": True, "temperature": 0}, 0),
        (None, {"do_sample": False, "temperature": 0.6}, 0),
        (None, {"do_sample": None, "temperature": 0.6}, 0),
        (None, {"temperature": 0.6}, 0),
        (None, {}, 0),
    ],
)
def test_the_temperature(given: float | None, defaults: Mapping[str, Any], temperature: float) -> None:
    made = resolve(Sampling(temperature=given), defaults)
    assert made.temperature == temperature
    assert made.law == ("coupled" if temperature else None)
    assert made.seed == (99 if temperature else 0)


def test_a_greedy_checkpoint_filters_nothing_but_its_repetition_penalty_holds() -> None:
    says = {"top_k": 20, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.2}
    made = resolve(Sampling(), says)
    assert (made.top_k, made.top_p, made.min_p, made.repetition_penalty) == (0, 1.0, 0.0, 1.2)
    assert made.target(()) == Target(repetition_penalty=1.2)
    # Nor do values that could not be used.
    assert resolve(Sampling(), {"top_p": 0}).top_p == 1.0


def test_a_seed_is_drawn_only_where_one_is_needed() -> None:
    assert Sampling().resolved({}, no_seed).seed == 0
    assert Sampling(seed=5).resolved({}, no_seed).seed == 5
    assert Sampling(temperature=1, seed=0).resolved({}, no_seed).seed == 0
    assert Sampling(temperature=1).resolved({}, lambda: 2**64 - 1).seed == 2**64 - 1


@pytest.mark.parametrize("value", [0, -1, -7])
def test_a_checkpoints_top_k_below_one_keeps_all(value: int) -> None:
    assert resolve(Sampling(temperature=1), {"top_k": value}).top_k == 0


@pytest.mark.parametrize(
    ("defaults", "message"),
    [
        ({"top_p": 0}, "top_p must be .*, found 0 .*; pass top_p yourself"),
        ({"top_k": 5.5}, "top_k must be .*, found 5.5"),
        ({"top_k": False}, "top_k must be .*, found False"),
        ({"min_p": 2}, "min_p must be .*, found 2"),
        ({"repetition_penalty": 0}, "repetition_penalty must be .*, found 0"),
        ({"temperature": -1}, "temperature must be .*, found -1"),
        ({"temperature": NAN}, "temperature must be .*, found nan"),
        ({"do_sample": 1}, "do_sample must be true or false, found 1"),
        ({"do_sample": 0}, "do_sample must be true or false, found 0"),
    ],
)
def test_a_checkpoints_unusable_value_is_refused_by_its_source(
    defaults: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        resolve(Sampling(), {"do_sample": True, **defaults})
    assert "generation_config.json" in str(refused.value)
    (name,) = defaults
    own = {"temperature" if name == "do_sample" else name: 1}
    assert resolve(Sampling(**{"temperature": 1, **own}), {"do_sample": True, **defaults}).temperature == 1


@pytest.mark.parametrize(
    "given", [{"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.1}, {"law": "chain"}, {"law": "coupled"}]
)
def test_what_could_have_no_effect_is_refused(given: dict[str, Any]) -> None:
    (name,) = given
    for defaults in ({}, {"do_sample": False, "temperature": 0.6}, {"do_sample": True, "temperature": 0}):
        with pytest.raises(
            InvalidRequest, match=f"{name} has no effect without a temperature above 0.*; give one"
        ):
            resolve(Sampling(**given), defaults)
    assert resolve(Sampling(**given), {"do_sample": True}).temperature == 1.0
    assert resolve(Sampling(temperature=1, **given)).temperature == 1.0


def test_greedy_in_so_many_words_takes_filters_and_a_seed_but_no_law() -> None:
    made = resolve(Sampling(temperature=0, top_k=3, top_p=0.5, min_p=0.1, seed=4))
    assert (made.top_k, made.top_p, made.min_p, made.seed) == (3, 0.5, 0.1, 4)
    assert resolve(Sampling(top_k=0, top_p=1, min_p=0, seed=4)).temperature == 0
    with pytest.raises(InvalidRequest, match="law has no effect"):
        resolve(Sampling(temperature=0, law="coupled"))


# What it means for the logits.


def test_a_plain_greedy_target() -> None:
    assert resolve(Sampling()).target((3, 4)) == GREEDY
    assert resolve(Sampling(temperature=0, top_k=3, top_p=0.5, min_p=0.1)).target(()) == GREEDY
    assert resolve(Sampling(logit_bias={3: 0.0})).target(()) == GREEDY  # type: ignore[arg-type]


def test_a_full_target() -> None:
    made = resolve(
        Sampling(0.7, 5, 0.9, 0.1, 1.1, 0.2, 0.3, {4: -INF, 1: 2.0}, 8, 6, 2, "chain")  # type: ignore[arg-type]
    )
    expected = Target("chain", 8, 0.7, 5, 0.9, 0.1, 1.1, 0.2, 0.3, ((1, 2.0), (4, -INF)), 6, (2, 9), 2)
    assert made.target((2, 9)) == expected


def test_held_ids_wait_only_for_a_minimum_and_a_minimum_only_with_ids() -> None:
    made = resolve(Sampling(min_tokens=5))
    assert (made.target((2,)).min_tokens, made.target((2,)).held) == (5, (2,))
    assert made.target(()) == GREEDY
    assert resolve(Sampling()).target((2,)).held == ()


def test_no_logprobs_and_none_of_the_alternatives_are_different_things() -> None:
    assert resolve(Sampling()).target(()).logprobs == NO_LOGPROBS
    assert resolve(Sampling(logprobs=0)).target(()).logprobs == 0


@pytest.mark.parametrize("name", [field.name for field in attrs.fields(Sampling) if field.name != "logprobs"])
def test_a_target_of_unresolved_parameters_is_a_programmer_error(name: str) -> None:
    made = resolve(Sampling(temperature=1))
    with pytest.raises(AssertionError):
        attrs.evolve(made, **{name: None}).target(())


# Its form in the log.


@st.composite
def resolved(draw: st.DrawFn) -> Sampling:
    bias = st.floats(-1e4, 1e4) | st.just(-INF) | st.integers(-10000, 10000)
    given = Sampling(
        draw(st.just(0) | st.floats(1e-4, 1e6) | st.integers(1, 9)),
        draw(st.none() | st.integers(0, 2**31 - 1)),
        draw(st.none() | st.floats(0, 1, exclude_min=True)),
        draw(st.none() | st.floats(0, 1)),
        draw(st.none() | st.floats(0.01, 100)),
        draw(st.none() | st.floats(-2, 2)),
        draw(st.none() | st.floats(-2, 2)),
        draw(st.none() | st.dictionaries(st.integers(0, 10**6), bias, max_size=4)),
        draw(st.none() | st.integers(0, 2**64 - 1)),
        draw(st.none() | st.integers(0, 2**31 - 1)),
        draw(st.none() | st.integers(0, 20)),
    )
    law = draw(st.sampled_from([None, "coupled", "chain"])) if given.temperature else None
    return resolve(attrs.evolve(given, law=law), seed=draw(st.integers(0, 2**64 - 1)))


@given(resolved())
def test_through_the_log_and_back(made: Sampling) -> None:
    data = made.to_data()
    assert not {"law", "seed"} & set(data)
    note = decode(*encode(RuntimeNote("sampling", data)))
    assert isinstance(note, RuntimeNote)
    again = Sampling.from_data(note.data, made.law or "greedy", made.seed or 0)
    assert again == made
    assert again.target((1,)) == made.target((1,))
    assert encode(RuntimeNote("sampling", again.to_data())) == encode(RuntimeNote("sampling", data))


GOOD = Sampling(temperature=0.5).resolved({}, lambda: 3).to_data()


@pytest.mark.parametrize("name", GOOD)
def test_a_record_without_a_field_or_without_its_value_is_refused(name: str) -> None:
    with pytest.raises(KeyError, match=name):
        Sampling.from_data({key: value for key, value in GOOD.items() if key != name}, "coupled", 3)
    if name != "logprobs":
        with pytest.raises(TypeError):
            Sampling.from_data({**GOOD, name: None}, "coupled", 3)


@pytest.mark.parametrize(
    ("data", "law", "seed", "error"),
    [
        ([], "coupled", 3, TypeError),
        (None, "coupled", 3, TypeError),
        ({**GOOD, "more": 1}, "coupled", 3, InvalidRequest),
        ({**GOOD, "top_p": 2}, "coupled", 3, InvalidRequest),
        ({**GOOD, "logit_bias": 3}, "coupled", 3, TypeError),
        ({**GOOD, "logit_bias": [3]}, "coupled", 3, TypeError),
        ({**GOOD, "logit_bias": [[3]]}, "coupled", 3, InvalidRequest),
        (GOOD, "coupled", None, TypeError),
        (GOOD, "coupled", -1, InvalidRequest),
        (GOOD, "other", 3, InvalidRequest),
        (GOOD, "greedy", 3, InvalidRequest),
        (GOOD, None, 3, InvalidRequest),
        ({**GOOD, "temperature": 0.0}, "chain", 3, InvalidRequest),
    ],
)
def test_a_malformed_record_is_refused(data: Any, law: Any, seed: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Sampling.from_data(data, law, seed)


@pytest.mark.parametrize("name", [name for name in ACCEPTED if name not in ("seed", "law", "logprobs")])
def test_the_kernels_take_every_extreme_that_is_accepted(name: str) -> None:
    """What passes here must not fail in the middle of a run."""
    logits = torch.linspace(-30, 30, 3 * 40).reshape(3, 40)
    for value in ACCEPTED[name]:
        for law in ("coupled", "chain"):
            given = {"temperature": 1.0, "law": law, "seed": 2**64 - 1, "logprobs": 3, name: value}
            if not given["temperature"]:
                del given["law"]
            target = Sampling(**given).resolved({}, lambda: 1).target((39,))
            made = judge(logits, target, History((1, 2), {3: 4}, 4), (39, 39), 2**31)
            assert 0 <= made.token < 40
            assert len(made.logprobs) == len(made.path)
