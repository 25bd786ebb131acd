"""The gate ``lossless`` on the toy: it holds for a sound executor, and fails for each way of being unsound."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import attrs
import numpy as np
import pytest
from msgspec import structs

from txdecode.runtime.drafters import spelling
from txdecode.runtime.drafters.prompt_lookup import PromptLookup
from txdecode.runtime.errors import InvalidRequest
from txdecode.runtime.gates.lossless import LosslessReport, lossless_gate, plan_batches, scan
from txdecode.runtime.gates.prompts import BUILT_IN, GatePrompt, read_prompts
from txdecode.runtime.opening import Opened
from txdecode.runtime.sampling import Sampling
from txdecode.transactions.executor import Outcome, Proposal, Round, RoundPlan
from txdecode.transactions.toy import ToyExecutor


class Letters:
    """Stands in for a tokenizer: a character is its code modulo 48, and there is no text."""

    def encode_chat(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        return [ord(letter) % 48 for letter in messages[0]["content"]]

    def stop_matcher(self, stops: Sequence[str] = (), after: int = 0) -> Letters:
        return self

    def commit(self, ids: Sequence[int]) -> str:
        return ""

    def flush(self) -> str:
        return ""


class Logits(np.ndarray):
    """Just enough of a tensor."""

    def contiguous(self) -> Logits:
        return self

    def cpu(self) -> Logits:
        return self

    def float(self) -> Logits:
        return self

    def numpy(self) -> np.ndarray:
        return np.ascontiguousarray(self)


class Shown(ToyExecutor):
    """A toy with logits. ``fault`` names what is wrong with it."""

    def __init__(self, fault: str = "", **options: Any) -> None:
        super().__init__(**{"page_count": 512, "batch_max": 8, "rows_max": 16, "context": 512, **options})
        self.fault = fault
        self._shown: list[Logits] = []

    def verify(self, rounds: Sequence[Round]) -> None:
        super().verify(rounds)
        self._shown = []
        for entry in rounds:
            rows = self._scratch[entry.plan.view.request, entry.plan.view.epoch].rows
            shift = (self.fault == "width" and len(rows) > 1) + (self.fault == "batch" and len(rounds) > 1)
            values = [[float(made.hidden % 99991 + shift), float(made.target)] for made in rows]
            self._shown.append(np.array(values).view(Logits))

    def logits_of_last_launch(self) -> list[Logits]:
        return self._shown

    def accept(self, rounds: Sequence[Round]) -> list[Outcome]:
        outcomes = super().accept(rounds)
        if self.fault == "text" and len(rounds) > 1:
            return [attrs.evolve(o, next_token=(o.next_token + 1) % self.vocab_size) for o in outcomes]
        return outcomes


PROMPTS = [
    GatePrompt(f"p{i}", [{"content": "ABCD" * (1 + i % 3) + chr(65 + i)}], 24, repeats=False)
    for i in range(8)
]


def run(executor: Shown, prompts: Sequence[GatePrompt] = PROMPTS) -> LosslessReport:
    return lossless_gate(Opened(executor, "toy", Letters()), prompts, dtype="-")  # type: ignore[arg-type]


def test_a_sound_executor_passes_with_every_length_and_batch() -> None:
    report = run(Shown())
    assert report.passed
    assert {case.draft_len for case in report.cases} == {*map(str, range(1, 16)), "additive"}
    assert {case.batch for case in report.cases} == {1, 2, 3, 8}
    assert all(case.logit_rows == case.tokens for case in report.cases)
    assert sum(case.empty_rounds for case in report.cases), "no round without anything to propose was seen"


@pytest.mark.parametrize("copies", [False, True])
def test_the_executors_own_drafter_is_gated_too(copies: bool) -> None:
    """Nothing is copied where only the executor drafts; what it drafts is not held against a scan of the tokens."""
    executor = Shown(accuracy=6)
    sources: set[str] = set()
    accept = executor.accept

    def watched(rounds: Sequence[Round]) -> list[Outcome]:
        outcomes = accept(rounds)
        sources.update(made.proposal.source for made in outcomes if made.proposal.tokens)
        return outcomes

    executor.accept = watched  # type: ignore[method-assign]
    opened = Opened(executor, "toy", Letters())  # type: ignore[arg-type]
    report = lossless_gate(opened, PROMPTS, dtype="-", draft="mtp+lookup" if copies else "mtp")
    assert report.passed
    assert sum(case.accepted for case in report.cases)
    assert "toy" in sources
    assert (sources == {"toy"}) != copies
    assert ("toy+prompt_lookup" in sources) == copies


@pytest.mark.parametrize("fault", ["width", "batch"])
def test_logits_that_depend_on_the_launch_fail(fault: str) -> None:
    report = run(Shown(fault))
    failed = [case for case in report.cases if not case.passed]
    assert not report.passed
    assert all(case.rerun and case.logit_differences for case in failed)
    assert {case.batch for case in failed} >= ({2, 3, 8} if fault == "batch" else {1, 8})


def test_text_that_only_a_batch_spoils_fails() -> None:
    report = run(Shown("text"))
    failed = [case for case in report.cases if case.first_difference is not None]
    assert {case.batch for case in failed} == {2, 3, 8}
    assert not report.passed


def test_a_prompt_that_should_repeat_and_did_not_is_named() -> None:
    report = run(Shown(), [attrs.evolve(PROMPTS[0], repeats=True), *PROMPTS[1:]])
    assert not any(case.accepted for case in report.cases if case.prompt == "p0")
    assert report.not_engaged == ("p0",)
    assert not report.passed


class Silent(PromptLookup):
    def propose(self, request: int, count: int) -> tuple[int, ...]:
        return ()


class Short(PromptLookup):
    def propose(self, request: int, count: int) -> tuple[int, ...]:
        return super().propose(request, min(count, 1))


class Eager(PromptLookup):
    def propose(self, request: int, count: int) -> tuple[int, ...]:
        return super().propose(request, count) or (1,)


@pytest.mark.parametrize("drafter", [Silent, Short, Eager])
def test_a_drafter_that_is_off_short_or_eager_fails(
    drafter: type[PromptLookup], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spelling, "PromptLookup", drafter)
    report = run(Shown())
    assert not report.passed
    assert any(case.misproposed for case in report.cases)
    if drafter is Silent:
        assert report.not_engaged == ("every prompt",)


def test_a_narrow_executor_is_asked_for_no_more_than_it_takes() -> None:
    report = run(Shown(rows_max=3, batch_max=2))
    assert {case.draft_len for case in report.cases} == {"1", "2", "additive"}
    assert {case.batch for case in report.cases} == {1, 2}
    assert report.passed


def test_full_runs_every_prompt_alone_at_every_length() -> None:
    alone = {(length, batch[0].name) for length, batch in plan_batches(BUILT_IN, True) if len(batch) == 1}
    assert alone == {(length, p.name) for length in [*map(str, range(1, 16)), "additive"] for p in BUILT_IN}


def test_scan_takes_the_longest_match_and_the_latest_of_these() -> None:
    assert scan([1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 3]) == [8, 1, 2, 3]
    assert scan([5, 1, 2, 3, 9, 4, 2, 3]) == [9, 4, 2, 3]
    assert scan([1, 2, 3]) == []
    assert scan([4]) == []
    tokens = [1, 2, 3, 4, 9, 4, 2, 3, 4]
    assert scan(tokens, 4, 3) == [9, 4, 2, 3, 4]
    assert scan(tokens, 4, 4) == []


@pytest.mark.parametrize(
    ("draft", "sources"),
    [
        ("lookup:2", {"prompt_lookup"}),
        ("suffix", {"suffix_automaton"}),
        ("shared", {"shared_history"}),
        ("lookup:2+shared", {"prompt_lookup", "shared_history"}),
    ],
)
def test_every_drafter_of_the_host_is_gated(draft: str, sources: set[str]) -> None:
    seen: set[str] = set()

    class Watching(Shown):
        def accept(self, rounds: Sequence[Round]) -> list[Outcome]:
            made = super().accept(rounds)
            seen.update(outcome.proposal.source for outcome in made if outcome.proposal.tokens)
            return made

    opened = Opened(Watching(), "toy", Letters())  # type: ignore[arg-type]
    assert lossless_gate(opened, PROMPTS, dtype="-", draft=draft).passed
    assert seen == sources
    opened = Opened(Shown("width"), "toy", Letters())  # type: ignore[arg-type]
    assert not lossless_gate(opened, PROMPTS, dtype="-", draft=draft).passed


@pytest.mark.parametrize("draft", ["lookup:2", "lookup:5"])
def test_a_minimum_match_is_held_against_the_scan(draft: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Loose(PromptLookup):
        def __init__(self, low: int, high: int) -> None:
            super().__init__(1, high)

    prompts = [attrs.evolve(PROMPTS[0], repeats=draft == "lookup:2"), *PROMPTS[1:]]
    opened = Opened(Shown(), "toy", Letters())  # type: ignore[arg-type]
    report = lossless_gate(opened, prompts, dtype="-", draft=draft)
    assert not any(case.misproposed for case in report.cases)
    monkeypatch.setattr(spelling, "PromptLookup", Loose)
    report = lossless_gate(opened, prompts, dtype="-", draft=draft)
    assert any(case.misproposed for case in report.cases)


def test_nothing_to_compare_is_refused() -> None:
    opened = Opened(Shown(), "toy", Letters())  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="draft 'none' is plain; name a drafter"):
        lossless_gate(opened, PROMPTS, dtype="-", draft="none")


def test_prompts_are_read_and_refused_by_line(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"id": "a", "category": "quote", "messages": [], "max_tokens": 5}\n\n')
    assert read_prompts(file) == (GatePrompt("a", [], 5, True, category="quote"),)
    file.write_text('{"id": "a", "messages": [], "max_tokens": 5}\n{"id": 1}\n')
    with pytest.raises(InvalidRequest, match="line 2"):
        read_prompts(file)
    file.write_text("\n")
    with pytest.raises(InvalidRequest, match="no prompts"):
        read_prompts(file)


SAMPLED = Sampling(temperature=1.0, top_k=24, repetition_penalty=1.2, frequency_penalty=-0.3)


def test_a_sampled_text_is_compared_too() -> None:
    prompts = [attrs.evolve(prompt, repeats=True) for prompt in PROMPTS]
    report = lossless_gate(Opened(Shown(), "toy", Letters()), prompts, dtype="-", sampling=SAMPLED)  # type: ignore[arg-type]
    assert report.passed
    assert sum(case.accepted for case in report.cases)
    greedy = run(Shown())
    assert [case.accepted for case in report.cases] != [case.accepted for case in greedy.cases]


def test_a_sampled_text_that_only_a_batch_spoils_fails() -> None:
    report = lossless_gate(Opened(Shown("text"), "toy", Letters()), PROMPTS, dtype="-", sampling=SAMPLED)  # type: ignore[arg-type]
    assert not report.passed


def test_draws_that_depend_on_the_round_fail() -> None:
    class ByRounds(Shown):
        def _judge(self, plan: RoundPlan, proposal: Proposal) -> Outcome:
            return super()._judge(attrs.evolve(plan, rng=(plan.ordinal, plan.rng[1])), proposal)

    report = lossless_gate(Opened(ByRounds(), "toy", Letters()), PROMPTS, dtype="-", sampling=SAMPLED)  # type: ignore[arg-type]
    assert not report.passed
    assert run(ByRounds()).passed


def test_logprobs_are_compared() -> None:
    class Off(Shown):
        def _judge(self, plan: RoundPlan, proposal: Proposal) -> Outcome:
            made = super()._judge(plan, proposal)
            if len(proposal.tokens) < 2:
                return made
            entries = tuple(structs.replace(entry, raw=entry.raw - 1e-12) for entry in made.logprobs)
            return attrs.evolve(made, logprobs=entries)

    wanted = attrs.evolve(SAMPLED, logprobs=1)
    opened = Opened(Off(), "toy", Letters())  # type: ignore[arg-type]
    report = lossless_gate(opened, PROMPTS, dtype="-", sampling=wanted)
    assert not report.passed
    assert {case.logprobs_equal for case in report.cases} == {True, False}
    assert all(case.first_difference is None for case in report.cases)
    assert lossless_gate(opened, PROMPTS, dtype="-", sampling=SAMPLED).passed


def test_a_checkpoint_has_no_say() -> None:
    class Assets:
        sampling: ClassVar = {"do_sample": True, "temperature": 1.5, "repetition_penalty": 3.0}

    class Defaults(Letters):
        assets = Assets()

    seen = []

    class Watching(Shown):
        def accept(self, rounds: Sequence[Round]) -> list[Outcome]:
            seen.extend(entry.plan.target for entry in rounds)
            return super().accept(rounds)

    assert lossless_gate(Opened(Watching(), "toy", Defaults()), PROMPTS[:2], dtype="-").passed  # type: ignore[arg-type]
    assert all(target.plain for target in seen)


def test_a_filter_without_a_temperature_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="top_k has no effect without a temperature"):
        lossless_gate(Opened(Shown(), "toy", Letters()), PROMPTS, dtype="-", sampling=Sampling(top_k=5))  # type: ignore[arg-type]


def test_the_chain_law_is_not_for_this_gate() -> None:
    with pytest.raises(InvalidRequest, match="'chain' keeps their distribution alone"):
        lossless_gate(
            Opened(Shown(), "toy", Letters()),  # type: ignore[arg-type]
            PROMPTS,
            dtype="-",
            sampling=Sampling(temperature=1.0, law="chain"),
        )
