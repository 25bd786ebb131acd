"""The hybrid executor, verb by verb: what it says of itself, what it refuses, what its audit sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch

from tests import hybrids
from tests.hybrid_bench import FORMS, VOCAB, Bench, Line, loaded, tokens_of, weights_of
from txdecode.kernels import hybrid_executor as module
from txdecode.kernels.capability import MemoryPlanRefused
from txdecode.kernels.deciding import Verified
from txdecode.kernels.hybrid_executor import HybridExecutor
from txdecode.transactions.executor import (
    NO_PROPOSAL,
    AuditEntry,
    CapabilityMissing,
    Executor,
    ExecutorFault,
    PrefillPlan,
    Proposal,
    Rollback,
    Round,
    RoundPlan,
    SequenceView,
    Settlement,
    Ticket,
)
from txdecode.transactions.judge import judge as definition
from txdecode.transactions.target import Target

TOKENS = tokens_of(300, seed=5)


@pytest.fixture
def it() -> Bench:
    return Bench(weights_of())


# What it says.


@pytest.mark.parametrize("form", FORMS)
def test_describes_itself(form: Rollback) -> None:
    weights = weights_of()
    bench = Bench(weights, form)
    described: Executor = bench.executor
    facts, config = described.describe(), weights.config
    assert facts is described.describe()
    kv, gdn, conv, pairs = facts.groups
    assert [group.name for group in facts.groups] == ["kv", "gdn", "conv", "pairs"]
    assert [group.kind for group in facts.groups] == ["pages", "column", "ring", "pages"]
    assert [group.owner for group in facts.groups] == ["target", "target", "target", "drafter"]
    assert (kv.granularity, kv.layers, kv.row_bytes) == (64, 2, 2 * 2 * config.kv_size * 4)
    assert (pairs.granularity, pairs.layers, pairs.row_bytes) == (64, 1, 2 * config.kv_size * 4)
    assert kv.capacity == pairs.capacity == 14
    assert gdn.row_bytes == 2 * config.value_heads * config.key_dim * config.value_dim * 4
    assert gdn.columns == ("row" if form == "columns" else "round")
    # A round of every sequence, and a spare sequence that an audit computes again.
    assert gdn.capacity == (3 * 7 + 7 if form == "columns" else 3 * 2 + 2)
    assert (conv.granularity, conv.capacity) == (config.conv_width - 1 + 6, 4)
    can = facts.capabilities
    assert (can.rollback, can.commits) == (form, ("pages", "ring", form))
    assert can.row_invariant
    assert can.drafts
    assert can.sampling
    assert not can.fused
    assert (facts.rows_max, facts.batch_max, facts.context) == (6, 3, 192)
    assert facts.fingerprint["weights"] == weights.digest
    assert facts.fingerprint["mtp"] == "true"
    # Equal bits do not depend on the form: a log of one may be replayed by another.
    assert facts.fingerprint == Bench(weights, "columns").executor.describe().fingerprint


@pytest.mark.parametrize("form", FORMS)
def test_the_memory_plan_is_what_is_allocated(form: Rollback) -> None:
    made = Bench(weights_of(), form).executor
    plan, model = made.describe().memory, made.model
    assert plan["columns"] == model.states.nbytes
    assert plan["rings"] == model.rings.nbytes
    caches = [model.cache, made.mtp.cache if made.mtp else None]
    assert plan["kv_pages"] == sum(cache._pool.nbytes for cache in caches if cache)
    kept = sum(t.nbytes for each in model.records for t in (each.keys, each.deltas, each.decays))
    assert plan["records"] == (kept if form == "replay" else 0)
    assert plan["embedding"] == model.embedding.nbytes


def test_a_plan_that_does_not_fit_is_refused_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "free_memory", lambda: 2**20)
    built: list[object] = []
    monkeypatch.setattr(module, "HybridModel", lambda *a: built.append(a))
    with pytest.raises(MemoryPlanRefused, match=r"MiB wanted .*columns .*1\.0 MiB free"):
        HybridExecutor(weights_of(), dtype="fp32", page_count=4)
    assert built == []
    with pytest.raises(MemoryPlanRefused, match="or for rollback='replay'"):
        HybridExecutor(weights_of(), dtype="fp32", page_count=4)
    with pytest.raises(MemoryPlanRefused, match=r"shorter context$"):
        HybridExecutor(weights_of(), dtype="fp32", page_count=4, rollback="replay")


def test_the_default_pool_is_bounded_by_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def described(**arguments: Any) -> Any:
        return HybridExecutor(weights_of(), dtype="fp32", batch_max=2, rows_max=2, **arguments).describe()

    assert described().groups[0].capacity == 2 * 8
    assert described(context=100).groups[0].capacity == 2 * 2
    assert described(context=9999).context == 512
    most = described().memory
    free = sum(most.values()) - most["kv_pages"] // 2
    for place in ("hybrid_state", "hybrid_executor"):
        monkeypatch.setattr(f"txdecode.kernels.{place}.free_memory", lambda: free)
    small = described()
    assert 1 <= small.groups[0].capacity < 16
    assert sum(small.memory.values()) < free


def test_threads_are_set_only_when_asked() -> None:
    before = torch.get_num_threads()
    try:
        made = HybridExecutor(weights_of(), dtype="fp32", page_count=2, batch_max=1, threads=before + 1)
        assert made.describe().fingerprint["threads"] == str(before + 1)
    finally:
        torch.set_num_threads(before)


def test_launch_and_collect_say_what_is_missing(it: Bench) -> None:
    for call in (lambda: it.executor.launch(1, []), lambda: it.executor.collect(Ticket(1))):
        with pytest.raises(CapabilityMissing, match="verb by verb"):
            call()


@pytest.mark.parametrize(
    "arguments",
    [{"dtype": "fp16"}, {"batch_max": 0}, {"rows_max": 0}, {"page_count": 0}, {"context": 0}],
    ids=lambda given: next(iter(given)),
)
def test_arguments_are_asserted(arguments: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        HybridExecutor(weights_of(), **dict[str, Any](dtype="fp32", page_count=2) | arguments)


@pytest.mark.parametrize("mtp", [False, True])
@pytest.mark.parametrize("kind", ["linear_attention", "full_attention"])
def test_layers_of_one_kind_alone(kind: str, mtp: bool) -> None:
    """A model without attention, and one without recurrent state: groups are left out, and all verbs work."""
    tiny = hybrids.build("qwen3_5", mtp=mtp, num_hidden_layers=2, layer_types=[kind] * 2)
    made = HybridExecutor(loaded(tiny), dtype="fp32", page_count=6, batch_max=2, rows_max=4)
    groups = [(group.name, group.kind) for group in made.describe().groups]
    recurrent = kind == "linear_attention"
    assert groups == [
        *([("gdn", "column"), ("conv", "ring")] if recurrent else [("kv", "pages")]),
        *([("tail", "ring")] if mtp and not recurrent else []),
        *([("pairs", "pages")] if mtp else []),
    ]
    kinds = [kind for _, kind in groups]
    audits = []
    for request, counts in ((1, (1, 2)), (2, (3,))):
        lay: dict[str, Any] = {
            "pages": ((2 * request, 2 * request + 1),) * kinds.count("pages"),
            "columns": (request,) * kinds.count("column"),
            "slots": (request,) * kinds.count("ring"),
        }
        view = SequenceView(request, 0, 0, **lay)
        made.prefill([PrefillPlan(view, TOKENS[:60], view.pages, view.columns)])
        for count in counts:
            start = view.length or 60
            view = attrs.evolve(view, length=start)
            taken = (tuple(range(4 * request, 4 * request + 4)),) * kinds.count("column")
            rows = (*TOKENS[start : start + count], *TOKENS[100 : 104 - count])
            plan = RoundPlan(view, 0, rows[0], (-1, 0, 1, 2), view.pages, taken, (0, 4), 4)
            if mtp:
                assert len(made.draft([plan])[0].tokens) == 3
            made.verify([Round(plan, Proposal(rows[1:]))])
            made.settle([Settlement(plan, tuple(range(count)))])
            columns = tuple(own[count - 1] for own in taken)
            view = attrs.evolve(view, length=start + count, columns=columns)
            if taken:
                # The columns of the next round are those of this one.
                with torch.inference_mode():
                    made.model.copy_column(columns[0], request)
                view = attrs.evolve(view, columns=(request,))
        audits.append(made.audit(view, rows=True))
    assert audits[0] == audits[1] != ()


# What its audit sees.


def at(cache: Any, layer: int, page: int, row: int) -> torch.Tensor:
    found: torch.Tensor = cache.layers[layer][64 * page + row]
    return found


def places(bench: Bench, line: Line) -> dict[str, tuple[torch.Tensor, set[tuple[str, int, int, int]]]]:
    """Pieces of state, and the entries (group, layer, index, row) that show them. Width 4: the window is 3 rows."""
    model, mtp, n = bench.executor.model, bench.executor.mtp, len(line.tokens)
    assert mtp is not None
    ring = model.rings[1].view(-1, model.ring_rows, model.config.conv_size)[line.slot]
    kv, pairs = line.pages
    return {
        "first key": (at(model.cache, 1, kv[0], 0), {("kv", 1, 0, 0), ("kv", 1, 0, -1)}),
        "last key": (at(model.cache, 0, kv[1], n - 65), {("kv", 0, 1, n - 1), ("kv", 0, 1, -1)}),
        "state": (model.states[1, line.column], {("gdn", 1, 0, -1)}),
        "oldest conv row": (ring[(n - 3) % model.ring_rows], {("conv", 1, 0, n - 3), ("conv", 1, 0, -1)}),
        "first pair": (at(mtp.cache, 0, pairs[0], 1), {("pairs", 0, 0, 1), ("pairs", 0, 0, -1)}),
        "last pair": (at(mtp.cache, 0, pairs[1], n - 65), {("pairs", 0, 1, n - 1), ("pairs", 0, 1, -1)}),
        "tail": (bench.executor._tails[line.slot], {("tail", 0, 0, -1)}),
        "key past the end": (at(model.cache, 1, kv[1], n - 64), set()),
        "pair past the end": (at(mtp.cache, 0, pairs[1], n - 64), set()),
        "pair before the first": (at(mtp.cache, 0, pairs[0], 0), set()),
        "conv row before the window": (ring[(n - 4) % model.ring_rows], set()),
        "another column": (model.states[1, line.column - 1], set()),
        "another tail": (bench.executor._tails[line.slot - 1], set()),
    }


def test_audit_notices_one_element_of_any_state_and_nothing_else(it: Bench) -> None:
    line = it.open(TOKENS[:70])
    before = it.audit(line)
    for name in places(it, line):
        piece, expected = places(it, line)[name]
        kept = piece.clone()
        with torch.inference_mode():
            piece.view(-1)[-1] += 1.0
        after = it.audit(line)
        with torch.inference_mode():
            piece.copy_(kept)
        found = {
            (old.group, old.layer, old.index, old.row)
            for old, new in zip(before, after, strict=True)
            if old != new
        }
        assert found == expected, name
    assert it.audit(line) == before


def test_audit_without_rows_is_that_with_rows_less_the_rows(it: Bench) -> None:
    line = it.open(TOKENS[:70])
    plain = it.executor.audit(line.view())
    assert plain == tuple(entry for entry in it.audit(line) if entry.row == -1)
    assert [(entry.group, entry.layer, entry.index) for entry in plain] == [
        *[("kv", layer, page) for layer in (0, 1) for page in (0, 1)],
        *[("pairs", 0, 0), ("pairs", 0, 1)],
        *[(group, layer, 0) for layer in (0, 1) for group in ("gdn", "conv")],
        ("tail", 0, 0),
    ]
    assert it.executor.audit(it.open().view()) == ()


@pytest.mark.parametrize("tile", [1, 7, 64])
def test_audit_does_not_depend_on_tiles_pages_columns_and_rings(tile: int, it: Bench) -> None:
    expected, _ = it.fresh(TOKENS[:70], 70)
    assert [it.fresh(TOKENS[:70], tile)[0] for _ in range(3)] == [expected] * 3


def test_prefill_of_many_prompts_equals_prefill_of_each() -> None:
    """More rows than a launch takes, some at later positions, in every order."""
    it = Bench(weights_of(dtype="bf16"), dtype="bf16", page_count=16, context=300, batch_max=4)
    lines = [it.open(TOKENS[:length]) for length in (0, 3, 0, 70)]
    parts = [TOKENS[: 190 - 10], TOKENS[3:90], TOKENS[:5], TOKENS[70:75]]
    targets = [it._columns.pop() for _ in lines]
    it.executor.prefill(
        [
            PrefillPlan(line.view(), part, line.pages, (target,))
            for line, part, target in zip(lines, parts, targets, strict=True)
        ]
    )
    for line, part, target in zip(lines, parts, targets, strict=True):
        line.column, line.tokens = target, line.tokens + part
    found = [it.audit(line) for line in lines]
    for line in lines:
        it.close(line)
    assert found == [it.fresh(line.tokens)[0] for line in lines]


@pytest.mark.parametrize("poison", [float("nan"), 3e38])
@pytest.mark.parametrize("form", FORMS)
def test_state_that_was_never_written_does_not_matter(form: Rollback, poison: float) -> None:
    found = []
    for fill in (0.0, poison):
        it = Bench(weights_of(), form)
        model, mtp = it.executor.model, it.executor.mtp
        assert model.cache is not None
        assert mtp is not None
        with torch.inference_mode():
            for cache in (model.cache, mtp.cache):
                for layer in cache.layers:
                    layer[: 14 * 64].fill_(fill)
            for tensor in (model.states, model.rings, it.executor._tails):
                tensor.fill_(fill)
        line = it.open(TOKENS[:2])
        drafts = it.drafts(line, TOKENS[2], 4)
        it.step(line, TOKENS[2:7], 3)
        it.consume(line, TOKENS[5:65])
        it.step(line, TOKENS[65:71], 6)
        found.append((drafts, it.audit(line)))
    assert found[0] == found[1]


# Rounds.


def test_drafts_are_accepted_by_each_plans_target(it: Bench) -> None:
    """Greedy and both sampled laws in one launch, as the definition decides."""
    lines = [it.open(TOKENS[:10]) for _ in range(3)]
    targets = [
        Target(),
        Target(law="coupled", seed=3, temperature=2.0, top_k=9),
        Target(law="chain", seed=4, temperature=2.0, logprobs=1),
    ]
    plans = [it.plan(line, TOKENS[10], 4, target=target) for line, target in zip(lines, targets, strict=True)]
    greedy: list[int] = []
    for _ in range(3):
        rows = it.verify(plans[:1], [greedy])[0]
        greedy.append(int(rows[-1].argmax()))
    drafts = [(*greedy[:2], (greedy[2] + 1) % VOCAB), (1, 2, 3), tuple(greedy)]
    logits = it.verify(plans, drafts)
    rounds = [Round(plan, Proposal(own, "test")) for plan, own in zip(plans, drafts, strict=True)]
    outcomes = it.executor.accept(rounds)
    for outcome, target, own, rows in zip(outcomes, targets, drafts, logits, strict=True):
        expected = definition(rows.tolist(), target, None, own, 10)
        assert (outcome.path, outcome.next_token) == (expected.path, expected.token)
        assert len(outcome.logprobs) == len(expected.logprobs)
    assert outcomes[0].path == (0, 1, 2)
    assert outcomes[0].next_token == greedy[2]


@pytest.mark.parametrize("forget", ["settle", "abandon", "drop"])
def test_a_round_that_is_over_cannot_be_accepted_or_settled(forget: str, it: Bench) -> None:
    line = it.open(TOKENS[:10])
    plan = it.plan(line, TOKENS[10], 2)
    it.verify([plan], [()])
    calls: dict[str, Callable[[], None]] = {
        "settle": lambda: it.executor.settle([Settlement(plan, (0,))]),
        "abandon": lambda: it.executor.abandon([plan]),
        "drop": lambda: it.executor.drop(plan.request),
    }
    calls[forget]()
    with pytest.raises(KeyError):
        it.executor.accept([Round(plan, NO_PROPOSAL)])
    with pytest.raises(KeyError):
        it.executor.settle([Settlement(plan, (0,))])
    # To abandon or to drop may come at any phase.
    calls["abandon"]()
    calls["drop"]()


def test_plans_are_asserted() -> None:
    """Also those that the pages and columns reserved would have room for."""
    it = Bench(weights_of(), "replay", context=180)
    line = it.open(TOKENS[:10])
    plan = it.plan(line, TOKENS[10], 3)
    for wrong, drafts in (
        (attrs.evolve(plan, parents=(-1, 0, 0)), (1, 2)),
        (plan, (1, 2, 3)),
        (plan, (1, VOCAB)),
        (plan, (-1,)),
        (it.plan(line, TOKENS[10], 7), (1, 2, 3, 4, 5, 6)),
        (attrs.evolve(plan, view=attrs.evolve(plan.view, length=179)), (1,)),
    ):
        with pytest.raises(AssertionError):
            it.verify([wrong], [drafts])
    with pytest.raises(AssertionError):
        it.verify([], [])
    with pytest.raises(AssertionError):
        it.verify([plan] * 4, [()] * 4)
    empty = it.open()
    for tokens in ((), TOKENS[:257], (VOCAB,), (-1,)):
        with pytest.raises((AssertionError, ValueError)):
            it.consume(empty, tokens)


def test_records_are_wanted_only_where_there_is_room(it: Bench) -> None:
    with pytest.raises(AssertionError, match="no room"), torch.inference_mode():
        it.executor.model.forward([], [], logits=True, record=True)


@pytest.mark.parametrize("form", FORMS)
def test_a_failed_launch_leaves_committed_state_as_it_was(
    form: Rollback, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = Bench(weights_of(), form)
    line = it.open(TOKENS[:30])
    before = it.audit(line)
    real = it.executor.model.head

    def broken(*_: Any) -> None:
        raise RuntimeError("no memory\nand a trace")

    plan = it.plan(line, TOKENS[30], 6)
    # Nor is what an earlier launch of the same round left.
    it.verify([plan], [TOKENS[50:55]])
    with monkeypatch.context() as patched:
        patched.setattr(it.executor.model, "head", broken)
        with pytest.raises(
            ExecutorFault, match=r"^verify failed in a kernel: no memory; the launch"
        ) as caught:
            it.verify([plan], [TOKENS[40:45]])
        assert "\n" not in str(caught.value)
    assert it.executor.model.head == real
    assert it.executor.logits_of_last_launch() == []
    assert it.audit(line) == before
    with pytest.raises(KeyError):
        it.executor.settle([Settlement(plan, (0,))])
    it.abandon([plan])
    it.step(line, (*TOKENS[30:33], 1, 2, 3), 3)
    assert it.audit(line) == it.fresh(TOKENS[:33])[0]


def test_faults_name_the_verb(it: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    line = it.open(TOKENS[:10])
    plan = it.plan(line, TOKENS[10], 2)

    def broken(*_: Any, **__: Any) -> None:
        raise MemoryError

    calls: dict[str, tuple[Any, str, Callable[[], object]]] = {
        "prefill": (it.executor.model, "forward", lambda: it.open(TOKENS[:3])),
        "accept": (Verified, "accept", lambda: it.executor.accept([Round(plan, NO_PROPOSAL)])),
        "audit": (module, "digest", lambda: it.audit(line)),
        "settle": (it.executor.mtp, "absorb", lambda: it.executor.settle([Settlement(plan, (0,))])),
    }
    it.verify([plan], [()])
    for verb, (owner, name, call) in calls.items():
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, broken)
            with pytest.raises(ExecutorFault, match=f"^{verb} failed in a kernel: MemoryError"):
                call()


def test_a_row_that_is_no_number_is_a_fault_and_leaves_nothing_behind(it: Bench) -> None:
    line = it.open(TOKENS[:30])
    before = it.audit(line)
    token = next(token for token in range(VOCAB) if token not in TOKENS[:50])
    with torch.inference_mode():
        it.executor.model.embedding[token] = float("inf")
    plan = it.plan(line, TOKENS[30], 6)
    with pytest.raises(ExecutorFault, match="not finite"):
        it.verify([plan], [(TOKENS[31], token)])
    it.abandon([plan])
    with pytest.raises(ExecutorFault, match="not finite"):
        it.open((token,))
    assert it.audit(line) == before
    it.step(line, TOKENS[30:34], 2)
    expected: tuple[AuditEntry, ...] = it.fresh(TOKENS[:32])[0]
    assert it.audit(line) == expected
