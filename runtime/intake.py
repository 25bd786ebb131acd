"""From what a caller passes to ``submit`` to a request: everything is checked here, nothing later."""

from __future__ import annotations

import itertools
import math
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from txdecode.runtime.configuration import Options
from txdecode.runtime.errors import (
    InvalidRequest,
    PromptTooLong,
    RequestTooLarge,
    TextUnavailable,
)
from txdecode.runtime.handle import Driver, Handle
from txdecode.runtime.opening import Opened
from txdecode.runtime.policy.controllers import Controller, Fixed, parse
from txdecode.runtime.request import NoText, Parameters, Request, Stream
from txdecode.runtime.sampling import Sampling
from txdecode.transactions.codec import encode
from txdecode.transactions.executor import Drafter

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]


def fresh_seed() -> int:
    """64 bits of the operating system's entropy."""
    return secrets.randbits(64)


class Intake:
    """Makes requests for one runtime. ``entropy`` gives the 64-bit seed of a request that samples without one."""

    def __init__(
        self, opened: Opened, options: Options, driver: Driver, entropy: Callable[[], int] = fresh_seed
    ) -> None:
        self.text = opened.text
        # A text of the caller's own may come without a checkpoint.
        assets = getattr(opened.text, "assets", None)
        self._defaults: Mapping[str, float | int | bool] = {} if assets is None else assets.sampling
        self._entropy = entropy
        self.eos_ids = opened.eos_ids
        self.drafter: Drafter | None = opened.drafter
        self.description = opened.executor.describe()
        self.drafts = opened.drafts
        self._draft_depth = options.draft_depth
        self._fallback = options.spec_fallback
        self._controller = parse(options.draft_len, self._fallback)
        self._driver = driver
        self._numbers = itertools.count()
        self._number_lock = threading.Lock()

    @property
    def drafter_name(self) -> str:
        """Name of the drafter in reports."""
        learned = self.description.name if self.drafts else ""
        host = self.drafter.name if self.drafter is not None else ""
        return "+".join(filter(None, (learned, host))) or "none"

    def start_at(self, number: int) -> None:
        """Number of the next request (recovery goes on after the last one of the log)."""
        self._numbers = itertools.count(number)

    def make(
        self,
        prompt: Prompt,
        max_tokens: int,
        sampling: Sampling | Mapping[str, Any] | None,
        stop: str | Sequence[str],
        stop_ids: Sequence[int],
        ignore_eos: bool,
        draft_len: int | str | None,
    ) -> Request:
        """Check everything and build the request. Raises ``InvalidRequest`` and ``TextUnavailable``."""
        if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
            raise InvalidRequest(f"max_tokens must be an integer of at least 1, found {max_tokens!r}")
        resolved = Sampling.of(sampling).resolved(self._defaults, self._entropy)
        strings = self._check_stop(stop)
        ids = self._encode(prompt)
        stops = frozenset(self._check_ids(stop_ids, "stop_ids")) | (
            frozenset() if ignore_eos else self.eos_ids
        )
        budget = self._check_size(ids, max_tokens)
        self._check_sampling(resolved, stops, max_tokens, budget)
        if draft_len is not None:
            parse(draft_len)
        # What the context leaves is all that a larger number can mean, and all that the log can write.
        parameters = Parameters(resolved, strings, draft_len, min(int(max_tokens), self.description.context))
        with self._number_lock:
            number = next(self._numbers)
        return self._checked(self.build(number, ids, budget, stops, parameters))

    @staticmethod
    def _checked(request: Request) -> Request:
        """What the log can't write must be refused here: later it would stop the runtime for everybody."""
        try:
            encode(request.submitted(0))
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidRequest(f"the request cannot be written to the log: {error}") from error
        return request

    def build(
        self,
        number: int,
        prompt: tuple[int, ...],
        budget: int,
        stop_ids: frozenset[int],
        parameters: Parameters,
    ) -> Request:
        """A request of checked parts."""
        return Request(
            number,
            prompt,
            budget,
            stop_ids,
            parameters,
            Handle(number, self._driver, self.text is not None),
            self._stream(parameters.stop, parameters.sampling.min_tokens or 0),
            self._controller_for(parameters.draft_len),
            self.drafter,
            self.description.vocab_size,
            self.drafts,
            self._draft_depth,
            parameters.sampling.target(tuple(sorted(stop_ids))),
        )

    def _controller_for(self, draft_len: int | str | None) -> Controller:
        if self.drafter is None and not self.drafts:
            return Fixed(0)
        return self._controller if draft_len is None else parse(draft_len, self._fallback)

    def _stream(self, stop: tuple[str, ...], after: int = 0) -> Stream:
        if stop and self.text is None:
            raise TextUnavailable(
                "stop strings need a tokenizer, and this runtime has none; use stop_ids, or pass text="
            )
        return NoText() if self.text is None else self.text.stop_matcher(stop, after)

    def _check_stop(self, stop: str | Sequence[str]) -> tuple[str, ...]:
        if not isinstance(stop, Iterable):
            raise InvalidRequest(f"stop must be strings, found {stop!r}")
        strings = (stop,) if isinstance(stop, str) else tuple(stop)
        for string in strings:
            if not isinstance(string, str) or not string:
                raise InvalidRequest(f"stop must be non-empty strings, found {string!r}")
        strings = tuple(str(string) for string in strings)
        if strings:
            # The matcher has rules of its own; they must be broken here, not when the first token comes.
            self._stream(strings)
        return strings

    def _check_sampling(
        self, sampling: Sampling, stops: frozenset[int], max_tokens: int, budget: int
    ) -> None:
        """What resolved parameters may say depends on vocabulary, budget, stop ids and executor."""
        vocab_size = self.description.vocab_size
        least = sampling.min_tokens or 0
        if least > budget:
            limit = (
                f"max_tokens is {max_tokens}" if max_tokens == budget else "that is all the context leaves"
            )
            raise InvalidRequest(
                f"min_tokens must be at most {budget}, found {least}: {limit}; lower min_tokens"
            )
        if sampling.logprobs is not None and sampling.logprobs > vocab_size:
            raise InvalidRequest(
                f"logprobs must be at most the vocabulary of {vocab_size} tokens, found {sampling.logprobs}; "
                f"ask for fewer"
            )
        bias = sampling.logit_bias or ()
        # Pairs are in order of ids.
        if bias and bias[-1][0] >= vocab_size:
            raise InvalidRequest(
                f"logit_bias must name ids in 0..{vocab_size - 1}, found {bias[-1][0]}; leave that token out"
            )
        forbidden = {token for token, value in bias if value == -math.inf} | (stops if least else frozenset())
        if len(forbidden) >= vocab_size:
            raise InvalidRequest(
                f"at least one of {vocab_size} tokens must be possible, found all forbidden by logit_bias and "
                f"min_tokens; forbid fewer"
            )
        target = sampling.target(tuple(stops))
        if not self.description.capabilities.sampling and not target.plain:
            wanted = attrs.asdict(target, filter=lambda field, value: value != field.default)
            found = ", ".join(f"{name} {value}" for name, value in wanted.items() if name != "seed")
            raise InvalidRequest(
                f"executor '{self.description.name}' decodes greedily only, found {found:.120}; use temperature 0 "
                f"and neither penalties, logit_bias, min_tokens nor logprobs"
            )

    def _encode(self, prompt: Prompt) -> tuple[int, ...]:
        if isinstance(prompt, str):
            if self.text is None:
                raise TextUnavailable("this runtime has no tokenizer; pass token ids")
            ids: Sequence[int] = self.text.encode(prompt)
        elif isinstance(prompt, Sequence) and prompt and all(isinstance(item, Mapping) for item in prompt):
            if self.text is None:
                raise TextUnavailable("this runtime has no tokenizer; pass token ids")
            ids = self.text.encode_chat(prompt)  # type: ignore[arg-type]
        elif isinstance(prompt, Sequence) and not isinstance(prompt, bytes | bytearray):
            ids = prompt  # type: ignore[assignment]
        else:
            raise InvalidRequest(
                f"a prompt is text, token ids or chat messages, found {type(prompt).__name__}"
            )
        if not ids:
            raise InvalidRequest("the prompt is empty: expected at least one token")
        # Of text too: a tokenizer may know more tokens than the model.
        return self._check_ids(ids, "prompt")

    def _check_ids(self, ids: Sequence[int], what: str) -> tuple[int, ...]:
        if not isinstance(ids, Iterable):
            raise InvalidRequest(f"{what} must be token ids, found {ids!r}")
        checked = []
        for index, token in enumerate(ids):
            if isinstance(token, bool) or not isinstance(token, int):
                raise InvalidRequest(f"{what}[{index}] must be a token id, found {token!r}")
            if not 0 <= token < self.description.vocab_size:
                raise InvalidRequest(
                    f"{what}[{index}] is {token}, expected an id in 0..{self.description.vocab_size - 1}"
                )
            checked.append(int(token))
        return tuple(checked)

    def _check_size(self, ids: tuple[int, ...], max_tokens: int) -> int:
        """The budget: the least of ``max_tokens`` and what the context leaves."""
        context = self.description.context
        if len(ids) + 1 > context:
            raise PromptTooLong(len(ids), context)
        budget = min(max_tokens, context - len(ids))
        rows = len(ids) + budget - 1
        for group in self.description.groups:
            if group.kind == "pages" and -(-rows // group.granularity) > group.capacity:
                raise RequestTooLarge(group.name, -(-rows // group.granularity), group.capacity)
            if group.kind == "column" and group.capacity < 2:
                raise RequestTooLarge(group.name, 2, group.capacity)
        return budget
