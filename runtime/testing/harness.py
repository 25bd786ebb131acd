"""What is tested: an executor, and what is known about it without the runtime."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import attrs

from txdecode.runtime.sampling import Sampling
from txdecode.transactions.executor import AuditEntry, Executor, Rollback
from txdecode.transactions.target import GREEDY, Target
from txdecode.transactions.toy import ToyExecutor, expected_audit, plain

Oracle = Callable[[Sequence[int], int, frozenset[int]], Sequence[int]]
"""``oracle(prompt, count, stop_ids)``: the greedy text of a plain loop, at most ``count`` tokens, up to and with
the first token of ``stop_ids``. Nothing of this project should be in it."""

SampledOracle = Callable[[Sequence[int], int, frozenset[int], Target], Sequence[int]]
"""The same under a target: ``sampled(prompt, count, stop_ids, target)``, without drafts. Of the chain law it is one
text of many, and only the others are compared."""


@attrs.frozen
class Harness:
    """An executor under test.

    ``make`` builds a fresh executor; all of them have equal descriptions and equal text. ``oracle`` is their
    plain loop. ``expected_audit(tokens)`` is what ``audit`` must say of a sequence that has consumed
    ``tokens``, where it can be told. ``kept(executor)`` are the numbers of the requests for which the executor
    keeps anything outside the state groups, where it can tell. ``sampled`` is the plain loop under a target, for
    executors that sample; without it only greedy requests are made.
    """

    name: str
    make: Callable[[], Executor]
    oracle: Oracle
    expected_audit: Callable[[Sequence[int]], Sequence[AuditEntry]] | None = None
    kept: Callable[[Executor], Collection[int]] | None = None
    sampled: SampledOracle | None = None

    def text(self, prompt: Sequence[int], count: int, stops: frozenset[int], target: Target) -> Sequence[int]:
        """The text of a plain loop, by the oracle for ``target``."""
        if target.plain:
            return self.oracle(prompt, count, stops)
        assert self.sampled is not None, f"harness '{self.name}' has no oracle for sampled text"
        return self.sampled(prompt, count, stops, target)


def target_of(sampling: Sampling | None, stops: frozenset[int]) -> Target:
    """What the runtime makes of ``sampling`` where there is no checkpoint to have a say."""
    if sampling is None:
        return GREEDY
    return sampling.resolved({}, lambda: 0).target(tuple(sorted(stops)))


def toy_harness(
    *,
    fused: bool = False,
    accuracy: int = 0,
    vocab_size: int = 48,
    context: int = 128,
    page: int = 4,
    page_count: int = 40,
    batch_max: int = 4,
    rows_max: int = 8,
    delays: Sequence[int] = (0,),
    rollback: Rollback = "columns",
    toy: type[ToyExecutor] = ToyExecutor,
) -> Harness:
    """The toy executor, or a subclass of it. ``delays`` are the polls that fused launches take, in turn, so that
    launches overtake each other; the rest is as for ``ToyExecutor``."""

    def make() -> ToyExecutor:
        return toy(
            vocab_size=vocab_size,
            context=context,
            page=page,
            page_count=page_count,
            batch_max=batch_max,
            rows_max=rows_max,
            fused=fused,
            accuracy=accuracy,
            rollback=rollback,
            delay=lambda launch: delays[launch % len(delays)],
        )

    return Harness(
        "toy",
        make,
        lambda prompt, count, stop: plain(prompt, count, vocab_size, stop),
        lambda tokens: expected_audit(tokens, page, vocab_size),
        _kept_by_toy,
        lambda prompt, count, stop, target: plain(prompt, count, vocab_size, stop, target),
    )


def _kept_by_toy(executor: Executor) -> Collection[int]:
    assert isinstance(executor, ToyExecutor)
    return {request for request, _ in executor._scratch}
