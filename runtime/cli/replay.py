"""``txdecode replay``: fold a log and check every digest in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import click

from txdecode.runtime.cli.options import json_option
from txdecode.runtime.cli.render import Progress, print_json, print_pairs, print_table
from txdecode.runtime.replay import ReplayReport, replay


@click.command(name="replay")
@click.argument("log", type=click.Path(path_type=Path))
@click.option("--until", type=click.IntRange(min=0), metavar="SEQ", help="Stop after this record.")
@json_option
def replay_command(log: Path, until: int | None, as_json: bool) -> None:
    """Rebuild every ledger from LOG alone and check each digest that the run recorded.

    No model is loaded. The first record that contradicts the ledgers is named with ledger and field, and the
    exit code is 2.
    """
    progress = Progress("replay")
    try:
        report = replay(log, until=until, progress=progress)
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
    click.echo(f"{report.records} records: {kinds}")
    if report.torn_tail is not None:
        click.echo(f"torn tail: {report.torn_tail.size} bytes at {report.torn_tail.offset}, left out")
    print_table(
        ("request", "prompt", "emitted", "finish", "rounds", "plain", "drafted", "accepted", "rolled back"),
        [
            (h.request, h.prompt_tokens, len(h.ids), h.finish or "unfinished", h.rounds, h.plain_steps)
            + (h.drafted, h.accepted, h.rollbacks)
            for h in report.requests.values()
        ],
    )
    click.echo(click.style(f"{report.checked} records reached the digests that they recorded", fg="green"))
    unfinished = sum(history.finish is None for history in report.requests.values())
    click.echo(f"ledgers at the end ({unfinished} unfinished requests):")
    print_pairs({**report.digests, "log chain": report.chain})
