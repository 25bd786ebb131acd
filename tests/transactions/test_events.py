"""Events as bytes: numbers and fields that never change, round trips, and what is refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from txdecode.transactions.codec import IGNORABLE, EventUndecodable, decode, encode
from txdecode.transactions.events import EVENTS, RESERVED, Event, RoundRolledBack, RuntimeNote
from txdecode.transactions.phase import Phase, Signal
from txdecode.transactions.target import TokenLogprobs

# Logs are read for years. A number is never given to another event, a version only rises, and a field is
# only ever added at the end (with a default), together with a new version: extend this table, never edit it.
FROZEN = {
    1: (
        "RequestSubmitted",
        2,
        False,
        "request prompt budget stop_ids roles parameters time digests law seed",
    ),
    2: ("RequestAdmitted", 1, False, "request epoch columns slots digests"),
    3: (
        "PrefillCommitted",
        1,
        False,
        "request epoch launch start count adopted columns times digests",
    ),
    4: (
        "RoundCommitted",
        4,
        False,
        "request epoch ordinal launch source law drafts width accepted clip emitted path adopted released "
        "columns rng times digests logprobs copied decision",
    ),
    5: ("RoundRolledBack", 1, True, "request epoch ordinal launch phase signal detail"),
    8: ("RequestPreempted", 1, False, "request epoch reason released digests"),
    9: ("RequestFinished", 1, False, "request epoch reason detail released digests"),
    10: ("Snapshot", 1, False, "ledgers unfinished requests digests"),
    11: ("RuntimeNote", 1, True, "kind data"),
    12: ("StateAudited", 1, True, "request epoch ordinal consumed entries"),
}

# Fields of the versions before, where they had fewer.
EARLIER = {(1, 1): 8, (4, 1): 18, (4, 2): 19, (4, 3): 20}

INTEGER = st.integers(0, (1 << 63) - 1)
LOGPROB = st.floats(max_value=0, allow_nan=False)
TOPS = st.lists(st.tuples(INTEGER, LOGPROB), max_size=2).map(tuple)
IDS = st.lists(INTEGER, max_size=4).map(tuple)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 31), 1 << 31) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
BY_FIELD = {
    "prompt": IDS,
    "stop_ids": IDS,
    "columns": IDS,
    "slots": IDS,
    "times": IDS,
    "drafts": IDS,
    "emitted": IDS,
    "path": IDS,
    "rng": IDS,
    "decision": IDS,
    "adopted": st.lists(IDS, max_size=3).map(tuple),
    "released": st.lists(IDS, max_size=3).map(tuple),
    "source": st.text(max_size=8),
    "reason": st.text(max_size=8),
    "detail": st.text(max_size=8),
    "kind": st.text(max_size=8),
    "parameters": st.dictionaries(st.text(max_size=4), PLAIN, max_size=3),
    "data": st.dictionaries(st.text(max_size=4), PLAIN, max_size=3),
    "digests": st.binary(min_size=40, max_size=40),
    "seed": st.integers(0, (1 << 64) - 1),
    "ledgers": st.dictionaries(st.text(max_size=4), PLAIN, max_size=3),
    "entries": st.lists(st.tuples(st.text(max_size=4), INTEGER, INTEGER, INTEGER, INTEGER), max_size=2).map(
        tuple
    ),
    "unfinished": st.just(()),
    "logprobs": st.lists(st.builds(TokenLogprobs, INTEGER, LOGPROB, LOGPROB, TOPS, TOPS), max_size=2).map(
        tuple
    ),
}


def instances(event: type[Event]) -> st.SearchStrategy[Event]:
    fields = event.__struct_fields__
    return st.tuples(*(BY_FIELD.get(name, INTEGER) for name in fields)).map(lambda values: event(*values))


def example(event: type[Event]) -> Event:
    values = {"parameters": {}, "data": {}, "digests": bytes(40), "seed": 7, "ledgers": {}}
    texts = {"source", "reason", "detail", "kind"}
    tuples = {name for name in BY_FIELD if name not in values and name not in texts}
    return event(
        *(
            values.get(name, "x" if name in texts else () if name in tuples else 1)
            for name in event.__struct_fields__
        )
    )


def test_a_snapshot_says_of_which_version_the_requests_in_it_are():
    """It holds them without a version of their own, so its own has to rise with theirs."""
    embedded = {1: 2}
    assert embedded[EVENTS[10].VERSION] == EVENTS[1].VERSION


def test_numbers_versions_and_fields_are_frozen():
    assert {
        number: (event.__name__, event.VERSION, event.IGNORABLE, " ".join(event.__struct_fields__))
        for number, event in EVENTS.items()
    } == FROZEN
    assert RESERVED == {6: "PrefixPublished", 7: "PrefixEvicted"}
    assert not EVENTS.keys() & RESERVED.keys()


@pytest.mark.parametrize("event", EVENTS.values(), ids=lambda event: event.__name__)
def test_a_payload_is_an_array_of_the_fields(event):
    one = example(event)
    number, version, flags, payload = encode(one)
    assert (number, version, flags) == (event.NUMBER, event.VERSION, IGNORABLE if event.IGNORABLE else 0)
    assert payload == msgspec.msgpack.encode([getattr(one, name) for name in event.__struct_fields__])


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(list(EVENTS.values())).flatmap(instances))
def test_round_trip(event):
    assert decode(*encode(event)) == event
    assert type(decode(*encode(event))) is type(event)


@pytest.mark.parametrize(("number", "version"), EARLIER)
def test_earlier_versions_are_read_with_the_defaults_of_what_they_lack(number, version):
    now = example(EVENTS[number])
    names = now.__struct_fields__
    kept, added = names[: EARLIER[number, version]], names[EARLIER[number, version] :]
    old = decode(number, version, 0, msgspec.msgpack.encode([getattr(now, name) for name in kept]))
    same = [name for name in kept if name != "parameters"]
    assert {name: getattr(old, name) for name in same} == {name: getattr(now, name) for name in same}
    assert {name: getattr(old, name) for name in added} == {
        name: default
        for name, default in {"law": 0, "seed": 0, "logprobs": (), "copied": 0, "decision": ()}.items()
        if name in added
    }


def test_sampling_of_version_1_is_greedy_in_the_words_of_version_2():
    fields = [3, [1, 2], 9, [], 1, {"sampling": {"temperature": 0.0}, "stop": ["x"]}, 0, bytes(40)]
    read = decode(1, 1, 0, msgspec.msgpack.encode(fields))
    sampling = read.parameters["sampling"]
    assert (sampling["temperature"], sampling["top_p"], sampling["logprobs"]) == (0.0, 1.0, None)
    assert read.parameters["stop"] == ["x"]
    assert (read.request, read.law, read.seed) == (3, 0, 0)


@pytest.mark.parametrize("fields", [[], [1, 2], [3, [1], 9, [], 1, 7, 0, b""]])
def test_an_earlier_version_that_does_not_fit_is_refused(fields):
    with pytest.raises(EventUndecodable, match="does not fit"):
        decode(1, 1, 0, msgspec.msgpack.encode(fields))


def test_phases_and_signals_are_written_as_numbers():
    written = RoundRolledBack(1, 0, 2, 3, Phase.ACCEPT, Signal.CANCEL, "asked")
    read = decode(*encode(written))
    assert (read.phase, read.signal) == (3, 6)
    assert type(read.phase) is int


def test_an_unknown_number_is_skipped_only_where_it_may_be():
    assert decode(99, 1, IGNORABLE, b"anything") is None
    assert decode(99, 1, IGNORABLE | 8, b"anything") is None
    for flags in (0, 2, 4):
        with pytest.raises(EventUndecodable, match=r"99 \(unknown\).*later version"):
            decode(99, 1, flags, b"anything")


@pytest.mark.parametrize("number", RESERVED)
def test_a_reserved_number_is_named(number):
    with pytest.raises(EventUndecodable, match=RESERVED[number]):
        decode(number, 1, 0, b"\x90")


@pytest.mark.parametrize("event", EVENTS.values(), ids=lambda event: event.__name__)
def test_a_later_version_is_refused(event):
    number, version, flags, payload = encode(example(event))
    with pytest.raises(EventUndecodable, match=f"{event.__name__} has schema version {version + 1}"):
        decode(number, version + 1, flags, payload)


@pytest.mark.parametrize("event", EVENTS.values(), ids=lambda event: event.__name__)
def test_a_damaged_payload_is_refused(event):
    number, version, flags, payload = encode(example(event))
    fields = msgspec.msgpack.decode(payload)
    wrong = [
        payload[:-1],
        payload + b"\x00",
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"request": 1}),
        msgspec.msgpack.encode(fields[:1]),
        msgspec.msgpack.encode([1.5, *fields[1:]]),
    ]
    for damaged in wrong:
        with pytest.raises(EventUndecodable, match=event.__name__):
            decode(number, version, flags, damaged)


def test_events_are_frozen():
    with pytest.raises(AttributeError):
        RuntimeNote("a", {}).kind = "b"  # type: ignore[misc]
