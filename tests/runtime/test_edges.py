"""Arguments and answers from outside that once brought down more than their own request."""

from __future__ import annotations

import enum
import threading
from pathlib import Path
from typing import Any

import pytest

from txdecode.runtime import InvalidRequest, RequestFailed, Runtime, RuntimeClosed, TextUnavailable, replay
from txdecode.runtime.drafters.prompt_lookup import PromptLookup
from txdecode.runtime.handle import Handle
from txdecode.runtime.policy.controllers import InvalidDraftLength
from txdecode.runtime.text_errors import InvalidStop
from txdecode.transactions.executor import Proposal
from txdecode.transactions.toy import ToyExecutor, plain

GOOD = [1, 2, 3]


class Words:
    """Stands in for a tokenizer of one character a token, with more tokens than the model."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - 32 for letter in text]

    def stop_matcher(self, stops: tuple[str, ...] = (), after: int = 0) -> Words:
        return self

    def probe(self, candidates: Any) -> None:
        return None

    def commit(self, ids: Any) -> str:
        return "".join(chr(token + 32) for token in ids)

    def flush(self) -> str:
        return ""


class Number(enum.IntEnum):
    TWO = 2


@pytest.mark.parametrize(
    "arguments",
    [
        {"stop": "\ud800"},
        {"draft_len": "9" * 5000},
        {"prompt": "a~"},
    ],
)
def test_what_the_log_or_the_model_cannot_take_is_refused_at_submit(arguments: dict[str, Any]) -> None:
    with Runtime.open(ToyExecutor(), text=Words(), draft="none") as runtime:
        good = runtime.submit(GOOD, max_tokens=5)
        with pytest.raises((InvalidRequest, InvalidStop, InvalidDraftLength)):
            runtime.submit(**{"prompt": GOOD, **arguments})
        assert list(good.result().ids) == plain(GOOD, 5, 48)


def test_numbers_of_other_types_are_taken_as_what_they_are() -> None:
    with Runtime.open(ToyExecutor(), draft="none") as runtime:
        handle = runtime.submit([Number.TWO, 3], max_tokens=2**70)
        handle.cancel()
        assert handle.result().finish == "cancelled"
        assert list(runtime.submit([Number.TWO], max_tokens=Number.TWO).result().ids) == plain([2], 2, 48)


def test_a_stop_token_is_in_the_ids_and_not_in_the_text() -> None:
    ids = plain(GOOD, 12, 48)
    with Runtime.open(ToyExecutor(), text=Words(), draft="none") as runtime:
        result = runtime.submit(GOOD, max_tokens=12, stop_ids=[ids[7]]).result()
    end = ids.index(ids[7]) + 1
    assert list(result.ids) == ids[:end]
    assert result.text == "".join(chr(token + 32) for token in ids[: end - 1])


@pytest.mark.parametrize("name", [7, None, "\ud800", "two\nlines"])
def test_a_drafter_needs_a_name_that_the_log_can_hold(name: object) -> None:
    drafter = PromptLookup()
    drafter.__class__ = type("Odd", (PromptLookup,), {"name": name})
    with pytest.raises(InvalidRequest, match="name"):
        Runtime.open(ToyExecutor(), draft=drafter)
    with pytest.raises(InvalidRequest, match="draft"):
        Runtime.open(ToyExecutor(), draft=5)


def test_a_proposal_of_an_unknown_law_ends_its_request_alone(tmp_path: Path) -> None:
    class Odd(ToyExecutor):
        def draft(self, plans: Any) -> list[Proposal]:
            return [Proposal((1,), "x", "weird") if p.request == 1 else Proposal() for p in plans]  # type: ignore[arg-type]

    log = tmp_path / "odd.txlog"
    with Runtime.open(Odd(accuracy=4), log=log, draft="executor", draft_len=3) as runtime:
        good, bad = runtime.submit(GOOD, max_tokens=12), runtime.submit(GOOD, max_tokens=12)
        assert list(good.result().ids) == plain(GOOD, 12, 48)
        with pytest.raises(RequestFailed, match="law"):
            bad.result()
    assert replay(log).requests[1].finish == "error"


def test_an_error_text_without_utf8_ends_its_request_alone(tmp_path: Path) -> None:
    class Odd(ToyExecutor):
        def verify(self, rounds: Any) -> None:
            if any(entry.plan.request == 1 for entry in rounds):
                raise OSError("cannot read '/tmp/\udcff'")
            super().verify(rounds)

    log = tmp_path / "odd.txlog"
    with Runtime.open(Odd(), log=log, draft="none") as runtime:
        good, bad = runtime.submit(GOOD, max_tokens=9), runtime.submit(GOOD, max_tokens=9)
        assert list(good.result().ids) == plain(GOOD, 9, 48)
        with pytest.raises(RequestFailed):
            bad.result()
    assert replay(log).requests[1].finish == "error"


def test_durability_must_be_a_known_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="durability"):
        Runtime.open(ToyExecutor(), log=tmp_path / "x.txlog", durability="bogus")
    assert not (tmp_path / "x.txlog").exists()


def test_recovery_needs_the_tokenizer_of_stop_strings_and_keeps_the_end_tokens(tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"
    ids = plain(GOOD, 30, 48)
    runtime = Runtime.open(ToyExecutor(), log=log, text=Words(), eos_ids=[ids[9]], draft="none")
    runtime.submit(GOOD, max_tokens=5, stop="zz")
    runtime.step()
    runtime.close()
    with pytest.raises(TextUnavailable, match="stop strings"):
        Runtime.recover(log, ToyExecutor())
    with Runtime.recover(log, ToyExecutor(), text=Words()) as again:
        assert list(again.handles[0].result().ids) == ids[:5]
        result = again.submit(GOOD, max_tokens=30).result()
    assert result.finish == "stop"
    assert list(result.ids) == ids[: ids.index(ids[9]) + 1]


def test_a_waiting_handle_gets_its_end_from_the_thread_that_closed() -> None:
    class Closed:
        serving = False

        def step(self) -> bool:
            threading.Timer(0.05, lambda: handle.fail(RequestFailed(0, "closed"))).start()
            raise RuntimeClosed("the runtime is closed")

        def cancel(self, request: int) -> None:
            raise AssertionError

    handle = Handle(0, Closed(), has_text=False)
    with pytest.raises(RequestFailed):
        handle.result()


def test_few_columns_do_not_make_requests_come_and_go() -> None:
    class Narrow(ToyExecutor):
        def describe(self) -> Any:
            found = super().describe()
            import attrs

            groups = tuple(attrs.evolve(g, capacity=4) if g.kind == "column" else g for g in found.groups)
            return attrs.evolve(found, groups=groups)

    with Runtime.open(Narrow(), draft="none") as runtime:
        handles = [runtime.submit(GOOD, max_tokens=20) for _ in range(3)]
        runtime.run()
        assert all(list(handle.result().ids) == plain(GOOD, 20, 48) for handle in handles)
        assert sum(handle.result().stats.preemptions for handle in handles) == 0
