"""``txdecode log``: look into a log."""

from __future__ import annotations

import click

from txdecode.runtime.cli.execution import bisect_command
from txdecode.runtime.cli.log_check import check_command
from txdecode.runtime.cli.log_diff import diff_command
from txdecode.runtime.cli.log_export import export_command
from txdecode.runtime.cli.log_inspect import inspect_command


@click.group()
def log() -> None:
    """Look into event logs: list, check, compare, search and export them."""


for command in (inspect_command, check_command, diff_command, bisect_command, export_command):
    log.add_command(command)
