"""Two executors as one: whose state is whose, what is drafted, and what a drafter that fails costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from tests.kernels import pairs
from txdecode.kernels.executor import DenseExecutor
from txdecode.kernels.models.layout import tensor_shapes
from txdecode.kernels.models.shortened import shortened
from txdecode.kernels.models.weights import DenseWeights
from txdecode.kernels.paired import VocabularyMismatch
from txdecode.kernels.paired_executor import SOURCE, PairedExecutor
from txdecode.runtime import Runtime, Sampling
from txdecode.runtime.execution import execute
from txdecode.runtime.handle import Result
from txdecode.runtime.journal import iterate
from txdecode.runtime.testing.harness import target_of
from txdecode.state.groups import of_kind
from txdecode.transactions.codec import decode
from txdecode.transactions.events import RoundCommitted
from txdecode.transactions.executor import (
    NO_PROPOSAL,
    ROLLBACKS,
    CapabilityMissing,
    Executor,
    PrefillPlan,
    Proposal,
    Round,
    RoundPlan,
    SequenceView,
    Settlement,
    Ticket,
)
from txdecode.transactions.target import GREEDY, History, Target
from txdecode.transactions.toy import ToyExecutor, plain

PROMPT = [6, 33, 24, 27, 42, 21, 12, 15, 30, 9, 0, 3, 18, 45, 36, 39]
SAMPLINGS = {
    "greedy": None,
    "coupled": Sampling(temperature=0.7, seed=5),
    "busy": Sampling(temperature=1.0, seed=6, top_p=0.9, repetition_penalty=1.2, min_tokens=9, logprobs=1),
}


def text(sampling: Sampling | None, count: int, prompt: Sequence[int] = PROMPT) -> tuple[int, ...]:
    return tuple(plain(prompt, count, 48, target=target_of(sampling, frozenset())))


def rounds_of(log: Path) -> list[RoundCommitted]:
    events = [decode(r.type, r.version, r.flags, r.payload) for r in iterate(log)]
    return [event for event in events if isinstance(event, RoundCommitted)]


def run(executor: Executor, **options: Any) -> tuple[Runtime, list[Result]]:
    """Three requests to their end, under paranoia."""
    sampling = options.pop("sampling", None)
    options = {"draft": "model", "draft_len": 4, "paranoid": True, "audit_every": 2, **options}
    with Runtime.open(executor, **options) as runtime:
        handles = [
            runtime.submit(PROMPT[start:], max_tokens=40 + start, sampling=sampling) for start in range(3)
        ]
        runtime.run()
        runtime.check()
    results = [handle.result() for handle in handles]
    for start, result in enumerate(results):
        assert result.ids == text(sampling, 40 + start, PROMPT[start:])
    return runtime, results


# What a pair says of itself.


def test_it_describes_both() -> None:
    made: Executor = pairs.pair("replay", rows_max=6, context=99)
    facts = made.describe()
    assert facts is made.describe()
    assert facts.name == "toy+toy"
    names = ["kv", "gdn", "conv", "ngram", "pairs"]
    assert [group.name for group in facts.groups] == [*names, *(f"draft.{name}" for name in names)]
    assert {group.owner for group in facts.groups[5:]} == {"drafter"}
    assert [group.granularity for group in of_kind(facts.groups, "pages")] == [4, 4, 2, 2]
    assert (facts.rows_max, facts.context, facts.vocab_size) == (6, 99, 48)
    assert set(facts.memory) == {"kv", "gdn", "conv", "draft.kv", "draft.gdn", "draft.conv"}
    assert facts.fingerprint["draft.executor"] == facts.fingerprint["executor"] == "toy-1"
    assert (facts.capabilities.drafts, facts.capabilities.rollback) == (True, "replay")


@pytest.mark.parametrize("field", ["context", "rows_max", "batch_max"])
@pytest.mark.parametrize("narrow", [0, 1])
def test_limits_are_the_lesser_of_both(field: str, narrow: int) -> None:
    options: list[dict[str, int]] = [{}, {}]
    options[narrow] = {field: 3}
    made = PairedExecutor(ToyExecutor(**options[0]), ToyExecutor(**options[1]))  # type: ignore[arg-type]
    assert getattr(made.describe(), field) == 3


def test_bits_are_fixed_only_where_both_are() -> None:
    class Loose(pairs.Paged):
        def describe(self) -> Any:
            facts = super().describe()
            return attrs.evolve(facts, capabilities=attrs.evolve(facts.capabilities, row_invariant=False))

    assert pairs.pair().describe().capabilities.row_invariant
    assert not PairedExecutor(ToyExecutor(), Loose()).describe().capabilities.row_invariant
    assert not PairedExecutor(Loose(), ToyExecutor()).describe().capabilities.row_invariant


def test_another_vocabulary_is_refused() -> None:
    with pytest.raises(VocabularyMismatch, match=r"expected vocab_size 48.*found 49; draft with") as error:
        PairedExecutor(ToyExecutor(), ToyExecutor(vocab_size=49))
    assert (error.value.expected, error.value.found) == (48, 49)


@pytest.mark.parametrize("fused", [(True, False), (False, True)])
def test_a_fused_executor_is_refused(fused: tuple[bool, bool]) -> None:
    with pytest.raises(CapabilityMissing, match="is fused: it cannot be paired"):
        PairedExecutor(ToyExecutor(fused=fused[0]), ToyExecutor(fused=fused[1]))


def test_two_forms_of_rollback_are_refused() -> None:
    with pytest.raises(CapabilityMissing, match=r"one rollback form.*'replay'.*'restore'.*same form"):
        PairedExecutor(ToyExecutor(rollback="replay"), ToyExecutor(rollback="restore"))


def test_a_group_that_its_executor_cannot_commit_is_refused() -> None:
    class Lacks(ToyExecutor):
        def describe(self) -> Any:
            facts = super().describe()
            return attrs.evolve(facts, capabilities=attrs.evolve(facts.capabilities, commits=("pages",)))

    with pytest.raises(CapabilityMissing, match="cannot commit group"):
        # The target can; that helps the drafter's groups nothing.
        PairedExecutor(ToyExecutor(), Lacks())


def test_nobody_drafts_for_himself() -> None:
    toy = ToyExecutor()
    with pytest.raises(AssertionError, match="draft for itself"):
        PairedExecutor(toy, toy)


def test_it_is_not_fused() -> None:
    made = pairs.pair()
    with pytest.raises(CapabilityMissing, match="verb by verb"):
        made.launch(0, [])
    with pytest.raises(CapabilityMissing, match="verb by verb"):
        made.collect(Ticket(0))


# What it drafts.


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("form", ROLLBACKS)
@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize("draft", ["model", "model+suffix", "mtp+lookup+shared"])
def test_the_text_is_that_of_plain_decoding(
    draft: str, name: str, form: Any, paged: bool, tmp_path: Path
) -> None:
    def make() -> PairedExecutor:
        return pairs.pair(form, drafter=pairs.Paged if paged else pairs.Weaker)

    log = tmp_path / "run.txlog"
    _, results = run(make(), log=log, draft=draft, sampling=SAMPLINGS[name])
    # A settle that failed would have cost one.
    assert not any(result.stats.preemptions for result in results)
    rounds = rounds_of(log)
    assert any(event.source.startswith(SOURCE) and event.accepted for event in rounds)
    assert any(event.source.startswith(SOURCE) and event.accepted < len(event.drafts) for event in rounds)
    sources = {source for event in rounds if event.drafts for source in event.source.split("+")}
    copying = {"model": set(), "model+suffix": {"suffix_automaton"}, "mtp+lookup+shared": {"prompt_lookup"}}
    assert sources >= {SOURCE, *copying[draft]}
    assert draft != "model" or sources == {SOURCE}
    report = execute(log, make())
    assert (report.counts.rounds, report.numerics) == (len(rounds), "exact")


@pytest.mark.parametrize("name", SAMPLINGS)
def test_the_target_itself_is_always_right(name: str, tmp_path: Path) -> None:
    # With the target's noise, its filters and its penalties, the same weights choose the same tokens.
    log = tmp_path / "run.txlog"
    run(pairs.pair(drafter=ToyExecutor), log=log, sampling=SAMPLINGS[name])
    rounds = [event for event in rounds_of(log) if event.drafts]
    assert rounds
    assert all(event.accepted == len(event.drafts) for event in rounds)
    assert max(event.accepted for event in rounds) == 4


@pytest.mark.parametrize("paged", [False, True])
def test_under_the_chain_law_toys_draft_point_masses(paged: bool, tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"
    executor = pairs.pair(drafter=pairs.Paged if paged else pairs.Weaker)
    with Runtime.open(executor, log=log, draft="model+lookup", draft_len=5) as runtime:
        for seed in range(3):
            runtime.submit(PROMPT, max_tokens=40, sampling=Sampling(temperature=0.3, seed=seed, law="chain"))
        runtime.run()
    rounds = rounds_of(log)
    drafted = [event for event in rounds if event.source.startswith(SOURCE)]
    assert any(event.accepted for event in drafted)
    assert {event.law for event in drafted} == {0}
    again = pairs.pair(drafter=pairs.Paged if paged else pairs.Weaker)
    assert execute(log, again).counts.rounds == len(rounds)


def test_a_recovery_drafts_again(tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"
    parts = lambda: (ToyExecutor(), pairs.Weaker())  # noqa: E731
    target, drafter = parts()
    runtime = Runtime.open(target, log=log, draft="model+lookup", draft_model=drafter, draft_len=5)
    runtime.submit(PROMPT, max_tokens=80)
    for _ in range(6):
        runtime.step()
    runtime.close()
    assert (runtime.options.draft, runtime.options.draft_model) == ("model+lookup", "toy")
    before = len(rounds_of(log))
    target, drafter = parts()
    with Runtime.recover(log, target, draft_model=drafter) as recovered:
        assert recovered.options.draft_model == "toy"
        handle = recovered.handles[0]
        recovered.run()
        assert handle.result().ids == text(None, 80)
    later = rounds_of(log)[before:]
    assert any(event.source.startswith(SOURCE) for event in later)
    assert execute(log, PairedExecutor(*parts())).counts.rounds == before + len(later)


# Rows that the drafter reads.


def counted(drafts: Proposal | int, right: int, wrong: int = 0) -> list[tuple[str, list[int]]]:
    """Calls of a drafter with pages alone in one round: ``drafts`` of its own, or a proposal of the host; ``right``
    of them are accepted."""
    drafter = pairs.Paged(wrong=wrong)
    target = pairs.Paged(wrong=wrong)
    made = PairedExecutor(target, drafter)
    pages = ((0, 1, 2), (3, 4, 5))
    made.prefill(
        [PrefillPlan(SequenceView(1, 0, 0, ((), ()), (), ()), (1, 2, 3), ((0,), (3,)), ())],
    )
    view = SequenceView(1, 0, 3, ((0,), (3,)), (), ())
    plan = RoundPlan(view, 0, 7, tuple(range(-1, 5)), pages, (), (4, 10), 9)
    drafter.calls.clear()
    proposal = drafts if isinstance(drafts, Proposal) else made.draft([plan.narrowed(drafts)])[0]
    made.verify([Round(plan, proposal)])
    made.accept([Round(plan, proposal)])
    made.settle([Settlement(plan, tuple(range(right + 1)))])
    tokens = (1, 2, 3, 7, *proposal.tokens[:right])
    after = attrs.evolve(view, length=len(tokens), pages=tuple(p[: -(-len(tokens) // 4)] for p in pages))
    assert made.audit(after)[1:] == pairs.paged_audit(tokens)
    assert not made.kept
    return drafter.calls


def test_after_all_drafts_were_right_the_last_row_is_read() -> None:
    steps = [("verify", [1])] * 3
    assert counted(3, 3) == [*steps, ("prefill", [1])]


@pytest.mark.parametrize("right", [0, 1, 2])
def test_after_a_rejection_nothing_is_read(right: int) -> None:
    assert counted(3, right) == [("verify", [1])] * 3


def test_rounds_without_drafts_are_read() -> None:
    assert counted(Proposal(), 0) == [("prefill", [1])]


def test_what_the_host_copied_is_read() -> None:
    assert counted(Proposal((5, 6, 7, 8), "host"), 2) == [("prefill", [3])]


def test_requests_of_different_depths_share_their_steps() -> None:
    drafter = pairs.Paged()
    made = PairedExecutor(pairs.Paged(), drafter)
    plans = []
    for request, width in ((1, 1), (2, 4), (3, 2)):
        view = SequenceView(request, 0, 0, ((), ()), (), ())
        pages = ((request,), (request,))
        plans.append(RoundPlan(view, 0, 5, tuple(range(-1, width - 1)), pages, (), (1, 1 + width), 9))
    proposals = made.draft(plans)
    assert [len(proposal.tokens) for proposal in proposals] == [0, 3, 1]
    assert proposals[0] is NO_PROPOSAL
    assert drafter.calls == [("verify", [1, 1]), ("verify", [1]), ("verify", [1])]
    made.abandon(plans)
    assert not made.kept


def test_a_drafter_that_disagrees_with_itself_stops() -> None:
    class Fickle(ToyExecutor):
        calls = 0

        def accept(self, rounds: Any) -> Any:
            self.calls += 1
            made = super().accept(rounds)
            return [attrs.evolve(o, path=(0,), next_token=9) for o in made] if self.calls == 2 else made

    drafter = Fickle()
    made = PairedExecutor(pairs.Paged(), drafter)
    view = SequenceView(1, 0, 0, ((), (), ()), (0,), (0,))
    plan = RoundPlan(view, 0, 5, (-1, 0, 1, 2), ((0,), (0,), (0,)), (tuple(range(1, 5)),), (1, 5), 9)
    (proposal,) = made.draft([plan])
    assert (len(proposal.tokens), drafter.calls) == (1, 2)


# Two dense models.


MakeWeights = Callable[..., DenseWeights]


def dense(make_weights: MakeWeights) -> PairedExecutor:
    weights = make_weights(layer_count=3)
    sizes: dict[str, Any] = {"dtype": "fp32", "page_count": 12, "batch_max": 3, "rows_max": 6}
    return PairedExecutor(
        DenseExecutor(weights, **sizes),
        DenseExecutor(shortened(weights, 2), **sizes),
    )


@pytest.mark.parametrize(
    "sampling", [None, Sampling(temperature=0.7, seed=1), Sampling(temperature=0.7, seed=1, law="chain")]
)
def test_dense_models_draft_for_each_other(
    sampling: Sampling | None, make_weights: MakeWeights, tmp_path: Path
) -> None:
    log = tmp_path / "run.txlog"
    prompt = [5, 9, 200, 31]
    options: dict[str, Any] = {"draft_len": 3, "paranoid": True, "audit_every": 1}
    with Runtime.open(dense(make_weights), log=log, draft="model", **options) as runtime:
        handles = [runtime.submit(prompt[i:], max_tokens=30, sampling=sampling) for i in range(2)]
        runtime.run()
    target = DenseExecutor(make_weights(layer_count=3), dtype="fp32", page_count=12, rows_max=6)
    if sampling is None or sampling.law != "chain":
        with Runtime.open(target, draft="none") as runtime:
            for i, handle in enumerate(handles):
                again = runtime.submit(prompt[i:], max_tokens=30, sampling=sampling)
                runtime.run()
                assert again.result().ids == handle.result().ids
    drafted = [event for event in rounds_of(log) if event.drafts]
    assert sum(event.accepted for event in drafted)
    assert {event.law for event in drafted} == {0 if sampling is None else 1}
    assert execute(log, dense(make_weights)).numerics == "exact"


def test_the_distribution_goes_with_what_was_drawn_from_it(make_weights: MakeWeights) -> None:
    made = dense(make_weights)
    view = SequenceView(1, 0, 0, ((), ()), (), ())
    chain = Target(law="chain", temperature=1.0, top_k=5)
    plan = RoundPlan(view, 0, 5, (-1, 0, 1, 2), ((0,), (0,)), (), (1, 5), 9, chain)
    (proposal,) = made.draft([plan])
    assert (proposal.law, len(proposal.tokens)) == ("sampled", 3)
    assert isinstance(proposal.q, torch.Tensor)
    assert proposal.q.shape == (3, 320)
    assert torch.allclose(proposal.q.sum(-1), torch.ones(3, dtype=torch.float64))
    assert [int((row > 0).sum()) for row in proposal.q] == [5, 5, 5]
    assert all(float(row[token]) > 0 for row, token in zip(proposal.q, proposal.tokens, strict=True))
    # Another attempt draws anew, the same one does not.
    assert made.draft([plan])[0].tokens == proposal.tokens
    others = [made.draft([attrs.evolve(plan, attempt=attempt)])[0].tokens for attempt in range(1, 9)]
    assert any(tokens != proposal.tokens for tokens in others)


def test_first_layers(make_weights: MakeWeights) -> None:
    weights = make_weights(layer_count=3)
    cut = shortened(weights, 2)
    assert (cut.config.layer_count, cut.digest) == (2, f"{weights.digest}/first2")
    assert set(cut.tensors) == set(tensor_shapes(cut.config))
    assert all(tensor is weights.tensors[name] for name, tensor in cut.tensors.items())
    for layers in (0, 3):
        with pytest.raises(AssertionError, match=f"{layers} layers of 3"):
            shortened(weights, layers)


# A penalty, and the same weights.


def test_what_a_penalty_forbids_is_not_drafted() -> None:
    drafter = pairs.Paged(wrong=0)
    made = PairedExecutor(pairs.Paged(), drafter)
    view = SequenceView(1, 0, 0, ((), ()), (), ())
    plan = RoundPlan(view, 0, 5, (-1, 0, 1), ((0,), (0,)), (), (1, 4), 9, GREEDY)
    (free,) = made.draft([plan])
    target = Target(bias=((free.tokens[1], float("-inf")),))
    (bound,) = made.draft([attrs.evolve(plan, target=target, history=History((1,), {}, 1))])
    assert bound.tokens[0] == free.tokens[0]
    assert bound.tokens[1] != free.tokens[1]


@pytest.mark.parametrize("sampling", [None, Sampling(temperature=0.9, seed=3)])
def test_the_same_dense_weights_are_always_right(
    sampling: Sampling | None, make_weights: MakeWeights, tmp_path: Path
) -> None:
    sizes: dict[str, Any] = {"dtype": "fp32", "page_count": 12, "batch_max": 3, "rows_max": 6}
    made = PairedExecutor(*(DenseExecutor(make_weights(), **sizes) for _ in range(2)))
    log = tmp_path / "run.txlog"
    with Runtime.open(made, log=log, draft="model", draft_len=3, paranoid=True, audit_every=1) as runtime:
        for start in range(2):
            runtime.submit([5, 9, 200, 31][start:], max_tokens=25 + start, sampling=sampling)
        runtime.run()
    drafted = [event for event in rounds_of(log) if event.drafts]
    assert drafted
    assert all(event.accepted == len(event.drafts) for event in drafted)
