"""Tokens a second by drafter on held-out files: `python -m tests.bundled.drafters`.

Seconds are those of the processor, on one thread, so that a busy machine disturbs them little; drafters
take turns, and the least of the passes counts. The default drafter, `lookup`, is the one that was fastest here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import attrs
import click

from tests.bundled import corpus
from txdecode.runtime import Runtime, Sampling

DRAFTS = ("none", "lookup", "mtp", "mtp+lookup")
CHARACTERS = 1500


@attrs.frozen
class Measured:
    """Decoding of all texts with one drafter, their first tokens left out."""

    draft: str
    tokens: int
    rounds: int
    seconds: float

    @property
    def tok_s(self) -> float:
        return self.tokens / self.seconds


def beginnings(count: int) -> list[str]:
    """The first characters of held-out files that are longer than those."""
    found: Iterator[str] = (
        text[:CHARACTERS] for text in corpus.texts(held_out=True) if len(text) > CHARACTERS
    )
    return [text for _, text in zip(range(count), found, strict=False)]


def decode(
    model: str, draft: str, texts: list[str], sampling: Sampling, new: int
) -> tuple[Measured, list[tuple[int, ...]]]:
    """All texts, one after the other, ``new`` tokens each."""
    tokens = rounds = 0
    seconds = 0.0
    written = []
    with Runtime.open(model, draft=draft, batch_max=1, threads=1) as runtime:
        for text in texts:
            handle = runtime.submit(text, max_tokens=new, sampling=sampling, ignore_eos=True)
            ids = handle.ids()
            next(ids)
            began = time.process_time()
            tokens += sum(1 for _ in ids)
            seconds += time.process_time() - began
            result = handle.result()
            rounds += result.stats.rounds - 1
            written.append(result.ids)
    return Measured(draft, tokens, rounds, seconds), written


def measure(model: str, files: int, new: int, passes: int, sampling: Sampling) -> list[Measured]:
    """Every drafter; asserts that all write the same text."""
    texts = beginnings(files)
    best: dict[str, Measured] = {}
    plain: list[tuple[int, ...]] | None = None
    for _ in range(passes):
        for draft in DRAFTS:
            found, written = decode(model, draft, texts, sampling, new)
            plain = written if plain is None else plain
            assert written == plain, f"'{draft}' wrote another text"
            if draft not in best or found.seconds < best[draft].seconds:
                best[draft] = found
    return list(best.values())


def table(found: list[Measured]) -> str:
    """Markdown; the first row is what the others are compared with."""
    lines = ["| drafter | tokens a round | tokens/s | times plain |", "|---|---|---|---|"]
    lines += [
        f"| {item.draft} | {item.tokens / item.rounds:.2f} | {item.tok_s:.0f} | {item.tok_s / found[0].tok_s:.2f} |"
        for item in found
    ]
    return "\n".join(lines)


@click.command()
@click.option("--model", default="bundled", show_default=True)
@click.option("--files", default=8, show_default=True)
@click.option("--tokens", default=96, show_default=True)
@click.option("--passes", default=2, show_default=True)
@click.option("--temperature", default=0.0, show_default=True)
def main(model: str, files: int, tokens: int, passes: int, temperature: float) -> None:
    """Print a table of drafters."""
    click.echo(table(measure(model, files, tokens, passes, Sampling(temperature=temperature, seed=1))))


if __name__ == "__main__":
    main()
