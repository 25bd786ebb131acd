"""How much state a hybrid executor keeps, and the groups that say so."""

from __future__ import annotations

import attrs

from txdecode.kernels.attention.cache import PAGE_ROWS
from txdecode.kernels.capability import PREFILL_ROWS_MAX, Numerics, free_memory
from txdecode.kernels.models.hybrid import StateSizes, memory_plan
from txdecode.kernels.models.hybrid_config import HybridConfig
from txdecode.kernels.models.llama import Limits
from txdecode.state.groups import Columns, StateGroup
from txdecode.transactions.executor import Rollback

# Sequences are expected to stay below this when nobody says how many pages to keep.
_TOKENS_EXPECTED = 2048


@attrs.frozen
class Geometry:
    """``capacity`` columns belong to the runtime; the model's columns from there on are the executor's scratch."""

    limits: Limits
    sizes: StateSizes
    capacity: int


def geometry(
    config: HybridConfig,
    kind: Numerics,
    rollback: Rollback,
    batch_max: int,
    rows_max: int,
    context: int | None,
    page_count: int | None,
) -> Geometry:
    """Sizes for ``batch_max`` sequences with rounds of ``rows_max`` rows; pages are chosen where nobody says."""
    context = config.context if context is None else min(context, config.context)
    rows = max(PREFILL_ROWS_MAX, batch_max * rows_max)
    # A column each, and what their rounds reserve; one spare set lets an audit compute a sequence again.
    reserved = rows_max if rollback == "columns" else 1
    capacity = batch_max * (1 + reserved) + reserved + 1
    scratch = 0 if rollback == "columns" else batch_max
    sizes = StateSizes(
        columns=capacity + scratch,
        slots=batch_max + 1,
        ring_rows=config.conv_width - 1 + rows_max,
        record_rows=batch_max * rows_max if rollback == "replay" else 0,
    )
    if page_count is None:
        free = free_memory()
        one, two = (memory_plan(config, kind, Limits(context, rows, rows_max, n), sizes) for n in (1, 2))
        page_bytes = max(sum(two.values()) - sum(one.values()), 1)
        affordable = max((free - sum(one.values())) // 2 // page_bytes, 1)
        page_count = min(batch_max * -(-min(context, _TOKENS_EXPECTED) // PAGE_ROWS), affordable)
    return Geometry(Limits(context, rows, rows_max, page_count), sizes, capacity)


def groups(
    config: HybridConfig, kind: Numerics, rollback: Rollback, shape: Geometry
) -> tuple[StateGroup, ...]:
    """The state groups, target before drafter."""
    full, linear = len(config.full_layers), len(config.linear_layers)
    row = 2 * config.kv_size * kind.dtype.itemsize
    pages = shape.limits.page_count
    kept = []
    if full:
        kept.append(StateGroup("kv", "pages", PAGE_ROWS, full, full * row, capacity=pages))
    if linear:
        state = linear * config.value_heads * config.key_dim * config.value_dim * 4
        columns: Columns = "row" if rollback == "columns" else "round"
        kept.append(StateGroup("gdn", "column", 1, linear, state, "target", shape.capacity, columns))
        raw = linear * config.conv_size * 4
        kept.append(
            StateGroup("conv", "ring", shape.sizes.ring_rows, linear, raw, capacity=shape.sizes.slots)
        )
    elif config.mtp:
        # The tail hidden row lies by ring, which no other layer of such a model has.
        tail = config.hidden_size * kind.dtype.itemsize
        kept.append(StateGroup("tail", "ring", shape.sizes.ring_rows, 1, tail, "drafter", shape.sizes.slots))
    if config.mtp:
        kept.append(StateGroup("pairs", "pages", PAGE_ROWS, 1, row, "drafter", pages))
    return tuple(kept)
