"""A request inside the runtime: parameters, derived text state, counters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import Any, Protocol

import attrs

from txdecode.runtime.drafters.composed import Copied, extension, matches, replacement, source_of
from txdecode.runtime.handle import Finish, Handle, Result, Stats
from txdecode.runtime.policy.controllers import Controller
from txdecode.runtime.policy.decision import Decision
from txdecode.runtime.policy.goodput import Goodput, bucket
from txdecode.runtime.policy.planning import Planned
from txdecode.runtime.sampling import Sampling
from txdecode.state.rng import LAWS, ROLES_OF_LAW
from txdecode.transactions.clip import ClipRules
from txdecode.transactions.events import RequestSubmitted
from txdecode.transactions.executor import NO_PROPOSAL, Drafter, Proposal
from txdecode.transactions.target import GREEDY, NO_LOGPROBS, Target, TokenLogprobs

DRAFT_FAULTS_MAX = 3
"""Failures of a host drafter after which a request goes on without it."""


class Stream(Protocol):
    """Text derived from committed tokens, with the contract probe / commit / flush."""

    def probe(self, candidates: Sequence[int]) -> int | None:
        """Index of the first candidate that completes a stop string; changes nothing."""

    def commit(self, ids: Sequence[int]) -> str:
        """Text that these tokens make final."""

    def flush(self) -> str:
        """Text held back until now; the request is over."""


class NoText:
    """The stream of a runtime without a tokenizer."""

    def probe(self, candidates: Sequence[int]) -> int | None:
        """There are no stop strings."""
        return None

    def commit(self, ids: Sequence[int]) -> str:
        """There is no text."""
        return ""

    def flush(self) -> str:
        """There is no text."""
        return ""


@attrs.frozen
class Parameters:
    """What the caller asked for, beyond prompt and budget; all of it is in the log. ``sampling`` is resolved."""

    sampling: Sampling
    stop: tuple[str, ...] = ()
    draft_len: int | str | None = None
    max_tokens: int = 0

    def to_data(self) -> dict[str, Any]:
        """Plain data for the log."""
        return {
            "sampling": self.sampling.to_data(),
            "stop": list(self.stop),
            "draft_len": self.draft_len,
            "max_tokens": self.max_tokens,
        }

    @classmethod
    def from_event(cls, event: RequestSubmitted) -> Parameters:
        """Inverse of ``to_data``; law and seed are fields of the event. Raises ``KeyError``, ``TypeError`` and
        ``InvalidRequest`` where the data are not of this form."""
        data = event.parameters
        sampling = Sampling.from_data(data["sampling"], LAWS[event.law], event.seed)
        return cls(sampling, tuple(data["stop"]), data["draft_len"], data["max_tokens"])


@attrs.define(eq=False)
class Request:
    """One request. ``learned`` says that the executor drafts for it (where ``drafter`` leaves it to that), ``target``
    how its tokens are chosen; ``faults`` counts consecutive faults of the executor in its launches. ``by_source`` are
    tokens offered and accepted by drafter."""

    id: int
    prompt: tuple[int, ...]
    budget: int
    stop_ids: frozenset[int]
    parameters: Parameters
    handle: Handle
    stream: Stream
    controller: Controller
    drafter: Drafter | None
    vocab_size: int
    learned: bool
    draft_depth: int | None = None
    target: Target = GREEDY
    ids: list[int] = attrs.Factory(list)
    pieces: list[str] = attrs.Factory(list)
    logprobs: list[TokenLogprobs] = attrs.Factory(list)
    faults: int = 0
    draft_faults: int = 0
    fallback: str = "none"
    rounds: int = 0
    plain_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    preemptions: int = 0
    rollbacks: int = 0
    prefill_ns: int = 0
    decode_ns: int = 0
    device_ns: int = 0
    by_source: dict[str, tuple[int, int]] = attrs.Factory(dict)
    planned: Planned | None = None
    decision: Decision | None = None
    reasons: dict[str, int] = attrs.Factory(dict)

    @property
    def drafts(self) -> bool:
        """Whether anybody drafts for it."""
        return self.drafter is not None or self.learned

    def submitted(self, now_us: int) -> RequestSubmitted:
        """The event that makes this request known."""
        law = LAWS.index(self.target.law)
        return RequestSubmitted(
            self.id,
            self.prompt,
            self.budget,
            tuple(sorted(self.stop_ids)),
            ROLES_OF_LAW[law],
            self.parameters.to_data(),
            now_us,
            law=law,
            seed=self.target.seed,
        )

    def target_now(self) -> Target:
        """How the next tokens are chosen: a minimum length that was reached no longer costs anything."""
        if self.target.min_tokens:
            self.target = self.target.after(len(self.ids))
        return self.target

    def begin(self) -> None:
        """Derived state starts from the known tokens."""
        self.controller.begin(self.id)
        if self.drafter is not None:
            try:
                self.drafter.begin(self.id, (*self.prompt, *self.ids))
            except Exception as error:
                self._drafter_failed(error, 1)

    def rules(self, left: int) -> ClipRules:
        """What may end this request with ``left`` tokens to go."""
        return ClipRules(left, self.stop_ids, self.stream.probe if self.parameters.stop else None)

    def propose(self, count: int) -> Proposal:
        """Ask the host drafter. It may fail or misbehave without harm: the round is then a plain step, and a
        drafter that keeps failing is left out for the rest of the request."""
        return self._asked(lambda drafter: drafter.propose(self.id, count), count)

    def replace(self, count: int) -> Proposal | None:
        """Ask the host drafter whether it knows better than the executor's; ``None`` where it does not, or failed."""
        made = self._asked(lambda drafter: replacement(drafter, self.id, count), count)
        return made if made.tokens else None

    def extend(self, drafts: tuple[int, ...], count: int) -> Proposal:
        """Ask the host drafter what comes after the executor's drafts."""
        return self._asked(lambda drafter: extension(drafter, self.id, count, drafts), count)

    def copies(self, count: int, after: tuple[int, ...] = ()) -> tuple[Proposal, int]:
        """What the host drafter would copy after the known tokens and ``after``, and how many tokens its match has; 0
        where it does not say."""
        length = 0

        def ask(drafter: Drafter) -> Sequence[Any]:
            nonlocal length
            if not matches(drafter):
                return () if after else drafter.propose(self.id, count)
            copy = drafter.match(self.id, count, after)
            length = copy.length
            return Copied(copy.tokens, copy.source)

        return self._asked(ask, count), length

    def cut(self, count: int) -> Proposal:
        """The copies that were planned, as far as there is room."""
        assert self.planned is not None
        copies = self.planned.copies
        return copies if len(copies.tokens) <= count else attrs.evolve(copies, tokens=copies.tokens[:count])

    def extend_cut(self, drafts: tuple[int, ...], count: int) -> Proposal:
        """Copies after the executor's drafts, as many as pay."""
        assert isinstance(self.controller, Goodput)
        copies, length = self.copies(count, drafts)
        if not copies.tokens:
            return NO_PROPOSAL
        # What follows drafts is another source than what follows the text.
        key = f"+{copies.source}", bucket(length)
        kept = self.controller.extend(self.id, key, len(drafts), len(copies.tokens))
        self.decision = self.controller.state(self.id).decision
        return attrs.evolve(copies, tokens=copies.tokens[:kept]) if kept else NO_PROPOSAL

    def decided(self) -> tuple[int, ...]:
        """The decision of the round under way, for its record."""
        return () if self.decision is None else self.decision.ids()

    def _asked(self, ask: Callable[[Drafter], Sequence[Any]], count: int) -> Proposal:
        drafter = self.drafter
        if drafter is None:
            return NO_PROPOSAL
        try:
            # Array libraries have integers of their own, which the log could not hold.
            answer = ask(drafter)
            tokens = tuple(int(index(token)) for token in answer)
            if len(tokens) > count:
                raise ValueError(f"{len(tokens)} tokens proposed, at most {count} asked")
            if not all(0 <= token < self.vocab_size for token in tokens):
                raise ValueError(f"an id outside 0..{self.vocab_size - 1} proposed")
            return Proposal(tokens, source_of(answer, drafter)) if tokens else NO_PROPOSAL
        except Exception as error:
            self._drafter_failed(error, DRAFT_FAULTS_MAX)
            return NO_PROPOSAL

    def _drafter_failed(self, error: Exception, most: int) -> None:
        self.draft_faults += 1
        self.fallback = f"{type(error).__name__}: {error}"[:120]
        if self.draft_faults >= most:
            self.drafter = None

    def observe(self, proposal: Proposal, accepted: int) -> None:
        """Count a committed round."""
        self.rounds += 1
        self.faults = 0
        offered = len(proposal.tokens)
        if offered:
            self.drafted += offered
            self.accepted += accepted
            self._count_sources(proposal, accepted)
        else:
            self.plain_steps += 1
        if isinstance(self.controller, Goodput):
            self.controller.observe(self.id, offered, accepted, proposal.copied)
            if self.decision is not None:
                reason = self.decision.reason
                self.reasons[reason] = self.reasons.get(reason, 0) + 1
        else:
            self.controller.observe(self.id, offered, accepted)

    def _count_sources(self, proposal: Proposal, accepted: int) -> None:
        first, last = proposal.source, ""
        if proposal.copied:
            first, _, last = proposal.source.rpartition("+")
        drawn = proposal.drawn
        for name, offered, right in (
            (first, drawn, min(accepted, drawn)),
            (last, proposal.copied, max(accepted - drawn, 0)),
        ):
            if offered:
                before = self.by_source.get(name, (0, 0))
                self.by_source[name] = before[0] + offered, before[1] + right

    def take(self, emitted: tuple[int, ...], logprobs: tuple[TokenLogprobs, ...]) -> str:
        """Committed tokens enter everything that is derived from them; returns the text made final."""
        piece = self.restore(emitted, logprobs)
        if self.drafter is not None:
            try:
                self.drafter.commit(self.id, emitted)
            except Exception as error:
                # Its context no longer matches the text, so it can only guess wrong from here on.
                self._drafter_failed(error, 1)
        return piece

    def restore(self, emitted: tuple[int, ...], logprobs: tuple[TokenLogprobs, ...]) -> str:
        """Take up tokens that were committed before a recovery; returns the text that they made final."""
        self.ids.extend(emitted)
        self.logprobs.extend(logprobs)
        # A stop token ends the text; whatever it would spell is no part of it.
        spoken = emitted[:-1] if emitted[-1] in self.stop_ids else emitted
        piece = self.stream.commit(spoken)
        if piece:
            self.pieces.append(piece)
        return piece

    def stats(self) -> Stats:
        """Counts so far."""
        return Stats(
            len(self.prompt),
            self.rounds,
            self.plain_steps,
            self.drafted,
            self.accepted,
            len(self.ids),
            self.preemptions,
            self.rollbacks,
            self.prefill_ns / 1e9,
            self.decode_ns / 1e9,
            (self.decode_ns - self.device_ns) / 1e9,
            dict(self.by_source),
            dict(self.reasons),
        )

    def result(self, finish: Finish) -> Result:
        """The result, with all text flushed."""
        text = None if isinstance(self.stream, NoText) else "".join(self.pieces)
        logprobs = None if self.target.logprobs == NO_LOGPROBS else tuple(self.logprobs)
        return Result(
            self.id, tuple(self.ids), text, finish, self.stats(), self.parameters.sampling, logprobs
        )
