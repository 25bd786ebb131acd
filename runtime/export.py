"""A log as other programs read it: a line of JSON an event, or a trace for Perfetto and chrome://tracing."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from txdecode.runtime.journal import Record, iterate
from txdecode.runtime.journal.format import MAGIC
from txdecode.runtime.replay import InvalidArgument, decoded
from txdecode.runtime.trace import Trace
from txdecode.state.errors import TxDecodeError
from txdecode.transactions.events import Event

Format = Literal["jsonl", "chrome-trace"]
FORMATS: tuple[Format, ...] = ("jsonl", "chrome-trace")
Write = Callable[[str], object]
Progress = Callable[[int, int], None]


class OutputUnavailable(TxDecodeError):
    """The file to write to cannot be written."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"cannot write '{path}': {reason}; choose another file")
        self.path = path


def export(log: str | os.PathLike[str], to: str, write: Write, progress: Progress | None = None) -> int:
    """Hand a log to ``write`` piece by piece in one of ``FORMATS``; the number of records. Memory is bounded.

    ``jsonl``: an object an event, with ``sequence``, ``event`` (its kind), and the event's fields by the names of
    specs/events.md; byte strings as hexadecimal digits, numbers that are not finite as null. A record of an unknown
    kind has ``event`` "unknown" and its ``type``. ``chrome-trace``: see ``runtime.trace``.

    Raises ``JournalError`` and ``EventUndecodable``, with what came before already written, and ``InvalidArgument``
    for another format.
    """
    if to not in FORMATS:
        raise InvalidArgument(f"there is no format '{to}'; export to one of {', '.join(FORMATS)}")
    path = Path(log)
    with iterate(path) as reader:
        trace = Trace(reader.header) if to == "chrome-trace" else None
        writer = _TraceText(write) if trace is not None else None
        records = 0
        for record in reader:
            records += 1
            event = decoded(record, path)
            if trace is None or writer is None:
                write(_json(_line(record, event)) + "\n")
            elif event is not None:
                writer.add(trace.take(record.sequence, event))
            if progress is not None and not records & 1023:
                progress(reader.position, reader.size)
        if writer is not None:
            writer.close({"log": str(path), **reader.header.fingerprint})
        return records


def _json(data: Any) -> str:
    return msgspec.json.encode(data).decode()


def _line(record: Record, event: Event | None) -> dict[str, Any]:
    if event is None:
        return {"sequence": record.sequence, "event": "unknown", "type": record.type}
    return {"sequence": record.sequence, "event": type(event).__name__, **event_data(event)}


class _TraceText:
    """The JSON object around a list of trace events, written as they come."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._before = '{"traceEvents":[\n'

    def add(self, events: Iterable[dict[str, Any]]) -> None:
        """Write some events."""
        for event in events:
            self._write(self._before + _json(event))
            self._before = ",\n"

    def close(self, facts: Mapping[str, str]) -> None:
        """Write what comes after the events."""
        self._write(self._before if self._before[0] == "{" else "")
        self._write('],"displayTimeUnit":"ms","otherData":' + _json(facts) + "}\n")


def export_file(
    log: str | os.PathLike[str], to: str, out: str | os.PathLike[str], progress: Progress | None = None
) -> int:
    """As ``export``, into the file ``out``, which is replaced once all is written and untouched where that fails.

    Raises ``InvalidArgument`` besides where ``out`` holds a log, ``OutputUnavailable`` where it cannot be written.
    """
    target = Path(out)
    # A log is what a run is proved by: not even one of another run is written over.
    try:
        with open(target, "rb") as file:
            if file.read(len(MAGIC)) == MAGIC:
                raise InvalidArgument(f"'{target}' is a log; choose another file to write to")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise OutputUnavailable(target, error.strerror or str(error)) from error
    partial = target.with_name(target.name + ".partial")
    try:
        with open(partial, "w", encoding="utf-8") as file_out:
            count = export(log, to, file_out.write, progress)
        os.replace(partial, target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OutputUnavailable(target, error.strerror or str(error)) from error
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return count


def event_data(event: Event) -> dict[str, Any]:
    """The fields of an event by name, as JSON takes them."""
    return {name: plain(getattr(event, name)) for name in event.__struct_fields__}


def plain(value: Any) -> Any:
    """Structs as maps, tuples as lists, bytes in hexadecimal, what is not finite as ``None``."""
    if isinstance(value, tuple | list):
        return list(value) if all(type(item) is int for item in value) else [plain(item) for item in value]
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
