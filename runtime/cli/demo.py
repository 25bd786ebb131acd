"""``txdecode demo``: decode a code-editing prompt with and without speculation, then replay the log."""

from __future__ import annotations

from pathlib import Path

import click

from txdecode.runtime.cli.options import dtype_option, model_option
from txdecode.runtime.cli.render import human_bytes, print_pairs
from txdecode.runtime.cli.replay import print_report
from txdecode.runtime.cli.run import stream
from txdecode.runtime.gates.prompts import DEMO
from txdecode.runtime.handle import Result
from txdecode.runtime.replay import replay
from txdecode.runtime.runtime import Runtime
from txdecode.runtime.sampling import Sampling

# A checkpoint may ask for sampling, and two runs without a seed would differ.
_GREEDY = Sampling(temperature=0)


@click.command()
@model_option
@dtype_option
@click.option("--max-tokens", type=click.IntRange(min=2), default=DEMO.max_tokens, show_default=True)
@click.option(
    "--log",
    type=click.Path(path_type=Path),
    default=Path("demo.txlog"),
    show_default=True,
    help="Where the event log goes; replaced if it is there.",
)
def demo(model: str, dtype: str, max_tokens: int, log: Path) -> None:
    """Decode a code-editing prompt, stream it, compare with plain decoding, and replay the log."""
    _heading(f"{model}: the answer, as it is committed")
    with Runtime.open(model, dtype=dtype, log=log, overwrite=True, batch_max=1) as runtime:
        handle = runtime.submit(list(DEMO.messages), max_tokens=max_tokens, sampling=_GREEDY)
        stream(handle, quiet=False)
        result = handle.result()
    click.echo()
    with Runtime.open(model, dtype=dtype, draft="none", batch_max=1) as runtime:
        plain = runtime.submit(list(DEMO.messages), max_tokens=max_tokens, sampling=_GREEDY).result()
    _heading("summary")
    print_pairs(_summary(result, plain, log))
    _heading(f"replay of {log}, without the model")
    print_report(replay(log))
    if result.ids != plain.ids:
        raise click.ClickException("the speculative and the plain text differ: that must never happen")


def _summary(result: Result, plain: Result, log: Path) -> dict[str, object]:
    stats = result.stats
    same = "the same, token for token" if result.ids == plain.ids else "DIFFERENT"
    return {
        "rounds": f"{stats.rounds} ({stats.plain_steps} of them plain steps)",
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "emitted": f"{stats.emitted} tokens, {stats.emitted / stats.rounds:.2f} a round",
        "speculative": f"{stats.tok_s:.1f} tokens/s",
        "plain": f"{plain.stats.tok_s:.1f} tokens/s",
        "texts": same,
        "log": f"{log}, {human_bytes(log.stat().st_size)}",
    }


def _heading(text: str) -> None:
    click.echo(click.style(f"--- {text}", bold=True))
