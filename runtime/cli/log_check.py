"""``txdecode log check``: is a log whole, and does it fold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import click

from txdecode.runtime.cli.log_options import log_argument
from txdecode.runtime.cli.options import json_option
from txdecode.runtime.cli.render import Progress, print_json
from txdecode.runtime.journal.scan import CheckReport, check
from txdecode.runtime.replay import ReplayReport, replay

UNSOUND = 1


@click.command(name="check")
@log_argument("path")
@click.option(
    "--fix-tail",
    is_flag=True,
    help="Cut off a torn tail, or delete a segment that a crash cut short; nothing else.",
)
@json_option
@click.pass_context
def check_command(ctx: click.Context, path: Path, fix_tail: bool, as_json: bool) -> None:
    """Check every byte of LOG: checksums, the chain over all segments, and every digest, by folding it.

    The exit code is 0 for a whole log, 1 where a crash cut its end short, 2 where it is damaged or contradicts
    itself. A log that does not fold is never changed.
    """
    progress = Progress("check")
    try:
        folded = replay(path, ids=False, keep=0, progress=progress)
    finally:
        progress.close()
    report = check(path, fix_tail=fix_tail)
    if as_json:
        print_json(check_data(path, report, folded))
    else:
        _print_report(report, folded)
    if not report.sound:
        ctx.exit(UNSOUND)


def check_data(path: Path, report: CheckReport, folded: ReplayReport) -> dict[str, Any]:
    """The JSON object of a check."""
    return {
        "path": str(path),
        "sound": report.sound,
        "fixed": report.fixed,
        "records": report.records,
        "checked": folded.checked,
        "segments": [attrs.asdict(segment) for segment in report.segments],
        "chain": report.chain.hex(),
        "digests": folded.digests,
        "torn_tail": None if report.tail is None else attrs.asdict(report.tail),
        "unfinished_rotation": None if report.unfinished is None else attrs.asdict(report.unfinished),
        "unfinished_requests": folded.totals.requests - sum(folded.totals.finished.values()),
    }


def _print_report(report: CheckReport, folded: ReplayReport) -> None:
    for segment in report.segments:
        click.echo(
            f"{segment.segment}: {segment.records} records from {segment.first_sequence} on, {segment.size} bytes"
        )
    what = None
    if report.tail is not None:
        what = f"torn tail: {report.tail.size} bytes at {report.tail.offset} of {report.tail.segment}"
    elif report.unfinished is not None:
        what = f"unfinished rotation: {report.unfinished.size} bytes in {report.unfinished.segment}"
    if what is not None:
        click.echo(f"{what}, {'removed' if report.fixed else 'remove it with --fix-tail'}")
    verdict = f"{report.records} records are whole, {folded.checked} reached the digests that they recorded"
    click.echo(click.style(verdict, fg="green" if report.sound else "yellow"))
