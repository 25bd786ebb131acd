"""What a stack of expert blocks costs by width, beside a dense feed of the same active size.

Run by hand on a quiet machine: ``python tests/bench/moe_cost.py --help``. The floor comes first: bytes of
weights that a width wakes, experts * (1 - (1 - per_token / experts)^W) of them where rows choose freely. Every
figure is a ratio to width 1 of the same stack, from widths measured in turn, so that what disturbs the machine
disturbs all of them.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import attrs
import torch

from txdecode.kernels.capability import DTYPES, cpu_name, numerics
from txdecode.kernels.linear import Linear
from txdecode.kernels.linear.choice import linear_for
from txdecode.kernels.linear.gated import GatedFeed
from txdecode.kernels.models.hybrid_config import MoeConfig
from txdecode.kernels.moe.fused import Moe, route
from txdecode.kernels.norm.fused import extended, unit_rows

Forward = Callable[[torch.Tensor], torch.Tensor]


@attrs.frozen
class Shape:
    """A stack of ``layers`` blocks."""

    layers: int
    hidden: int
    moe: MoeConfig

    @property
    def active(self) -> int:
        """Inner width that one row uses."""
        return self.moe.per_token * self.moe.intermediate_size + self.moe.shared_size


SHAPES = {
    "narrow": Shape(8, 256, MoeConfig(32, 4, 128, 128, True)),
    "wide": Shape(4, 1024, MoeConfig(64, 8, 256, 256, True)),
}


def blocks(shape: Shape, dtype: torch.dtype, row_tile: int) -> list[Moe]:
    """Random blocks whose rows choose experts about evenly."""
    random = torch.Generator().manual_seed(0)

    def draw(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=random) / math.sqrt(size[-1])

    config, hidden, made = shape.moe, shape.hidden, []
    for _ in range(shape.layers):
        tensors = {
            "mlp.gate.weight": draw(config.experts, hidden),
            "mlp.experts.gate_up_proj": draw(config.experts, 2 * config.intermediate_size, hidden).to(dtype),
            "mlp.experts.down_proj": draw(config.experts, hidden, config.intermediate_size).to(dtype),
            "mlp.shared_expert.gate_proj.weight": draw(config.shared_size, hidden),
            "mlp.shared_expert.up_proj.weight": draw(config.shared_size, hidden),
            "mlp.shared_expert.down_proj.weight": draw(hidden, config.shared_size),
            "mlp.shared_expert_gate.weight": draw(1, hidden),
        }
        made.append(Moe(tensors, "mlp", config, torch.ones(hidden), dtype, linear_for(dtype), row_tile))
    return made


def dense_feeds(shape: Shape, dtype: torch.dtype) -> list[GatedFeed]:
    """Gated feeds of the inner width that one row of the experts uses."""
    random = torch.Generator().manual_seed(0)

    def linear(rows: int, columns: int) -> Linear:
        weight = torch.randn(rows, columns, generator=random) / math.sqrt(columns)
        return linear_for(dtype)(weight.to(dtype), None)

    reads, inner = shape.hidden + 1, shape.active
    return [
        GatedFeed(linear(inner, reads), linear(inner, reads), linear(reads, inner))
        for _ in range(shape.layers)
    ]


def through_blocks(stack: list[Moe]) -> Forward:
    """The residual after all blocks."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        ones = x.new_ones(x.shape[0], 1)
        for block in stack:
            x = block.add(unit_rows(x, ones), x)
        return x

    return forward


def through_feeds(stack: list[GatedFeed]) -> Forward:
    """The residual after all dense feeds."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        ones = x.new_ones(x.shape[0], 1)
        for feed in stack:
            normal = unit_rows(x, ones)
            x = feed.down.add(feed.up.multiply(normal, feed.gate.silu(normal)), x)
        return x

    return forward


def woken(stack: list[Moe], config: MoeConfig, x: torch.Tensor) -> float:
    """Experts that one block computes for the rows ``x``, on average over the stack."""
    ones, total = x.new_ones(x.shape[0], 1), 0
    for block in stack:
        normal = unit_rows(x, ones)
        counts = route(block._router(normal)[:, : config.experts], config).counts
        total += sum(count > 0 for count in counts)
        x = block.add(normal, x)
    return total / len(stack)


def rows_of(width: int, hidden: int, dtype: torch.dtype, seed: int, alike: float) -> torch.Tensor:
    """``width`` rows, one padded to two. ``alike``: cosine between any two, about; 0 chooses freely."""
    random = torch.Generator().manual_seed(seed)
    common = torch.randn(1, hidden, generator=random)
    own = torch.randn(width, hidden, generator=random)
    x = extended((math.sqrt(alike) * common + math.sqrt(1 - alike) * own).to(dtype), 1e-6)
    return x if width > 1 else x.repeat(2, 1)


def least(forward: Forward, inputs: dict[int, list[torch.Tensor]], repeats: int) -> dict[int, float]:
    """Seconds by width: the least of the repeats, averaged over inputs."""
    best = {(width, draw): math.inf for width, given in inputs.items() for draw in range(len(given))}
    for _ in range(repeats):
        for width, draw in best:
            x = inputs[width][draw]
            start = time.perf_counter()
            forward(x)
            best[width, draw] = min(best[width, draw], time.perf_counter() - start)
    return {
        width: sum(best[width, draw] for draw in range(len(given))) / len(given)
        for width, given in inputs.items()
    }


def floor_of(block: Moe, config: MoeConfig, width: int) -> tuple[float, float]:
    """Experts woken where rows choose freely, and the bytes that a block then reads."""
    distinct = config.experts * (1 - (1 - config.per_token / config.experts) ** width)
    return distinct, block.fixed_bytes + distinct * block.expert_bytes


def main() -> None:
    """Print a table a shape."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--dtype", default="bf16", choices=("bf16", "fp32"))
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--repeats", type=int, default=20)
    options.add_argument("--draws", type=int, default=3, help="different rows a width")
    options.add_argument("--alike", type=float, default=0.8, help="cosine of the rows in the last columns")
    options.add_argument("--widths", type=int, nargs="*", default=list(range(1, 17)))
    options.add_argument("--shapes", nargs="*", default=list(SHAPES), choices=list(SHAPES))
    chosen = options.parse_args()
    torch.set_num_threads(chosen.threads)
    print(f"{chosen.dtype}, {chosen.threads} threads, {cpu_name()}, {chosen.repeats} repeats")
    for name in chosen.shapes:
        with torch.inference_mode():
            table(name, SHAPES[name], chosen)


def table(name: str, shape: Shape, chosen: argparse.Namespace) -> None:
    """Floor, then measured ratios, by width."""
    dtype, config = DTYPES[chosen.dtype], shape.moe
    stack = blocks(shape, dtype, numerics(chosen.dtype).row_tile)
    free, alike = (
        {
            width: [
                rows_of(width, shape.hidden, dtype, 100 * width + draw, cosine)
                for draw in range(chosen.draws)
            ]
            for width in chosen.widths
        }
        for cosine in (0.0, chosen.alike)
    )
    experts = through_blocks(stack)
    free_cost = least(experts, free, chosen.repeats)
    alike_cost = least(experts, alike, chosen.repeats)
    dense_cost = least(through_feeds(dense_feeds(shape, dtype)), free, chosen.repeats)
    first = chosen.widths[0]
    _, first_bytes = floor_of(stack[0], config, first)
    print(
        f"\n{name}: {shape.layers} layers, hidden {shape.hidden}, {config.experts} experts, top {config.per_token}, "
        f"inner {config.intermediate_size}, shared {config.shared_size}; dense inner {shape.active}; "
        f"W = {first}: {free_cost[first] * 1e3:.2f} ms, dense {dense_cost[first] * 1e3:.2f} ms "
        f"({free_cost[first] / dense_cost[first]:.2f} x)"
    )
    print(f"{'':>3} {'floor':^16} {'rows choose freely':^32} {'dense':>7} {f'cosine {chosen.alike}':^16}")
    print(
        f"{'W':>3} {'experts':>8} {'bytes':>7} {'experts':>8} {'cost':>7} {'a row':>7} {'/floor':>7} "
        f"{'cost':>7} {'experts':>8} {'cost':>7}"
    )
    for width in chosen.widths:
        distinct, size = floor_of(stack[0], config, width)
        cost, floor = free_cost[width] / free_cost[first], size / first_bytes
        woke, woke_alike = (
            sum(woken(stack, config, x) for x in rows[width]) / chosen.draws for rows in (free, alike)
        )
        print(
            f"{width:>3} {distinct:>8.1f} {floor:>7.2f} {woke:>8.1f} {cost:>7.2f} {cost * first / width:>7.2f} "
            f"{cost / floor:>7.2f} {dense_cost[width] / dense_cost[first]:>7.2f} {woke_alike:>8.1f} "
            f"{alike_cost[width] / alike_cost[first]:>7.2f}"
        )


if __name__ == "__main__":
    main()
