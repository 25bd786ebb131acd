"""The goodput controller in the runtime: texts stay, decisions are in the log, costs are told once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from txdecode.runtime import Runtime, replay
from txdecode.runtime.errors import InvalidRequest
from txdecode.runtime.journal import iterate
from txdecode.runtime.policy.costs import Spent
from txdecode.runtime.policy.decision import read
from txdecode.runtime.sweep.store import Row, Sweep, identity, place_of, save
from txdecode.transactions.codec import decode
from txdecode.transactions.events import RoundCommitted, RuntimeNote
from txdecode.transactions.toy import ToyExecutor, plain

Open = Callable[..., Runtime]
TOKENS = 60
REPEATS = [6, 33, 24, 27, 42, 21, 12, 15, 30, 9, 0, 3, 18, 45, 36, 39] * 2
"""A text that the toy likes to go on with."""


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXDECODE_CACHE", str(tmp_path / "cache"))


def events(log: Path, kind: type) -> list[Any]:
    found = [decode(record.type, record.version, record.flags, record.payload) for record in iterate(log)]
    return [event for event in found if isinstance(event, kind)]


def swept(toy: ToyExecutor, cost: Callable[[int], float], steps: float = 0.0) -> None:
    """Store a sweep by which a round of n rows costs ``cost(n)``."""
    about = toy.describe()
    rows = tuple(
        Row(batch, 16, width, (cost(width) * (1 + batch / 10),)) for batch in (1, 4) for width in range(1, 9)
    )
    made = {batch: steps * cost(1) * (1 + batch / 10) for batch in (1, 4)} if steps else {}
    save(Sweep(1, about.name, identity(about), rows, made), place_of(about))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("draft", "accuracy"), [("lookup", 0), ("executor", 6), ("mtp+lookup", 7)])
def test_the_text_is_that_of_plain_decoding(
    draft: str, accuracy: int, fused: bool, opened: Open, log: Path
) -> None:
    toy = ToyExecutor(accuracy=accuracy, fused=fused, page_count=200)
    swept(toy, lambda rows: 1 + 0.02 * rows, 0.01)
    runtime = opened(toy, draft=draft, audit_every=3)
    prompts = [[3, 1, 4, 1, 5, number] for number in range(3)] + [REPEATS]
    handles = [runtime.submit(prompt, max_tokens=TOKENS) for prompt in prompts]
    runtime.run()
    runtime.check()
    runtime.close()
    for prompt, handle in zip(prompts, handles, strict=True):
        assert list(handle.result().ids) == plain(prompt, TOKENS, 48)
    assert sum(handle.result().stats.drafted for handle in handles) > 20
    assert replay(log).checked > 0


@pytest.mark.parametrize("law", ["coupled", "chain"])
def test_sampled_requests_too(law: str, opened: Open, log: Path) -> None:
    sampling = {"temperature": 1.0, "seed": 5, "law": law}
    toy = ToyExecutor(accuracy=7, page_count=200)
    swept(toy, lambda rows: 1 + 0.02 * rows, 0.01)
    found = opened(toy, draft="mtp+lookup").submit(REPEATS, max_tokens=TOKENS, sampling=sampling).result()
    assert len(found.ids) == TOKENS
    assert found.stats.drafted > 5
    if law == "coupled":
        alone = opened(ToyExecutor(accuracy=7, page_count=200), draft="none", log=None)
        assert alone.submit(REPEATS, max_tokens=TOKENS, sampling=sampling).result().ids == found.ids


def test_decisions_are_in_the_log_with_what_they_were_made_of(opened: Open, log: Path) -> None:
    toy = ToyExecutor(page_count=200)
    swept(toy, lambda rows: 1 + 0.02 * rows)
    runtime = opened(toy, draft="lookup")
    stats = runtime.submit(REPEATS, max_tokens=TOKENS).result().stats
    runtime.close()
    rounds = events(log, RoundCommitted)
    assert rounds[0].decision == (), "the last row of the prompt has no drafts to decide about"
    said = [read(event.decision) for event in rounds if event.decision]
    assert {one["controller"] for one in said} == {"goodput"}
    assert dict(Counter(one["reason"] for one in said)) == stats.decisions
    for event in rounds:
        if event.decision:
            one = read(event.decision)
            assert len(event.drafts) == one["asked"]
            if one["reason"] == "pays":
                assert one["expected"] > one["cost"]
    (note,) = [note for note in events(log, RuntimeNote) if note.kind == "costs"]
    assert note.data["source"] == "sweep"


@pytest.mark.parametrize(("draft_len", "decision"), [(2, (1, 2)), ("additive:3", (2, 1))])
def test_other_controllers_say_what_they_asked_for(
    draft_len: Any, decision: tuple[int, ...], opened: Open, log: Path
) -> None:
    runtime = opened(ToyExecutor(accuracy=8), draft="executor", draft_len=draft_len)
    stats = runtime.submit([7], max_tokens=20).result().stats
    runtime.close()
    rounds = events(log, RoundCommitted)
    assert (rounds[0].decision, rounds[1].decision) == ((), decision)
    assert stats.decisions == {}
    assert not [note for note in events(log, RuntimeNote) if note.kind == "costs"]


def test_without_a_drafter_nothing_is_decided(opened: Open, log: Path) -> None:
    runtime = opened(draft="none")
    runtime.submit([7], max_tokens=9).result()
    runtime.close()
    assert {event.decision for event in events(log, RoundCommitted)} == {()}
    assert not [note for note in events(log, RuntimeNote) if note.kind == "costs"]


def test_where_a_row_costs_a_forward_nothing_is_drafted_for_long(opened: Open) -> None:
    toy = ToyExecutor(accuracy=1, page_count=200, context=512)
    swept(toy, float, 0.5)
    stats = opened(toy, draft="executor").submit([7, 7], max_tokens=200).result().stats
    assert stats.drafted <= 10
    assert stats.decisions["fallback"] > 150


def test_a_threshold_that_nothing_reaches(opened: Open) -> None:
    toy = ToyExecutor(accuracy=8, page_count=200)
    swept(toy, lambda rows: 1 + 0.02 * rows, 0.01)
    strict = opened(toy, draft="executor", spec_fallback=20.0).submit([7], max_tokens=40).result()
    assert strict.stats.decisions.get("pays", 0) == 0
    lenient = opened(toy, draft="executor", log=None).submit([7], max_tokens=40).result()
    assert lenient.stats.rounds < 12
    assert lenient.ids == strict.ids


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan"), "2", True, None])
def test_what_is_no_threshold(value: Any, opened: Open) -> None:
    with pytest.raises(InvalidRequest, match="spec_fallback must be a finite number above 0"):
        opened(spec_fallback=value)


def test_durations_teach_costs(opened: Open, log: Path) -> None:
    told: list[Spent] = []

    class Costs:
        def table(self, batch: int, context: int) -> list[float]:
            return [1.0 + 0.01 * max(rows - batch, 0) for rows in range(8 * batch + 1)]

        def step(self, batch: int, context: int) -> float:
            return 0.01

        def observe(self, spent: Spent) -> None:
            told.append(spent)

        def data(self) -> dict[str, Any]:
            return {"source": "test"}

    runtime = opened(ToyExecutor(accuracy=8, page_count=200), draft="mtp+lookup")
    runtime._scheduler.planner._make = Costs
    runtime.submit(REPEATS, max_tokens=30).result()
    runtime.close()
    rounds = events(log, RoundCommitted)
    # Nothing is known of costs before the first round that has something to decide.
    assert [spent.rows for spent in told] == [event.width for event in rounds[-len(told) :]]
    assert len(told) >= len(rounds) - 1
    for spent, event in zip(told, rounds[-len(told) :], strict=True):
        own = len(event.drafts) - event.copied if event.source.startswith("toy") else 0
        assert spent.depth == own
        assert spent.forward >= event.times[2] + event.times[3]
    assert any(spent.depth for spent in told)


def test_a_recovered_runtime_decides_anew(log: Path) -> None:
    toy = ToyExecutor(page_count=200)
    swept(toy, lambda rows: 1 + 0.02 * rows)
    runtime = Runtime.open(toy, log=log, draft="lookup", spec_fallback=1.5)
    runtime.submit(REPEATS, max_tokens=TOKENS)
    for _ in range(6):
        runtime.step()
    runtime.close()
    with Runtime.recover(log, ToyExecutor(page_count=200)) as again:
        assert (again.options.draft_len, again.options.spec_fallback) == ("goodput", 1.5)
        (handle,) = again.handles.values()
        assert list(handle.result().ids) == plain(REPEATS, TOKENS, 48)
    assert [note.data["source"] for note in events(log, RuntimeNote) if note.kind == "costs"] == ["sweep"] * 2
