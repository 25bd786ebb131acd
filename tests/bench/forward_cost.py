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

import torch

from txdecode.kernels.attention.cache import Segment
from txdecode.kernels.capability import cpu_name
from txdecode.kernels.executor import DenseExecutor
from txdecode.kernels.models.source import resolve
from txdecode.kernels.models.weights import load_weights
from txdecode.kernels.norm.fused import unit_rows
from txdecode.kernels.rotary.fused import rotate
from txdecode.kernels.sampling.argmax import lowest_argmax

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


def parts(model: Any, width: int, context: int, pages: tuple[int, ...]) -> dict[str, Callable[[], object]]:
    """The pieces of one forward, each over all layers, so that weights come from where they would."""
    config, layers, cache = model._config, model._layers, model.cache
    rows = max(width, 2)
    dtype = model._embedding.dtype
    x = torch.randn(rows, config.hidden_size + 1).to(dtype)
    inner = torch.randn(rows, config.intermediate_size).to(dtype)
    ones = torch.ones(rows, 1, dtype=dtype)
    joined = torch.randn(rows, config.q_size).to(dtype)
    heads = config.head_count + 2 * config.kv_head_count
    projected = torch.randn(rows, heads, config.head_dim).to(dtype)
    cos, sin = model._rotary.rows(torch.arange(context, context + rows))
    segment = Segment(tuple(range(width)), context, pages)
    slots = torch.tensor((cache.place(segment) * 2)[:rows])
    bound = model._attention.bind([segment], rows)

    def linears() -> None:
        for layer in layers:
            layer.qkv(x)
            layer.o.add(joined, x)
            layer.up.multiply(x, layer.gate.silu(x))
            layer.down.add(inner, x)

    def attention() -> None:
        for index in range(len(layers)):
            model._attention.of_one(index, bound)

    def norms() -> None:
        for _ in layers:
            unit_rows(x, ones)
            unit_rows(x, ones)

    def rotary() -> None:
        for _ in layers:
            rotate(projected, cos, sin, bound.turned)
            bound.queries.copy_(bound.turned_queries)

    def writes() -> None:
        for index in range(len(layers)):
            cache.layers[index].index_copy_(0, slots, bound.keys_values)

    logits = model._head(x)
    return {
        "linear layers and gate": linears,
        "head": lambda: model._head(x),
        "argmax": lambda: lowest_argmax(logits[:width]),
        "attention": attention,
        "norms": norms,
        "rotary and queries": rotary,
        "key/value writes": writes,
    }


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
        for width in (1, 8, 16):
            segment = Segment(tuple(tokens[chosen.context : chosen.context + width]), chosen.context, pages)
            whole = timed(lambda s=segment: model.forward([s], logits=True), chosen.repeats)[0]  # type: ignore[misc]
            print(f"\nW = {width}: {whole:.2f} ms, by part")
            rest = whole
            for name, work in parts(model, width, chosen.context, pages).items():
                least, median = timed(work, chosen.repeats)
                rest -= 0 if name == "argmax" else least
                print(f"  {name:<24} {least:>7.2f} {median:>8.2f}")
            print(f"  {'python and the rest':<24} {rest:>7.2f}")


if __name__ == "__main__":
    main()
