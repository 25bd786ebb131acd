"""Each check of ``World`` raises where its promise is broken, and only there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from txdecode.runtime.errors import RequestFailed
from txdecode.runtime.handle import Handle, Result, Stats
from txdecode.runtime.testing import PromiseBroken, checks, toy_harness
from txdecode.runtime.testing.checks import DeviceCheck, Tracked
from txdecode.runtime.testing.shadow import Line
from txdecode.state.errors import TxDecodeError
from txdecode.state.ledgers import Ledgers
from txdecode.transactions.events import RequestSubmitted
from txdecode.transactions.target import NO_LOGPROBS, Target, TokenLogprobs
from txdecode.transactions.toy import ToyExecutor

TEXT = (5, 6, 7, 8)


def line(ids: tuple[int, ...], rounds: tuple[int, ...] = (), finish: str = "") -> Line:
    return Line(RequestSubmitted(0, (1,), 4, (), 1, {}, 0), list(ids), list(rounds), finish)


def tracked(published: tuple[int, ...] = (), stop: int = 99, cancelled: bool = False) -> Tracked:
    handle = Handle(0, None, False)  # type: ignore[arg-type]
    handle.publish(published, "")
    return Tracked(0, (1,), 4, frozenset([stop]), TEXT, handle, cancelled)


def finished(
    ids: tuple[int, ...], finish: Any, published: tuple[int, ...] | None = None, **options: Any
) -> Tracked:
    made = tracked(ids if published is None else published, **options)
    made.handle.finish(Result(0, ids, None, finish, Stats()))
    return made


def free(ids: tuple[int, ...], finish: Any, stop: int = 99) -> Tracked:
    """A finished request of which only the distribution is fixed."""
    return attrs.evolve(finished(ids, finish, stop=stop), text=None)


def reported(*tokens: int, wanted: int = 0) -> Tracked:
    """A finished request with logprobs of ``tokens``."""
    made = tracked(TEXT)
    entries = tuple(TokenLogprobs(token, -1.0, -1.0) for token in tokens)
    made.handle.finish(Result(0, TEXT, None, "length", Stats(), logprobs=entries or None))
    return attrs.evolve(made, target=Target(logprobs=wanted))


def failed(**options: Any) -> Tracked:
    made = tracked(TEXT[:1], **options)
    made.handle.fail(RequestFailed(0, "why"))
    return made


def end(made: Tracked, faults: int = 0) -> None:
    checks.check_finished(made, faults, lambda what: None)


KEPT: dict[str, Callable[[], None]] = {
    "no text yet": lambda: checks.check_text(tracked(), ()),
    "a beginning": lambda: checks.check_text(tracked(), TEXT[:2]),
    "behind the log": lambda: checks.check_not_ahead(tracked(TEXT[:1]), line(TEXT[:2])),
    "nothing recorded": lambda: checks.check_not_ahead(tracked(), None),
    "as the log": lambda: checks.check_shown(tracked(TEXT[:2]), line(TEXT[:2])),
    "by length": lambda: end(finished(TEXT, "length")),
    "by a stop": lambda: end(finished(TEXT, "stop", stop=8)),
    "by a cancel": lambda: end(finished(TEXT[:2], "cancelled", cancelled=True)),
    "by faults": lambda: end(failed(), faults=3),
    "any text": lambda: checks.check_text(free((1, 2, 3, 4), "length"), (1, 2)),
    "any text by length": lambda: end(free((1, 2, 3, 4), "length")),
    "any text by a stop": lambda: end(free((1, 2), "stop", stop=2)),
    "logprobs of every token": lambda: end(reported(*TEXT)),
    "no logprobs where none are wanted": lambda: end(reported(wanted=NO_LOGPROBS)),
    "nothing lost": lambda: checks.check_not_lost(0, TEXT[:2], line(TEXT[:3])),
    "nothing to lose": lambda: checks.check_not_lost(0, (), None),
    "a whole round": lambda: checks.check_whole(0, line(TEXT[:3]), line(TEXT, (1, 3, 4))),
    "no round": lambda: checks.check_whole(0, line(()), line(TEXT, (1, 3, 4))),
    "not there before": lambda: checks.check_whole(0, line(TEXT[:2]), None),
}

BROKEN: dict[str, tuple[Callable[[], None], str]] = {
    "other text": (lambda: checks.check_text(tracked(), (5, 7)), checks.TEXT),
    "more text": (lambda: checks.check_text(tracked(), (*TEXT, 1)), checks.TEXT),
    "ahead of the log": (
        lambda: checks.check_not_ahead(tracked(TEXT[:2]), line(TEXT[:1])),
        checks.ORDER_PUBLISH,
    ),
    "ahead of nothing": (lambda: checks.check_not_ahead(tracked(TEXT[:1]), None), checks.ORDER_PUBLISH),
    "not shown": (lambda: checks.check_shown(tracked(TEXT[:1]), line(TEXT[:2])), checks.RECORDED),
    "short": (lambda: end(finished(TEXT[:3], "length")), checks.TEXT),
    "length for stop": (lambda: end(finished(TEXT, "length", stop=8)), checks.TEXT),
    "stop for length": (lambda: end(finished(TEXT, "stop")), checks.TEXT),
    "unasked": (lambda: end(finished(TEXT[:2], "cancelled")), "only a cancel"),
    "any text, short": (lambda: end(free((1, 2), "length")), checks.ENDS_WHERE),
    "any text, past a stop": (lambda: end(free((1, 2, 2, 2), "stop", stop=2)), checks.ENDS_WHERE),
    "any text, a stop that is none": (lambda: end(free((1, 2), "stop")), checks.TEXT),
    "logprobs of three of four": (lambda: end(reported(*TEXT[:3])), checks.LOGPROBS),
    "logprobs of other tokens": (lambda: end(reported(1, 2, 3, 4)), checks.LOGPROBS),
    "logprobs for nobody": (lambda: end(reported(*TEXT, wanted=NO_LOGPROBS)), checks.LOGPROBS),
    "no faults": (lambda: end(failed()), "only faults"),
    "another result": (lambda: end(finished(TEXT, "length", TEXT[:2])), "the result is what"),
    "lost": (lambda: checks.check_not_lost(0, TEXT[:2], line(TEXT[:1])), checks.LOST),
    "all lost": (lambda: checks.check_not_lost(0, TEXT[:2], None), checks.LOST),
    "half a round": (lambda: checks.check_whole(0, line(TEXT[:2]), line(TEXT, (1, 3, 4))), checks.WHOLE),
    "another round": (lambda: checks.check_whole(0, line((5, 9, 7)), line(TEXT, (1, 3, 4))), checks.WHOLE),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    KEPT[name]()


@pytest.mark.parametrize("name", BROKEN)
def test_broken(name: str) -> None:
    check, promise = BROKEN[name]
    with pytest.raises(PromiseBroken, match=promise) as broken:
        check()
    assert isinstance(broken.value, TxDecodeError)
    assert isinstance(broken.value, AssertionError)
    assert broken.value.promise.startswith(promise)


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "fits"),
    [(1, 40, True), (1, 41, False), (40, 1, True), (41, 1, False), (30, 500, False), (64, 1, False)],
)
def test_fits(prompt: int, max_tokens: int, fits: bool) -> None:
    description = ToyExecutor(context=64, page=4, page_count=10).describe()
    assert checks.fits(description, prompt, max_tokens) is fits


def test_fits_ends_with_the_context() -> None:
    description = ToyExecutor(context=64, page_count=40).describe()
    assert [checks.fits(description, prompt, 500) for prompt in (63, 64)] == [True, False]


def test_an_executor_without_expected_audits_is_not_audited() -> None:
    toy = ToyExecutor()
    full = toy_harness()
    blind = type(full)("blind", full.make, full.oracle)
    DeviceCheck(blind)(Ledgers(toy.describe().groups), None, toy)  # type: ignore[arg-type]


def test_what_is_kept_for_nobody_is_found() -> None:
    toy = ToyExecutor()
    toy._scratch[3, 0] = None  # type: ignore[assignment]
    with pytest.raises(PromiseBroken, match=rf"{checks.KEPT}: requests \[3\]"):
        DeviceCheck(toy_harness())(Ledgers(toy.describe().groups), toy, toy)
