"""``txdecode log diff``: where two runs part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import click

from txdecode.runtime.cli.log_options import log_argument
from txdecode.runtime.cli.options import json_option
from txdecode.runtime.cli.render import print_json, print_table
from txdecode.runtime.diff import DiffReport, EventDifference, RequestComparison, diff

DIFFERENT = 1
_VALUE_MAX = 200


@click.command(name="diff")
@log_argument("a", "A")
@log_argument("b", "B")
@json_option
@click.pass_context
def diff_command(ctx: click.Context, a: Path, b: Path, as_json: bool) -> None:
    """Compare two logs: the first event where the runs part and in which field, then the text of each request.

    Times, launch numbers and digests are not compared; requests are matched by number. The exit code is 0 where
    events and texts are equal, 1 where they differ, 2 where a log cannot be read.
    """
    report = diff(a, b)
    if as_json:
        print_json(diff_data(report))
    else:
        _print_report(report)
    if not report.equal:
        ctx.exit(DIFFERENT)


def diff_data(report: DiffReport) -> dict[str, Any]:
    """The JSON object of a comparison."""
    data = attrs.asdict(report)
    for one, found in zip(data["requests"], report.requests, strict=True):
        one["equal"] = found.equal
        for side in ("a", "b"):
            if one[side] is not None:
                del one[side]["ids"]
    return {**data, "text_equal": report.text_equal, "equal": report.equal}


def _print_report(report: DiffReport) -> None:
    for difference in report.header:
        click.echo(f"header {difference.field}: {_short(difference.a)} | {_short(difference.b)}")
    click.echo(_said_of_event(report.events, report.event))
    if not report.requests:
        click.echo("no requests")
        return
    print_table(
        ("request", "text", "emitted", "finish", "rounds", "drafted", "accepted", "rounds part at"),
        [_row(one) for one in report.requests],
    )
    if report.text_equal:
        parted = [one.rounds for one in report.requests if one.rounds is not None]
        first = min((r.sequence_a for r in parted if r.sequence_a is not None), default=None)
        tail = "" if first is None else f"; rounds and drafts differ from record {first} of A on"
        click.echo(click.style(f"text equal{tail}", fg="green"))
    else:
        click.echo(click.style("text differs", fg="red"))


def _said_of_event(equal: int, found: EventDifference | None) -> str:
    if found is None:
        return f"{equal} events are equal"
    sides = [
        "nothing" if sequence is None else f"record {sequence} ({name})"
        for sequence, name in ((found.sequence_a, found.event_a), (found.sequence_b, found.event_b))
    ]
    who = "" if found.request is None else f" of request {found.request}"
    return (
        f"{equal} events are equal, then {sides[0]} in A and {sides[1]} in B{who} differ in {found.field}: "
        f"{_short(found.a)} | {_short(found.b)}"
    )


def _row(one: RequestComparison) -> tuple[object, ...]:
    text = one.text if one.token is None else f"{one.text} from token {one.token}"
    if one.text == "equal" and not one.equal:
        text = "equal, ends differ"
    part = "-"
    if one.rounds is not None:
        places = one.rounds.sequence_a, one.rounds.sequence_b
        part = (
            f"round {one.rounds.ordinal}, record {' | '.join('-' if p is None else str(p) for p in places)}"
        )
    both = [
        " | ".join("-" if side is None else str(getattr(side, name) or "-") for side in (one.a, one.b))
        for name in ("emitted", "finish", "rounds", "drafted", "accepted")
    ]
    return (one.request, text, *both, part)


def _short(value: object) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= _VALUE_MAX else f"{text[: _VALUE_MAX - 4]} ..."
