"""The arms over the toy: what a runtime reports, equality against an executor that lies, batches, the chain law."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest

from txdecode.runtime.bench import arms
from txdecode.runtime.bench.arms import ArmOpener, Models, RuntimeArm, Settings, open_models
from txdecode.runtime.bench.measure import AGAIN, PLAIN, SPECULATIVE, Measured, Unit, measure
from txdecode.runtime.bench.prompts import units_of
from txdecode.runtime.errors import InvalidRequest
from txdecode.runtime.gates.prompts import GatePrompt
from txdecode.runtime.opening import Opened
from txdecode.runtime.sampling import Sampling
from txdecode.runtime.stops import StopMatcher
from txdecode.transactions.executor import Outcome, Round
from txdecode.transactions.toy import ToyExecutor


class Stream:
    special_tokens: ClassVar[dict[str, int]] = {}

    def fork(self) -> Stream:
        return self

    def push(self, ids: Any) -> str:
        return "".join(chr(ord("A") + token) for token in ids)

    def flush(self) -> str:
        return ""


class Letters:
    def encode(self, text: str) -> list[int]:
        return [ord(letter) - ord("A") for letter in text]

    def stop_matcher(self, stops: Sequence[str] = (), after: int = 0) -> StopMatcher:
        return StopMatcher(Stream(), stops, after)  # type: ignore[arg-type]


class Liar(ToyExecutor):
    """Says another token at the end of a round that had drafts."""

    def accept(self, rounds: Sequence[Round]) -> list[Outcome]:
        return [
            attrs.evolve(outcome, next_token=(outcome.next_token + 1) % self.vocab_size)
            if outcome.proposal.tokens
            else outcome
            for outcome in super().accept(rounds)
        ]


class Drafts:
    """Proposes the same letters again and again."""

    name = "again"

    def begin(self, request: int, known: Sequence[int]) -> None:
        pass

    def propose(self, request: int, count: int) -> tuple[int, ...]:
        return (1, 2, 3)[:count]

    def commit(self, request: int, tokens: Sequence[int]) -> None:
        pass

    def end(self, request: int) -> None:
        pass


PROMPTS = [
    GatePrompt(f"p{index}", (), 24, False, text="ABCD" * (1 + index), category=("x", "y")[index % 2])
    for index in range(3)
]
SAMPLED = Sampling(temperature=1.0).resolved({}, lambda: 3)


def models(executor: ToyExecutor | None = None) -> Models:
    opened = Opened(executor or ToyExecutor(accuracy=6), "toy", Letters(), drafts=True)  # type: ignore[arg-type]
    return Models(opened, opened)


def settings(**given: Any) -> Settings:
    return Settings(**{"draft": "executor", "draft_len": 3, **given})


def run(
    tmp_path: Path, chosen: Settings, made: Models | None = None, names: Sequence[str] = (PLAIN, SPECULATIVE)
) -> Measured:
    opener = ArmOpener(made or models(), chosen, tmp_path)
    units = units_of(PROMPTS, chosen.batch)
    return measure(units, names, opener, repeats=2, calibrate=lambda: 1.0, same_text=chosen.same_text)


def test_both_arms_give_the_same_text_and_rows_say_what_the_rounds_were(tmp_path: Path) -> None:
    found = run(tmp_path, settings(), names=(PLAIN, SPECULATIVE, AGAIN))
    assert not found.mismatches
    assert not found.left_out
    assert len(found.rows) == 3 * 2 * 3
    for row in found.rows:
        sample, facts = row.sample, row.facts
        assert sample.tokens == facts.emitted == 24
        assert sample.rounds == facts.rounds
        assert sample.decode_s > 0
        assert sample.prompt_tokens == len(next(p.text for p in PROMPTS if p.name == row.unit))
        offered = sum(offered for offered, _, _ in facts.depths)
        assert facts.rows == facts.rounds + offered
        if row.arm == SPECULATIVE:
            assert max(facts.widths) == 4
            assert sample.by_source["toy"] == (offered, sum(depth[2] for depth in facts.depths))
            assert facts.rounds < 24
        else:
            assert set(facts.widths) == {1}
            assert not sample.by_source


def test_parts_add_up_to_the_decode_time(tmp_path: Path) -> None:
    for row in run(tmp_path, settings()).rows:
        parts = row.sample.parts
        assert all(seconds >= 0 for seconds in parts.values())
        assert {"forward", "choose", "settle", "host commit", "host between rounds"} <= set(parts)
        # What the clock of the phases and that of the loop see apart is a part of no one.
        assert sum(parts.values()) >= row.sample.decode_s * (1 - 1e-9)


def test_drafters_of_the_host_count_as_host_time(tmp_path: Path) -> None:
    plain = Opened(ToyExecutor(), "toy", Letters())  # type: ignore[arg-type]
    found = run(tmp_path, settings(draft="lookup"), Models(plain, plain))
    assert all("host draft" in row.sample.parts and "draft" not in row.sample.parts for row in found.rows)
    assert all("draft" in row.sample.parts for row in run(tmp_path, settings()).rows)


def test_an_executor_that_lies_when_it_drafts_is_found_out(tmp_path: Path) -> None:
    liar = Opened(Liar(), "liar", Letters())  # type: ignore[arg-type]
    found = run(tmp_path, settings(draft=Drafts()), Models(liar, liar))
    assert found.mismatches
    assert {item.arm for item in found.mismatches} == {SPECULATIVE}
    assert {item.prompt for item in found.mismatches} == {"p0", "p1", "p2"}


def test_a_sampled_text_of_a_seed_is_the_same_too(tmp_path: Path) -> None:
    found = run(tmp_path, settings(sampling=SAMPLED))
    assert not found.mismatches
    assert len({row.sample.ids for row in found.rows if row.unit == "p0"}) == 1


def test_the_chain_law_is_compared_by_count_alone(tmp_path: Path) -> None:
    chain = settings(sampling=attrs.evolve(SAMPLED, law="chain"), ignore_eos=True)
    assert not chain.same_text
    found = run(tmp_path, chain)
    assert not found.mismatches
    assert not found.left_out
    assert {row.sample.tokens for row in found.rows} == {24}
    assert len({row.sample.ids for row in found.rows if row.unit == "p0"}) > 1


def test_prompts_of_a_category_decode_together(tmp_path: Path) -> None:
    found = run(tmp_path, settings(batch=2))
    assert not found.mismatches
    assert {row.unit for row in found.rows} == {"x-batch1", "y-batch1"}
    both = [row for row in found.rows if row.unit == "x-batch1"]
    assert {row.sample.tokens for row in both} == {48}
    assert all(row.facts.emitted == 48 and "host" in row.sample.parts for row in both)


def test_a_text_that_the_context_ends_is_cut(tmp_path: Path) -> None:
    arm = RuntimeArm(PLAIN, models(ToyExecutor(context=20)).plain, settings(), tmp_path / "log")
    sample = arm.decode(units_of(PROMPTS[:1], 1)[0])
    arm.close()
    assert sample.cut == f"'p0' reached the end of the context after {sample.tokens} tokens"


def test_a_refused_batch_mate_leaves_nothing_behind(tmp_path: Path) -> None:
    arm = RuntimeArm(PLAIN, models(ToyExecutor(context=20)).plain, settings(batch=2), tmp_path / "log")
    long = attrs.evolve(PROMPTS[0], text="A" * 30)
    with pytest.raises(arms.TxDecodeError, match="context"):
        arm.decode(Unit("u", "x", (PROMPTS[0], long)))
    assert not arm._runtime.handles
    arm.close()


def test_plain_decoding_does_not_pay_for_the_state_of_a_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def opened(model: str, dtype: str, draft: str, **options: Any) -> Opened:
        asked.append((draft, options))
        return Opened(ToyExecutor(), model, drafts=draft in ("mtp", "model"))

    monkeypatch.setattr(arms, "open_model", opened)
    both = open_models("m", "fp32", "mtp", 1, 2, rollback="replay")
    assert [name for name, _ in asked] == ["mtp", "none"]
    common = {"batch_max": 8, "threads": 2, "rollback": "replay"}
    assert asked[0][1] == {**common, "draft_model": None}
    assert asked[1][1] == common
    assert both.of(SPECULATIVE) is not both.of(PLAIN)
    assert both.of(AGAIN) is both.of(PLAIN)
    asked.clear()
    open_models("m", "fp32", "model", 1, None, "first:2")
    assert [options.get("draft_model") for _, options in asked] == ["first:2", None]
    with pytest.raises(InvalidRequest, match="draft_model"):
        open_models("m", "fp32", "lookup", 1, None, "first:2")
    asked.clear()
    same = open_models("m", "fp32", "lookup", 1, None)
    assert [name for name, _ in asked] == ["lookup"]
    assert same.plain is same.speculative


def test_drafters_start_afresh_in_every_repeat(tmp_path: Path) -> None:
    opener = ArmOpener(models(), settings(draft="lookup"), tmp_path)
    first = opener(SPECULATIVE, 0)
    first.close()
    second = opener(SPECULATIVE, 1)
    second.close()
    assert first._runtime._intake.drafter is not second._runtime._intake.drafter


def test_one_prompt_at_a_time_may_be_longer_than_the_usual_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are planned by sequences of 2,048 tokens; with those of one a prompt of 2,500 was left out."""
    asked: list[int] = []

    def open_model(*_: Any, batch_max: int, **__: Any) -> Opened:
        asked.append(batch_max)
        return Opened(ToyExecutor(page_count=9), "toy")

    monkeypatch.setattr(arms, "open_model", open_model)
    open_models("bundled", "bf16", "lookup", 1, None)
    open_models("bundled", "bf16", "lookup", 20, None)
    assert asked == [8, 20]
