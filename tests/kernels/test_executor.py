"""The dense executor, verb by verb."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch

from txdecode.kernels import deciding
from txdecode.kernels import executor as module
from txdecode.kernels.capability import MemoryPlanRefused
from txdecode.kernels.executor import DenseExecutor
from txdecode.kernels.models.weights import DenseWeights
from txdecode.transactions.executor import (
    NO_PROPOSAL,
    CapabilityMissing,
    Executor,
    ExecutorFault,
    PrefillPlan,
    Proposal,
    Round,
    RoundPlan,
    SequenceView,
    Settlement,
    Ticket,
)
from txdecode.transactions.judge import judge as definition
from txdecode.transactions.target import History, Target

MakeWeights = Callable[..., DenseWeights]


def view(length: int, pages: tuple[int, ...], request: int = 1) -> SequenceView:
    return SequenceView(request, 0, length, (pages,), (), ())


def plan(length: int, pages: tuple[int, ...], pending: int, width: int, request: int = 1) -> RoundPlan:
    parents = tuple(range(-1, width - 1))
    return RoundPlan(view(length, pages, request), 0, pending, parents, (pages,), (), (0, width), width)


@pytest.fixture
def weights(make_weights: MakeWeights) -> DenseWeights:
    return make_weights()


@pytest.fixture
def made(weights: DenseWeights) -> DenseExecutor:
    return DenseExecutor(weights, dtype="fp32", page_count=12, batch_max=3, rows_max=6)


def prefill(made: DenseExecutor, tokens: tuple[int, ...], pages: tuple[int, ...], request: int = 1) -> None:
    made.prefill([PrefillPlan(view(0, pages, request), tokens, (pages,), ())])


def greedy_text(made: DenseExecutor, prompt: tuple[int, ...], count: int) -> list[int]:
    """Plain decoding: rounds of one row."""
    pages = (0, 1, 2)
    prefill(made, prompt[:-1], pages)
    length, pending, text = len(prompt) - 1, prompt[-1], []
    for _ in range(count):
        item = Round(plan(length, pages, pending, 1), NO_PROPOSAL)
        made.verify([item])
        (outcome,) = made.accept([item])
        made.settle([Settlement(item.plan, outcome.path)])
        length, pending = length + 1, outcome.next_token
        text.append(pending)
    return text


def test_describes_itself_with_the_same_object_and_a_plan_that_adds_up(
    made: DenseExecutor, weights: DenseWeights
) -> None:
    described: Executor = made
    facts = described.describe()
    assert facts is made.describe()
    (group,) = facts.groups
    assert (group.name, group.kind, group.granularity, group.capacity) == ("kv", "pages", 64, 12)
    assert group.layers == 2
    assert group.row_bytes == 2 * 2 * weights.config.kv_size * 4
    assert (facts.rows_max, facts.batch_max, facts.context) == (6, 3, 512)
    assert facts.capabilities.row_invariant
    assert not facts.capabilities.fused
    assert not facts.capabilities.drafts
    assert facts.fingerprint["weights"] == weights.digest
    assert set(facts.fingerprint) == {"torch", "dtype", "weights", "threads", "cpu", "numerics"}
    assert sum(facts.memory.values()) > facts.memory["kv_pages"] > 0


def test_context_is_the_lesser_of_the_models_and_the_callers(weights: DenseWeights) -> None:
    for asked, given in ((None, 512), (100, 100), (9999, 512)):
        made = DenseExecutor(weights, dtype="bf16", page_count=4, context=asked)
        assert made.describe().context == given


def test_drafts_are_accepted_while_they_are_the_greedy_choice(made: DenseExecutor) -> None:
    prompt = (5, 9, 200, 31)
    text = greedy_text(made, prompt, 6)
    pages = (4, 7)
    prefill(made, prompt[:-1], pages)
    for right in range(6):
        drafts = [*text[:right], (text[right] + 1) % 320, *text[right + 1 :]][:5]
        item = Round(plan(3, pages, prompt[-1], 6), Proposal(tuple(drafts), "test"))
        made.verify([item])
        (outcome,) = made.accept([item])
        assert outcome.path == tuple(range(right + 1))
        assert outcome.next_token == text[right]
        assert outcome.proposal is item.proposal
        made.abandon([item.plan])


def test_rounds_of_different_widths_are_accepted_in_their_order(made: DenseExecutor) -> None:
    prompt = (5, 9, 200, 31)
    text = greedy_text(made, prompt, 4)
    items = []
    for request, drafts in ((7, ()), (3, tuple(text[:3])), (5, (text[0],))):
        pages = (request, request + 1)
        prefill(made, prompt[:-1], pages, request)
        items.append(Round(plan(3, pages, prompt[-1], 4, request), Proposal(drafts)))
    made.verify(items)
    assert [logits.shape for logits in made.logits_of_last_launch()] == [(1, 320), (4, 320), (2, 320)]
    outcomes = made.accept(items[::-1])
    assert [outcome.accepted for outcome in outcomes] == [1, 3, 0]
    assert [outcome.next_token for outcome in outcomes] == [text[1], text[3], text[0]]
    # One was cancelled in between: the rest is accepted as before.
    assert made.accept([items[1]])[0].accepted == 3
    assert made.accept([]) == []


def test_a_round_without_proposal_verifies_the_pending_row_alone(made: DenseExecutor) -> None:
    prefill(made, (1, 2), (0,))
    made.verify([Round(plan(2, (0,), 3, 4), None)])
    assert made.logits_of_last_launch()[0].shape == (1, 320)


def test_settled_abandoned_and_dropped_rounds_cannot_be_accepted(made: DenseExecutor) -> None:
    prefill(made, (1, 2), (0,))
    item = Round(plan(2, (0,), 3, 1), NO_PROPOSAL)
    for forget in (
        lambda: made.settle([Settlement(item.plan, (0,))]),
        lambda: made.abandon([item.plan]),
        lambda: made.drop(1),
    ):
        made.verify([item])
        forget()
        with pytest.raises(KeyError):
            made.accept([item])
        forget()


def test_settling_anything_but_the_first_rows_is_a_programmer_error(made: DenseExecutor) -> None:
    with pytest.raises(AssertionError, match="no chain"):
        made.settle([Settlement(plan(2, (0,), 3, 4), (0, 2))])
    with pytest.raises(AssertionError):
        made.settle([Settlement(plan(2, (0,), 3, 1), (0, 1))])


def test_prefill_of_many_prompts_equals_prefill_of_each(weights: DenseWeights) -> None:
    made = DenseExecutor(weights, dtype="bf16", page_count=12, batch_max=8, rows_max=6)
    tokens = tuple((7 * i) % 320 for i in range(250))
    plans = [
        PrefillPlan(view(0, (4 * lane, 4 * lane + 1, 4 * lane + 2, 4 * lane + 3), lane), part, ((),), ())
        for lane, part in enumerate((tokens[:200], tokens[:100], tokens))
    ]
    plans = [attrs.evolve(item, pages=item.view.pages) for item in plans]
    made.prefill(plans)
    together = [made.audit(attrs.evolve(item.view, length=len(item.tokens))) for item in plans]
    for item in plans:
        made.prefill([item])
    alone = [made.audit(attrs.evolve(item.view, length=len(item.tokens))) for item in plans]
    assert together == alone


def test_launch_collect_and_draft_say_what_is_missing(made: DenseExecutor) -> None:
    for call in (
        lambda: made.launch(1, []),
        lambda: made.collect(Ticket(1)),
        lambda: made.draft([]),
    ):
        with pytest.raises(CapabilityMissing, match="this executor"):
            call()


@pytest.mark.parametrize(
    "tokens", [(-1,), (320,), (), tuple(range(257))], ids=["below", "above", "none", "too many"]
)
def test_ids_and_row_counts_are_asserted(made: DenseExecutor, tokens: tuple[int, ...]) -> None:
    with pytest.raises((AssertionError, ValueError)):
        prefill(made, tokens, tuple(range(8)))


def test_positions_past_the_context_are_asserted(weights: DenseWeights) -> None:
    made = DenseExecutor(weights, dtype="fp32", page_count=4, context=70)
    prefill(made, (1,) * 69, (0, 1))
    made.verify([Round(plan(69, (0, 1), 3, 1), NO_PROPOSAL)])
    with pytest.raises(AssertionError):
        made.verify([Round(plan(69, (0, 1), 3, 2), Proposal((4,)))])


def test_more_rounds_than_the_batch_holds_are_asserted(made: DenseExecutor) -> None:
    with pytest.raises(AssertionError):
        made.verify([Round(plan(0, (lane,), 3, 1, lane), NO_PROPOSAL) for lane in range(4)])
    with pytest.raises(AssertionError):
        made.verify([])


def test_a_proposal_wider_than_its_plan_is_asserted(made: DenseExecutor) -> None:
    with pytest.raises(AssertionError):
        made.verify([Round(plan(0, (0,), 3, 2), Proposal((1, 2)))])


def test_accepting_another_round_than_was_verified_is_asserted(made: DenseExecutor) -> None:
    made.verify([Round(plan(0, (0,), 3, 1), NO_PROPOSAL)])
    with pytest.raises(AssertionError, match="not the last verified"):
        made.accept([Round(plan(1, (0,), 3, 1), NO_PROPOSAL)])


def test_rows_that_are_no_chain_are_asserted(made: DenseExecutor) -> None:
    tree = attrs.evolve(plan(0, (0,), 3, 3), parents=(-1, 0, 0))
    with pytest.raises(AssertionError, match="no chain"):
        made.verify([Round(tree, Proposal((1, 2)))])


def test_torch_errors_become_faults_that_name_the_verb(
    made: DenseExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill(made, (1, 2), (0,))
    item = Round(plan(2, (0,), 3, 1), NO_PROPOSAL)
    made.verify([item])

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("could not create a primitive\nwith a long trace")

    def starved(*_: Any, **__: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(made.model, "forward", starved)
        with pytest.raises(ExecutorFault, match="MemoryError"):
            made.verify([item])
        patched.setattr(made.model, "forward", broken)
        with pytest.raises(
            ExecutorFault, match=r"^prefill failed in a kernel: could not create a primitive;"
        ):
            prefill(made, (1, 2), (0,))
        with pytest.raises(ExecutorFault, match="verify failed") as caught:
            made.verify([item])
        assert isinstance(caught.value.__cause__, RuntimeError)
        assert "\n" not in str(caught.value)
    assert made.logits_of_last_launch() == []
    with pytest.raises(KeyError):
        made.accept([item])
    made.verify([item])
    with monkeypatch.context() as patched:
        patched.setattr(deciding, "lowest_argmax", broken)
        with pytest.raises(ExecutorFault, match="accept failed"):
            made.accept([item])
    assert len(made.accept([item])) == 1


def test_a_row_of_nan_is_a_fault_and_leaves_nothing_behind(weights: DenseWeights) -> None:
    made = DenseExecutor(weights, dtype="bf16", page_count=4)
    prefill(made, (1, 2, 3), (2,))
    good = Round(plan(3, (2,), 4, 2), Proposal((5,)))
    made.verify([good])
    expected = made.logits_of_last_launch()[0].clone()
    before = made.audit(view(3, (2,)))
    model: Any = made.model
    model._embedding[11] = 0x7F80
    with pytest.raises(ExecutorFault, match="not finite"):
        made.verify([Round(plan(3, (2,), 4, 6), Proposal((5, 6, 11, 7)))])
    with pytest.raises(ExecutorFault, match="not finite"):
        prefill(made, (11,), (1,))
    assert made.audit(view(3, (2,))) == before
    made.verify([good])
    assert torch.equal(made.logits_of_last_launch()[0], expected)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_memory_that_was_never_written_does_not_matter(dtype: Any, weights: DenseWeights) -> None:
    """Our own pages hold finite numbers only, which they see to themselves; torch's hold what they are given."""
    texts = []
    for poison in (0.0, -3e38, 3e38) if dtype == "bf16" else (0.0, float("nan"), 3e38):
        made = DenseExecutor(weights, dtype=dtype, page_count=12)
        cache: Any = made.model.cache
        with torch.inference_mode():
            for layer in [cache._pool] if dtype == "bf16" else cache.layers:
                layer[..., : 12 * 64, :, :].fill_(poison) if dtype == "fp32" else layer.fill_(poison)
        prompt = tuple((11 * i) % 320 for i in range(61))
        texts.append(greedy_text(made, prompt, 12))
    assert texts[0] == texts[1] == texts[2]


def test_audit_depends_on_committed_rows_and_not_on_pages(made: DenseExecutor) -> None:
    tokens = tuple((3 * i) % 320 for i in range(100))
    first, second = (0, 1), (9, 4)
    prefill(made, tokens, first)
    prefill(made, tokens, second, 2)
    audit = made.audit(view(100, first))
    assert [(entry.group, entry.layer, entry.index) for entry in audit] == [
        ("kv", layer, page) for layer in (0, 1) for page in (0, 1)
    ]
    assert len({entry.digest for entry in audit}) == 4
    assert made.audit(view(100, second, 2)) == audit
    assert made.audit(view(0, first)) == ()
    # Rows beyond the length are nobody's.
    item = Round(plan(100, first, 3, 6), Proposal((1, 2, 3, 4, 5)))
    made.verify([item])
    assert made.audit(view(100, first)) == audit
    assert made.audit(view(101, first))[1] != audit[1]


@pytest.mark.parametrize(("layer", "row", "entry"), [(0, 0, 0), (0, 63, 0), (1, 64, 3), (1, 99, 3)])
def test_audit_notices_one_element_of_one_row(made: DenseExecutor, layer: int, row: int, entry: int) -> None:
    prefill(made, tuple((3 * i) % 320 for i in range(100)), (5, 6))
    before = made.audit(view(100, (5, 6)))
    cache: Any = made.model.cache
    with torch.inference_mode():
        cache.layers[layer][5 * 64 + row, -1, -1] += 1.0
    after = made.audit(view(100, (5, 6)))
    assert [old == new for old, new in zip(before, after, strict=True)] == [i != entry for i in range(4)]


def test_a_plan_that_does_not_fit_is_refused_with_the_figures(
    weights: DenseWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "free_memory", lambda: 3 * 2**20)
    built: list[object] = []
    monkeypatch.setattr(module, "build", lambda *a: built.append(a))
    with pytest.raises(MemoryPlanRefused, match=r"MiB wanted .*kv_pages .*3\.0 MiB free") as refused:
        DenseExecutor(weights, dtype="fp32", page_count=400)
    assert refused.value.free == 3 * 2**20
    assert refused.value.wanted == sum(refused.value.plan.values()) > refused.value.free
    assert "\n" not in str(refused.value)
    assert built == []


def test_the_default_pool_is_bounded_by_memory(
    weights: DenseWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    def capacity(**arguments: Any) -> int:
        return DenseExecutor(weights, dtype="fp32", **arguments).describe().groups[0].capacity

    assert capacity() == 8 * 8
    assert capacity(batch_max=3, context=100) == 3 * 2
    monkeypatch.setattr(module, "free_memory", lambda: 4 * 2**20)
    small = DenseExecutor(weights, dtype="fp32").describe()
    assert 1 <= small.groups[0].capacity < 64
    assert sum(small.memory.values()) < 4 * 2**20


def test_threads_are_set_only_when_asked(weights: DenseWeights) -> None:
    before = torch.get_num_threads()
    DenseExecutor(weights, dtype="fp32", page_count=2)
    assert torch.get_num_threads() == before
    made = DenseExecutor(weights, dtype="fp32", page_count=2, threads=before + 1)
    try:
        assert torch.get_num_threads() == before + 1
        assert made.describe().fingerprint["threads"] == str(before + 1)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("logprobs", [-1, 0])
def test_logits_that_are_no_numbers_fault_whatever_was_asked(made: DenseExecutor, logprobs: int) -> None:
    prefill(made, (1, 2, 3), (2,))
    item = Round(attrs.evolve(plan(3, (2,), 4, 2), target=Target(logprobs=logprobs)), Proposal((5,)))
    made.verify([item])
    with torch.inference_mode():
        made.logits_of_last_launch()[0][0, 17] = float("nan")
    with pytest.raises(ExecutorFault, match="finite"):
        made.accept([item])


def sampled(made: DenseExecutor, target: Target, proposal: Proposal, history: History | None = None) -> Any:
    item = Round(attrs.evolve(plan(3, (2,), 4, 3), target=target, history=history, rng=(4, 7)), proposal)
    made.verify([item])
    return made.accept([item])[0], made.logits_of_last_launch()[0].float()


@pytest.mark.parametrize("law", ["coupled", "chain"])
def test_a_sampled_round_is_what_the_definition_says(made: DenseExecutor, law: Any) -> None:
    prefill(made, (1, 2, 3), (2,))
    for seed in range(12):
        target = Target(law=law, seed=seed, temperature=3.0, top_k=9, logprobs=2)
        outcome, rows = sampled(made, target, Proposal((5, 6)))
        expected = definition(rows.tolist(), target, None, (5, 6), 4)
        assert (outcome.path, outcome.next_token) == (expected.path, expected.token)
        assert [entry.token for entry in outcome.logprobs] == [entry.token for entry in expected.logprobs]


def test_a_drafters_distributions_reach_the_chain_law(made: DenseExecutor) -> None:
    prefill(made, (1, 2, 3), (2,))
    vocab = made.describe().vocab_size
    verdicts = {}
    for name in ("point", "sampled"):
        verdicts[name] = []
        for seed in range(40):
            target = Target(law="chain", seed=seed, temperature=1.0)
            _, rows = sampled(made, target, Proposal((5, 6)))
            q = torch.softmax(rows[:2].double(), -1)
            proposal = Proposal((5, 6), "x", "sampled", q) if name == "sampled" else Proposal((5, 6))
            outcome, _ = sampled(made, target, proposal)
            verdicts[name].append(outcome.path)
    # Drafts from the target's own distribution are never rejected; copied ones nearly always, at 1 in vocab.
    assert set(verdicts["sampled"]) == {(0, 1, 2)}
    assert (0,) in verdicts["point"]
    assert vocab > 8


def test_penalties_are_of_the_prompt_that_the_plan_names(made: DenseExecutor) -> None:
    """Also where another request had its number before, as after a runtime that was closed."""
    prefill(made, (1, 2, 3), (2,))
    target = Target(repetition_penalty=100.0)
    first, rows = sampled(made, target, Proposal(), History((1, 2, 3), {}, 0))
    best = int(rows[0].argmax())
    other, _ = sampled(made, target, Proposal(), History((1, 2, 3, best), {}, 0))
    assert first.next_token == definition(rows[:1].tolist(), target, History((1, 2, 3), {}, 0), (), 4).token
    assert other.next_token != best
    again, _ = sampled(made, target, Proposal(), History((1, 2, 3), {}, 0))
    assert again.next_token == first.next_token
    assert made._verified._prompts
    made.drop(1)
    assert not made._verified._prompts


def test_rows_behind_a_rejection_may_hold_anything(made: DenseExecutor) -> None:
    prefill(made, (1, 2, 3), (2,))
    item = Round(plan(3, (2,), 4, 2), Proposal((5,)))
    made.verify([item])
    expected = made.accept([item])[0]
    assert expected.path == (0,)
    with torch.inference_mode():
        made.logits_of_last_launch()[0][1] = float("nan")
    assert made.accept([item])[0] == expected


def test_a_vocabulary_of_any_size_is_sampled_from(make_weights: MakeWeights) -> None:
    """Logits of whole vectors are cut to the vocabulary; with several rows the cut is no block of memory."""
    made = DenseExecutor(make_weights(vocab_size=97), dtype="bf16", page_count=4)
    prefill(made, (1, 2, 3), (2,))
    target = Target(law="coupled", seed=3, temperature=0.9, top_k=20)
    item = Round(attrs.evolve(plan(3, (2,), 4, 3), target=target), Proposal((5, 6)))
    made.verify([item])
    (outcome,) = made.accept([item])
    rows = [row.tolist() for row in made.logits_of_last_launch()[0]]
    expected = definition(rows, target, None, (5, 6), 0, None)
    assert (outcome.path, outcome.next_token) == (expected.path, expected.token)


def test_other_threads_of_torch_get_their_number_back(made: DenseExecutor) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with deciding.one_thread(2):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with pytest.raises(ValueError, match="within"), deciding.one_thread(2):
            raise ValueError("within")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
