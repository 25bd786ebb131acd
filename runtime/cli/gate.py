"""``txdecode gate``: checks that a user can run against a model on the machine at hand."""

from __future__ import annotations

import sys
from pathlib import Path

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
from txdecode.runtime.cli.render import Progress, print_json, print_table
from txdecode.runtime.gates.baseline import BaselineReport
from txdecode.runtime.gates.lossless import LosslessReport, lossless_gate
from txdecode.runtime.gates.prompts import BUILT_IN, CODE_PROMPTS, read_prompts
from txdecode.runtime.opening import check_draft_model, open_model
from txdecode.runtime.sampling import Sampling

FAILED = 1


@click.group()
def gate() -> None:
    """Check promises on this machine; exit code 1 where one does not hold."""


@gate.command()
@model_option
@dtype_option
@click.option("--full", is_flag=True, help="More widths, contexts and batches; by hand.")
@rollback_option
@threads_option
@json_option
def rows(
    model: str, dtype: str, full: bool, rollback: str | None, threads: int | None, as_json: bool
) -> None:
    """Check that q rows in one forward equal q single rows, to the bit.

    Widths 1 to 16, across page borders, at long contexts, in prefill tiles, beside longer batch mates, and after
    recomputation. Where it fails, argmax agreement and the largest difference say by how much.
    """
    from txdecode.runtime.gates.rows import rows_report

    progress = Progress("gate rows")
    try:
        report = rows_report(model, dtype, full=full, threads=threads, rollback=rollback, progress=progress)
    finally:
        progress.close()
    if as_json:
        print_json({**attrs.asdict(report), "passed": report.passed})
    else:
        print_table(
            ("check", "rows", "differ", "largest difference", "argmax agrees"),
            [
                (check.name, check.rows, check.mismatches, check.max_abs_diff, check.argmax_agreement)
                for check in report.checks
            ],
        )
        for check in report.checks:
            if not check.rows:
                click.echo(f"  '{check.name}' was not checked: the executor has no room for it")
        for place in (place for check in report.checks for place in check.where):
            click.echo(f"  {place}")
    _verdict("rows", report.passed, quiet=as_json)


@gate.command()
@model_option
@dtype_option
@click.option("--prompts", type=click.Path(path_type=Path), metavar="FILE.jsonl", help="Prompts of your own.")
@click.option("--max-tokens", type=click.IntRange(min=2), default=None, help="Cap every prompt's budget.")
@click.option("--full", is_flag=True, help="Every prompt at every draft length; by hand.")
@sampling_options
@click.option(
    "--draft",
    default="lookup",
    show_default=True,
    metavar="WHO",
    help="Who drafts, as for 'txdecode run': lookup, suffix+shared, mtp, model+lookup and so on.",
)
@click.option("--draft-model", metavar="MODEL|first:N", help="As for 'txdecode run'.")
@rollback_option
@threads_option
@json_option
def lossless(
    model: str,
    dtype: str,
    prompts: Path | None,
    max_tokens: int | None,
    full: bool,
    sampling: Sampling,
    draft: str,
    draft_model: str | None,
    rollback: str | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Check that speculation changes nothing but speed.

    Tokens and logits with drafts of 1 to 15 and adaptive length, alone and in batches, against plain decoding of
    each prompt alone; that drafting engaged, of lookup and suffix on every prompt that repeats; and that lookup
    proposed nothing where there is nothing to propose. A failing case is run once more before it is reported.

    Decoding is greedy unless a temperature is given, and then the text for a seed must be the same; the seed is 0
    unless one is given. The checkpoint's own sampling defaults do not apply.
    """
    given = None if prompts is None else read_prompts(prompts)
    cap = max_tokens if max_tokens is not None else None if full else 48
    progress = Progress("gate lossless")
    try:
        check_draft_model(model, draft, draft_model)
        opened = open_model(model, dtype, draft, threads=threads, rollback=rollback, draft_model=draft_model)
        chats = opened.text is not None and opened.text.has_chat
        chosen = given or (BUILT_IN if chats else CODE_PROMPTS)
        report = lossless_gate(
            opened,
            chosen,
            dtype=dtype,
            full=full,
            draft=draft,
            max_tokens=cap,
            sampling=sampling,
            progress=progress,
        )
    finally:
        progress.close()
    if as_json:
        print_json({**attrs.asdict(report), "passed": report.passed})
    else:
        _print_lossless(report)
    _verdict("lossless", report.passed, quiet=as_json)


@gate.command()
@model_option
@dtype_option
@click.option("--prompts", type=click.Path(path_type=Path), metavar="FILE.jsonl", help="Prompts of your own.")
@click.option(
    "--max-tokens", type=click.IntRange(min=2), default=48, show_default=True, help="Cap every budget."
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most so many prompts.")
@click.option(
    "--repeats", type=click.IntRange(min=1), default=3, show_default=True, help="Runs of each engine."
)
@click.option(
    "--tie",
    type=click.FloatRange(min=0),
    metavar="MARGIN",
    help="Largest margin of the reference's logits that is a tie (default: 0.001 in fp32, 0.5 in bf16).",
)
@click.option(
    "--at-least", type=click.FloatRange(min=0), metavar="R", help="Fail where we are not R times as fast."
)
@click.option(
    "--python-llama",
    metavar="PATH",
    help="An interpreter that has llama-cpp-python: llama.cpp is compared too, on the same weights in bf16.",
)
@threads_option
@json_option
def baseline(
    model: str,
    dtype: str,
    prompts: Path | None,
    max_tokens: int,
    limit: int | None,
    repeats: int,
    tie: float | None,
    at_least: float | None,
    python_llama: str | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Check plain decoding against other engines on the same weights.

    transformers reads our greedy text in fp32 and must find every token likeliest, or as likely as the likeliest to
    within a tie; its own generate, and llama.cpp's where --python-llama is given, say how fast others are. The
    weights are the model's own, rounded as ours are. Needs transformers: pip install 'txdecode[test]'.
    """
    from txdecode.runtime.gates.baseline_run import run_baseline

    given = None if prompts is None else read_prompts(prompts)
    progress = Progress("gate baseline")
    try:
        opened = open_model(model, dtype, "none", threads=threads, batch_max=1)
        chats = opened.text is not None and opened.text.has_chat
        report = run_baseline(
            opened,
            (given or (BUILT_IN if chats else CODE_PROMPTS))[:limit],
            dtype=dtype,
            threads=threads,
            python_llama=python_llama,
            tie=tie,
            at_least=at_least,
            max_tokens=max_tokens,
            repeats=repeats,
            progress=progress,
        )
    finally:
        progress.close()
    if as_json:
        print_json({**attrs.asdict(report), "ratios": report.ratios, "passed": report.passed})
    else:
        _print_baseline(report)
    _verdict("baseline", report.passed, quiet=as_json)


def _print_baseline(report: BaselineReport) -> None:
    rows = []
    for case in report.cases:
        first = "-" if case.first is None else f"token {case.first.index}, margin {case.first.margin:.3g}"
        rows.append(
            (case.prompt, case.engine, case.tokens, case.differing, first, f"{case.worst:.3g}")
            + (
                "yes" if case.same else "NO",
                f"{case.tok_s:.1f}",
                f"{case.engine_tok_s:.1f}",
                f"{case.ratio:.2f}",
            )
        )
    print_table(
        ("prompt", "engine", "tokens", "differing", "first", "worst margin", "same")
        + ("our tok/s", "their tok/s", "ratio"),
        rows,
    )
    for name, ratio in report.ratios.items():
        word = f", below {report.at_least:g}" if name in report.slow else ""
        click.echo(f"median over prompts against {name}: {ratio:.2f} times as fast{word}")
    for line in report.absent:
        click.echo(f"left out: {line}")


def _print_lossless(report: LosslessReport) -> None:
    print_table(
        ("prompt", "drafts", "batch", "tokens", "tokens equal", "logit rows", "differ", "drafted", "accepted")
        + ("nothing to propose", "wrongly proposed"),
        [
            (case.prompt, case.draft_len, case.batch, case.tokens)
            + ("yes" if case.first_difference is None else f"no, from {case.first_difference}",)
            + (case.logit_rows, case.logit_differences, case.drafted, case.accepted)
            + (case.empty_rounds, case.misproposed)
            for case in report.cases
        ],
    )
    for name in report.not_engaged:
        click.echo(f"prompt '{name}' repeats, but no draft was accepted")


def _verdict(name: str, passed: bool, *, quiet: bool) -> None:
    if not quiet:
        word = click.style("holds", fg="green") if passed else click.style("FAILS", fg="red", bold=True)
        click.echo(f"gate {name} {word}")
    if not passed:
        sys.exit(FAILED)
