"""Events to payload bytes and back: MessagePack arrays, one schema a number and version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from txdecode.state.errors import TxDecodeError
from txdecode.transactions.events import EVENTS, RESERVED, Event

IGNORABLE = 1
"""Bit of the record flags: a reader that does not know the type may skip the record."""

Framed = tuple[int, int, int, bytes]
"""Record type, schema version, flags, payload."""

Upcaster = Callable[[list[Any]], list[Any]]
"""Turns the fields of one version into those of the next."""


def _submitted_2(fields: list[Any]) -> list[Any]:
    """Version 1 knew greedy requests alone, and said of their sampling only the temperature."""
    parameters = dict(fields[5])
    parameters["sampling"] = {
        "temperature": 0.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logit_bias": [],
        "min_tokens": 0,
        "logprobs": None,
    }
    return [*fields[:5], parameters, *fields[6:]]


UPCASTERS: dict[tuple[int, int], Upcaster] = {(1, 1): _submitted_2}
"""By event number and the version that they start from. A version that only added fields needs none: what is
missing has its default."""

_ENCODER = msgspec.msgpack.Encoder()
_DECODERS = {number: msgspec.msgpack.Decoder(event) for number, event in EVENTS.items()}


def printable(text: str, most: int) -> str:
    """At most ``most`` characters of a text from outside, such as an error's, that the log can hold: what has no
    UTF-8 form (half of a surrogate pair in a file name) becomes a question mark."""
    return text[:most].encode("utf-8", "replace").decode()


def _steps(number: int, version: int, current: int) -> list[Upcaster]:
    steps = (UPCASTERS.get((number, older)) for older in range(version, current))
    return [step for step in steps if step is not None]


class EventUndecodable(TxDecodeError):
    """A record's payload is not an event that this version can read."""


def encode(event: Event) -> Framed:
    """The record of an event."""
    return event.NUMBER, event.VERSION, IGNORABLE if event.IGNORABLE else 0, _ENCODER.encode(event)


def decode(number: int, version: int, flags: int, payload: bytes) -> Event | None:
    """The event of a record; ``None`` for an unknown type that may be ignored.

    Raises ``EventUndecodable`` for an unknown type, a later schema version, or a payload that does not fit
    its schema.
    """
    event = EVENTS.get(number)
    if event is None:
        if flags & IGNORABLE:
            return None
        name = RESERVED.get(number, "unknown")
        raise EventUndecodable(
            f"event number {number} ({name}): expected one of {sorted(EVENTS)}; "
            f"read the log with a later version"
        )
    if version > event.VERSION:
        raise EventUndecodable(
            f"{event.__name__} has schema version {version}, at most {event.VERSION} is known; "
            f"read the log with a later version"
        )
    try:
        if version < event.VERSION and (steps := _steps(number, version, event.VERSION)):
            fields = msgspec.msgpack.decode(payload)
            for step in steps:
                fields = step(fields)
            return msgspec.convert(fields, event)
        return _DECODERS[number].decode(payload)
    except (msgspec.DecodeError, msgspec.ValidationError, IndexError, TypeError, ValueError) as error:
        raise EventUndecodable(f"{event.__name__}: the payload does not fit its schema: {error}") from error
