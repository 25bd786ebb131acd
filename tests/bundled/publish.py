"""Put a trained model into the package: `python -m tests.bundled.publish --folder RUN`.

Copies RUN/best to kernels/models/bundled, measures it there with HF's classes, and writes its card.
"""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path

import attrs
import click
import torch

from tests.bundled import corpus, train
from tests.bundled.evaluate import (
    DEPTH,
    NEW,
    PROMPT,
    PROMPTS,
    ROWS,
    WINDOWS,
    Acceptance,
    Figures,
    evaluate,
    percentages,
)

PACKAGED = Path(__file__).parents[2] / "kernels" / "models" / "bundled"
FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)
CARD = "MODEL_CARD.md"
BYTES_MAX = 16 << 20

_REPORT = re.compile(r"step (\d+)  held out: ([0-9.]+)")
_TOKENS = re.compile(r"(\d+) tokens to train on")


@attrs.frozen
class Recipe:
    """What a run says of itself. ``best_step`` and ``tokens`` are ``None`` where its logs do not tell. ``earlier``:
    steps that were made with another batch before, and that batch. ``remark``: what else a reader should know."""

    minutes: float
    steps: int
    best_step: int | None
    tokens: int | None
    earlier: tuple[int, int] = (0, 0)
    remark: str = ""

    @property
    def windows(self) -> int:
        """Windows of text seen."""
        steps, batch = self.earlier
        return steps * batch + (self.steps - steps) * train.BATCH


def read_run(folder: Path, logs: Sequence[Path], earlier: tuple[int, int] = (0, 0)) -> Recipe:
    """From the checkpoint of a run and what it printed."""
    state = torch.load(folder / "checkpoint.pt", weights_only=True, map_location="cpu")
    text = "\n".join(log.read_text(encoding="utf-8") for log in logs)
    reports = [(float(loss), int(step)) for step, loss in _REPORT.findall(text)]
    found = _TOKENS.search(text)
    return Recipe(
        state["elapsed"] / 60,
        state["step"],
        min(reports)[1] if reports else None,
        int(found[1]) if found else None,
        earlier,
    )


def copy(best: Path, folder: Path) -> None:
    """Replace the files of the packaged model; nothing is touched where they would be too large."""
    size = sum((best / name).stat().st_size for name in FILES)
    if size > BYTES_MAX:
        raise click.ClickException(f"{best} has {size} bytes, at most {BYTES_MAX} fit")
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        partial = folder / f"{name}.part"
        shutil.copyfile(best / name, partial)
        partial.replace(folder / name)


def card(folder: Path, recipe: Recipe, figures: Figures) -> str:
    """The text of the card."""
    sections = {
        "": _what(folder, figures),
        "Data": [_data(recipe, figures)],
        "Recipe": [_recipe(recipe)],
        "Figures": _figures(figures),
        "Licence": [_LICENCE],
        "What it is not for": [_NOT_FOR],
    }
    lines = ["# The bundled model"]
    for title, paragraphs in sections.items():
        lines += [f"## {title}"] if title else []
        lines += [text if text.startswith("|") else _fill(text) for text in paragraphs]
    return "\n\n".join(lines) + "\n"


_LICENCE = """The weights and the tokenizer are derived from text that is under the PSF License Agreement (Python
Software Foundation License Version 2; some files carry notices of their own). They are given under the licence of
this package, Apache-2.0, as far as that is ours to do. No source file is part of them, but a language model can
repeat passages of what it was trained on, and such passages stay under the licence of their source."""

_NOT_FOR = """Writing code, answering questions, or anything whose content matters: it knows the look of Python, not
its meaning, and nobody checks its text. Nor for judging how well speculation works on larger models: what a draft
costs against a forward, and how easily it is guessed, are other there."""


def _what(folder: Path, figures: Figures) -> list[str]:
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    return [
        f"A small language model of Python source text: {figures.parameters:,} parameters in the layout of Qwen3.5 "
        "(`Qwen3_5ForCausalLM`, eight layers: gated delta net and full attention 3 to 1, tied head) with one layer "
        "for multi-token prediction (MTP). It exists so that `txdecode` can be tried, demonstrated and tested on a "
        "real hybrid without a download. It is a base model: it goes on with a text, and has no chat template.",
        f"SHA-256 of `model.safetensors`: `{digest}`",
    ]


def _data(recipe: Recipe, figures: Figures) -> str:
    library = ".".join(platform.python_version_tuple()[:2])
    trained, kept = (sum(1 for _ in corpus.texts(held_out)) for held_out in (False, True))
    tokens = "" if recipe.tokens is None else f", {recipe.tokens:,} tokens"
    return (
        f"The sources of the standard library of Python {library} as installed, without its tests, `encodings` and "
        f"installed packages: {trained} files{tokens}. One file in {corpus.HELD_OUT}, by a hash of its path, was "
        f"held out: {kept} files, {figures.held_out_tokens:,} tokens. The tokenizer is a byte-level BPE of "
        f"{corpus.VOCABULARY:,} entries, trained on the same files without those held out."
    )


def _recipe(recipe: Recipe) -> str:
    steps, batch = recipe.earlier
    other = f" ({batch} in about the first {steps} steps)" if steps else ""
    tokens = f"{'about ' if steps else ''}{recipe.windows * train.ROWS:,} tokens in all"
    best = "" if recipe.best_step is None else f" (after step {recipe.best_step:,})"
    return (
        "Trained from random weights by `tests/bundled/train.py` with the classes of Hugging Face transformers, on "
        f"two CPU cores: {recipe.steps:,} steps in {recipe.minutes:.0f} minutes, {train.BATCH} windows of "
        f"{train.ROWS} tokens a step{other}, {tokens}, bf16 autocast. Muon for the matrices of the layers (learning "
        f"rate {train.PEAK['matrices']}), AdamW for the rest ({train.PEAK['rest']}); warm-up over 1 %, constant, "
        f"linear to zero over the last 60 %. The loss is the target's cross entropy plus {train.MTP_WEIGHT} times "
        f"that of each draft step: one step, and from 30 % of the time on {train.DEPTHS} steps in every third "
        f"update. The weights are the best by held-out loss{best}, stored in bf16."
        f"{' ' if recipe.remark else ''}{recipe.remark}"
    )


def _figures(figures: Figures) -> list[str]:
    target, *steps = (f"{loss:.3f}" for loss in figures.losses)
    greedy, sampled = figures.greedy, figures.sampled
    return [
        "Measured by `tests/bundled/evaluate.py` with the classes of transformers in fp32; "
        "`tests/bundled/publish.py` wrote this page.",
        f"Cross entropy on held-out text, nats a token ({WINDOWS} windows of {ROWS} tokens): target {target}; draft "
        f"steps 1 to {len(steps)}, given the true text before: {', '.join(steps)}.",
        f"MTP acceptance on what the model itself goes on to say ({PROMPTS} held-out prompts of {PROMPT} tokens, "
        f"{NEW} tokens each, a round of {DEPTH} drafts begun after every token; {greedy.rounds:,} rounds). A draft "
        "is accepted where it and all drafts before it are the target's own tokens. Sampled: temperature 1, drafts "
        "and target race with the same noise (the law `coupled`).",
        _table(greedy, sampled),
        f"Expected tokens a round of {DEPTH} drafts: {greedy.tokens_a_round:.2f} greedy, "
        f"{sampled.tokens_a_round:.2f} sampled. The greedy text of so small a model repeats itself, which makes it "
        "easy to draft.",
    ]


def _fill(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 118, break_long_words=False, break_on_hyphens=False)


def _table(greedy: Acceptance, sampled: Acceptance) -> str:
    columns = [f"{depth + 1}" for depth in range(DEPTH)]
    rows = [
        ("greedy, accepted", greedy.share),
        ("greedy, where all before were", greedy.conditional),
        ("sampled, accepted", sampled.share),
        ("sampled, where all before were", sampled.conditional),
    ]
    lines = [f"| draft | {' | '.join(columns)} |", "|---" * (DEPTH + 1) + "|"]
    lines += [f"| {name} | {' | '.join(percentages(values))} |" for name, values in rows]
    return "\n".join(lines)


@click.command()
@click.option(
    "--folder", type=click.Path(path_type=Path, exists=True), required=True, help="A run of train.py."
)
@click.option(
    "--log",
    "logs",
    type=click.Path(path_type=Path, exists=True),
    multiple=True,
    help="What train.py printed.",
)
@click.option(
    "--earlier", type=(int, int), default=(0, 0), help="Steps made with another batch, and that batch."
)
@click.option("--remark", default="", help="What else the card should say of the run.")
def main(folder: Path, logs: tuple[Path, ...], earlier: tuple[int, int], remark: str) -> None:
    """Publish the best weights of a run."""
    recipe = attrs.evolve(read_run(folder, logs, earlier), remark=remark)
    copy(folder / "best", PACKAGED)
    (PACKAGED / CARD).unlink(missing_ok=True)
    text = card(PACKAGED, recipe, evaluate(PACKAGED))
    (PACKAGED / CARD).write_text(text, encoding="utf-8")
    click.echo(text)


if __name__ == "__main__":
    main()
