"""What one forward costs by width, beside the floor set by memory bandwidth, and what it is spent on.

Run by hand on a quiet machine: ``python tests/bench/forward_cost.py --help``. Figures are milliseconds; the
least of many repeats is the cost, the median says how quiet the machine was.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import njit

from txdecode.kernels.attention.cache import Segment
from txdecode.kernels.capability import cpu_name
from txdecode.kernels.executor import DenseExecutor
from txdecode.kernels.models.source import resolve
from txdecode.kernels.models.weights import load_weights
from txdecode.kernels.native import forward
from txdecode.kernels.native.forward import STAGES_A_LAYER
from txdecode.kernels.native.team import meet

Timing = tuple[float, float]


def timed(work: Callable[[], object], repeats: int) -> Timing:
    """Least and median milliseconds of ``work``."""
    for _ in range(3):
        work()
    spent = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        spent.append((time.perf_counter() - start) * 1e3)
    return min(spent), statistics.median(spent)


def read_bandwidth(repeats: int) -> float:
    """Bytes a second of a sum over 512 MiB."""
    big = torch.ones(2**27)
    return big.nbytes / (timed(big.sum, max(repeats // 4, 5))[0] / 1e3)


PARTS = (
    "queries, keys, values",
    "output projection",
    "gate and up, with activation",
    "down projection",
    "head",
    "attention",
    "rotation and pages",
    "norms",
    "meetings alone",
)


@njit(nogil=True, error_model="numpy")
def part(
    rank: Any,
    threads: Any,
    counters: Any,
    meetings: Any,
    which: Any,
    layers: Any,
    shape: Any,
    table: Any,
    rows: Any,
    scratch: Any,
    head: Any,
    logits: Any,
) -> None:
    """One of ``PARTS`` alone, over all layers, so that weights come from where they would."""
    count, tile = rows.rows.shape[0], scratch.tile[rank]
    for index in range(layers.scales.shape[0]):
        stage = index * STAGES_A_LAYER
        layer = forward._layer(layers, index)
        if which == 0:
            forward._project(counters, stage, layer.attention, scratch.normal, count, scratch.projected)
        elif which == 1:
            forward._add(counters, stage, layer.output, scratch.attended, count, tile, scratch.x)
        elif which == 2:
            forward._gate(counters, stage, layer.feed, scratch.normal, count, tile, scratch.inner)
        elif which == 3:
            forward._add(counters, stage, layer.down, scratch.inner, count, tile, scratch.x)
        elif which == 4 and index == 0:
            forward._project(counters, stage, head, scratch.normal, count, logits)
        elif which == 5:
            scores, made = scratch.scores[rank], scratch.made[rank]
            forward._attend(counters, stage, layer, shape, rows, scratch, scores, made)
        elif which == 6:
            forward._place(counters, stage, layer, shape, table, rows, scratch)
        elif which == 7:
            forward._norm_rows(counters, stage, count, scratch.x, layer.scales[0], shape.eps, scratch.normal)
            meetings = meet(counters, threads, meetings)
            forward._norm_rows(
                counters, stage + 1, count, scratch.x, layer.scales[1], shape.eps, scratch.normal
            )
        elif which == 8:
            for _ in range(STAGES_A_LAYER - 1):
                meetings = meet(counters, threads, meetings)
        meetings = meet(counters, threads, meetings)


def parts(model: Any, width: int, context: int, pages: tuple[int, ...]) -> dict[str, Callable[[], object]]:
    """The pieces of one forward of our own operators."""
    segment = Segment(tuple(range(1, width + 1)), context, pages)
    rows = model._rows([segment], model._team.threads)
    logits = np.empty((width, model._head.bias.shape[0]), np.float32)
    given = (model._layers, model._shape, model._table, rows, model._scratch, model._head, logits)

    def run(which: int) -> Callable[[], object]:
        model._alone.run(part, which, *given)
        return lambda: model._team.run(part, which, *given)

    return {name: run(which) for which, name in enumerate(PARTS)}


def main() -> None:
    """Print the tables."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", default="smollm2")
    options.add_argument("--dtype", default="bf16", choices=("bf16", "fp32"))
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--context", type=int, default=700)
    options.add_argument("--repeats", type=int, default=40)
    options.add_argument("--widths", type=int, nargs="*", default=list(range(1, 17)))
    chosen = options.parse_args()
    executor = DenseExecutor(
        load_weights(resolve(chosen.model), chosen.dtype),
        dtype=chosen.dtype,
        threads=chosen.threads,
        batch_max=1,
    )
    model = executor.model
    pages = tuple(range(-(-(chosen.context + 16) // 64)))
    vocab = executor.describe().vocab_size
    tokens = torch.randint(vocab, (chosen.context + 16,), generator=torch.Generator().manual_seed(0)).tolist()
    with torch.inference_mode():
        for start in range(0, chosen.context, 256):
            stop = min(start + 256, chosen.context)
            model.forward([Segment(tuple(tokens[start:stop]), start, pages)], logits=False)
        bandwidth = read_bandwidth(chosen.repeats)
        # Torch's threads spin for a while after their last work.
        time.sleep(0.2)
        kv_bytes = executor.describe().groups[0].row_bytes * chosen.context
        floor = (model.parameter_bytes + kv_bytes) / bandwidth * 1e3
        print(
            f"{chosen.model} {chosen.dtype}, {chosen.threads} threads, {cpu_name()}, context {chosen.context}"
        )
        print(
            f"read bandwidth {bandwidth / 1e9:.1f} GB/s, weights {model.parameter_bytes / 1e6:.0f} MB, "
            f"keys and values {kv_bytes / 1e6:.0f} MB: floor {floor:.2f} ms"
        )
        print(f"{'W':>3} {'least':>8} {'median':>8} {'least/floor':>12}")
        for width in chosen.widths:
            drafted = tuple(tokens[chosen.context : chosen.context + width])
            segment = Segment(drafted, chosen.context, pages)
            least, median = timed(lambda s=segment: model.forward([s], logits=True), chosen.repeats)  # type: ignore[misc]
            print(f"{width:>3} {least:>8.2f} {median:>8.2f} {least / floor:>12.2f}")
        for width in (1, 4, 8, 16) if chosen.dtype == "bf16" else ():
            segment = Segment(tuple(tokens[chosen.context : chosen.context + width]), chosen.context, pages)
            whole = timed(lambda s=segment: model.forward([s], logits=True), chosen.repeats)[0]  # type: ignore[misc]
            print(f"\nW = {width}: {whole:.2f} ms, by part")
            rest = whole
            for name, work in parts(model, width, chosen.context, pages).items():
                least, median = timed(work, chosen.repeats)
                rest -= 0 if name == "meetings alone" else least
                print(f"  {name:<24} {least:>7.2f} {median:>8.2f}")
            print(f"  {'likeliest token, python, the rest':<24} {rest:>7.2f}")


if __name__ == "__main__":
    main()
