"""The gate ``rows``: rows computed together equal rows computed alone, to the bit.

Everything that speculation, batching, preemption and recovery promise rests on it, and it depends on which
kernels torch and oneDNN choose on this processor: so it is measured, not believed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import attrs
import torch

from txdecode.kernels.gates.driver import Driver, Lane
from txdecode.kernels.gates.tally import RowsCheck, Tally
from txdecode.transactions.executor import AuditEntry, Executor

Progress = Callable[[int, int, str], None]
"""Done, in all, what comes next."""

_WIDTH_MAX = 16
_CONTEXTS = (0, 1, 50, 63, 64, 120, 127, 128, 500, 704, 1484)
_CONTEXTS_FULL = (*range(48, 66), *range(112, 130), *range(496, 514, 3), 1010, 1023, 1024, 2040, 4184)
# (context, tiles in which to get there): tiles of one row, tiles that straddle pages, wide ones.
_TILINGS = ((128, (1, 2, 3, 31, 64)), (704, (33, 64, 100)), (1484, (200, 255)))
_TILINGS_FULL = ((704, (1, 7, 17, 63, 65, 129)), (1484, (1, 32, 34)), (4184, (100,)))
_RECOMPUTED = (64, 127, 704)
_BATCH_WIDTHS = (16, 1, 5, 2, 8, 11, 3, 13)


@attrs.frozen
class RowsReport:
    """What ``rows_gate`` found. ``forwards`` counts forward passes, ``contexts`` are in tokens."""

    executor: str
    fingerprint: Mapping[str, str]
    contexts: tuple[int, ...]
    forwards: int
    checks: tuple[RowsCheck, ...]

    @property
    def passed(self) -> bool:
        """Whether every check was made, and every row agreed to the bit: what was not looked at has not passed."""
        return all(check.rows > 0 and check.mismatches == 0 for check in self.checks)


def rows_gate(executor: Executor, *, full: bool = False, progress: Progress | None = None) -> RowsReport:
    """Check that q rows in one forward equal q single rows, to the bit.

    Widths 1 to 16 across page borders at contexts to 1,500 tokens; prefill in other tiles; batches with
    longer mates; recomputation on other pages in other tiles. All state that the executor audits (keys and
    values, recurrent states, conv windows, pairs of a drafter) must come out the same: after a prompt in other
    tiles, and after rows committed one by one, in one round, and in a batch. ``full`` takes every context around
    the page borders, contexts to 4,200 and more tiles. What the executor has no room for is left out and missing in
    the report's ``contexts``. The executor must be idle; its state is overwritten. Raises ``ExecutorFault`` where a
    kernel fails, ``CapabilityMissing`` for an executor that is fused or has no logits to show.
    """
    gate = _Gate(Driver(executor), full)
    steps = gate.steps()
    for done, (name, step) in enumerate(steps):
        if progress is not None:
            progress(done, len(steps), name)
        step()
    if progress is not None:
        progress(len(steps), len(steps), "done")
    return gate.report()


class _Gate:
    """The steps, and what later ones compare with: rows computed one by one, by context."""

    def __init__(self, driver: Driver, full: bool) -> None:
        described = driver.description
        self._driver = driver
        self._full = full
        self._widest = min(described.rows_max, _WIDTH_MAX)
        self._tile = described.prefill_rows_max
        longest = min(described.context, driver.tokens_max // 2) - self._widest
        wanted = sorted({*_CONTEXTS, *(_CONTEXTS_FULL if full else ())})
        self._contexts = tuple(context for context in wanted if context <= longest)
        names = ("widths", "prefill tiles", "batch mates", "recomputation", "state")
        self._tallies = {name: Tally(name) for name in names}
        self._single: dict[int, torch.Tensor] = {}
        self._audits: dict[int, tuple[AuditEntry, ...]] = {}
        # After the single rows, by the context that they began at.
        self._ends: dict[int, tuple[AuditEntry, ...]] = {}

    def steps(self) -> list[tuple[str, Callable[[], None]]]:
        """Named pieces of work, in order."""
        steps: list[tuple[str, Callable[[], None]]] = [
            (f"widths at {context}", functools.partial(self._widths, context)) for context in self._contexts
        ]
        for context, tiles in (*_TILINGS, *(_TILINGS_FULL if self._full else ())):
            for tile in tiles if context in self._contexts else ():
                step = functools.partial(self._refill, "prefill tiles", context, tile, False)
                steps.append((f"tiles of {tile} to {context}", step))
        for context in self._contexts if self._full else _RECOMPUTED:
            if context in self._contexts and context > 0:
                step = functools.partial(self._refill, "recomputation", context, 37, True)
                steps.append((f"recomputing {context}", step))
        for size in (2, 3, 8):
            if size <= min(self._driver.description.batch_max, len(self._contexts)):
                steps.append((f"batches of {size}", functools.partial(self._batches, size)))
        return steps

    def report(self) -> RowsReport:
        """After all steps."""
        described = self._driver.description
        checks = tuple(tally.check() for tally in self._tallies.values())
        return RowsReport(
            described.name, dict(described.fingerprint), self._contexts, self._driver.forwards, checks
        )

    def _filled(self, context: int, tile: int, scattered: bool = False) -> Lane:
        lane = self._driver.open(context + self._widest, scattered)
        self._driver.consume(lane, context, tile)
        return lane

    def _widths(self, context: int) -> None:
        """Every width at once from ``context`` on; then single rows from the same place, each committed."""
        lane = self._filled(context, self._tile)
        self._audits[context] = self._driver.audit(lane)
        wide = [self._driver.rows([lane], [width])[0] for width in range(2, self._widest + 1)]
        self._single[context] = torch.cat([self._driver.advance([lane], [1])[0] for _ in range(self._widest)])
        self._ends[context] = self._driver.audit(lane)
        for found in wide:
            self._compare("widths", context, found, "")
        self._driver.close(lane)

    def _refill(self, check: str, context: int, tile: int, scattered: bool) -> None:
        """Get to ``context`` in other tiles, perhaps on other pages: same state, same rows. The widest round is
        committed."""
        lane = self._filled(context, tile, scattered)
        place = f" after tiles of {tile}" + (" on scattered pages" if scattered else "")
        state = self._tallies["state"]
        state.digests(self._audits[context], self._driver.audit(lane), f"context {context}{place}")
        for width in sorted({1, min(5, self._widest)} - {self._widest}):
            self._compare(check, context, self._driver.rows([lane], [width])[0], place)
        self._compare(check, context, self._driver.advance([lane], [self._widest])[0], place)
        end = f"context {context} and {self._widest} rows{place}"
        state.digests(self._ends[context], self._driver.audit(lane), end)
        self._driver.close(lane)

    def _batches(self, size: int) -> None:
        """Lanes of different lengths in one launch, longer mates before and behind each; the last is committed."""
        lanes = [self._filled(context, self._tile) for context in self._members(size)]
        contexts = {lane.request: lane.length for lane in lanes}
        widths = [min(width, self._widest) for width in _BATCH_WIDTHS]
        place = f" in a batch of {size}"
        for turn in range(len(_BATCH_WIDTHS)):
            turned = [widths[(turn + index) % len(widths)] for index in range(size)]
            for found, lane in zip(self._driver.rows(lanes, turned), lanes, strict=True):
                self._compare("batch mates", lane.length, found, place)
            lanes.append(lanes.pop(0))
        last = self._driver.advance(lanes, [self._widest] * size)
        for found, lane in zip(last, lanes, strict=True):
            context = contexts[lane.request]
            self._compare("batch mates", context, found, place)
            end = f"context {context} and {self._widest} rows{place}"
            self._tallies["state"].digests(self._ends[context], self._driver.audit(lane), end)
            self._driver.close(lane)

    def _members(self, size: int) -> Sequence[int]:
        """Contexts from short to long, the longest that fit together."""
        for longest in range(len(self._contexts) - 1, size - 2, -1):
            picked = [self._contexts[place * longest // (size - 1)] for place in range(size)]
            if self._driver.has_room([context + self._widest for context in picked]):
                return picked
        return self._contexts[:size]

    def _compare(self, check: str, context: int, found: torch.Tensor, place: str) -> None:
        width = found.shape[0]
        self._tallies[check].logits(
            self._single[context][:width], found, f"context {context}, width {width}{place}"
        )
