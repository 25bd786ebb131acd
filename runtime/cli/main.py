"""The root command, and how errors leave it."""

from __future__ import annotations

import logging
import sys
from typing import Any

import click

from txdecode.runtime.cli.bench import bench
from txdecode.runtime.cli.demo import demo
from txdecode.runtime.cli.describe import describe
from txdecode.runtime.cli.gate import gate
from txdecode.runtime.cli.log import log
from txdecode.runtime.cli.replay import replay_command
from txdecode.runtime.cli.run import run
from txdecode.runtime.cli.sweep import sweep_command
from txdecode.runtime.configuration import code_version
from txdecode.state.errors import TxDecodeError

BAD_INPUT = 2


class Root(click.Group):
    """Turns operating errors into one clear line and exit code 2."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except TxDecodeError as error:
            click.echo(click.style("error: ", fg="red", bold=True) + str(error), err=True)
            ctx.exit(BAD_INPUT)
        except BrokenPipeError:
            # The reader of a pipe went away; Python would complain again when it flushes.
            sys.stdout = None
            ctx.exit(0)


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(code_version(), prog_name="txdecode")
@click.option("-v", "--verbose", is_flag=True, help="Show the runtime's own log lines on standard error.")
def main(verbose: bool) -> None:
    """Decode with language models in speculative rounds that are transactions.

    Speculation changes speed, never the text; with --log every commit of a run is in a file that can be
    replayed and inspected.

    \b
    Start here:
      txdecode run "def add(a, b):" --max-tokens 40
      txdecode run --chat "Name three rivers." --log run.txlog
      txdecode replay run.txlog
    """
    if verbose:
        logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)


for command in (run, describe, replay_command, log, gate, demo, bench, sweep_command):
    main.add_command(command)
