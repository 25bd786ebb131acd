"""``txdecode replay``: fold a log and check every digest in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import click

from txdecode.runtime.cli.execution import model_of_log_option, run_execute
from txdecode.runtime.cli.log_options import log_argument, number_option
from txdecode.runtime.cli.options import json_option, threads_option
from txdecode.runtime.cli.render import Progress, print_json, print_pairs, print_table
from txdecode.runtime.replay import ReplayReport, RequestHistory, replay

FINISHED_SHOWN = 1000
"""Finished requests in the table at most, the latest: what is kept does not grow with the log."""


@click.command(name="replay")
@log_argument("log")
@number_option("--until", metavar="SEQ", help="Stop after this record.")
@number_option("--request", metavar="ID", help="Show this request alone; all are folded.")
@click.option(
    "--execute",
    "run",
    is_flag=True,
    help="Run kernels again with the recorded drafts and widths, and compare ids, logprobs and audits.",
)
@model_of_log_option
@threads_option
@json_option
def replay_command(
    log: Path,
    until: int | None,
    request: int | None,
    run: bool,
    model: str | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Rebuild every ledger from LOG alone and check each digest that the run recorded.

    No model is loaded, unless --execute asks for it. The first record that contradicts the ledgers is named with
    ledger and field, and the exit code is 2. With --json every request is there with all its ids.
    """
    if run:
        run_execute(log, model, until, request, threads, as_json)
        return
    progress = Progress("replay")
    try:
        report = replay(
            log,
            until=until,
            request=request,
            ids=as_json,
            keep=None if as_json else FINISHED_SHOWN,
            progress=progress,
        )
    finally:
        progress.close()
    if as_json:
        print_json(report_data(report))
        return
    print_report(report)


def report_data(report: ReplayReport) -> dict[str, Any]:
    """The JSON object of a replay."""
    data = attrs.asdict(report)
    data["requests"] = list(data["requests"].values())
    return data


def print_report(report: ReplayReport) -> None:
    """The replay for people."""
    kinds = ", ".join(f"{count} {name}" for name, count in sorted(report.events.items()))
    begin = f" from {report.first_sequence} on" if report.first_sequence else ""
    click.echo(f"{report.records} records{begin}: {kinds}")
    if report.torn_tail is not None:
        tail = report.torn_tail
        click.echo(f"torn tail: {tail.size} bytes at {tail.offset} of {tail.segment}, left out")
    if report.unfinished_rotation is not None:
        click.echo(f"unfinished rotation: {report.unfinished_rotation}, left out")
    _print_requests(report)
    click.echo(click.style(f"{report.checked} records reached the digests that they recorded", fg="green"))
    totals = report.totals
    unfinished = totals.requests - sum(totals.finished.values())
    click.echo(f"ledgers at the end ({unfinished} unfinished requests):")
    print_pairs({**report.digests, "log chain": report.chain})


def _print_requests(report: ReplayReport) -> None:
    totals, shown = report.totals, report.requests.values()
    hidden = totals.requests - len(shown)
    if hidden:
        click.echo(f"{hidden} requests that finished earlier are left out; see one with --request")
    print_table(
        ("request", "law", "seed", "prompt", "emitted", "finish", "rounds", "plain", "drafted", "accepted")
        + ("rolled back", "preempted", "audits"),
        [_row(history) for history in shown],
    )
    if totals.requests > 1:
        click.echo(
            f"{totals.requests} requests: {totals.emitted} emitted in {totals.rounds} rounds "
            f"({totals.plain_steps} plain), {totals.accepted} of {totals.drafted} drafts accepted"
        )
    begun = [h for h in shown if h.first_round]
    if begun:
        click.echo(f"requests {', '.join(str(h.request) for h in begun)} began in segments that were dropped")


def _row(history: RequestHistory) -> tuple[object, ...]:
    return (
        history.request,
        history.law,
        history.seed,
        history.prompt_tokens,
        history.emitted,
        history.finish or "unfinished",
        history.rounds,
        history.plain_steps,
        history.drafted,
        history.accepted,
        history.rollbacks,
        history.preemptions,
        history.audits,
    )
