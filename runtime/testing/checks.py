"""The promises about single requests and about the device, as leaves that ``World`` calls."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import attrs

from txdecode.runtime.errors import RequestFailed
from txdecode.runtime.handle import Handle
from txdecode.runtime.testing.faults import Tell
from txdecode.runtime.testing.harness import Harness
from txdecode.runtime.testing.promises import PromiseBroken, keep
from txdecode.runtime.testing.shadow import Line
from txdecode.state.ledgers import Ledgers
from txdecode.transactions.executor import AuditEntry, Description, Executor
from txdecode.transactions.target import GREEDY, NO_LOGPROBS, Target
from txdecode.transactions.transaction import view

TEXT = "the text is the plain loop's"
ORDER_APPLY = "nothing is applied before its append"
ORDER_PUBLISH = "nothing is published before its append"
FOLD = "the fold of the log is the live state"
DEVICE = "the device holds what was committed"
RECORDED = "what is recorded is published"
LOST = "nothing published is lost"
WHOLE = "a crash leaves whole rounds"
TAKEN_UP = "recovery takes up the unfinished"
KEPT = "the executor lets go of what is over"
CANCEL = "a cancel is honoured"
ENDS = "every request ends"
ENDS_WHERE = "a text ends where it must"
LOGPROBS = "logprobs are of the emitted tokens"


@attrs.define
class Tracked:
    """A request that the log may know. ``text`` is the whole of it, by the oracle; ``None`` under the chain law,
    which keeps the distribution alone. ``cancelled`` says that the caller asked for its end, ``verified`` that its
    end has been checked."""

    number: int
    prompt: tuple[int, ...]
    budget: int
    stop_ids: frozenset[int]
    text: tuple[int, ...] | None
    handle: Handle
    cancelled: bool = False
    verified: bool = False
    target: Target = GREEDY


def recorded_ids(line: Line | None) -> tuple[int, ...]:
    """What the log says was emitted."""
    return () if line is None else tuple(line.ids)


def check_text(tracked: Tracked, ids: Sequence[int]) -> None:
    """``ids`` are the beginning of the plain loop's text."""
    if tracked.text is not None and tuple(ids) != tracked.text[: len(ids)]:
        raise PromiseBroken(TEXT, f"request {tracked.number}: {tuple(ids)} instead of {tracked.text}")


def check_not_ahead(tracked: Tracked, line: Line | None) -> None:
    """The caller has seen nothing that the log does not have."""
    published, recorded = tracked.handle.published, recorded_ids(line)
    if published != recorded[: len(published)]:
        detail = f"request {tracked.number}: published {published}, recorded {recorded}"
        raise PromiseBroken(ORDER_PUBLISH, detail)


def check_shown(tracked: Tracked, line: Line | None) -> None:
    """Between two steps, the caller has seen all that the log has."""
    published, recorded = tracked.handle.published, recorded_ids(line)
    if published != recorded:
        detail = f"request {tracked.number}: published {published}, recorded {recorded}"
        raise PromiseBroken(RECORDED, detail)


def check_finished(tracked: Tracked, faults: int, tell: Tell) -> None:
    """A handle that is done: its result is what was published, and ends where it must."""
    published = tracked.handle.published
    try:
        result = tracked.handle.result()
    except RequestFailed:
        check_end(tracked, published, "error", faults, tell)
        return
    keep(result.ids == published, "the result is what was published", f"{result.ids}, {published}")
    wanted = () if tracked.target.logprobs == NO_LOGPROBS else result.ids
    found = tuple(entry.token for entry in result.logprobs or ())
    keep(found == wanted, LOGPROBS, f"request {tracked.number}: of {found}, {wanted} expected")
    check_end(tracked, result.ids, result.finish, faults, tell)


def check_end(tracked: Tracked, ids: tuple[int, ...], finish: str, faults: int, tell: Tell) -> None:
    """A request ends where its text does, unless somebody asked, or the executor failed often enough."""
    tell(f"finish {finish}")
    where = f"request {tracked.number}: {finish} after {ids}"
    if finish == "error":
        keep(faults > 0, "only faults end a request with an error", where)
    elif finish == "cancelled":
        keep(tracked.cancelled, "only a cancel ends a request early", where)
    else:
        text = ids if tracked.text is None else tracked.text
        wanted = "stop" if text[-1] in tracked.stop_ids else "length"
        detail = f"{where}; {wanted} after {text} expected"
        keep((ids, finish) == (text, wanted), TEXT, detail)
        over = [token in tracked.stop_ids for token in ids[:-1]]
        whole = finish == "stop" or len(ids) == tracked.budget
        keep(whole and not any(over), ENDS_WHERE, where)


def check_not_lost(number: int, published: tuple[int, ...], line: Line | None) -> None:
    """What the caller has seen is in the log that was recovered."""
    recorded = recorded_ids(line)
    keep(recorded[: len(published)] == published, LOST, f"request {number}: {published}, recorded {recorded}")


def check_whole(number: int, line: Line, before: Line | None) -> None:
    """The line after a crash is the one before it, up to the end of some round."""
    if before is not None and line.ids != before.ids:
        whole = len(line.ids) in (0, *before.rounds) and before.ids[: len(line.ids)] == line.ids
        keep(whole, WHOLE, f"request {number}: {line.ids} of {before.ids}, rounds end at {before.rounds}")


def fits(description: Description, prompt: int, max_tokens: int) -> bool:
    """Whether a request can be served alone: its tokens fit the context, its consumed ones the pools."""
    rows = min(prompt + max_tokens, description.context) - 1
    return prompt < description.context and all(
        -(-rows // group.granularity) <= group.capacity
        for group in description.groups
        if group.kind == "pages"
    )


def failed(handle: Handle) -> bool:
    """Whether a request ended with a typed error."""
    if not handle.done:
        return False
    try:
        handle.result()
    except RequestFailed:
        return True
    return False


class DeviceCheck:
    """Compares what an executor holds with what the consumed tokens make it."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._expected: dict[tuple[int, ...], tuple[AuditEntry, ...]] = {}

    def __call__(self, ledgers: Ledgers, executor: Executor, inner: Executor) -> None:
        """Audit every resident request; and whatever ``inner`` keeps is kept for somebody."""
        compute = self._harness.expected_audit
        fresh: dict[tuple[int, ...], tuple[AuditEntry, ...]] = {}
        for number, state in ledgers.tokens.sequences.items():
            if compute is None or not state.resident:
                continue
            tokens = state.ids(0, state.consumed)
            wanted = self._expected.get(tokens)
            if wanted is None:
                wanted = tuple(compute(tokens))
            fresh[tokens] = wanted
            found = executor.audit(view(ledgers, number))
            if found != wanted:
                _raise_first(number, wanted, found)
        self._expected = fresh
        if self._harness.kept is not None:
            strangers = set(self._harness.kept(inner)) - ledgers.tokens.sequences.keys()
            keep(not strangers, KEPT, f"requests {sorted(strangers)}")


def _raise_first(number: int, wanted: Sequence[AuditEntry], found: Sequence[AuditEntry]) -> None:
    for a, b in zip_longest(wanted, found):
        place = a or b
        if a != b and place is not None:
            where = f"request {number}, group '{place.group}', layer {place.layer}, index {place.index}"
            raise PromiseBroken(DEVICE, f"{where}: expected {a}, found {b}")
