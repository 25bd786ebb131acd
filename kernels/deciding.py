"""What an executor keeps of a launch between ``verify`` and its end, and how it decides by it."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence

import torch

from txdecode.kernels.attention.cache import Segment
from txdecode.kernels.sampling import judge
from txdecode.kernels.sampling.argmax import lowest_argmax
from txdecode.kernels.sampling.reference import NOTHING
from txdecode.transactions.accept import greedy
from txdecode.transactions.executor import (
    NO_PROPOSAL,
    CapabilityMissing,
    ExecutorFault,
    Outcome,
    Proposal,
    Round,
    RoundPlan,
    Ticket,
)


class Verified:
    """Logits of the rounds that were verified and are not over, and the outcomes that follow from them."""

    def __init__(self) -> None:
        self._logits: dict[int, tuple[RoundPlan, torch.Tensor, list[int] | None]] = {}
        self._prompts: dict[int, tuple[tuple[int, ...], torch.Tensor]] = {}
        self.last: list[torch.Tensor] = []

    def begin(self, rounds: Sequence[Round]) -> None:
        """A new launch: what was known of its requests, and what the last launch showed, is gone."""
        self.last = []
        for item in rounds:
            self._logits.pop(item.plan.request, None)

    def keep(self, rounds: Sequence[Round], logits: torch.Tensor, choices: list[int] | None = None) -> None:
        """``logits`` [rows of all rounds, vocab], in their order, and the likeliest token of each row where a kernel
        has found it already."""
        sizes = [len(proposal_of(item).tokens) + 1 for item in rounds]
        parts = [logits] if len(sizes) == 1 else list(logits.split_with_sizes(sizes))
        assert sum(sizes) == logits.shape[0], (sizes, logits.shape)
        self.last = parts
        start = 0
        for item, part, size in zip(rounds, parts, sizes, strict=True):
            chosen = None if choices is None else choices[start : start + size]
            self._logits[item.plan.request] = (item.plan, part, chosen)
            start += size

    def over(self, request: int) -> None:
        """The round of ``request`` is settled or abandoned."""
        self._logits.pop(request, None)

    def drop(self, request: int) -> None:
        """Forget all of ``request``."""
        self._logits.pop(request, None)
        self._prompts.pop(request, None)

    def accept(self, rounds: Sequence[Round]) -> list[Outcome]:
        """Each plan's target and its law. The rounds that are plainly greedy share one argmax."""
        plain = self._choose_plainly([item for item in rounds if item.plan.target.plain])
        return [next(plain) if item.plan.target.plain else self._judge(item) for item in rounds]

    def _choose_plainly(self, rounds: Sequence[Round]) -> Iterator[Outcome]:
        """A draft is accepted while it is the argmax of the row before it, lowest id on ties."""
        if not rounds:
            return
        targets = self._likeliest(rounds)
        start = 0
        for item in rounds:
            proposal = proposal_of(item)
            stop = start + len(proposal.tokens) + 1
            path, token = greedy(proposal.tokens, targets[start:stop])
            if token == NOTHING:
                raise ExecutorFault(
                    f"request {item.plan.request}: row {path[-1]} of a round has no finite largest logit; "
                    f"the launch rolls back"
                )
            yield Outcome(proposal, path, token)
            start = stop

    def _likeliest(self, rounds: Sequence[Round]) -> list[int]:
        known = [self._kept(item) for item in rounds]
        chosen = [choices for _, choices in known if choices is not None]
        if len(chosen) == len(known):
            return [token for choices in chosen for token in choices]
        parts = [logits for logits, _ in known]
        return lowest_argmax((parts[0] if len(parts) == 1 else torch.cat(parts)).contiguous())

    def _judge(self, item: Round) -> Outcome:
        plan, proposal = item.plan, proposal_of(item)
        q = proposal.q if isinstance(proposal.q, torch.Tensor) else None
        made = judge(
            # Of a vocabulary that is no whole number of vectors it is a view.
            self._kept(item)[0].float().contiguous(),
            plan.target,
            plan.history,
            proposal.tokens,
            plan.rng[0],
            q,
            self._prompt_ids(plan),
            proposal.copied,
        )
        return Outcome(proposal, made.path, made.token, made.logprobs)

    def _prompt_ids(self, plan: RoundPlan) -> torch.Tensor | None:
        """The ids of the request's prompt as a tensor, made once: penalties look at them in every round."""
        if plan.history is None or not plan.target.penalises:
            return None
        kept = self._prompts.get(plan.request)
        if kept is None or kept[0] is not plan.history.prompt:
            kept = plan.history.prompt, torch.tensor(plan.history.prompt, dtype=torch.int64)
            self._prompts[plan.request] = kept
        return kept[1]

    def _kept(self, item: Round) -> tuple[torch.Tensor, list[int] | None]:
        plan, logits, choices = self._logits[item.plan.request]
        assert plan is item.plan or plan == item.plan, "accept of a round that was not the last verified"
        return logits, choices


class VerbByVerb:
    """What executors have in common that are driven verb by verb and decide by the logits they keep."""

    def __init__(self) -> None:
        self._verified = Verified()
        self._torch_threads = torch.get_num_threads()

    def accept(self, rounds: Sequence[Round]) -> list[Outcome]:
        """Each plan's target and its law."""
        with faults("accept"), one_thread(self._torch_threads):
            return self._verified.accept(rounds)

    def launch(self, launch: int, rounds: Sequence[Round]) -> Ticket:
        """Not fused: raises ``CapabilityMissing``."""
        raise CapabilityMissing("this executor is driven verb by verb; it has no fused launch")

    def collect(self, ticket: Ticket) -> list[Outcome] | None:
        """Not fused: raises ``CapabilityMissing``."""
        raise CapabilityMissing("this executor is driven verb by verb; it has no fused launch to collect")

    def logits_of_last_launch(self) -> list[torch.Tensor]:
        """Logits [rows, vocab] of each round of the last ``verify``, in its order. For gates and debugging;
        the tensors are not copies."""
        return list(self._verified.last)


def proposal_of(item: Round) -> Proposal:
    """What is offered to a round: nothing where nobody drafted."""
    return NO_PROPOSAL if item.proposal is None else item.proposal


def by_rows(segments: Sequence[Segment], rows_max: int) -> Iterator[list[int]]:
    """Successive groups of segments, by index, of at most ``rows_max`` rows together."""
    group: list[int] = []
    rows = 0
    for index, segment in enumerate(segments):
        if group and rows + len(segment.tokens) > rows_max:
            yield group
            group, rows = [], 0
        group.append(index)
        rows += len(segment.tokens)
    if group:
        yield group


def digest(rows: torch.Tensor) -> int:
    """64 bits of blake2b over the bytes of a tensor."""
    data = rows.contiguous().view(torch.uint8).numpy().data
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


@contextlib.contextmanager
def one_thread(threads: int) -> Iterator[None]:
    """Torch's operators on the caller's thread alone: they are small here, and a thread that torch has woken spins
    for milliseconds afterwards, on the core that the next forward needs. Then ``threads`` again."""
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def faults(verb: str) -> Iterator[None]:
    """Run kernels: what torch raises becomes an ``ExecutorFault`` that names the verb."""
    try:
        with torch.inference_mode():
            yield
    except (RuntimeError, MemoryError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ExecutorFault(f"{verb} failed in a kernel: {reason[0]}; the launch rolls back") from error
