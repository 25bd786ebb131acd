"""What a round of a hybrid costs: rollback forms in bytes and time, overhead over forwards, width of a mixture.

Run by hand on a quiet machine: ``python tests/bench/hybrid_cost.py --help``. Times are milliseconds, least of the
repeats; ratios are within one run.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch

from txdecode.kernels.attention.cache import Segment
from txdecode.kernels.gdn.rows import Records
from txdecode.kernels.hybrid_executor import HybridExecutor
from txdecode.kernels.models.hybrid_config import HybridConfig, MoeConfig
from txdecode.kernels.models.hybrid_layout import hybrid_tensor_shapes
from txdecode.kernels.models.source import resolve
from txdecode.kernels.models.weights import HybridWeights, load_weights
from txdecode.kernels.sampling.argmax import lowest_argmax
from txdecode.runtime import Runtime
from txdecode.state.groups import of_kind
from txdecode.transactions.executor import (
    Executor,
    PrefillPlan,
    Proposal,
    Round,
    RoundPlan,
    SequenceView,
    Settlement,
)

FORMS = ("columns", "replay", "restore")
WIDTHS = (1, 2, 3, 4, 6, 8)
# The layers of a dense Qwen3.5 of about 27 billion parameters: 48 of 64 are linear.
LARGE = {"linear": 48, "key_heads": 16, "value_heads": 48, "key_dim": 128, "value_dim": 128}


def least(work: Callable[[], object], repeats: int) -> float:
    """Least milliseconds of ``work``."""
    spent = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        spent.append((time.perf_counter() - start) * 1e3)
    return min(spent)


def bytes_a_row(
    linear: int, key_heads: int, value_heads: int, key_dim: int, value_dim: int
) -> dict[str, int]:
    """Bytes of recurrent state that a verified row takes until it is committed or rejected, by form."""
    record = Records.empty(1, key_heads, key_dim, value_heads, value_dim).row_bytes
    return {
        "columns": linear * value_heads * key_dim * value_dim * 4,
        "replay": linear * record,
        "restore": 0,
    }


def report_bytes(config: HybridConfig) -> None:
    own = {
        "linear": len(config.linear_layers),
        "key_heads": config.key_heads,
        "value_heads": config.value_heads,
        "key_dim": config.key_dim,
        "value_dim": config.value_dim,
    }
    print("bytes a verified row      columns       replay      restore")
    for name, shape in (("bundled", own), ("27B-like", LARGE)):
        found = bytes_a_row(**shape)
        print(f"{name:20s}" + "".join(f"{found[form]:13,d}" for form in FORMS))


@attrs.define
class Lane:
    """One sequence of ``length`` tokens, driven by hand."""

    executor: HybridExecutor
    length: int
    tokens: list[int]

    def view(self) -> SequenceView:
        return SequenceView(0, 0, self.length, self.pages(), (0,), (0,))

    def pages(self) -> tuple[tuple[int, ...], ...]:
        groups = of_kind(self.executor.describe().groups, "pages")
        return (tuple(range(groups[0].capacity)),) * len(groups)

    def fill(self) -> None:
        for start in range(0, self.length, 256):
            part = tuple(self.tokens[start : min(start + 256, self.length)])
            view = attrs.evolve(self.view(), length=start)
            self.executor.prefill([PrefillPlan(view, part, self.pages(), (0,))])

    def round(self, width: int) -> Round:
        (group,) = of_kind(self.executor.describe().groups, "column")
        columns = tuple(range(1, 1 + group.reserved_columns(width)))
        drafts = tuple(self.tokens[self.length + 1 : self.length + width])
        plan = RoundPlan(
            self.view(),
            0,
            self.tokens[self.length],
            tuple(range(-1, width - 1)),
            self.pages(),
            (columns,),
            (0, width),
            width,
        )
        return Round(plan, Proposal(drafts, "bench"))


def report_forms(weights: HybridWeights, context: int, repeats: int, dtype: Any) -> None:
    """Verify by width, settle by the number of committed rows."""
    print(f"\n{context} tokens of context; verify, then settle of 1, half and all rows, ms")
    tokens = [(7 * i * i + 3 * i) % weights.config.vocab_size for i in range(context + 32)]
    lanes = {}
    for form in FORMS:
        sizes: dict[str, Any] = {"batch_max": 1, "rows_max": 16, "page_count": context // 64 + 2}
        lanes[form] = Lane(
            HybridExecutor(weights, dtype=dtype, rollback=form, context=context + 64, **sizes),  # type: ignore[arg-type]
            context,
            tokens,
        )
        lanes[form].fill()
    print("form        W   verify   ratio   t=1      t=half   t=all")
    base: dict[str, float] = {}
    for width in WIDTHS:
        rounds = {form: lane.round(width) for form, lane in lanes.items()}
        settled = (1, max(width // 2, 1), width)
        spent: dict[tuple[str, int], list[float]] = {}
        # In turns: the clock of a shared machine changes from second to second.
        for _ in range(repeats):
            for form, lane in lanes.items():
                for count in (0, *settled):
                    spent.setdefault((form, count), []).append(one_round(lane, rounds[form], count))
        for form in FORMS:
            verify, *settles = (min(spent[form, count]) for count in (0, *settled))
            base.setdefault(form, verify)
            shown = "".join(f"{value:9.3f}" for value in settles)
            print(f"{form:10s}{width:3d}{verify:9.3f}{verify / base[form]:8.2f}{shown}")


def one_round(lane: Lane, item: Round, count: int) -> float:
    """Milliseconds of a verify, or, with a ``count`` of rows, of the settle after it."""
    start = time.perf_counter()
    lane.executor.verify([item])
    if count:
        start = time.perf_counter()
        lane.executor.settle([Settlement(item.plan, tuple(range(count)))])
    return (time.perf_counter() - start) * 1e3


class Recorder:
    """An executor that remembers what it was asked, so that its forwards can be run again alone."""

    def __init__(self, inner: HybridExecutor) -> None:
        self.inner = inner
        self.calls: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def draft(self, plans: Sequence[RoundPlan]) -> list[Proposal]:
        made = self.inner.draft(plans)
        self.calls.append(("draft", [(plan, len(p.tokens)) for plan, p in zip(plans, made, strict=True)]))
        return made

    def verify(self, rounds: Sequence[Round]) -> None:
        self.calls.append(("verify", list(rounds)))
        self.inner.verify(rounds)

    def settle(self, settlements: Sequence[Settlement]) -> None:
        self.calls.append(("pairs", [(item.plan, len(item.path)) for item in settlements]))
        self.inner.settle(settlements)


def forwards(executor: HybridExecutor, calls: Sequence[tuple[str, Any]]) -> None:
    """The same draft steps, verify forwards and pairs of the MTP layer, and the argmax of each: nothing else."""
    model, mtp = executor.model, executor.mtp
    with torch.inference_mode():
        hidden = shown = torch.zeros(1, model.config.hidden_size, dtype=model.numerics.dtype)
        for verb, what in calls:
            if verb == "verify":
                segments, stretches = [], []
                for item in what:
                    taken = executor._taken(item)
                    segments.append(taken.segment())
                    stretches.append(taken.stretch(taken.columns[0][: len(taken.tokens)]))
                made = model.forward(segments, stretches, logits=True)
                assert made.logits is not None
                lowest_argmax(made.logits)
                shown = made.hidden
            elif verb == "pairs":
                for plan, count in what if mtp is not None else ():
                    tokens = (plan.pending,) * count
                    mtp.absorb([Segment(tokens, plan.view.length, plan.pages[-1])], shown[:count])
            else:
                assert mtp is not None
                for plan, count in what:
                    for depth in range(count):
                        segment = Segment((plan.pending,), plan.view.length + depth, plan.pages[-1])
                        _, logits = mtp.step([segment], hidden)
                        lowest_argmax(logits)


def report_overhead(weights: HybridWeights, repeats: int, tokens: int, dtype: Any) -> None:
    """Decode time of the runtime over the time of its forwards run again, by form and drafter."""
    prompt = [(11 * i * i + 5 * i) % weights.config.vocab_size for i in range(200)]
    plain = attrs.evolve(weights, config=attrs.evolve(weights.config, mtp=False))
    print("\ndecode time over the same forwards alone (aim 1.05), median of pairs")
    for form in FORMS:
        for draft, length in (("none", 0), ("mtp", 3), ("mtp+lookup", 5)):
            ratios, rounds = [], 0
            for _ in range(repeats):
                drafting = weights if draft != "none" else plain
                inner = HybridExecutor(
                    drafting,
                    dtype=dtype,
                    rollback=form,
                    batch_max=1,
                    context=1024,
                    page_count=16,  # type: ignore[arg-type]
                )
                recorder = Recorder(inner)
                executor: Executor = recorder  # type: ignore[assignment]
                with Runtime.open(executor, draft=draft, draft_len=length) as runtime:
                    stats = runtime.submit(prompt, max_tokens=tokens).result().stats
                calls = list(recorder.calls)
                start = time.perf_counter()
                forwards(inner, calls)
                ratios.append(stats.decode_s / (time.perf_counter() - start))
                rounds = stats.rounds
            print(f"{form:10s}{draft:12s} K={length}  {statistics.median(ratios):.3f}  ({rounds} rounds)")


def random_weights(config: HybridConfig) -> HybridWeights:
    """Random weights in bf16 whose activations stay of order one."""
    drawn = torch.Generator().manual_seed(5)
    tensors = {}
    for name, shape in hybrid_tensor_shapes(config).items():
        values = torch.randn(shape, generator=drawn) / (math.sqrt(shape[-1]) if len(shape) > 1 else 10.0)
        tensors[name] = values.to(torch.bfloat16)
    return HybridWeights(config, tensors, "random")


def report_mixture(config: HybridConfig, repeats: int, dtype: Any) -> None:
    """Verify by width of a dense hybrid and of one whose feeds are mixtures of the same active size."""
    moe = MoeConfig(
        experts=32,
        per_token=4,
        intermediate_size=config.intermediate_size // 4,
        shared_size=0,
        normalise=True,
    )
    mixed = attrs.evolve(
        config, feeds=("moe",) * config.layer_count, moe=moe, intermediate_size=0, mtp=False, mtp_feed="moe"
    )
    dense = attrs.evolve(config, mtp=False)
    print("\nverify by width, ms and ratio to W = 1: dense feeds, and 32 experts of which 4 are chosen")
    lanes = []
    for each in (dense, mixed):
        executor = HybridExecutor(
            random_weights(each), dtype=dtype, batch_max=1, rows_max=16, context=512, page_count=8
        )
        drawn = torch.Generator().manual_seed(9)
        lane = Lane(executor, 200, torch.randint(each.vocab_size, (256,), generator=drawn).tolist())
        lane.fill()
        lanes.append(lane)
    base: list[float] = []
    for width in (*WIDTHS, 16):
        times = []
        for lane in lanes:
            item = lane.round(width)
            times.append(least(lambda lane=lane, item=item: lane.executor.verify([item]), repeats))  # type: ignore[misc]
        base = base or times
        woken = moe.experts * (1 - (1 - moe.per_token / moe.experts) ** width)
        shown = "  ".join(f"{t:7.3f} {t / b:5.2f}" for t, b in zip(times, base, strict=True))
        print(f"W={width:2d}  {shown}   experts woken by independent rows {woken:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "fp32"))
    parser.add_argument("--context", type=int, default=700)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    weights = load_weights(resolve(arguments.model), arguments.dtype)
    assert isinstance(weights, HybridWeights), "a hybrid model is wanted"
    report_bytes(weights.config)
    report_forms(weights, arguments.context, arguments.repeats, arguments.dtype)
    report_overhead(weights, max(arguments.repeats // 10, 3), 200, arguments.dtype)
    report_mixture(weights.config, arguments.repeats, arguments.dtype)


if __name__ == "__main__":
    main()
