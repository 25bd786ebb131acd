"""Measure an exported model with HF's classes alone: `python -m tests.bundled.evaluate FOLDER`.

Held-out loss of the target and of the draft steps, and how often drafts of the MTP layer are what the
target goes on to say, by depth. Nothing of txdecode takes part.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import attrs
import click
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, DynamicCache

from tests.bundled import corpus
from tests.bundled.model import RENAMED, Drafted

DEPTH = 7
TRAINED = 3
ROWS = 512
WINDOWS = 24
PROMPT = 256
NEW = 64
PROMPTS = 24
GROUP = 8
SEED = 20261129


@attrs.frozen
class Acceptance:
    """Drafts 1..DEPTH: of all rounds begun at every position of the continuations, the share in which draft d and
    all before it were what the target said (``share``), and the same of those in which all before it were
    (``conditional``; ``None`` where there was none)."""

    rounds: int
    share: tuple[float, ...]
    conditional: tuple[float | None, ...]

    @property
    def tokens_a_round(self) -> float:
        """Expected tokens of a round of DEPTH drafts: one, and one for each draft accepted."""
        return 1.0 + sum(self.share)


@attrs.frozen
class Figures:
    """What a card says of a model. Losses are nats a token: of the target, then of draft steps 1..TRAINED."""

    parameters: int
    losses: tuple[float, ...]
    held_out_tokens: int
    greedy: Acceptance
    sampled: Acceptance


def load(folder: Path) -> Drafted:
    """The target as HF loads the folder, and the MTP layer from the same file, in float32."""
    model = Drafted()
    target = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.target.load_state_dict(target.state_dict())
    layer = {}
    back = {theirs: ours for ours, theirs in RENAMED.items()}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if name.startswith("mtp."):
            rest = name.removeprefix("mtp.")
            first, _, leaf = rest.partition(".")
            block = "mtp_block." + rest.removeprefix("layers.0.")
            layer[f"{back[first]}.{leaf}" if first in back else block] = tensor.float()
    model.mtp.layers[0].load_state_dict(layer)
    return model.eval()


@torch.inference_mode()
def held_out_losses(model: Drafted, stream: torch.Tensor, windows: int = WINDOWS) -> tuple[float, ...]:
    """Mean cross entropy over evenly spaced windows of ROWS tokens."""
    length = ROWS + 1 + TRAINED
    totals = torch.zeros(1 + TRAINED)
    for start in torch.linspace(0, len(stream) - length, windows).long().tolist():
        tokens = stream[None, start : start + length]
        hidden = model.hidden(tokens[:, :ROWS])
        for step, state in enumerate((hidden, *model.drafts(hidden, tokens, TRAINED))):
            totals[step] += cross_entropy(model.head(state)[0], tokens[0, 1 + step : 1 + step + ROWS])
    return tuple((totals / windows).tolist())


def prompts(stream: torch.Tensor, count: int = PROMPTS) -> torch.Tensor:
    """Evenly spaced windows of held-out text, [count, PROMPT]."""
    starts = torch.linspace(0, len(stream) - PROMPT, count).long()
    return torch.stack([stream[start : start + PROMPT] for start in starts])


@torch.inference_mode()
def continued(model: Drafted, first: torch.Tensor, count: int, noise: torch.Tensor | None) -> torch.Tensor:
    """``first`` [batch, tokens] with ``count`` tokens more, each the argmax of the target's logits with the
    ``noise`` [batch, tokens + count, vocab] of its position added (Gumbel noise samples at temperature 1)."""
    tokens, fresh, cache = first, first, DynamicCache(config=model.target.config)
    for _ in range(count):
        scores = model.target(input_ids=fresh, cache=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        if noise is not None:
            scores = scores + noise[:, tokens.shape[1]]
        fresh = scores.argmax(-1, keepdim=True)
        tokens = torch.cat([tokens, fresh], dim=1)
    return tokens


@torch.inference_mode()
def agreeing(model: Drafted, tokens: torch.Tensor, known: int, noise: torch.Tensor | None) -> torch.Tensor:
    """Whether drafts 1..DEPTH of rounds begun after each token generated are the tokens that follow, all before
    them too: [rounds, DEPTH], bool.

    ``tokens`` [batch, known + generated] are the target's own. A draft is only looked at where those before it
    were right, so each step may be shown the target's tokens, all rounds at once.
    """
    rows = tokens.shape[1] - 1 - DEPTH
    hidden = model.hidden(tokens[:, :rows])
    right = []
    for step, state in enumerate(model.drafts(hidden, tokens[:, : rows + DEPTH], DEPTH)):
        scores = model.head(state[:, known - 1 :])
        places = slice(known + 1 + step, rows + 2 + step)
        if noise is not None:
            scores = scores + noise[:, places]
        right.append(scores.argmax(-1) == tokens[:, places])
    return torch.stack(right, dim=-1).flatten(0, 1).cumprod(dim=-1).bool()


def acceptance(model: Drafted, first: torch.Tensor, *, sampled: bool, new: int = NEW) -> Acceptance:
    """Of continuations of ``first`` [prompts, tokens]: greedy, or sampled at temperature 1 with drafts that race with
    the same noise, as the coupled law has it."""
    right = []
    for number, group in enumerate(first.split(GROUP)):
        noise = None
        if sampled:
            drawn = torch.Generator().manual_seed(SEED + number)
            shape = (len(group), group.shape[1] + new, model.target.config.vocab_size)
            noise = torch.empty(shape).exponential_(generator=drawn).log_().neg_()
        tokens = continued(model, group, new, noise)
        right.append(agreeing(model, tokens, group.shape[1], noise))
    counts = torch.cat(right).sum(0).tolist()
    rounds = sum(len(part) for part in right)
    before = [rounds, *counts[:-1]]
    return Acceptance(
        rounds,
        tuple(count / rounds for count in counts),
        tuple(count / whole if whole else None for count, whole in zip(counts, before, strict=True)),
    )


def evaluate(folder: Path) -> Figures:
    """All figures of the folder ``folder``."""
    model = load(folder)
    stream = corpus.ids(Tokenizer.from_file(str(folder / "tokenizer.json")), held_out=True)
    first = prompts(stream)
    return Figures(
        sum(tensor.numel() for tensor in load_file(folder / "model.safetensors").values()),
        held_out_losses(model, stream),
        len(stream),
        acceptance(model, first, sampled=False),
        acceptance(model, first, sampled=True),
    )


def percentages(values: Sequence[float | None]) -> list[str]:
    """For tables."""
    return ["-" if value is None else f"{value:.1%}".replace("%", " %") for value in values]


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
def main(folder: Path) -> None:
    """Print the figures of FOLDER as JSON."""
    click.echo(json.dumps(attrs.asdict(evaluate(folder)), indent=1))


if __name__ == "__main__":
    main()
