"""Arms whose answers and times a test chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from txdecode.runtime.bench.measure import Sample, Unit
from txdecode.runtime.bench.rounds import RoundFacts
from txdecode.runtime.gates.prompts import GatePrompt
from txdecode.state.errors import TxDecodeError

Answer = Callable[[str, int, str], Sample | TxDecodeError]
"""By arm, repeat and unit."""


def unit(name: str, category: str = "chat") -> Unit:
    return Unit(name, category, (GatePrompt(name, (), 8, False, text=name, category=category),))


def plainly(tok_s: float, ids: tuple[int, ...] = (1, 2, 3, 4), **more: object) -> Sample:
    """A sample that emitted ``ids`` at ``tok_s``."""
    return Sample((ids,), len(ids) / tok_s, rounds=len(ids), **more)  # type: ignore[arg-type]


class Told:
    """Opens arms that answer what they are told, and keeps what was asked of them."""

    def __init__(self, answer: Answer, facts: Mapping[str, RoundFacts] | None = None) -> None:
        self.answer = answer
        self.facts = facts or {}
        self.asked: list[tuple[int, str, str]] = []
        self.budgets: list[int] = []
        self.closed = 0

    def __call__(self, name: str, repeat: int) -> ToldArm:
        return ToldArm(self, name, repeat)


class ToldArm:
    def __init__(self, told: Told, name: str, repeat: int) -> None:
        self.told, self.name, self.repeat = told, name, repeat

    def decode(self, asked: Unit) -> Sample:
        self.told.asked.append((self.repeat, asked.name, self.name))
        self.told.budgets.append(asked.prompts[0].max_tokens)
        answer = self.told.answer(self.name, self.repeat, asked.name)
        if isinstance(answer, TxDecodeError):
            raise answer
        return answer

    def close(self) -> Mapping[str, RoundFacts]:
        self.told.closed += 1
        return self.told.facts
