"""``txdecode run``: decode one prompt."""

from __future__ import annotations

import math
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import attrs
import click

from txdecode.runtime.cli.options import (
    dtype_option,
    json_option,
    model_option,
    rollback_option,
    sampling_options,
    threads_option,
)
from txdecode.runtime.cli.render import print_json, print_table
from txdecode.runtime.errors import InvalidRequest, TxDecodeError
from txdecode.runtime.handle import Handle, Result
from txdecode.runtime.runtime import Runtime
from txdecode.runtime.sampling import Sampling
from txdecode.transactions.target import TokenLogprobs

_INTERRUPTED = 130


@click.command()
@click.argument("prompt", required=False)
@click.option("--prompt-file", type=click.Path(path_type=Path), help="Read the prompt from a file.")
@click.option("--chat", is_flag=True, help="Send the prompt as a chat message through the model's template.")
@model_option
@dtype_option
@click.option(
    "--draft",
    default="lookup",
    show_default=True,
    metavar="WHO",
    help="Who drafts: none; copies of what followed the last words earlier in the text (lookup, or suffix with "
    "matches of any length; lookup:2, suffix:4 and so on where so many tokens must agree), in other requests "
    "(shared), or both (lookup+shared, suffix+shared); mtp, the model's own MTP layer; model, that of "
    "--draft-model; or one of these two with copies (mtp+lookup, model+suffix).",
)
@click.option(
    "--draft-model",
    metavar="MODEL|first:N",
    help="The model that drafts, with --draft model: a name, folder or file as for --model, of the same "
    "vocabulary, or the first N layers of the model itself.",
)
@click.option(
    "--draft-depth",
    type=click.IntRange(min=1),
    metavar="N",
    help="Most drafts a round of the MTP layer or draft model; copies may follow them. Default: 3 with copies, else "
    "all of --draft-len.",
)
@click.option(
    "--draft-len",
    default="goodput",
    show_default=True,
    metavar="N|goodput|additive",
    help="Draft tokens a round: a number from 0 to 15, as many as are expected to pay (goodput), or more after "
    "drafts that were right and fewer after others (additive); goodput:CAP and additive:CAP have at most CAP.",
)
@click.option(
    "--spec-fallback",
    type=float,
    default=1.0,
    show_default=True,
    metavar="X",
    help="With goodput, a round has no drafts unless they are expected to make it X times as fast.",
)
@click.option("--max-tokens", type=int, default=256, show_default=True, help="Most tokens to generate.")
@click.option(
    "--stop", multiple=True, metavar="TEXT", help="End before this text; may be given several times."
)
@sampling_options
@click.option(
    "--log", type=click.Path(path_type=Path), metavar="FILE", help="Write the event log to this file."
)
@click.option("--overwrite", is_flag=True, help="Replace an existing log.")
@click.option(
    "--audit-every",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Record digests of the device state after every N rounds, for 'log bisect'.",
)
@rollback_option
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
    draft_model: str | None,
    draft_depth: int | None,
    draft_len: str,
    spec_fallback: float,
    max_tokens: int,
    stop: tuple[str, ...],
    sampling: Sampling,
    log: Path | None,
    overwrite: bool,
    audit_every: int,
    rollback: str | None,
    context: int | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Decode PROMPT (or --prompt-file, or standard input) and stream the text.

    \b
    Examples:
      txdecode run "def add(a, b):" --max-tokens 40
      echo "Name three rivers." | txdecode run --chat --log run.txlog
      txdecode run "Once upon a time" --temperature 0.8 --top-p 0.95 --seed 7
      txdecode run --model ./my-model --draft none --json "Once"

    Where --temperature, --top-k, --top-p, --min-p or --repetition-penalty is not given, the model's own default
    applies (its generation_config.json); where it has none, decoding is greedy and nothing is filtered.

    The JSON object has ids, text, finish (stop, length or cancelled), seed and law (null when greedy), logprobs
    (null, or for each token its id, text, raw and target log-probability, and the alternatives to both), log (path
    or null) and stats: counts (rounds includes plain_steps, the rounds in which nothing was drafted; by_source has
    the drafts offered and accepted by drafter, decisions the rounds by goodput's reason) and times in seconds.
    """
    text = read_prompt(prompt, prompt_file)
    with Runtime.open(
        model,
        dtype=dtype,
        draft=draft,
        draft_model=draft_model,
        draft_depth=draft_depth,
        draft_len=draft_length(draft_len),
        spec_fallback=spec_fallback,
        log=log,
        overwrite=overwrite,
        audit_every=audit_every,
        rollback=rollback,
        context=context,
        threads=threads,
        batch_max=1,
    ) as runtime:
        try:
            handle = runtime.submit(
                [{"role": "user", "content": text}] if chat else text,
                max_tokens=max_tokens,
                sampling=sampling,
                stop=stop,
            )
        except TxDecodeError:
            # An empty log would stand in the way of the corrected command.
            runtime.close()
            if log is not None:
                log.unlink(missing_ok=True)
            raise
        stream(handle, quiet=as_json)
        result = handle.result()
        assert runtime.text is not None
        token_text = runtime.text.token_text
    if as_json:
        print_json(result_data(result, log, token_text))
    else:
        click.echo()
        if result.logprobs is not None:
            print_logprobs(result.logprobs, token_text)
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


def result_data(result: Result, log: Path | None, token_text: Callable[[int], str]) -> dict[str, Any]:
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
    sampled = result.sampling.law is not None
    logprobs = result.logprobs
    return {
        "ids": list(result.ids),
        "text": result.text,
        "finish": result.finish,
        "seed": result.sampling.seed if sampled else None,
        "law": result.sampling.law,
        "logprobs": None if logprobs is None else [logprobs_data(item, token_text) for item in logprobs],
        "log": None if log is None else str(log),
        "stats": {
            **{name: counted[name] for name in names},
            "by_source": {name: list(counts) for name, counts in stats.by_source.items()},
            "decisions": dict(stats.decisions),
            "tok_s": stats.tok_s,
            "host_share": stats.host_share,
        },
    }


def logprobs_data(item: TokenLogprobs, token_text: Callable[[int], str]) -> dict[str, Any]:
    """The JSON object of one token. A probability of 0 has the logarithm null: JSON knows no infinity."""
    return {
        "token": item.token,
        "text": token_text(item.token),
        "raw": _finite(item.raw),
        "target": _finite(item.target),
        "raw_top": [[token, _finite(value)] for token, value in item.raw_top],
        "target_top": [[token, _finite(value)] for token, value in item.target_top],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def print_logprobs(logprobs: Sequence[TokenLogprobs], token_text: Callable[[int], str]) -> None:
    """A table on standard error: the tokens, their log-probabilities, and the alternatives."""

    def top(pairs: Sequence[tuple[int, float]]) -> str:
        return ", ".join(f"{token_text(token)!r} {value:.2f}" for token, value in pairs)

    rows = []
    for item in logprobs:
        row = [repr(token_text(item.token)), f"{item.raw:8.4f}", f"{item.target:8.4f}"]
        rows.append([*row, top(item.raw_top), top(item.target_top)])
    header = ["token", "raw", "target", "raw alternatives", "target alternatives"]
    if not any(item.raw_top or item.target_top for item in logprobs):
        header, rows = header[:3], [row[:3] for row in rows]
    print_table(header, rows, err=True)


def summary(result: Result) -> str:
    """One line for people."""
    stats = result.stats
    seed = "" if result.sampling.law is None else f", seed {result.sampling.seed}"
    return (
        f"[{result.finish}] {stats.emitted} tokens in {stats.rounds} rounds, {stats.accepted} of {stats.drafted} "
        f"drafts accepted, {stats.tok_s:.1f} tokens/s "
        f"(prompt {stats.prompt_tokens} tokens in {stats.prefill_s:.2f} s){seed}"
    )
