"""``txdecode log``: look into a log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import click
import msgspec

from txdecode.runtime.cli.options import json_option
from txdecode.runtime.cli.render import print_json, print_pairs
from txdecode.runtime.errors import EventUndecodable
from txdecode.runtime.journal import Damage, Header, Record, TornTail, scan
from txdecode.transactions.codec import decode
from txdecode.transactions.events import EVENTS

_HIDDEN = ("digests", "times")


@click.group()
def log() -> None:
    """Look into an event log."""


@log.command()
@click.argument("path", metavar="LOG", type=click.Path(path_type=Path))
@click.option("--request", type=click.IntRange(min=0), metavar="ID", help="Only records of this request.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N records.")
@json_option
def inspect(path: Path, request: int | None, limit: int | None, as_json: bool) -> None:
    """List the header and every record of LOG, as far as they can be read.

    Damage is reported where it stands and does not end the listing. With --json there is one object a line.
    """
    shown = 0
    for item in scan(path):
        data = describe_item(item)
        if isinstance(item, Record):
            if request is not None and data.get("event", {}).get("request") != request:
                continue
            if limit is not None and shown >= limit:
                break
            shown += 1
        if as_json:
            print_json(data)
        else:
            _print_item(item, data)


def describe_item(item: Header | Record | Damage | TornTail) -> dict[str, Any]:
    """Plain data of one thing found in a log."""
    if isinstance(item, Header):
        return {
            "kind": "header",
            "version": item.version,
            "required": list(item.required),
            "optional": list(item.optional),
            "fingerprint": dict(item.fingerprint),
            "configuration": dict(item.configuration),
        }
    if not isinstance(item, Record):
        return {"kind": "damage" if isinstance(item, Damage) else "torn tail", **attrs.asdict(item)}
    data: dict[str, Any] = {
        "kind": "record",
        "sequence": item.sequence,
        "offset": item.offset,
        "type": item.type,
        "name": EVENTS[item.type].__name__ if item.type in EVENTS else "unknown",
    }
    try:
        event = decode(item.type, item.version, item.flags, item.payload)
    except EventUndecodable as error:
        return {**data, "undecodable": str(error)}
    if event is not None:
        fields = msgspec.structs.asdict(event)
        if "digests" in fields:
            fields["digests"] = fields["digests"].hex()
        data["event"] = fields
    return data


def _print_item(item: Header | Record | Damage | TornTail, data: dict[str, Any]) -> None:
    if isinstance(item, Header):
        click.echo(click.style(f"journal, format version {item.version}", bold=True))
        print_pairs({**item.fingerprint, **item.configuration})
    elif isinstance(item, Record):
        event = data.get("event", {})
        if "undecodable" in data:
            body = click.style(data["undecodable"], fg="red")
        else:
            body = " ".join(f"{name}={_short(value)}" for name, value in event.items() if name not in _HIDDEN)
        click.echo(f"{item.sequence:>7}  {data['name']:<18} {body}")
    else:
        what = ", ".join(f"{name} {value}" for name, value in data.items() if name != "kind")
        click.echo(click.style(f"{data['kind']}: {what}", fg="red"))


def _short(value: object) -> str:
    text = str(list(value)) if isinstance(value, tuple) else str(value)
    return text if len(text) <= 60 else f"{text[:56]}...]"
