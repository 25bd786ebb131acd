"""Opening a model: files to weights to executor. The only module of the runtime that loads torch."""

from __future__ import annotations

from typing import cast

import attrs

from txdecode.kernels.capability import DtypeName
from txdecode.kernels.executor import DenseExecutor
from txdecode.kernels.models.loading import load_config, load_text
from txdecode.kernels.models.source import resolve
from txdecode.kernels.models.weights import DenseWeights, HybridWeights, load_weights
from txdecode.runtime.errors import InvalidRequest
from txdecode.runtime.opening import Opened, check_count
from txdecode.runtime.text import Text
from txdecode.transactions.executor import Executor, Rollback


def open_dense(
    name: str,
    dtype: str,
    pages: int | None,
    batch_max: int,
    context: int | None,
    threads: int | None,
    rollback: Rollback | None = None,
    learned: bool = False,
    draft_model: str | None = None,
) -> Opened:
    """An executor over the model ``name``; arguments as for ``open_model``.

    Raises subclasses of ``ModelError`` for what can't be loaded, ``InvalidRequest`` for arguments out of range.
    """
    if dtype not in ("bf16", "fp32"):
        raise InvalidRequest(f"dtype must be 'bf16' or 'fp32', found {dtype!r}")
    for field, value in (
        ("pages", pages),
        ("batch_max", batch_max),
        ("context", context),
        ("threads", threads),
    ):
        if value is not None:
            check_count(field, value, 1)
    source = resolve(name)
    # First what rules the model out: a missing tokenizer says little about a model that is not supported.
    load_config(source)
    assets = load_text(source)
    text = Text(assets)
    weights = load_weights(source, dtype)
    sizes = _Sizes(pages, batch_max, context, threads)
    if isinstance(weights, HybridWeights) and not learned:
        weights = attrs.evolve(weights, config=attrs.evolve(weights.config, mtp=False))
    executor = _executor(weights, cast(DtypeName, dtype), sizes, rollback)
    if draft_model is not None:
        from txdecode.runtime.draft_models import paired

        executor = paired(executor, weights, assets.tokenizer, draft_model, dtype)
    return Opened(
        executor,
        name,
        text,
        frozenset(assets.eos_ids),
        fingerprint={"tokenizer": assets.digest()},
    )


@attrs.frozen
class _Sizes:
    page_count: int | None
    batch_max: int
    context: int | None
    threads: int | None


def _executor(
    weights: DenseWeights | HybridWeights, dtype: DtypeName, sizes: _Sizes, rollback: Rollback | None
) -> Executor:
    options = attrs.asdict(sizes)
    if isinstance(weights, DenseWeights):
        # A rollback form that was asked for is refused by the caller: this executor has no recurrent state.
        return DenseExecutor(weights, dtype=dtype, **options)
    # It compiles loops, which dense models need not wait for.
    from txdecode.kernels.hybrid_executor import HybridExecutor

    return HybridExecutor(weights, dtype=dtype, rollback=rollback or "columns", **options)
