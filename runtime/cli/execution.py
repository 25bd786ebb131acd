"""``replay --execute`` and ``log bisect``: a log run again by kernels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from txdecode.runtime.cli.log_options import log_argument
from txdecode.runtime.cli.options import json_option, threads_option
from txdecode.runtime.cli.render import Progress, print_json
from txdecode.runtime.execution import Bisection, ExecutionReport, Finding, bisect, execute

FOUND = 1

model_of_log_option = click.option(
    "--model",
    metavar="bundled|smollm2|FOLDER|FILE.gguf",
    help="The model to run; by default the one that the log names.",
)


def run_execute(
    log: Path,
    model: str | None,
    until: int | None,
    request: int | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Run a log again and print the report."""
    progress = Progress("execute")
    try:
        report = execute(log, model, until=until, request=request, threads=threads, progress=progress)
    finally:
        progress.close()
    if as_json:
        print_json(report.to_data())
    else:
        print_execution(report)


def print_execution(report: ExecutionReport) -> None:
    """The report for people."""
    counts = report.counts
    click.echo(
        f"{report.records} records: {counts.rounds} rounds and {counts.prefills} prefills run again, "
        f"{counts.tokens} tokens and {counts.logprobs} logprobs compared, {counts.audits} audits with "
        f"{counts.entries} entries"
    )
    _print_class(report.numerics, report.differs)
    if counts.audits_skipped:
        click.echo(f"{counts.audits_skipped} audits say nothing here and were left out")
    click.echo(click.style("everything that was compared is as recorded", fg="green"))


def _print_class(numerics: str | None, differs: Mapping[str, tuple[str | None, str | None]]) -> None:
    if differs:
        fields = ", ".join(
            f"{field} ({recorded} then, {found} now)" for field, (recorded, found) in differs.items()
        )
        words = f"run in tolerance class '{numerics}', so ids alone were compared: {fields} differs"
        click.echo(click.style(words, fg="yellow"))


@click.command(name="bisect")
@log_argument("log")
@click.option(
    "--execute",
    "run",
    is_flag=True,
    help="Run rounds again where folding finds nothing; without it the log is folded alone.",
)
@model_of_log_option
@threads_option
@json_option
@click.pass_context
def bisect_command(
    ctx: click.Context, log: Path, run: bool, model: str | None, threads: int | None, as_json: bool
) -> None:
    """Find the first round of LOG that went wrong, and in which ledger.

    The log is folded; a ledger that contradicts itself is named by that. With --execute the audits of device state
    are searched by halves for the first that the tokens contradict, and rounds are run again; a round that decided
    otherwise is explained. Audits come from txdecode run --audit-every N, or Runtime.open(audit_every=N). The exit
    code is 1 where something was found.
    """
    progress = Progress("bisect")
    try:
        report = bisect(log, model, execute=run, threads=threads, progress=progress)
    finally:
        progress.close()
    if as_json:
        print_json(report.to_data())
    else:
        print_bisection(report)
    if report.found is not None:
        ctx.exit(FOUND)


def print_bisection(report: Bisection) -> None:
    """The report for people."""
    click.echo(
        f"{report.audits} audits in the log, {report.rebuilt} states built again from tokens, "
        f"{report.rounds} rounds run again, {report.tried} explanations tried"
    )
    _print_class(report.numerics, report.differs)
    if report.found is None:
        click.echo(click.style("nothing differs", fg="green"))
    else:
        _print_finding(report.found)


def _print_finding(found: Finding) -> None:
    place = f"ledger '{found.ledger}', {found.field}"
    click.echo(
        click.style(
            f"record {found.sequence}, request {found.request}, epoch {found.epoch}, round {found.ordinal}: {place}",
            fg="red",
        )
    )
    click.echo(f"  found by   {found.by}")
    click.echo(f"  expected   {found.expected}")
    click.echo(f"  found      {found.found}")
    if found.layer is not None:
        row = "" if found.row is None or found.row < 0 else f", row {found.row}"
        click.echo(f"  where      layer {found.layer}, index {found.index}{row}")
    if found.window is not None:
        first, last = found.window
        click.echo(f"  between    rounds {first} and {last}: audit each round to know more")
    if found.ids is not None:
        click.echo(f"  ids        differ from round {found.ids} on")
    if len(found.groups) > 1:
        click.echo(f"  also wrong {', '.join(group for group in found.groups if group != found.ledger)}")
    for other in found.others:
        click.echo(f"  or         {other}")
    click.echo(f"  see it     {found.command}")
