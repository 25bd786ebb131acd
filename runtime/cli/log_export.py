"""``txdecode log export``: a log for other programs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from txdecode.runtime.cli.log_options import log_argument, word_option
from txdecode.runtime.cli.options import json_option
from txdecode.runtime.cli.render import Progress, print_json
from txdecode.runtime.export import FORMATS, export, export_file


@click.command(name="export")
@log_argument("path")
@word_option("--to", "to", words=FORMATS, required=True, help="What to write.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where to; default: standard output.",
)
@json_option
def export_command(path: Path, to: str, output: Path | None, as_json: bool) -> None:
    """Write LOG as a line of JSON an event, or as a trace of rounds and phases by request.

    Open a chrome-trace in Perfetto (ui.perfetto.dev) or chrome://tracing. FILE is replaced once all is written.
    With --json what was done is said as one JSON object, on standard error where the export goes to standard output.
    """
    progress = Progress("export")
    try:
        if output is None:
            count = export(path, to, lambda text: click.echo(text, nl=False), progress)
        else:
            count = export_file(path, to, output, progress)
    finally:
        progress.close()
    if as_json:
        done = {
            "log": str(path),
            "to": to,
            "output": None if output is None else str(output),
            "records": count,
        }
        if output is None:
            click.echo(json.dumps(done), err=True)
        else:
            print_json(done)
    elif output is not None:
        click.echo(f"{count} records in {output}", err=True)
