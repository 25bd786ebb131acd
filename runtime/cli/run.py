"""``txdecode run``: decode one prompt."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import attrs
import click

from txdecode.runtime.cli.options import dtype_option, json_option, model_option, threads_option
from txdecode.runtime.cli.render import print_json
from txdecode.runtime.errors import InvalidRequest, TxDecodeError
from txdecode.runtime.handle import Handle, Result
from txdecode.runtime.runtime import Runtime

_INTERRUPTED = 130


@click.command()
@click.argument("prompt", required=False)
@click.option("--prompt-file", type=click.Path(path_type=Path), help="Read the prompt from a file.")
@click.option("--chat", is_flag=True, help="Send the prompt as a chat message through the model's template.")
@model_option
@dtype_option
@click.option(
    "--draft",
    type=click.Choice(["none", "lookup"]),
    default="lookup",
    show_default=True,
    help="Who drafts: nobody, or a copy of what followed the last words earlier in the text.",
)
@click.option(
    "--draft-len",
    default="additive",
    show_default=True,
    metavar="N|additive",
    help="Draft tokens a round: a number from 0 to 15, or a controller that adapts.",
)
@click.option("--max-tokens", type=int, default=256, show_default=True, help="Most tokens to generate.")
@click.option(
    "--stop", multiple=True, metavar="TEXT", help="End before this text; may be given several times."
)
@click.option(
    "--log", type=click.Path(path_type=Path), metavar="FILE", help="Write the event log to this file."
)
@click.option("--overwrite", is_flag=True, help="Replace an existing log.")
@click.option("--context", type=click.IntRange(min=2), help="Most tokens of prompt and text together.")
@threads_option
@json_option
def run(
    prompt: str | None,
    prompt_file: Path | None,
    chat: bool,
    model: str,
    dtype: str,
    draft: str,
    draft_len: str,
    max_tokens: int,
    stop: tuple[str, ...],
    log: Path | None,
    overwrite: bool,
    context: int | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Decode PROMPT (or --prompt-file, or standard input) and stream the text.

    \b
    Examples:
      txdecode run "def add(a, b):" --max-tokens 40
      echo "Name three rivers." | txdecode run --chat --log run.txlog
      txdecode run --model ./my-model --draft none --json "Once"

    The JSON object has ids, text, finish (stop, length or cancelled), log (path or null) and stats: counts
    (rounds includes plain_steps, the rounds in which nothing was drafted) and times in seconds.
    """
    text = read_prompt(prompt, prompt_file)
    with Runtime.open(
        model,
        dtype=dtype,
        draft=draft,
        draft_len=draft_length(draft_len),
        log=log,
        overwrite=overwrite,
        context=context,
        threads=threads,
        batch_max=1,
    ) as runtime:
        try:
            handle = runtime.submit(
                [{"role": "user", "content": text}] if chat else text, max_tokens=max_tokens, stop=stop
            )
        except TxDecodeError:
            # An empty log would stand in the way of the corrected command.
            runtime.close()
            if log is not None:
                log.unlink(missing_ok=True)
            raise
        stream(handle, quiet=as_json)
        result = handle.result()
    if as_json:
        print_json(result_data(result, log))
    else:
        click.echo()
        click.echo(click.style(summary(result), dim=True), err=True)
    if result.finish == "cancelled":
        sys.exit(_INTERRUPTED)


def read_prompt(prompt: str | None, prompt_file: Path | None) -> str:
    """The prompt from the one source that was given. Raises ``InvalidRequest``, ``click.UsageError``."""
    if prompt is not None and prompt_file is not None:
        raise click.UsageError("give a prompt or --prompt-file, not both")
    if prompt is not None:
        return prompt
    if prompt_file is not None:
        try:
            return prompt_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"prompt file '{prompt_file}' cannot be read: {error}") from error
    if sys.stdin is None or sys.stdin.isatty():
        raise click.UsageError("no prompt: give one as an argument, with --prompt-file, or on standard input")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the prompt on standard input is not text: {error}") from error


def draft_length(value: str) -> int | str:
    """A number where it is one; the rest is the controller's to judge."""
    return int(value) if re.fullmatch(r"-?[0-9]{1,4}", value) else value


def stream(handle: Handle, *, quiet: bool) -> None:
    """Print text as it is committed. An interrupt cancels the request: what was committed stays, in the log too.
    A second one ends the program."""
    # Not KeyboardInterrupt: it would strike in the middle of a round and stop the whole runtime.
    before = signal.getsignal(signal.SIGINT)

    def cancel(number: int, frame: FrameType | None) -> None:
        handle.cancel()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, cancel)
    try:
        for piece in handle:
            if not quiet:
                click.echo(piece, nl=False)
                sys.stdout.flush()
    finally:
        signal.signal(signal.SIGINT, before)


def result_data(result: Result, log: Path | None) -> dict[str, Any]:
    """The JSON object of a run."""
    stats = result.stats
    names = (
        "prompt_tokens",
        "rounds",
        "plain_steps",
        "drafted",
        "accepted",
        "emitted",
        "prefill_s",
        "decode_s",
    )
    counted = attrs.asdict(stats)
    return {
        "ids": list(result.ids),
        "text": result.text,
        "finish": result.finish,
        "log": None if log is None else str(log),
        "stats": {
            **{name: counted[name] for name in names},
            "tok_s": stats.tok_s,
            "host_share": stats.host_share,
        },
    }


def summary(result: Result) -> str:
    """One line for people."""
    stats = result.stats
    return (
        f"[{result.finish}] {stats.emitted} tokens in {stats.rounds} rounds, {stats.accepted} of {stats.drafted} "
        f"drafts accepted, {stats.tok_s:.1f} tokens/s "
        f"(prompt {stats.prompt_tokens} tokens in {stats.prefill_s:.2f} s)"
    )
