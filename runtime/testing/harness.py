"""What is tested: an executor, and what is known about it without the runtime."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import attrs

from txdecode.transactions.executor import AuditEntry, Executor
from txdecode.transactions.toy import ToyExecutor, expected_audit, plain

Oracle = Callable[[Sequence[int], int, frozenset[int]], Sequence[int]]
"""``oracle(prompt, count, stop_ids)``: the greedy text of a plain loop, at most ``count`` tokens, up to and with
the first token of ``stop_ids``. Nothing of this project should be in it."""


@attrs.frozen
class Harness:
    """An executor under test.

    ``make`` builds a fresh executor; all of them have equal descriptions and equal text. ``oracle`` is their
    plain loop. ``expected_audit(tokens)`` is what ``audit`` must say of a sequence that has consumed
    ``tokens``, where it can be told. ``kept(executor)`` are the numbers of the requests for which the executor
    keeps anything outside the state groups, where it can tell.
    """

    name: str
    make: Callable[[], Executor]
    oracle: Oracle
    expected_audit: Callable[[Sequence[int]], Sequence[AuditEntry]] | None = None
    kept: Callable[[Executor], Collection[int]] | None = None


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
            delay=lambda launch: delays[launch % len(delays)],
        )

    return Harness(
        "toy",
        make,
        lambda prompt, count, stop: plain(prompt, count, vocab_size, stop),
        lambda tokens: expected_audit(tokens, page, vocab_size),
        _kept_by_toy,
    )


def _kept_by_toy(executor: Executor) -> Collection[int]:
    assert isinstance(executor, ToyExecutor)
    return {request for request, _ in executor._scratch}
