"""From rows to figures: by prompt, by category, in total."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from txdecode.runtime.bench.contention import DRIFT, flags_of
from txdecode.runtime.bench.measure import AGAIN, PLAIN, SPECULATIVE, Measured, Row
from txdecode.runtime.bench.rounds import RoundFacts, total
from txdecode.runtime.bench.statistics import Spread, clean, median, outside, spread


@attrs.frozen
class ArmFigures:
    """One arm over some rows: tokens a second, what its rounds were, seconds by part, drafts by source."""

    tok_s: Spread
    facts: RoundFacts
    decode_s: float
    parts: Mapping[str, float]
    by_source: Mapping[str, tuple[int, int]]

    @property
    def host_share(self) -> float:
        """Share of decode time outside the executor, drafters of the host included."""
        spent = sum(seconds for part, seconds in self.parts.items() if part.startswith("host"))
        return spent / self.decode_s if self.decode_s else 0.0


@attrs.frozen
class PromptFigures:
    """One unit. ``speedup`` and ``again`` (off against off) are ratios of medians over the repeats that count, which
    are ``kept`` of ``repeats``; ``contended``: too few would be left, so all count. ``below``: slower than any prompt
    is in plain against plain."""

    unit: str
    category: str
    tokens: int
    plain: ArmFigures
    speculative: ArmFigures
    speedup: float
    again: float | None
    kept: int
    repeats: int
    contended: bool
    below: bool | None = None


@attrs.frozen
class GroupFigures:
    """A category, or all of them. Speeds are medians over prompts of the prompts' medians, ``speedup`` the spread
    over prompts of their ratios; counts and parts are sums."""

    prompts: int
    tokens: int
    plain: ArmFigures
    speculative: ArmFigures
    speedup: Spread
    again: Spread | None

    @property
    def cost_ratio(self) -> float | None:
        """Mean time of a speculative round's forward over that of a plain one."""
        plain = self.plain.facts.forward_us
        return self.speculative.facts.forward_us / plain if plain else None


@attrs.frozen
class Summary:
    """All figures, and the rows with their flags. ``drift``: spread of the fixed piece of work, as shares of its
    median."""

    prompts: tuple[PromptFigures, ...]
    categories: Mapping[str, GroupFigures]
    total: GroupFigures | None
    rows: tuple[Row, ...]
    drift: Spread | None

    @property
    def contended(self) -> tuple[str, ...]:
        """Units whose repeats were disturbed so often that none could be left out."""
        return tuple(item.unit for item in self.prompts if item.contended)

    @property
    def below(self) -> tuple[str, ...]:
        """Units that speculation made slower than the noise."""
        return tuple(item.unit for item in self.prompts if item.below)


def summarise(measured: Measured) -> Summary:
    """Figures of everything that was not left out. Where a repeat of a prompt is flagged (see ``flags_of``) it is
    left out with both its arms, as long as at least half of the repeats remain."""
    rows = _flagged(measured.rows)
    dropped = {name for name, _ in measured.left_out}
    units = dict.fromkeys(row.unit for row in rows if row.unit not in dropped)
    kept: list[Row] = []
    prompts = []
    for unit in units:
        figures, used = _prompt([row for row in rows if row.unit == unit])
        prompts.append(figures)
        kept += used
    prompts = _judged(prompts)
    categories = {
        name: _group(
            [item for item in prompts if item.category == name], [row for row in kept if row.category == name]
        )
        for name in dict.fromkeys(item.category for item in prompts)
    }
    calibrations = [row.calibration_s for row in rows]
    middle = median(calibrations) if calibrations else 0.0
    return Summary(
        tuple(prompts),
        categories,
        _group(prompts, kept) if prompts else None,
        rows,
        spread(value / middle for value in calibrations) if middle else None,
    )


def _flagged(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The rows with what is wrong with their repeat."""
    # One value a repeat of a unit, however many arms it had.
    times = {(row.unit, row.repeat): row.calibration_s for row in rows}
    drifted = dict(zip(times, outside(list(times.values()), DRIFT), strict=True))
    flags: dict[tuple[str, int], tuple[str, ...]] = {}
    for unit in dict.fromkeys(row.unit for row in rows):
        plain = [row for row in rows if row.unit == unit and row.arm == PLAIN]
        found = flags_of(
            [row.sample.tok_s for row in plain],
            [drifted[unit, row.repeat] for row in plain],
        )
        flags |= {(unit, row.repeat): flag for row, flag in zip(plain, found, strict=True)}
    return tuple(attrs.evolve(row, flags=flags.get((row.unit, row.repeat), ())) for row in rows)


def _prompt(rows: Sequence[Row]) -> tuple[PromptFigures, list[Row]]:
    plain = [row for row in rows if row.arm == PLAIN]
    numbers, contended = clean([bool(row.flags) for row in plain])
    repeats = {plain[index].repeat for index in numbers}
    used = [row for row in rows if row.repeat in repeats]
    arms = {name: [row for row in used if row.arm == name] for name in dict.fromkeys(row.arm for row in used)}
    off, on = _arm(arms[PLAIN]), _arm(arms[SPECULATIVE])
    again = _arm(arms[AGAIN]) if AGAIN in arms else None
    first = plain[0]
    figures = PromptFigures(
        first.unit,
        first.category,
        first.sample.tokens,
        off,
        on,
        on.tok_s.median / off.tok_s.median,
        None if again is None else again.tok_s.median / off.tok_s.median,
        len(repeats),
        len(plain),
        contended,
    )
    return figures, used


def _judged(prompts: Sequence[PromptFigures]) -> list[PromptFigures]:
    """Whether each is slower than plain against plain ever is, over all prompts; unknown without such an arm."""
    noise = [item.again for item in prompts if item.again is not None]
    if not noise:
        return list(prompts)
    # Either of two equal arms may have been the slower one.
    lowest = min(min(ratio, 1 / ratio) for ratio in noise)
    return [attrs.evolve(item, below=item.speedup < lowest) for item in prompts]


def _arm(rows: Sequence[Row], tok_s: Iterable[float] | None = None) -> ArmFigures:
    parts: dict[str, float] = {}
    sources: dict[str, tuple[int, int]] = {}
    for row in rows:
        for part, seconds in row.sample.parts.items():
            parts[part] = parts.get(part, 0.0) + seconds
        for name, (offered, accepted) in row.sample.by_source.items():
            before = sources.get(name, (0, 0))
            sources[name] = before[0] + offered, before[1] + accepted
    return ArmFigures(
        spread([row.sample.tok_s for row in rows] if tok_s is None else tok_s),
        total(row.facts for row in rows),
        sum(row.sample.decode_s for row in rows),
        parts,
        sources,
    )


def _group(prompts: Sequence[PromptFigures], rows: Sequence[Row]) -> GroupFigures:
    again = [item.again for item in prompts if item.again is not None]
    return GroupFigures(
        len(prompts),
        sum(item.tokens for item in prompts),
        _arm([row for row in rows if row.arm == PLAIN], [item.plain.tok_s.median for item in prompts]),
        _arm(
            [row for row in rows if row.arm == SPECULATIVE],
            [item.speculative.tok_s.median for item in prompts],
        ),
        spread(item.speedup for item in prompts),
        spread(again) if again else None,
    )
