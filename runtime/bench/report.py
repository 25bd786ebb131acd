"""The figures as plain data: what ``txdecode bench --json`` and ``--raw`` write."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import attrs

from txdecode.runtime.bench.arms import Settings
from txdecode.runtime.bench.measure import Measured, Row
from txdecode.runtime.bench.rounds import RoundFacts
from txdecode.runtime.bench.statistics import Spread
from txdecode.runtime.bench.summary import ArmFigures, GroupFigures, PromptFigures, Summary


def report_data(
    measured: Measured,
    summary: Summary,
    settings: Settings,
    machine: Mapping[str, Any],
    fingerprint: Mapping[str, str],
    *,
    model: str,
    dtype: str,
    repeats: int,
) -> dict[str, Any]:
    """Everything but the rows. Rates are tokens a second, times seconds unless a name says otherwise."""
    return {
        "model": model,
        "dtype": dtype,
        "fingerprint": dict(fingerprint),
        "machine": dict(machine),
        "settings": {
            "draft": settings.draft if isinstance(settings.draft, str) else settings.draft.name,
            "draft_model": settings.draft_model,
            "draft_len": settings.draft_len,
            **settings.more,
            "sampling": attrs.asdict(settings.sampling),
            "ignore_eos": settings.ignore_eos,
            "batch": settings.batch,
            "repeats": repeats,
        },
        "texts_equal": not measured.mismatches if settings.same_text else None,
        "mismatches": [attrs.asdict(item) for item in measured.mismatches],
        "categories": {name: group_data(group) for name, group in summary.categories.items()},
        "total": None if summary.total is None else group_data(summary.total),
        "prompts": [prompt_data(item) for item in summary.prompts],
        "left_out": [{"id": name, "reason": reason} for name, reason in measured.left_out],
        "contention": {
            "contended": list(summary.contended),
            "flagged_rows": sum(bool(row.flags) for row in summary.rows),
            "rows": len(summary.rows),
            "drift": None if summary.drift is None else spread_data(summary.drift),
        },
        "below_noise": list(summary.below) if summary.total is not None and summary.total.again else None,
    }


def group_data(group: GroupFigures) -> dict[str, Any]:
    """A category or the total."""
    return {
        "prompts": group.prompts,
        "tokens": group.tokens,
        "speedup": group.speedup.median,
        "plain_tok_s": group.plain.tok_s.median,
        "tok_s": group.speculative.tok_s.median,
        "speedup_spread": spread_data(group.speedup),
        "plain_against_plain": None if group.again is None else spread_data(group.again),
        "cost_ratio": group.cost_ratio,
        "plain": arm_data(group.plain),
        "spec": arm_data(group.speculative),
    }


def prompt_data(item: PromptFigures) -> dict[str, Any]:
    """A prompt, or a batch of them."""
    return {
        "id": item.unit,
        "category": item.category,
        "tokens": item.tokens,
        "speedup": item.speedup,
        "plain_tok_s": item.plain.tok_s.median,
        "tok_s": item.speculative.tok_s.median,
        "plain_spread": spread_data(item.plain.tok_s),
        "spread": spread_data(item.speculative.tok_s),
        "plain_against_plain": item.again,
        "below_noise": item.below,
        "kept": item.kept,
        "repeats": item.repeats,
        "contended": item.contended,
        "tokens_a_round": item.speculative.facts.tokens_a_round,
    }


def arm_data(arm: ArmFigures) -> dict[str, Any]:
    """One arm. ``parts`` are shares of decode time."""
    return {
        "tok_s": spread_data(arm.tok_s),
        **facts_data(arm.facts),
        "by_source": {name: list(counts) for name, counts in arm.by_source.items()},
        "decode_s": arm.decode_s,
        "host_share": arm.host_share,
        "parts": {
            name: seconds / arm.decode_s if arm.decode_s else 0.0 for name, seconds in arm.parts.items()
        },
    }


def facts_data(facts: RoundFacts) -> dict[str, Any]:
    """What the rounds were."""
    return {
        "rounds": facts.rounds,
        "tokens_a_round": facts.tokens_a_round,
        "mean_width": facts.mean_width,
        "forward_ms": facts.forward_us / 1e3,
        "by_depth": [
            {"depth": index, "offered": offered, "reached": reached, "accepted": accepted}
            for index, (offered, reached, accepted) in enumerate(facts.depths, start=1)
        ],
        "by_width": [
            {"width": width, "rounds": count, "forward_ms": spent / count / 1e3}
            for width, (count, spent) in facts.widths.items()
        ],
    }


def spread_data(found: Spread) -> dict[str, float]:
    """Median, least and most, and the middle half."""
    return attrs.asdict(found)


def row_data(row: Row) -> dict[str, Any]:
    """One raw row: a run of one arm."""
    sample = row.sample
    return {
        "id": row.unit,
        "category": row.category,
        "arm": row.arm,
        "repeat": row.repeat,
        "order": row.order,
        "prompt_tokens": sample.prompt_tokens,
        "tokens": sample.tokens,
        "decode_s": sample.decode_s,
        "tok_s": sample.tok_s,
        "rounds": sample.rounds,
        "parts_s": dict(sample.parts),
        "by_source": {name: list(counts) for name, counts in sample.by_source.items()},
        "facts": facts_data(row.facts),
        "text": hashlib.blake2b(repr(sample.ids).encode(), digest_size=8).hexdigest(),
        "cut": sample.cut,
        "calibration_s": row.calibration_s,
        "flags": list(row.flags),
    }
