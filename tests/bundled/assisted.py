"""What HF's own assisted generation says to the bundled model: `python -m tests.bundled.assisted`.

Prints the outcome of each way as it is; by hand, for the comparison in the README.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import click
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.bundled.publish import PACKAGED

PROMPT = "def mean(values):\n    total = 0\n"


def ask(model: Any, prompt: torch.Tensor, **options: Any) -> str:
    """The error of generating with ``options``, or how many tokens there were and whether they are the plain ones."""
    common = {"max_new_tokens": 16, "do_sample": False}
    try:
        made = model.generate(prompt, **common, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    same = torch.equal(made, model.generate(prompt, **common))
    return f"{made.shape[1] - prompt.shape[1]} tokens, {'the same as' if same else 'other than'} plain"


def outcomes(folder: Path) -> dict[str, str]:
    """By way of asking: a second copy of the model as assistant, and copies from the prompt."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    helper = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer(PROMPT, return_tensors="pt").input_ids
    ways: dict[str, dict[str, Any]] = {
        "plain": {},
        "assistant_model": {"assistant_model": helper},
        "prompt_lookup_num_tokens": {"prompt_lookup_num_tokens": 4},
        "use_mtp": {"use_mtp": True},
    }
    return {name: ask(model, prompt, **options) for name, options in ways.items()}


@click.command()
@click.option("--folder", type=click.Path(path_type=Path, exists=True), default=PACKAGED)
def main(folder: Path) -> None:
    """Print what each way of assisted generation does on FOLDER."""
    warnings.simplefilter("ignore")
    click.echo(f"transformers {transformers.__version__}")
    for name, outcome in outcomes(folder).items():
        click.echo(f"{name}: {outcome}")


if __name__ == "__main__":
    main()
