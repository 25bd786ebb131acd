"""Events to payload bytes and back: MessagePack arrays, one schema a number and version."""

from __future__ import annotations

import msgspec

from txdecode.state.errors import TxDecodeError
from txdecode.transactions.events import EVENTS, RESERVED, Event

IGNORABLE = 1
"""Bit of the record flags: a reader that does not know the type may skip the record."""

Framed = tuple[int, int, int, bytes]
"""Record type, schema version, flags, payload."""

_ENCODER = msgspec.msgpack.Encoder()
_DECODERS = {number: msgspec.msgpack.Decoder(event) for number, event in EVENTS.items()}


def printable(text: str, most: int) -> str:
    """At most ``most`` characters of a text from outside, such as an error's, that the log can hold: what has no
    UTF-8 form (half of a surrogate pair in a file name) becomes a question mark."""
    return text[:most].encode("utf-8", "replace").decode()


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
        return _DECODERS[number].decode(payload)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise EventUndecodable(f"{event.__name__}: the payload does not fit its schema: {error}") from error
