"""What deciding a round costs beside its forward: filters, noise, acceptance, by request and law.

Run by hand on a quiet machine: ``python tests/bench/sampling_cost.py --help``. The logits are the model's own after
a text, and the drafts of every round are the ones that its law accepts, which is its dearest case. Figures are
milliseconds, the least of many repeats; the share is of a round: forward and decision, taken in turns.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable

import attrs
import torch

from txdecode.kernels.attention.cache import Segment
from txdecode.kernels.capability import cpu_name
from txdecode.kernels.executor import DenseExecutor
from txdecode.kernels.models.loading import load_text
from txdecode.kernels.models.source import resolve
from txdecode.kernels.models.weights import load_weights
from txdecode.kernels.sampling import judge
from txdecode.transactions.target import GREEDY, History, Target

TEXT = """The lighthouse keeper had not spoken to anyone for eleven days when the boat came in. He watched it
from the gallery, a white speck against a sea the colour of slate, and wondered whether they had brought the
letters, the lamp oil and the new books that he had asked for. """
REPEATS_OF_TEXT = 8
SAMPLED = Target(law="coupled", seed=11)
CASES = {
    "greedy": GREEDY,
    "temperature 0.8, top-k 20, top-p 0.95": attrs.evolve(SAMPLED, temperature=0.8, top_k=20, top_p=0.95),
    "pure temperature 1.0": SAMPLED,
    "top-p 0.95": attrs.evolve(SAMPLED, top_p=0.95),
    "min-p 0.05": attrs.evolve(SAMPLED, min_p=0.05),
    "chain, pure temperature 1.0": attrs.evolve(SAMPLED, law="chain"),
    "chain, top-k 20, top-p 0.95": attrs.evolve(SAMPLED, law="chain", top_k=20, top_p=0.95),
    "greedy with penalties": attrs.evolve(GREEDY, repetition_penalty=1.1, frequency_penalty=0.1),
    "top-k 20, top-p 0.95, penalties": attrs.evolve(
        SAMPLED, top_k=20, top_p=0.95, repetition_penalty=1.1, presence_penalty=0.2
    ),
    "top-k 20, top-p 0.95, 5 logprobs": attrs.evolve(SAMPLED, top_k=20, top_p=0.95, logprobs=5),
}


def least(works: list[Callable[[], object]], repeats: int) -> list[float]:
    """Least milliseconds of each of ``works``, done in turns so that disturbances meet all of them."""
    best = [float("inf")] * len(works)
    for _ in range(repeats):
        for index, work in enumerate(works):
            start = time.perf_counter()
            work()
            best[index] = min(best[index], (time.perf_counter() - start) * 1e3)
    return best


class Bench:
    """A model with a text in its cache."""

    def __init__(self, name: str, dtype: str, threads: int) -> None:
        source = resolve(name)
        assert dtype in ("bf16", "fp32")
        executor = DenseExecutor(load_weights(source, dtype), dtype=dtype, threads=threads, batch_max=1)  # type: ignore[arg-type]
        self.model = executor.model
        encoded = load_text(source).tokenizer.encode(TEXT * REPEATS_OF_TEXT)
        self.prompt: list[int] = encoded.ids
        self.pages = tuple(range(len(self.prompt) // 64 + 2))
        for start in range(0, len(self.prompt) - 1, 256):
            part = tuple(self.prompt[start : min(start + 256, len(self.prompt) - 1)])
            self.model.forward([Segment(part, start, self.pages)], logits=False)

    def logits(self, drafts: list[int]) -> torch.Tensor:
        """Logits of the last prompt token and of the drafts, fp32."""
        rows = (self.prompt[-1], *drafts)
        made = self.model.forward([Segment(rows, len(self.prompt) - 1, self.pages)], logits=True)
        assert made is not None
        return made.float().contiguous()

    def accepted(self, target: Target, count: int) -> list[int]:
        """Drafts that the law accepts."""
        drafts: list[int] = []
        while len(drafts) < count:
            rows = self.logits(drafts)
            drafts.append(judge(rows, target, self.history(), drafts, len(self.prompt)).token)
        return drafts

    def history(self) -> History:
        """The prompt, and some tokens generated."""
        return History(tuple(self.prompt), dict.fromkeys(self.prompt[-40:], 2), 80)


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", default="smollm2")
    options.add_argument("--dtype", default="bf16", choices=("bf16", "fp32"))
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--repeats", type=int, default=60)
    options.add_argument("--profile", default="", help="also profile the case whose name begins so, at W = 8")
    chosen = options.parse_args()
    with torch.inference_mode():
        bench = Bench(chosen.model, chosen.dtype, chosen.threads)
        print(
            f"{chosen.model} {chosen.dtype}, {chosen.threads} threads, {cpu_name()}, {len(bench.prompt)} tokens"
        )
        print(f"{'law':<38} {'W':>2} {'forward':>8} {'decide':>8} {'share':>7}  accepted")
        history = bench.history()
        for name, target in CASES.items():
            for width in (1, 8):
                drafts = bench.accepted(target, width - 1)
                rows = bench.logits(drafts)

                def decide(
                    rows: torch.Tensor = rows, target: Target = target, drafts: list[int] = drafts
                ) -> object:
                    return judge(rows, target, history, drafts, len(bench.prompt))

                found = judge(rows, target, history, drafts, len(bench.prompt))
                forward, spent = least([lambda d=drafts: bench.logits(d), decide], chosen.repeats)  # type: ignore[misc]
                share = spent / (forward + spent)
                print(
                    f"{name:<38} {width:>2} {forward:>8.2f} {spent:>8.3f} {share:>7.1%}  {len(found.path) - 1}"
                )
                if chosen.profile and name.startswith(chosen.profile) and width == 8:
                    profile = cProfile.Profile()
                    profile.enable()
                    for _ in range(chosen.repeats):
                        decide()
                    profile.disable()
                    pstats.Stats(profile).sort_stats("tottime").print_stats(18)


if __name__ == "__main__":
    main()
