"""Several arms in turns over the same prompts: the order, the equality of texts, what is left out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import attrs

from txdecode.runtime.bench.rounds import NO_ROUNDS, RoundFacts
from txdecode.runtime.bench.statistics import first_difference
from txdecode.runtime.gates.prompts import GatePrompt
from txdecode.state.errors import TxDecodeError

PLAIN, SPECULATIVE, AGAIN = "plain", "spec", "again"
"""The arms: off, on, and off once more, which against the first says what the noise is."""

WARM_TOKENS = 32
"""Tokens of the run of each arm that is thrown away: kernels are compiled and memory is touched in it."""

Ids = tuple[int, ...]
Progress = Callable[[int, int, str], None]
"""Done, in all, what comes next."""


@attrs.frozen
class Unit:
    """What is decoded at once: one prompt, or a batch of one category."""

    name: str
    category: str
    prompts: tuple[GatePrompt, ...]


@attrs.frozen
class Sample:
    """One decode of a unit. ``decode_s`` is without prefill. ``parts`` are seconds of it by part: verbs of the
    executor (``forward``, ``choose``, ``settle``, ``draft``) and what the host did around them (``host ...``).
    ``cut``: why the text is not what was asked for."""

    ids: tuple[Ids, ...]
    decode_s: float
    prompt_tokens: int = 0
    rounds: int = 0
    parts: Mapping[str, float] = attrs.Factory(dict)
    by_source: Mapping[str, tuple[int, int]] = attrs.Factory(dict)
    cut: str | None = None

    @property
    def tokens(self) -> int:
        """Emitted tokens."""
        return sum(map(len, self.ids))

    @property
    def tok_s(self) -> float:
        """Emitted tokens a second."""
        return self.tokens / self.decode_s if self.decode_s > 0 else 0.0


class Arm(Protocol):
    """One way of decoding, open for one repeat."""

    def decode(self, unit: Unit) -> Sample:
        """Decode a unit to its end. Raises ``TxDecodeError``."""

    def close(self) -> Mapping[str, RoundFacts]:
        """End the repeat; what the rounds were, by unit."""


OpenArm = Callable[[str, int], Arm]
"""By name and repeat. Each repeat starts afresh: what a drafter or a controller learned from the first one must not
help it in the second."""


@attrs.frozen
class Row:
    """One run: a line of the raw rows. ``order`` is its place within the repeat of its unit."""

    unit: str
    category: str
    arm: str
    repeat: int
    order: int
    calibration_s: float
    sample: Sample
    facts: RoundFacts = NO_ROUNDS
    flags: tuple[str, ...] = ()


@attrs.frozen
class Mismatch:
    """A text that is not that of the first plain run: ``index`` is the first token that differs, ``expected`` and
    ``found`` the ids there (``None`` past the end)."""

    unit: str
    prompt: str
    arm: str
    repeat: int
    index: int
    expected: int | None
    found: int | None

    def __str__(self) -> str:
        return (
            f"prompt '{self.prompt}': token {self.index} of arm '{self.arm}' (repeat {self.repeat}) is {self.found}, "
            f"plain decoding has {self.expected}"
        )


@attrs.frozen
class Measured:
    """All rows, which units were left out and why, and every text that differed where none may."""

    rows: tuple[Row, ...]
    left_out: tuple[tuple[str, str], ...]
    mismatches: tuple[Mismatch, ...]


def order_of(arms: Sequence[str], repeat: int) -> tuple[str, ...]:
    """The arms in the order of a repeat: forwards, then backwards, so that none is always the first."""
    return tuple(arms) if repeat % 2 == 0 else tuple(reversed(arms))


def measure(
    units: Sequence[Unit],
    arms: Sequence[str],
    open_arm: OpenArm,
    *,
    repeats: int,
    calibrate: Callable[[], float],
    same_text: bool = True,
    progress: Progress = lambda done, total, what: None,
) -> Measured:
    """Decode every unit by every arm, ``repeats`` times.

    Each repeat goes through all units, so that the runs of one unit lie apart in time; within a unit the arms take
    turns. A unit that fails or is cut in any run is left out, and so is one whose arms emitted different counts:
    only equal completed work is compared. ``same_text``: every run must give the text of the first plain one; a
    difference is recorded, and it's the caller's to fail on it.
    """
    assert arms[0] == PLAIN, "the first arm is what the others are compared with"
    run = _Run(arms, open_arm, same_text)
    run.warm_up(units)
    total = repeats * len(units)
    for repeat in range(repeats):
        with run.repeat(repeat):
            for number, unit in enumerate(units):
                progress(repeat * len(units) + number, total, unit.name)
                if unit.name not in run.left_out:
                    run.decode(unit, repeat, calibrate())
    progress(total, total, "done")
    return Measured(tuple(run.rows), tuple(run.left_out.items()), tuple(run.mismatches))


class _Run:
    def __init__(self, arms: Sequence[str], open_arm: OpenArm, same_text: bool) -> None:
        self._arms = arms
        self._open_arm = open_arm
        self._same_text = same_text
        self._opened: dict[str, Arm] = {}
        self._expected: dict[str, tuple[Ids, ...]] = {}
        self.rows: list[Row] = []
        self.left_out: dict[str, str] = {}
        self.mismatches: list[Mismatch] = []

    def warm_up(self, units: Sequence[Unit]) -> None:
        """A short run of every arm on the first unit that it can decode."""
        for name in self._arms:
            arm = self._open_arm(name, -1)
            try:
                for unit in units:
                    short = tuple(
                        attrs.evolve(prompt, max_tokens=min(prompt.max_tokens, WARM_TOKENS))
                        for prompt in unit.prompts
                    )
                    with contextlib.suppress(TxDecodeError):
                        arm.decode(attrs.evolve(unit, prompts=short))
                        break
            finally:
                arm.close()

    @contextlib.contextmanager
    def repeat(self, repeat: int) -> Iterator[None]:
        """The arms of one repeat, open; at its end their rows get what the rounds were."""
        first = len(self.rows)
        self._opened = {}
        try:
            for name in self._arms:
                self._opened[name] = self._open_arm(name, repeat)
            yield
        finally:
            facts = {name: arm.close() for name, arm in self._opened.items()}
        self.rows[first:] = [
            attrs.evolve(row, facts=facts[row.arm].get(row.unit, NO_ROUNDS)) for row in self.rows[first:]
        ]

    def decode(self, unit: Unit, repeat: int, calibration_s: float) -> None:
        """One unit by every arm in turn."""
        samples: dict[str, Sample] = {}
        for order, name in enumerate(order_of(self._arms, repeat)):
            try:
                sample = self._opened[name].decode(unit)
            except TxDecodeError as error:
                self.left_out[unit.name] = f"failed in arm '{name}': {error}"
                return
            samples[name] = sample
            self.rows.append(Row(unit.name, unit.category, name, repeat, order, calibration_s, sample))
            if sample.cut is not None:
                self.left_out[unit.name] = f"was cut in arm '{name}': {sample.cut}"
                return
        if self._same_text:
            self._compare(unit, repeat, samples)
        counts = {name: sample.tokens for name, sample in samples.items()}
        if len(set(counts.values())) > 1 and unit.name not in {item.unit for item in self.mismatches}:
            shown = ", ".join(f"{name} {count}" for name, count in counts.items())
            self.left_out[unit.name] = f"did not emit the same count by every arm: {shown}"

    def _compare(self, unit: Unit, repeat: int, samples: Mapping[str, Sample]) -> None:
        expected = self._expected.setdefault(unit.name, samples[PLAIN].ids)
        for name, sample in samples.items():
            for prompt, want, have in zip(unit.prompts, expected, sample.ids, strict=True):
                index = first_difference(want, have)
                if index is not None:
                    self.mismatches.append(
                        Mismatch(
                            unit.name,
                            prompt.name,
                            name,
                            repeat,
                            index,
                            want[index] if index < len(want) else None,
                            have[index] if index < len(have) else None,
                        )
                    )
