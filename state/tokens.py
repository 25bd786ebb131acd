"""The token ledger: ids, consumed, generated, counts, epoch; what every other ledger is a function of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import attrs

from txdecode.state.changes import Admit, Advance, Change, Close, Evict, Submit
from txdecode.state.digest import MASK, mix
from txdecode.state.errors import LedgerCorrupt

PROMPT, GENERATED, COUNT, PROGRESS, EPOCH, BUDGET, RESIDENT = range(0x10, 0x17)


@attrs.define
class TokenState:
    """Tokens of one sequence.

    ``consumed`` is N, the number of tokens whose effect is in every target ledger. ``counts`` holds how
    often each id was *generated* (for penalties): a rejected draft never enters. The pending token, the
    drafter's cache length and the owner of the tail hidden row follow from these, so they are derived and
    cannot be wrong on their own. ``weight`` is the digest contribution of this sequence.
    """

    prompt: tuple[int, ...]
    budget: int
    epoch: int = 0
    consumed: int = 0
    rounds: int = 0
    resident: bool = False
    generated: list[int] = attrs.Factory(list)
    counts: dict[int, int] = attrs.Factory(dict)
    weight: int = 0

    @property
    def known(self) -> int:
        """Number of known tokens: prompt and generated."""
        return len(self.prompt) + len(self.generated)

    @property
    def pending(self) -> int:
        """The one known token that is not consumed yet, once prefill is complete."""
        return self.generated[-1] if self.generated else self.prompt[-1]

    @property
    def ready(self) -> bool:
        """Whether all known tokens but the pending one are consumed, so that a round may begin."""
        return self.consumed == self.known - 1

    @property
    def drafter_pairs(self) -> int:
        """Length of a learned drafter's cache: pairs (hidden of row i, token i+1)."""
        return max(self.consumed - 1, 0)

    @property
    def tail_owner(self) -> int:
        """Position of the row whose hidden state is kept for the drafter's next pair; -1 before any."""
        return self.consumed - 1

    def ids(self, start: int = 0, stop: int | None = None) -> tuple[int, ...]:
        """Known ids in [start, stop)."""
        stop = self.known if stop is None else stop
        n = len(self.prompt)
        if start >= n:
            return tuple(self.generated[start - n : stop - n])
        if stop <= n:
            return self.prompt[start:stop]
        return self.prompt[start:] + tuple(self.generated[: stop - n])


def _cells(request: int, state: TokenState) -> Iterator[tuple[int, int, int, int]]:
    for index, token in enumerate(state.prompt):
        yield PROMPT, request, index, token
    for index, token in enumerate(state.generated):
        yield GENERATED, request, index, token
    for token, count in state.counts.items():
        yield COUNT, request, token, count
    yield PROGRESS, request, state.rounds, state.consumed
    yield EPOCH, request, 0, state.epoch
    yield BUDGET, request, 0, state.budget
    if state.resident:
        yield RESIDENT, request, 0, 1


class TokensLedger:
    """Token states by request."""

    name = "tokens"
    fields: ClassVar[dict[int, str]] = {
        PROMPT: "prompt",
        GENERATED: "generated",
        COUNT: "count",
        PROGRESS: "consumed at round",
        EPOCH: "epoch",
        BUDGET: "budget",
        RESIDENT: "resident",
    }

    def __init__(self) -> None:
        self.sequences: dict[int, TokenState] = {}

    def get(self, request: int) -> TokenState:
        """The state of a known sequence; raises ``LedgerCorrupt`` where an event names an unknown one."""
        state = self.sequences.get(request)
        if state is None:
            raise LedgerCorrupt(self.name, f"request {request}", "a known sequence", "none")
        return state

    def delta(self, change: Change) -> int:
        """Digest increment of ``change``; pure. Raises ``LedgerCorrupt`` where it contradicts the ledger."""
        if type(change) is Advance:
            state = self._resident(change.request)
            self._check_advance(change, state)
            return -state.weight if change.close else self._increment(change, state)
        if type(change) is Submit:
            if change.request in self.sequences:
                raise LedgerCorrupt(self.name, f"request {change.request}", "a new sequence", "a known one")
            if not change.prompt:
                raise LedgerCorrupt(self.name, f"request {change.request} prompt", "at least 1 token", 0)
            if change.budget < 1:
                raise LedgerCorrupt(
                    self.name, f"request {change.request} budget", "at least 1", change.budget
                )
            fresh = TokenState(change.prompt, change.budget)
            return sum(mix(*cell) for cell in _cells(change.request, fresh)) & MASK
        if type(change) is Admit:
            if self.get(change.request).resident:
                raise LedgerCorrupt(self.name, f"request {change.request}", "not resident", "resident")
            return mix(RESIDENT, change.request, 0, 1)
        if type(change) is Evict:
            state = self._resident(change.request)
            r = change.request
            return (
                -mix(RESIDENT, r, 0, 1)
                + mix(EPOCH, r, 0, state.epoch + 1)
                - mix(EPOCH, r, 0, state.epoch)
                + mix(PROGRESS, r, state.rounds, 0)
                - mix(PROGRESS, r, state.rounds, state.consumed)
            )
        if type(change) is Close:
            return -self.get(change.request).weight
        return 0

    def _resident(self, request: int) -> TokenState:
        state = self.get(request)
        if not state.resident:
            raise LedgerCorrupt(self.name, f"request {request}", "a resident sequence", "none")
        return state

    def _check_advance(self, change: Advance, state: TokenState) -> None:
        where = f"request {change.request}"
        consumed = state.consumed + change.consumed
        if change.round:
            if not state.ready:
                raise LedgerCorrupt(self.name, f"{where} consumed", state.known - 1, state.consumed)
            if not change.emitted or change.consumed != len(change.emitted):
                raise LedgerCorrupt(self.name, f"{where} emitted", change.consumed, len(change.emitted))
            if len(state.generated) + len(change.emitted) > state.budget:
                found = len(state.generated) + len(change.emitted)
                raise LedgerCorrupt(self.name, f"{where} generated", f"at most {state.budget}", found)
        elif change.emitted or change.close or not state.consumed < consumed <= state.known - 1:
            expected = f"{state.consumed + 1}..{state.known - 1} consumed, nothing emitted, no end"
            raise LedgerCorrupt(self.name, f"{where} prefill", expected, consumed)

    def _increment(self, change: Advance, state: TokenState) -> int:
        r = change.request
        rounds = state.rounds + change.round
        total = mix(PROGRESS, r, rounds, state.consumed + change.consumed)
        total -= mix(PROGRESS, r, state.rounds, state.consumed)
        if not change.round:
            return total
        index = len(state.generated)
        fresh: dict[int, int] = {}
        for token in change.emitted:
            total += mix(GENERATED, r, index, token)
            index += 1
            count = fresh.get(token)
            if count is None:
                count = state.counts.get(token, 0)
            if count:
                total -= mix(COUNT, r, token, count)
            fresh[token] = count + 1
            total += mix(COUNT, r, token, count + 1)
        return total

    def apply(self, change: Change, increment: int) -> None:
        """Perform ``change``, whose increment ``delta`` has computed on this very state."""
        request = change.request
        if type(change) is Advance and not change.close:
            state = self.sequences[request]
            state.consumed += change.consumed
            state.weight = (state.weight + increment) & MASK
            if change.round:
                state.rounds += 1
                state.generated.extend(change.emitted)
                counts = state.counts
                for token in change.emitted:
                    counts[token] = counts.get(token, 0) + 1
        elif type(change) is Submit:
            self.sequences[request] = TokenState(change.prompt, change.budget, weight=increment & MASK)
        elif type(change) is Admit:
            state = self.sequences[request]
            state.resident = True
            state.weight = (state.weight + increment) & MASK
        elif type(change) is Evict:
            state = self.sequences[request]
            state.resident = False
            state.consumed = 0
            state.epoch += 1
            state.weight = (state.weight + increment) & MASK
        elif type(change) is Close or type(change) is Advance:
            del self.sequences[request]

    def cells(self) -> Iterator[tuple[int, int, int, int]]:
        """Every cell (tag, a, b, value)."""
        for request, state in self.sequences.items():
            yield from _cells(request, state)

    def check(self) -> None:
        """Every invariant within this ledger; raises ``LedgerCorrupt``."""
        for request, state in self.sequences.items():
            where = f"request {request}"
            if not 0 <= state.consumed <= state.known - 1:
                raise LedgerCorrupt(self.name, f"{where} consumed", f"0..{state.known - 1}", state.consumed)
            if state.consumed and not state.resident:
                raise LedgerCorrupt(self.name, f"{where} consumed while not resident", 0, state.consumed)
            if len(state.generated) > state.budget:
                raise LedgerCorrupt(
                    self.name, f"{where} generated", f"at most {state.budget}", len(state.generated)
                )
            counts: dict[int, int] = {}
            for token in state.generated:
                counts[token] = counts.get(token, 0) + 1
            if counts != state.counts:
                raise LedgerCorrupt(self.name, f"{where} counts", counts, state.counts)
            weight = sum(mix(*cell) for cell in _cells(request, state)) & MASK
            if weight != state.weight:
                raise LedgerCorrupt(self.name, f"{where} digest", weight, state.weight)

    def snapshot(self) -> dict[str, Any]:
        """Plain data, from which ``restore`` builds an equal ledger."""
        return {
            str(request): [
                list(s.prompt),
                s.budget,
                s.epoch,
                s.consumed,
                s.rounds,
                s.resident,
                list(s.generated),
            ]
            for request, s in self.sequences.items()
        }

    def restore(self, data: dict[str, Any]) -> None:
        """Replace the content by that of a snapshot; weights and counts are recomputed."""
        self.sequences = {}
        for key, (prompt, budget, epoch, consumed, rounds, resident, generated) in data.items():
            state = TokenState(tuple(prompt), budget, epoch, consumed, rounds, resident, list(generated))
            for token in generated:
                state.counts[token] = state.counts.get(token, 0) + 1
            state.weight = sum(mix(*cell) for cell in _cells(int(key), state)) & MASK
            self.sequences[int(key)] = state
