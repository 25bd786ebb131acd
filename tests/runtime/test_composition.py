"""Learned drafts and copies together: the text is the plain one, and the log says who proposed what."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from txdecode.runtime import InvalidRequest, Runtime, Sampling
from txdecode.runtime.configuration import Options
from txdecode.runtime.drafters import PromptLookup
from txdecode.runtime.drafters.composed import LEARNED_DEPTH
from txdecode.runtime.execution import execute
from txdecode.runtime.handle import Stats
from txdecode.runtime.journal import iterate
from txdecode.runtime.opening import Opened
from txdecode.runtime.testing.harness import target_of
from txdecode.transactions.codec import decode
from txdecode.transactions.events import RoundCommitted
from txdecode.transactions.executor import ROLLBACKS
from txdecode.transactions.toy import ToyExecutor, plain

PROMPT = [6, 33, 24, 27, 42, 21, 12, 15, 30, 9, 0, 3, 18, 45, 36, 39] * 2
"""A text that the toy likes to go on with."""
SAMPLINGS = {
    "greedy": None,
    "coupled": Sampling(temperature=0.7, seed=5),
    "busy": Sampling(temperature=1.0, seed=6, top_p=0.9, repetition_penalty=1.2, logprobs=1),
}


def rounds_of(log: Path) -> list[RoundCommitted]:
    events = [decode(r.type, r.version, r.flags, r.payload) for r in iterate(log)]
    return [event for event in events if isinstance(event, RoundCommitted)]


def text(sampling: Sampling | None, count: int) -> tuple[int, ...]:
    return tuple(plain(PROMPT, count, 48, target=target_of(sampling, frozenset())))


@pytest.mark.parametrize("form", ROLLBACKS)
@pytest.mark.parametrize("depth", [None, 1, 2])
@pytest.mark.parametrize("name", SAMPLINGS)
def test_the_text_is_that_of_plain_decoding(name: str, depth: int | None, form: Any, tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"
    toy = ToyExecutor(accuracy=6, rollback=form)
    options: dict[str, Any] = {"draft": "mtp+lookup", "draft_len": 5, "draft_depth": depth, "audit_every": 1}
    with Runtime.open(toy, log=log, paranoid=True, **options) as runtime:
        handle = runtime.submit(PROMPT, max_tokens=80, sampling=SAMPLINGS[name])
        runtime.run()
        result = handle.result()
    assert result.ids == text(SAMPLINGS[name], 80)
    counted = {event.source for event in rounds_of(log) if event.drafts}
    assert "toy" in counted or "toy+prompt_lookup" in counted
    # Three tokens in a row that came before are rare in the text that penalises them.
    assert ("prompt_lookup" in counted) or name == "busy"
    assert any(event.copied for event in rounds_of(log))
    check_copies(rounds_of(log))
    assert sources(result.stats) == recount(rounds_of(log))
    report = execute(log, ToyExecutor(accuracy=6, rollback=form))
    assert (report.counts.rounds, report.numerics) == (result.stats.rounds, "exact")


def followed(known: Sequence[int], after: Sequence[int]) -> tuple[int, ...]:
    """What followed the latest occurrence, among the known tokens, of the last 3, else 2, else 1 tokens of all."""
    whole = [*known, *after]
    for size in (3, 2, 1):
        for end in range(len(known) - 1, size - 1, -1):
            if known[end - size : end] == whole[-size:]:
                return tuple(known[end:])
    return ()


def check_copies(rounds: Sequence[RoundCommitted]) -> None:
    """What follows learned drafts is what a plain scan finds behind them, not behind the known tokens."""
    known = list(PROMPT)
    for event in rounds:
        if event.copied:
            learned = event.drafts[: len(event.drafts) - event.copied]
            assert len(learned) <= LEARNED_DEPTH
            assert event.drafts[len(learned) :] == followed(known, learned)[: event.copied]
        known += event.emitted


def sources(stats: Stats) -> dict[str, tuple[int, int]]:
    assert sum(offered for offered, _ in stats.by_source.values()) == stats.drafted
    assert sum(accepted for _, accepted in stats.by_source.values()) == stats.accepted
    return dict(stats.by_source)


def recount(rounds: Sequence[RoundCommitted]) -> dict[str, tuple[int, int]]:
    counts: dict[str, tuple[int, int]] = {}
    for event in rounds:
        names = event.source.split("+")
        for index in range(len(event.drafts)):
            name = names[-1] if index >= len(event.drafts) - event.copied else names[0]
            offered, accepted = counts.get(name, (0, 0))
            counts[name] = offered + 1, accepted + (index < event.accepted)
    return counts


@pytest.mark.parametrize("fused", [False, True], ids=["verbs", "fused"])
def test_chain_rounds_are_executed_again(fused: bool, tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"
    options: dict[str, Any] = {"draft": "mtp+lookup", "draft_len": 5}
    options |= {} if fused else {"draft_depth": 2}
    with Runtime.open(ToyExecutor(accuracy=6, fused=fused), log=log, **options) as runtime:
        for seed in range(3):
            sampling = Sampling(temperature=0.3, seed=seed, law="chain")
            runtime.submit(PROMPT, max_tokens=40, sampling=sampling)
        runtime.run()
    rounds = rounds_of(log)
    assert any(event.law == 1 and event.copied for event in rounds) != fused
    assert {event.source for event in rounds} >= {"toy", "prompt_lookup"}
    assert execute(log, ToyExecutor(accuracy=6, fused=fused)).counts.rounds == len(rounds)


@pytest.mark.parametrize("name", ["mtp", "executor"])
def test_mtp_is_the_executors_own_drafter(name: str, tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"
    with Runtime.open(ToyExecutor(accuracy=8), log=log, draft=name, draft_len=3) as runtime:
        handle = runtime.submit(PROMPT, max_tokens=20)
        runtime.run()
    assert handle.result().ids == text(None, 20)
    assert {event.source for event in rounds_of(log) if event.drafts} == {"toy"}
    assert execute(log, ToyExecutor(accuracy=8)).counts.rounds > 0


@pytest.mark.parametrize("name", ["mtp", "mtp+lookup", "executor"])
def test_without_a_drafter_of_its_own_there_is_no_mtp(name: str) -> None:
    with pytest.raises(
        InvalidRequest, match=r"needs an executor that drafts.*'toy' has no drafter.*'lookup'"
    ):
        Runtime.open(ToyExecutor(), draft=name)


class Named:
    """A drafter that does nothing but have a name."""

    def __init__(self, name: str) -> None:
        self.name = name


@pytest.mark.parametrize("name", ["none", "executor", "mtp", "mtp+lookup"])
def test_a_drafter_has_a_name_of_its_own(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"must not be named '{name.replace('+', '.')}'"):
        Runtime.open(ToyExecutor(), draft=Named(name))


@pytest.mark.parametrize(
    ("toy", "options", "message"),
    [
        ({"accuracy": 6}, {"draft": "lookup", "draft_depth": 2}, "draft='lookup' does not use"),
        ({"accuracy": 6}, {"draft": Named("x"), "draft_depth": 2}, "does not use"),
        ({"accuracy": 6}, {"draft": "mtp", "draft_depth": 0}, "draft_depth must be an integer of at least 1"),
        ({"accuracy": 6, "fused": True}, {"draft": "mtp", "draft_depth": 2}, "is fused and drafts as deep"),
    ],
)
def test_a_depth_that_limits_nothing(toy: Any, options: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Runtime.open(ToyExecutor(**toy), **options)


def test_draft_lengths_that_come_and_go(tmp_path: Path) -> None:
    """0, 3, 0, 3 drafts: whatever was skipped leaves no drafter behind."""

    class Turns:
        calls = 0

        def begin(self, request: int) -> None: ...

        def next(self, request: int) -> int:
            self.calls += 1
            return (0, 3)[self.calls // 3 % 2]

        def observe(self, request: int, offered: int, accepted: int) -> None: ...

        def end(self, request: int) -> None: ...

    log = tmp_path / "run.txlog"
    options: dict[str, Any] = {"draft": "mtp+lookup", "draft_depth": 2, "paranoid": True, "audit_every": 1}
    with Runtime.open(ToyExecutor(accuracy=7), log=log, **options) as runtime:
        handle = runtime.submit(PROMPT, max_tokens=60)
        for request in runtime._requests.values():
            request.controller = Turns()  # type: ignore[assignment]
        runtime.run()
    assert handle.result().ids == text(None, 60)
    lengths = [len(event.drafts) for event in rounds_of(log)]
    assert 0 in lengths[4:]
    assert 3 in lengths[4:]


class Failing(PromptLookup):
    """Fails at one verb, from its first call or from a later one."""

    def __init__(self, verb: str, after: int = 0) -> None:
        super().__init__()
        self._verb = verb
        self._left = after

    def _fail(self, verb: str) -> None:
        if verb == self._verb:
            self._left -= 1
            if self._left < 0:
                raise RuntimeError("the host drafter broke")

    def begin(self, request: int, tokens: Sequence[int]) -> None:
        self._fail("begin")
        super().begin(request, tokens)

    def match(self, request: int, count: int, after: Sequence[int] = ()) -> Any:
        self._fail("extend" if after else "match")
        return super().match(request, count, after)

    def commit(self, request: int, tokens: Sequence[int]) -> None:
        if self._left < 9:
            self._fail("commit")
        super().commit(request, tokens)


@pytest.mark.parametrize("after", [0, 1, 4])
@pytest.mark.parametrize("verb", ["begin", "match", "extend", "commit"])
def test_a_host_drafter_that_fails_leaves_the_learned_one(verb: str, after: int) -> None:
    drafter = Failing(verb, after if verb != "begin" else 0)
    opened = Opened(ToyExecutor(accuracy=8), "toy", drafter=drafter, drafts=True)
    with Runtime(opened, options=Options(draft="mtp+lookup", draft_len=4, draft_depth=2)) as runtime:
        handle = runtime.submit(PROMPT, max_tokens=60)
        runtime.run()
    result = handle.result()
    assert result.ids == text(None, 60)
    assert result.stats.by_source["toy"][0] > 0
    assert result.stats.accepted > 20


def test_a_drafter_of_ones_own_is_composed_by_what_it_proposes() -> None:
    class Sevens:
        name = "sevens"

        def begin(self, request: int, tokens: Sequence[int]) -> None: ...

        def propose(self, request: int, count: int) -> tuple[int, ...]:
            self.calls = getattr(self, "calls", 0) + 1
            return (7,) if self.calls % 2 else ()

        def commit(self, request: int, tokens: Sequence[int]) -> None: ...

        def end(self, request: int) -> None: ...

    opened = Opened(ToyExecutor(accuracy=8), "toy", drafter=Sevens(), drafts=True)
    with Runtime(opened, options=Options(draft_len=4)) as runtime:
        handle = runtime.submit(PROMPT, max_tokens=40)
        runtime.run()
    assert handle.result().ids == text(None, 40)
    assert set(handle.result().stats.by_source) == {"toy", "sevens"}


def test_a_recovery_composes_again(tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"
    options: dict[str, Any] = {"draft": "mtp+lookup", "draft_depth": 2, "draft_len": 5}
    runtime = Runtime.open(ToyExecutor(accuracy=6), log=log, **options)
    runtime.submit(PROMPT, max_tokens=80)
    for _ in range(6):
        runtime.step()
    runtime.close()
    before = len(rounds_of(log))
    with Runtime.recover(log, ToyExecutor(accuracy=6)) as recovered:
        assert recovered.options.draft_depth == 2
        handle = recovered.handles[0]
        recovered.run()
        assert handle.result().ids == text(None, 80)
    later = rounds_of(log)[before:]
    assert {event.source for event in later if event.drafts} >= {"toy+prompt_lookup", "prompt_lookup"}
    assert execute(log, ToyExecutor(accuracy=6)).counts.rounds == before + len(later)


def test_options_say_how_it_drafts() -> None:
    with Runtime.open(ToyExecutor(accuracy=6), draft="mtp+lookup", draft_depth=3) as runtime:
        assert attrs.asdict(runtime.options)["draft"] == "mtp+lookup"
        assert attrs.asdict(runtime.options)["draft_depth"] == 3
