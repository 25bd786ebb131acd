"""How tokens are chosen: what a caller may ask for, and what that means for one model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import attrs

from txdecode.runtime.errors import InvalidRequest
from txdecode.transactions.target import NO_LOGPROBS, Target

SampledLaw = Literal["coupled", "chain"]
Bias = tuple[tuple[int, float], ...]

LEAST_TEMPERATURE, MOST_TEMPERATURE = 1e-4, 1e6
"""Far below and above what changes a text any more, and far from where scores in fp64 end."""

MOST_BIAS = 1e4
MOST_LOGPROBS = 20
MOST_COUNT = 2**31 - 1
"""Largest id and count: those of tokens are 32-bit integers wherever they are computed with."""

_FILTERS = ("top_k", "top_p", "min_p")
_NEUTRAL: dict[str, Any] = {
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "logit_bias": (),
    "min_tokens": 0,
}
_LOGGED = ("temperature", *_NEUTRAL, "logprobs")


@attrs.frozen
class _Rule:
    """What a field may be. Only Python's own numbers: the log holds no others, and True is no 1."""

    expected: str
    advice: str
    accepts: Callable[[Any], bool]
    types: tuple[type, ...] = (int, float)

    def checked(self, name: str, value: object, where: str = "", advice: str = "") -> Any:
        """The value, as a float where floats are allowed. Raises ``InvalidRequest``."""
        if type(value) not in self.types or not self.accepts(value):
            raise _wrong(name, self.expected, value, advice or self.advice, where)
        # The sum makes -0.0 a 0.0: equal parameters have equal bytes in the log.
        return float(value) + 0.0 if float in self.types else value  # type: ignore[arg-type]


def _wrong(name: str, expected: str, found: object, advice: str, where: str = "") -> InvalidRequest:
    return InvalidRequest(f"{name} must be {expected}, found {_shown(found)}{where}; {advice}")


def _shown(value: object) -> str:
    """Any value in one short line."""
    try:
        return " ".join(repr(value).split())[:80]
    except Exception:
        # A repr may fail: Python's does for integers of thousands of digits.
        return type(value).__name__


_WHOLE = (int,)
_COUNT = f"an integer from 0 to {MOST_COUNT}"
_RULES = {
    "temperature": _Rule(
        f"0 or a number from {LEAST_TEMPERATURE} to {MOST_TEMPERATURE:.0f}",
        "use 0 for greedy decoding",
        lambda value: value == 0 or LEAST_TEMPERATURE <= value <= MOST_TEMPERATURE,
    ),
    "top_k": _Rule(_COUNT, "use 0 to keep all", lambda value: 0 <= value <= MOST_COUNT, _WHOLE),
    "top_p": _Rule("a number above 0 and at most 1", "use 1 to keep all", lambda value: 0 < value <= 1),
    "min_p": _Rule("a number from 0 to 1", "use 0 to keep all", lambda value: 0 <= value <= 1),
    "repetition_penalty": _Rule(
        "a number from 0.01 to 100", "use 1 for none", lambda value: 0.01 <= value <= 100
    ),
    "presence_penalty": _Rule("a number from -2 to 2", "use 0 for none", lambda value: -2 <= value <= 2),
    "frequency_penalty": _Rule("a number from -2 to 2", "use 0 for none", lambda value: -2 <= value <= 2),
    "seed": _Rule(
        f"an integer from 0 to {2**64 - 1}",
        "leave it out for a fresh one",
        lambda value: 0 <= value < 2**64,
        _WHOLE,
    ),
    "min_tokens": _Rule(_COUNT, "use 0 for no minimum", lambda value: 0 <= value <= MOST_COUNT, _WHOLE),
    "logprobs": _Rule(
        f"an integer from 0 to {MOST_LOGPROBS}",
        "leave it out for none",
        lambda value: 0 <= value <= MOST_LOGPROBS,
        _WHOLE,
    ),
    "law": _Rule(
        "'coupled' or 'chain'",
        "leave it out for 'coupled'",
        lambda value: value in ("coupled", "chain"),
        (str,),
    ),
}
_BIAS_ID = _Rule(_COUNT, "name tokens by their ids", lambda value: 0 <= value <= MOST_COUNT, _WHOLE)
_BIAS_VALUE = _Rule(
    f"a number from -{MOST_BIAS:.0f} to {MOST_BIAS:.0f} or -inf",
    "use -inf to forbid the token",
    lambda value: -MOST_BIAS <= value <= MOST_BIAS or value == -math.inf,
)


def _bias(value: Mapping[int, float] | Bias | None) -> Bias | None:
    """Pairs by id; a map, or pairs as they are stored. Raises ``InvalidRequest``."""
    if value is None:
        return None
    pairs = tuple(value.items()) if isinstance(value, Mapping) else value
    if type(pairs) is not tuple or not all(type(pair) is tuple and len(pair) == 2 for pair in pairs):
        raise _wrong("logit_bias", "a mapping of token ids to numbers", value, "use {ID: VALUE}")
    checked: dict[int, float] = {}
    for token, number in pairs:
        token = _BIAS_ID.checked("a token id in logit_bias", token)
        if token in checked:
            raise _wrong("logit_bias", "one value for each token id", token, "name every token once")
        checked[token] = _BIAS_VALUE.checked(f"logit_bias[{token}]", number)
    return tuple(sorted(checked.items()))


@attrs.frozen
class Sampling:
    """Sampling parameters of a request; ``None`` means not given.

    A field that is not given is the checkpoint's (its ``generation_config.json``) where that says something,
    and neutral otherwise. Raises ``InvalidRequest`` (a ``ValueError``) for a value out of its range.

    ``temperature``: 0 is greedy, else from 1e-4 to 1e6. ``top_k``: that many of the most likely tokens stay, 0 keeps
    all. ``top_p`` in (0, 1]: the fewest most likely tokens with at least this share stay. ``min_p`` in [0, 1]:
    tokens at least this fraction as likely as the most likely one stay. ``repetition_penalty`` in [0.01, 100]: on
    tokens of prompt and text; 1 is none. ``presence_penalty`` and ``frequency_penalty`` in [-2, 2]: on generated
    tokens, once and for each occurrence. ``logit_bias``: added to the logits of these ids, magnitude at most
    10,000, or -inf, which forbids the token; kept as pairs by id. ``seed``: 64 bits; the same seed gives the same
    text. ``min_tokens``: nothing but the budget ends the text before so many. ``logprobs``: report every token's
    log-probability and up to 20 alternatives. ``law``: how drafts are judged; under ``coupled`` (the default) the
    text for a seed does not change with speculation, under ``chain`` (rejection sampling) its distribution does
    not.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Bias | None = attrs.field(default=None, converter=_bias)
    seed: int | None = None
    min_tokens: int | None = None
    logprobs: int | None = None
    law: SampledLaw | None = None

    def __attrs_post_init__(self) -> None:
        for name, rule in _RULES.items():
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, rule.checked(name, value))

    @classmethod
    def of(cls, value: Sampling | Mapping[str, Any] | None) -> Sampling:
        """From what a caller passes: nothing, parameters, or a mapping of their names to values. Raises
        ``InvalidRequest``."""
        if value is None:
            return cls()
        if isinstance(value, Sampling):
            return value
        if not isinstance(value, Mapping):
            raise InvalidRequest(
                f"sampling must be a Sampling or a mapping of its fields, found {type(value).__name__}; "
                f"use Sampling(temperature=0.8)"
            )
        _check_names(value)
        return cls(**value)

    def resolved(self, defaults: Mapping[str, float | int | bool], draw_seed: Callable[[], int]) -> Sampling:
        """Every field concrete; ``law`` stays ``None`` where decoding is greedy, ``logprobs`` where not wanted.

        ``defaults``: what the checkpoint says, names as in ``TextAssets.sampling``. Its temperature and filters
        count where it asks for sampling or the caller gives a temperature above 0; its repetition penalty always,
        as in HF transformers. ``draw_seed`` gives 64 bits, called only where a seed is needed and none was given.
        Raises ``InvalidRequest`` for a field that could have no effect, and for a checkpoint's value out of range.
        """
        temperature = self._temperature(defaults)
        sampled = temperature > 0
        if not sampled:
            self._check_effect()
        fields = {name: self._chosen(name, {}) for name in _NEUTRAL}
        for name in (*_FILTERS, "repetition_penalty"):
            if sampled or name not in _FILTERS:
                fields[name] = self._chosen(name, defaults)
        seed = self.seed
        if seed is None:
            seed = draw_seed() if sampled else 0
        law = (self.law or "coupled") if sampled else None
        return Sampling(temperature=temperature, seed=seed, law=law, logprobs=self.logprobs, **fields)

    def _temperature(self, defaults: Mapping[str, Any]) -> float:
        if self.temperature is not None:
            return self.temperature
        samples = defaults.get("do_sample")
        if samples is None or samples is False:
            return 0.0
        if samples is not True:
            raise _wrong("do_sample", "true or false", samples, "pass a temperature yourself", _CHECKPOINT)
        temperature: float = _default("temperature", defaults, 1.0)
        return temperature

    def _chosen(self, name: str, defaults: Mapping[str, Any]) -> Any:
        given = getattr(self, name)
        return _default(name, defaults, _NEUTRAL[name]) if given is None else given

    def _check_effect(self) -> None:
        """Of a greedy request. Asked for greedy decoding in so many words, filters are harmless: the most likely
        token passes all of them."""
        without = []
        if self.temperature is None:
            without = [name for name in _FILTERS if getattr(self, name) not in (None, _NEUTRAL[name])]
        if self.law is not None:
            without.append("law")
        if without:
            raise InvalidRequest(
                f"{without[0]} has no effect without a temperature above 0, "
                f"found {_shown(getattr(self, without[0]))}; give one, or leave {without[0]} out"
            )

    def target(self, held: tuple[int, ...]) -> Target:
        """The target of resolved parameters; ``held`` are the ids that may not come before ``min_tokens``.

        What has no effect is neutral in it, so that targets that choose alike are equal but for their seeds.
        """
        given: dict[str, Any] = {name: getattr(self, name) for name in (*_LOGGED, "seed")}
        assert all(value is not None for name, value in given.items() if name != "logprobs"), "not resolved"
        assert (self.law is None) == (self.temperature == 0), "not resolved"
        waits = given["min_tokens"] > 0 and bool(held)
        common = Target(
            seed=given["seed"],
            repetition_penalty=given["repetition_penalty"],
            presence_penalty=given["presence_penalty"],
            frequency_penalty=given["frequency_penalty"],
            bias=tuple(pair for pair in given["logit_bias"] if pair[1] != 0.0),
            min_tokens=given["min_tokens"] if waits else 0,
            held=held if waits else (),
            logprobs=NO_LOGPROBS if self.logprobs is None else self.logprobs,
        )
        if self.law is None:
            return common
        sampled = {name: given[name] for name in ("temperature", *_FILTERS)}
        return attrs.evolve(common, law=self.law, **sampled)

    def to_data(self) -> dict[str, Any]:
        """Plain data of resolved parameters for the log, without law and seed: the log has those elsewhere."""
        data = {name: getattr(self, name) for name in _LOGGED}
        return {**data, "logit_bias": [list(pair) for pair in data["logit_bias"]]}

    @classmethod
    def from_data(cls, data: Mapping[str, Any], law: str | None, seed: int) -> Sampling:
        """Inverse of ``to_data``; ``law`` is ``None`` or ``greedy`` where the temperature is 0. Raises
        ``KeyError``, ``TypeError`` or ``InvalidRequest`` for what ``to_data`` does not write."""
        _check_names(data)
        fields = {name: data[name] for name in _LOGGED}
        fields["logit_bias"] = tuple(tuple(pair) for pair in fields["logit_bias"])
        fields["seed"] = seed
        absent = [name for name, value in fields.items() if value is None and name != "logprobs"]
        if absent:
            raise TypeError(f"sampling parameters: {absent[0]} has no value")
        fields["law"] = None if law == "greedy" else law
        made = cls(**fields)
        if (made.law is None) != (made.temperature == 0):
            raise InvalidRequest(
                f"law must be greedy exactly where the temperature is 0, found {law!r} at {made.temperature}; "
                f"use the log as it was written"
            )
        return made


_CHECKPOINT = " in the model's generation_config.json"


def _default(name: str, defaults: Mapping[str, Any], neutral: Any) -> Any:
    """The checkpoint's value. Raises ``InvalidRequest``."""
    value = defaults.get(name)
    if value is None:
        return neutral
    if name == "top_k" and type(value) is int and value < 0:
        # Some checkpoints say -1 for all tokens.
        return neutral
    return _RULES[name].checked(name, value, _CHECKPOINT, f"pass {name} yourself")


def _check_names(given: Mapping[Any, Any]) -> None:
    known = [field.name for field in attrs.fields(Sampling)]
    unknown = [name for name in given if name not in known]
    if unknown:
        raise InvalidRequest(f"sampling has no field {_shown(unknown[0])}; the fields are {', '.join(known)}")
