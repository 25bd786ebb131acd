"""``txdecode log inspect``: what can be read of a log, damaged or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import click

from txdecode.runtime.cli.log_options import log_argument, number_option, word_option
from txdecode.runtime.cli.options import json_option
from txdecode.runtime.cli.render import print_json, print_pairs
from txdecode.runtime.errors import EventUndecodable, JournalError
from txdecode.runtime.export import event_data
from txdecode.runtime.journal import Damage, Header, Record, TornTail, scan
from txdecode.runtime.journal.format import UnfinishedRotation
from txdecode.runtime.policy.decision import read
from txdecode.runtime.replay import Divergence, Folder, NotInLog
from txdecode.runtime.watch import CellChange, Watch
from txdecode.state.digest import LEDGERS
from txdecode.transactions.codec import decode
from txdecode.transactions.events import EVENTS, Event

_HIDDEN = ("digests", "times")
_CHANGES_SHOWN = 12

Item = Header | Record | Damage | TornTail | UnfinishedRotation


@click.command(name="inspect")
@log_argument("path")
@number_option("--request", metavar="ID", help="Only records of this request.")
@number_option("--round", "ordinal", metavar="N", help="Only records of round N of a request.")
@word_option("--ledger", words=LEDGERS, help="With each record, the cells of this ledger that it changed.")
@number_option("--limit", least=1, metavar="N", help="At most N records.")
@json_option
def inspect_command(
    path: Path,
    request: int | None,
    ordinal: int | None,
    ledger: str | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """List the header and every record of LOG, as far as they can be read.

    Damage is reported where it stands and does not end the listing; folding for --ledger ends there. With --json
    there is one object a line.
    """
    follow = None if ledger is None else Follow(path, ledger)
    chosen = request is not None or ordinal is not None
    shown, held = 0, []
    for item in scan(path):
        if isinstance(item, Record) and limit is not None and shown >= limit:
            break
        entries = [describe_item(item), *(follow.take(item) if follow is not None else ())]
        if isinstance(item, Record):
            event = entries[0].get("event", {})
            if follow is not None and follow.changes is not None:
                entries[0]["changes"] = [attrs.asdict(change) for change in follow.changes]
            if (request is not None and event.get("request") != request) or (
                ordinal is not None and event.get("ordinal") != ordinal
            ):
                entries = entries[1:]
            else:
                shown += 1
        held += entries
        # Nothing is printed before it is known that the question has an answer.
        if shown or not chosen:
            _print_all(held, as_json)
            held = []
    if chosen and not shown:
        what = "" if request is None else f" of request {request}"
        raise NotInLog(f"'{path}' has no record{what}{'' if ordinal is None else f' in a round {ordinal}'}")
    _print_all(held, as_json)


class Follow:
    """Folds the records of a scan while that is possible. ``changes`` are the cells that the last one changed,
    ``None`` where it could not be folded."""

    def __init__(self, path: Path, ledger: str) -> None:
        self.changes: list[CellChange] | None = None
        self._path = path
        self._watch = Watch(ledger)
        self._folder: Folder | None = None
        self._stopped = False

    def take(self, item: Item) -> list[dict[str, Any]]:
        """Go on with an item; an entry that says why where the folding ends with it."""
        self.changes = None
        if self._stopped:
            return []
        try:
            if isinstance(item, Record):
                self._fold(item)
            elif isinstance(item, Header):
                self._folder = self._folder or Folder(item, self._path)
            elif isinstance(item, Damage):
                return self._stop(f"damage at byte {item.offset} of {item.segment}")
        except (EventUndecodable, Divergence, JournalError) as error:
            return self._stop(str(error))
        return []

    def _fold(self, record: Record) -> None:
        assert self._folder is not None
        ledgers = self._folder.ledgers
        event = decode(record.type, record.version, record.flags, record.payload)
        if event is None:
            self.changes = []
            return
        self._watch.before(ledgers, event)
        self._folder.take(record)
        self.changes = self._watch.changed(ledgers, event)

    def _stop(self, reason: str) -> list[dict[str, Any]]:
        self._stopped = True
        return [{"kind": "fold stopped", "reason": reason}]


def describe_item(item: Item) -> dict[str, Any]:
    """Plain data of one thing found in a log."""
    if isinstance(item, Header):
        return {
            "kind": "header",
            "version": item.version,
            "required": list(item.required),
            "optional": list(item.optional),
            "segment": item.place.segment,
            "first_sequence": item.place.first_sequence,
            "base": item.place.base,
            "fingerprint": dict(item.fingerprint),
            "configuration": dict(item.configuration),
        }
    if not isinstance(item, Record):
        kinds = {Damage: "damage", TornTail: "torn tail", UnfinishedRotation: "unfinished rotation"}
        return {"kind": kinds[type(item)], **attrs.asdict(item)}
    data: dict[str, Any] = {
        "kind": "record",
        "sequence": item.sequence,
        "offset": item.offset,
        "type": item.type,
        "name": EVENTS[item.type].__name__ if item.type in EVENTS else "unknown",
    }
    try:
        event: Event | None = decode(item.type, item.version, item.flags, item.payload)
    except EventUndecodable as error:
        return {**data, "undecodable": str(error)}
    return data if event is None else {**data, "event": event_data(event)}


def _print_all(entries: list[dict[str, Any]], as_json: bool) -> None:
    show: Callable[[dict[str, Any]], None] = print_json if as_json else _print_entry
    for entry in entries:
        show(entry)


def _print_entry(data: dict[str, Any]) -> None:
    kind = data["kind"]
    if kind == "header":
        place = f", segment {data['segment']}" if data["segment"] else ""
        click.echo(click.style(f"journal, format version {data['version']}{place}", bold=True))
        print_pairs({**data["fingerprint"], **data["configuration"]})
    elif kind == "record":
        if "undecodable" in data:
            body = click.style(data["undecodable"], fg="red")
        else:
            event = data.get("event", {})
            body = " ".join(
                f"{name}={_short(_decision(value) if name == 'decision' else value)}"
                for name, value in event.items()
                if name not in _HIDDEN
            )
        click.echo(f"{data['sequence']:>7}  {data['name']:<18} {body}")
        _print_changes(data.get("changes", ()))
    else:
        what = ", ".join(f"{name} {value}" for name, value in data.items() if name != "kind")
        click.echo(click.style(f"{kind}: {what}", fg="red"))


def _print_changes(changes: Any) -> None:
    for change in changes[:_CHANGES_SHOWN]:
        before, after = ("-" if value is None else value for value in (change["before"], change["after"]))
        click.echo(f"         {change['field']} {change['key'][0]}[{change['key'][1]}]: {before} -> {after}")
    if len(changes) > _CHANGES_SHOWN:
        click.echo(f"         and {len(changes) - _CHANGES_SHOWN} more cells (all with --json)")


def _decision(ids: Sequence[int]) -> str:
    """A draft-length decision for people."""
    said = read(tuple(ids))
    return ",".join(f"{name}:{value}" for name, value in said.items()) or "none"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:56]}...]"
