"""Opening a dense model: files to weights to executor. The only module of the runtime that loads torch."""

from __future__ import annotations

from typing import cast

from txdecode.kernels.capability import DtypeName
from txdecode.kernels.executor import DenseExecutor
from txdecode.kernels.models.loading import load_config, load_text
from txdecode.kernels.models.source import resolve
from txdecode.kernels.models.weights import load_weights
from txdecode.runtime.errors import InvalidRequest
from txdecode.runtime.opening import Opened, check_count
from txdecode.runtime.text import Text


def open_dense(
    name: str, dtype: str, pages: int | None, batch_max: int, context: int | None, threads: int | None
) -> Opened:
    """The dense executor over the model ``name``; arguments as for ``open_runtime``.

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
    executor = DenseExecutor(
        load_weights(source, dtype),
        dtype=cast(DtypeName, dtype),
        page_count=pages,
        batch_max=batch_max,
        context=context,
        threads=threads,
    )
    return Opened(
        executor,
        name,
        text,
        frozenset(assets.eos_ids),
        fingerprint={"tokenizer": assets.digest()},
    )
