"""The gate ``rows`` on hybrids: logits and every kind of state, whatever the width, tile, batch and place."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests import hybrids
from tests.hybrid_bench import FORMS, loaded, weights_of
from tests.hybrids import FAMILIES, Family
from txdecode.kernels.gates import RowsCheck, rows_gate
from txdecode.kernels.gates.driver import Driver
from txdecode.kernels.hybrid_executor import HybridExecutor
from txdecode.transactions.executor import Rollback

FULL = bool(os.environ.get("TXDECODE_FULL"))
CASES = [
    (family, form, dtype)
    for row, family in enumerate(FAMILIES)
    for column, form in enumerate(FORMS)
    for place, dtype in enumerate(("bf16", "fp32"))
    # Every family, form and dtype with two or three of each other.
    if FULL or (row + column + place) % 2 == 0
]


def executor(family: Family, rollback: Rollback, dtype: Any, **arguments: Any) -> HybridExecutor:
    settings = {"page_count": 12, "batch_max": 3, "rows_max": 5, "context": 80} | arguments
    return HybridExecutor(weights_of(family, dtype), dtype=dtype, rollback=rollback, **settings)


def checks_of(made: HybridExecutor) -> dict[str, RowsCheck]:
    return {check.name: check for check in rows_gate(made).checks}


@pytest.mark.parametrize(("family", "form", "dtype"), CASES)
def test_rows_and_state_are_invariant(family: Family, form: Rollback, dtype: str) -> None:
    # With room for tiles that straddle pages, where there is time.
    room = {"page_count": 20, "context": 512, "rows_max": 16} if FULL else {}
    report = rows_gate(executor(family, form, dtype, **room))
    assert report.contexts[:5] == (0, 1, 50, 63, 64)
    found = {check.name: check for check in report.checks}
    for name in ("widths", "recomputation", "batch mates", "state"):
        assert found[name].rows > 0
    for check in report.checks:
        assert (check.name, check.mismatches, check.where) == (check.name, 0, ())


def test_passes_where_prefill_tiles_are_looked_at_too() -> None:
    report = rows_gate(executor("qwen3_5", "replay", "bf16", context=140, rows_max=2))
    assert report.passed


@pytest.mark.parametrize("mtp", [False, True])
@pytest.mark.parametrize("kind", ["linear_attention", "full_attention"])
def test_drives_whatever_groups_there_are(kind: str, mtp: bool) -> None:
    """Without pages, without columns, without either drafter's state."""
    tiny = hybrids.build("qwen3_5", mtp=mtp, num_hidden_layers=2, layer_types=[kind] * 2)
    made = HybridExecutor(loaded(tiny), dtype="fp32", page_count=12, batch_max=3, rows_max=2, context=70)
    checks = checks_of(made)
    assert checks["state"].rows > 0
    assert all(check.mismatches == 0 for check in checks.values())


def damaged(made: HybridExecutor, damage: Callable[[int], object]) -> dict[str, RowsCheck]:
    """The checks of an executor whose widest forwards of one sequence do harm: it is told the slot."""
    model: Any = made.model
    forward = model.forward

    def run(segments: Any, stretches: Any, *arguments: Any, **named: Any) -> Any:
        found = forward(segments, stretches, *arguments, **named)
        if len(stretches) == 1 and stretches[0].count == 5:
            damage(stretches[0].slot)
        return found

    model.forward = run
    return checks_of(made)


def test_finds_a_conv_window_that_a_wide_round_spoils() -> None:
    made = executor("qwen3_5", "columns", "fp32")
    checks = damaged(made, lambda slot: made.model.rings[0, slot * made.model.ring_rows :].add_(1.0))
    assert checks["state"].mismatches > 0
    assert any("conv layer 0" in place for place in checks["state"].where)


@pytest.mark.parametrize("form", FORMS)
def test_finds_a_state_that_a_wide_round_spoils(form: Rollback) -> None:
    """Only where it is committed: what an abandoned round leaves in its columns is nobody's."""
    made = executor("qwen3_5", form, "fp32")
    checks = damaged(made, lambda slot: made.model.states[1, 1:].mul_(1.5))
    assert any("gdn layer 1" in place for place in checks["state"].where)


def test_finds_pairs_that_depend_on_the_round() -> None:
    made = executor("qwen3_5", "columns", "fp32")
    mtp: Any = made.mtp
    absorb = mtp.absorb
    mtp.absorb = lambda segments, hidden: absorb(segments, hidden * (2.0 if hidden.shape[0] == 5 else 1.0))
    checks = checks_of(made)
    groups = {place.split(": ")[1].split(" layer")[0] for place in checks["state"].where}
    assert groups == {"pairs"}
    assert checks["widths"].mismatches == 0


@pytest.mark.parametrize("form", FORMS)
def test_gives_back_all_that_it_took(form: Rollback) -> None:
    driver = Driver(executor("qwen3_5", form, "fp32"))

    def free() -> list[list[int]]:
        return [list(pool) for pool in (*driver._free_pages, *driver._free_columns, *driver._free_slots)]

    before = free()
    lanes = [driver.open(70), driver.open(70, scattered=True)]
    for lane, length in zip(lanes, (60, 20), strict=True):
        driver.consume(lane, length, 16)
    driver.rows(lanes, [5, 2])
    driver.advance(lanes, [3, 5])
    assert [lane.length for lane in lanes] == [63, 25]
    assert len({lane.slots for lane in lanes}) == len({lane.columns for lane in lanes}) == 2
    held = [set(table) for lane in lanes for table in lane.pages]
    assert not held[0] & held[2]
    for lane in lanes:
        driver.close(lane)
    assert free() == before


def test_more_than_there_is_is_asserted() -> None:
    driver = Driver(executor("qwen3_5", "replay", "fp32"))
    assert driver.has_room([64 * 6, 64 * 6])
    assert not driver.has_room([64 * 6, 64 * 6 + 1])
    with pytest.raises(AssertionError, match="13 units wanted, 12 free"):
        driver.open(64 * 12 + 1)


def test_rows_are_not_consumed_and_advancing_is() -> None:
    driver = Driver(executor("qwen3_5", "restore", "fp32"))
    lane = driver.open(70)
    driver.consume(lane, 10, 10)
    before = driver.audit(lane)
    first = driver.rows([lane], [5])[0]
    assert driver.audit(lane) == before
    assert torch.equal(driver.advance([lane], [2])[0], first[:2])
    assert torch.equal(driver.rows([lane], [3])[0], first[2:])
    assert driver.audit(lane) != before
