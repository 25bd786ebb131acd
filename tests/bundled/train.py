"""Train the bundled model: `python -m tests.bundled.train --folder build/bundled`.

Stops on time (75 minutes of its own clock, over any number of starts), writes a checkpoint every few
minutes and goes on from it, and writes the best bfloat16 weights by held-out loss every 15 minutes.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import click
import torch
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy

from tests.bundled import corpus
from tests.bundled.model import Drafted, export

ROWS = 512
BATCH = 4
DEPTHS = 3
PEAK = {"matrices": 0.012, "rest": 0.004}
MTP_WEIGHT = 0.3


def optimizers(model: Drafted) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of layers, AdamW for embeddings, convolutions and vectors."""
    matrices, rest = [], []
    for name, parameter in model.named_parameters():
        inner = (
            parameter.ndim == 2 and "embed" not in name and "lm_head" not in name and "in_proj_a" not in name
        )
        (matrices if inner else rest).append(parameter)
    return [
        torch.optim.Muon(matrices, lr=PEAK["matrices"], weight_decay=0.05, momentum=0.95),
        torch.optim.AdamW(rest, lr=PEAK["rest"], betas=(0.9, 0.95), weight_decay=0.0),
    ]


def losses(model: Drafted, tokens: torch.Tensor, depth: int) -> list[torch.Tensor]:
    """Cross entropy of the target and of draft steps 1..depth: tokens [batch, ROWS + 1 + DEPTHS]."""
    hidden = model.hidden(tokens[:, :ROWS])
    states = [hidden, *model.drafts(hidden, tokens, depth)]
    return [
        cross_entropy(
            model.head(state).float().flatten(0, 1), tokens[:, 1 + step : 1 + step + ROWS].flatten()
        )
        for step, state in enumerate(states)
    ]


def held_out_losses(model: Drafted, stream: torch.Tensor, windows: int = 24) -> list[float]:
    """Mean loss of the target and of each draft step over evenly spaced windows of held-out text."""
    length = ROWS + 1 + DEPTHS
    starts = torch.linspace(0, len(stream) - length, windows).long()
    totals = torch.zeros(1 + DEPTHS)
    model.eval()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        for group in starts.split(BATCH):
            tokens = torch.stack([stream[start : start + length] for start in group])
            totals += torch.stack(losses(model, tokens, DEPTHS)).float() * len(group)
    model.train()
    return [float(total) / windows for total in totals]


def rate(progress: float) -> float:
    """Share of the peak learning rate: short warm-up, constant, linear to zero over the last 60 %."""
    return min(progress / 0.01, 1.0, max(1.0 - progress, 0.0) / 0.6)


class Training:
    """One training run and what it needs to go on after a stop."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder, self.seconds = folder, seconds
        folder.mkdir(parents=True, exist_ok=True)
        saved = folder / "tokenizer.json"
        if not saved.exists():
            corpus.train_tokenizer().save(str(saved))
        self.tokenizer = Tokenizer.from_file(str(saved))
        self.stream = corpus.ids(self.tokenizer, held_out=False)
        self.held_out = corpus.ids(self.tokenizer, held_out=True)
        torch.manual_seed(20261129)
        self.model = Drafted()
        self.optimizers = optimizers(self.model)
        self.elapsed, self.step, self.best = 0.0, 0, math.inf
        self.checkpoint = folder / "checkpoint.pt"
        if self.checkpoint.exists():
            self.load(torch.load(self.checkpoint, weights_only=True))

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.elapsed, self.step, self.best = state["elapsed"], state["step"], state["best"]

    def save(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "elapsed": self.elapsed,
            "step": self.step,
            "best": self.best,
        }
        partial = self.checkpoint.with_suffix(".part")
        torch.save(state, partial)
        partial.replace(self.checkpoint)

    def update(self) -> list[float]:
        """One step on windows that the step's number alone chooses, so that a resumed run goes on alike."""
        progress = self.elapsed / self.seconds
        depth = DEPTHS if progress > 0.3 and self.step % 3 == 0 else 1
        chosen = torch.Generator().manual_seed(self.step)
        length = ROWS + 1 + DEPTHS
        starts = torch.randint(len(self.stream) - length, (BATCH,), generator=chosen)
        tokens = torch.stack([self.stream[start : start + length] for start in starts])
        for optimizer, peak in zip(self.optimizers, PEAK.values(), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * rate(progress)
        with torch.autocast("cpu", torch.bfloat16):
            parts = losses(self.model, tokens, depth)
        loss = parts[0] + MTP_WEIGHT * sum(parts[1:], torch.zeros(()))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return [part.item() for part in parts]

    def report(self) -> None:
        measured = held_out_losses(self.model, self.held_out)
        shown = " ".join(f"{value:.3f}" for value in measured)
        click.echo(f"{self.elapsed:6.0f} s  step {self.step}  held out: {shown}")
        if measured[0] < self.best:
            self.best = measured[0]
            export(self.model, self.tokenizer, self.folder / "best")

    def run(self) -> None:
        epochs = len(self.stream)
        click.echo(f"{epochs} tokens to train on, {len(self.held_out)} held out")
        last_save = last_report = self.elapsed
        while self.elapsed < self.seconds:
            started = time.monotonic()
            parts = self.update()
            self.elapsed += time.monotonic() - started
            if self.step % 50 == 0:
                speed = BATCH * ROWS / (time.monotonic() - started)
                shown = " ".join(f"{value:.3f}" for value in parts)
                click.echo(f"{self.elapsed:6.0f} s  step {self.step}  {shown}  {speed:.0f} tokens/s")
            if self.elapsed - last_save >= 180:
                last_save = self.elapsed
                self.save()
            if self.elapsed - last_report >= 900:
                last_report = self.elapsed
                self.report()
        self.save()
        self.report()


@click.command()
@click.option(
    "--folder", type=click.Path(path_type=Path), required=True, help="Where the run keeps its files."
)
@click.option("--minutes", type=float, default=75.0, show_default=True)
def main(folder: Path, minutes: float) -> None:
    """Train, or go on training, the bundled model."""
    Training(folder, minutes * 60).run()


if __name__ == "__main__":
    main()
