"""The MTP layer: which pairs are state, where they lie, and what is drafted under each law. Its logits are compared
with transformers' in test_hybrid_model."""

from __future__ import annotations

import math
from typing import Any

import attrs
import pytest
import torch
from transformers.models.qwen3_5.modeling_qwen3_5 import apply_rotary_pos_emb

from tests import hybrids
from tests.hybrid_bench import FORMS, VOCAB, Bench, Line, loaded, tokens_of, weights_of
from txdecode.kernels.attention.cache import Segment
from txdecode.kernels.models.hybrid_packing import rotary_order
from txdecode.kernels.sampling import reference
from txdecode.transactions.accept import inverse
from txdecode.transactions.draws import DRAFT, key, salt, word
from txdecode.transactions.executor import NO_PROPOSAL, CapabilityMissing, ExecutorFault, Rollback
from txdecode.transactions.target import Target

TOKENS = tokens_of(200, seed=3)
WRONG = tokens_of(200, seed=4)


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(weights_of())


def steps(it: Bench, line: Line, pending: int, drafts: tuple[int, ...]) -> torch.Tensor:
    """Logits [drafts, vocab] that the layer gives when it is fed these drafts."""
    mtp = it.executor.mtp
    assert mtp is not None
    found = []
    with torch.inference_mode():
        hidden = it.executor._tails[line.slot : line.slot + 1]
        for depth, token in enumerate((pending, *drafts[:-1])):
            hidden, logits = mtp.step([Segment((token,), len(line.tokens) + depth, line.pages[-1])], hidden)
            found.append(logits[0].float())
    return torch.stack(found)


# Pairs.


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 70])
def test_there_is_a_pair_for_every_token_but_the_first(length: int, bench: Bench) -> None:
    line = bench.open(TOKENS[:length], tile=33)
    rows = [entry.row for entry in bench.audit(line) if entry.group == "pairs" and entry.row >= 0]
    bench.close(line)
    assert rows == list(range(1, length))


def test_pair_of_row_i_lies_in_slot_i_plus_one_at_position_i() -> None:
    """Keys as transformers makes them from hidden rows 0 .. n-2 and tokens 1 .. n-1."""
    tiny = hybrids.build("qwen3_5")
    it, count = Bench(loaded(tiny)), 70
    line = it.open(TOKENS[:count], tile=33)
    tokens = torch.tensor([TOKENS[:count]])
    keys: list[torch.Tensor] = []
    hook = tiny.mtp.layers[0].mtp_block.self_attn.k_norm.register_forward_hook(  # type: ignore[union-attr]
        lambda _, given, made: keys.append(made)
    )
    with torch.inference_mode():
        hidden = tiny.model(input_ids=tokens, output_hidden_states=True).hidden_states[-1][:, :-1]
        keys.clear()
        positions = torch.arange(count - 1)[None]
        assert tiny.mtp is not None
        tiny.mtp.forward_layer(0, hidden, positions, None, input_ids=tokens[:, 1:])
        hook.remove()
        (found,) = (key.transpose(1, 2) for key in keys)
        order = rotary_order(32, 8)
        for shift, right in ((0, True), (1, False)):
            cos, sin = tiny.mtp.rotary_emb(hidden, position_ids=positions + shift)
            wanted = apply_rotary_pos_emb(found, found, cos, sin)[1][0].transpose(0, 1)[..., order]
            cache = it.executor.mtp.cache  # type: ignore[union-attr]
            pages = [cache.page_rows(0, page, 64) for page in line.pages[-1][:2]]
            mine = torch.cat(pages)[1:count, :2]
            assert bool((mine - wanted).abs().max() < 1e-5 * wanted.abs().max()) is right


def test_slot_zero_is_seen_by_no_row(bench: Bench) -> None:
    line = bench.open(TOKENS[:20])
    drafts, audit = bench.drafts(line, TOKENS[20], 4), bench.audit(line)
    cache = bench.executor.mtp.cache  # type: ignore[union-attr]
    with torch.inference_mode():
        cache.page_rows(0, line.pages[-1][0], 1).fill_(1e4)
    assert bench.drafts(line, TOKENS[20], 4) == drafts
    assert bench.audit(line) == audit
    with torch.inference_mode():
        cache.page_rows(0, line.pages[-1][0], 2)[1].fill_(1e4)
    assert bench.drafts(line, TOKENS[20], 4) != drafts
    bench.close(line)


@pytest.mark.parametrize("form", FORMS)
def test_drafts_are_never_stale_whatever_k_was_before(form: Rollback) -> None:
    """K goes 0, 3, 0, 3 and so on; after each round the drafts are those of a sequence that only ever read."""
    it = Bench(weights_of("qwen3_next"), form)
    line = it.open(TOKENS[:59])
    for count, kept in [(0, 1), (3, 2), (0, 1), (3, 1), (0, 1), (3, 4), (5, 3), (0, 1), (3, 3)]:
        position = len(line.tokens)
        rows = TOKENS[position : position + kept] + WRONG[: count + 1 - kept]
        plan = it.plan(line, rows[0], count + 1)
        proposal = it.executor.draft([plan])[0]
        assert len(proposal.tokens) == count
        it.verify([plan], [rows[1:]])
        it.settle([line], [plan], [rows[:kept]])
        other = it.open(line.tokens)
        pending = TOKENS[len(line.tokens)]
        assert torch.equal(steps(it, line, pending, TOKENS[:3]), steps(it, other, pending, TOKENS[:3]))
        assert it.drafts(line, pending, 3) == it.drafts(other, pending, 3)
        it.close(other)
    assert len(line.tokens) > 66


def test_what_the_layer_drafted_for_itself_is_no_state(bench: Bench) -> None:
    """Though every draft is accepted, their pairs are made from the target's rows."""
    line = bench.open(TOKENS[:20])
    plan = bench.plan(line, TOKENS[20], 5)
    drafts = bench.executor.draft([plan])[0].tokens
    bench.verify([plan], [drafts])
    bench.settle([line], [plan], [(TOKENS[20], *drafts)])
    audit, _ = bench.fresh((*TOKENS[:21], *drafts))
    assert bench.audit(line) == audit
    bench.close(line)


# Drafting.


def test_fewer_drafts_are_the_first_of_more(bench: Bench) -> None:
    line = bench.open(TOKENS[:12])
    most = bench.drafts(line, TOKENS[12], 5).tokens
    assert len(most) == 5
    for count in range(5):
        assert bench.drafts(line, TOKENS[12], count).tokens == most[:count]
    assert bench.drafts(line, TOKENS[12], 0) == NO_PROPOSAL
    bench.close(line)


def test_drafts_do_not_depend_on_batch_mates(bench: Bench) -> None:
    lines = [bench.open(TOKENS[:length]) for length in (5, 64, 30)]
    alone = [
        bench.drafts(line, TOKENS[len(line.tokens)], count)
        for line, count in zip(lines, (3, 5, 1), strict=True)
    ]
    plans = [
        bench.plan(line, TOKENS[len(line.tokens)], count + 1)
        for line, count in zip(lines, (3, 5, 1), strict=True)
    ]
    assert bench.executor.draft(plans) == alone
    assert [len(proposal.tokens) for proposal in alone] == [3, 5, 1]
    bench.abandon(plans)
    for line in lines:
        bench.close(line)


def test_before_the_first_token_there_is_nothing_to_draft_from(bench: Bench) -> None:
    line, mate = bench.open(), bench.open(TOKENS[:4])
    plans = [bench.plan(line, TOKENS[0], 4), bench.plan(mate, TOKENS[4], 4)]
    first, second = bench.executor.draft(plans)
    assert first == NO_PROPOSAL
    assert len(second.tokens) == 3
    bench.abandon(plans)
    bench.close(line)
    bench.close(mate)


def test_a_request_whose_logits_are_no_numbers_stops_alone(bench: Bench) -> None:
    lines = [bench.open(TOKENS[:9]), bench.open(TOKENS[:5])]
    expected = bench.drafts(lines[1], TOKENS[5], 3)
    with torch.inference_mode():
        bench.executor._tails[lines[0].slot] = math.nan
    plans = [bench.plan(line, TOKENS[len(line.tokens)], 4) for line in lines]
    assert bench.executor.draft(plans) == [NO_PROPOSAL, expected]
    bench.abandon(plans)
    for line in lines:
        bench.close(line)


def test_a_model_without_the_layer_says_so() -> None:
    it = Bench(weights_of(mtp=False))
    described = it.executor.describe()
    assert not described.capabilities.drafts
    assert [group.name for group in described.groups] == ["kv", "gdn", "conv"]
    line = it.open(TOKENS[:5])
    with pytest.raises(CapabilityMissing, match="no MTP layer"):
        it.executor.draft([it.plan(line, TOKENS[5], 2)])
    it.step(line, TOKENS[5:9], 2)
    assert {entry.group for entry in it.audit(line)} == {"kv", "gdn", "conv"}


def test_a_kernel_that_fails_is_a_fault(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    line = bench.open(TOKENS[:5])

    def broken(*_: Any) -> None:
        raise RuntimeError("no")

    with monkeypatch.context() as patched:
        patched.setattr(bench.executor.mtp, "step", broken)
        with pytest.raises(ExecutorFault, match=r"^draft failed in a kernel: no"):
            bench.drafts(line, TOKENS[5], 2)
    bench.close(line)


def test_greedy_drafts_are_the_likeliest(bench: Bench) -> None:
    line = bench.open(TOKENS[:12])
    proposal = bench.drafts(line, TOKENS[12], 4)
    assert (proposal.source, proposal.law, proposal.q) == ("mtp", "point", None)
    rows = steps(bench, line, TOKENS[12], proposal.tokens)
    assert proposal.tokens == tuple(rows.argmax(-1).tolist())
    bench.close(line)


@pytest.mark.parametrize("changes", [{}, {"top_k": 7}, {"top_p": 0.6, "min_p": 0.02}])
def test_coupled_drafts_win_the_race_that_the_target_will_run(changes: dict[str, Any], bench: Bench) -> None:
    line = bench.open(TOKENS[:12])
    for seed in range(6):
        target = Target(law="coupled", seed=seed, temperature=1.7, **changes)
        proposal = bench.drafts(line, TOKENS[12], 3, target=target)
        assert (proposal.law, proposal.q) == ("sampled", None)
        scores = reference.filtered(steps(bench, line, TOKENS[12], proposal.tokens), target)
        positions = torch.arange(12, 15)
        winners = reference.race(scores, torch.tensor([key(seed)]), positions)
        assert proposal.tokens == tuple(winners.tolist())
    bench.close(line)


@pytest.mark.parametrize("changes", [{}, {"top_k": 7}, {"top_p": 0.6, "min_p": 0.02}])
def test_chain_drafts_come_with_what_they_were_drawn_from(changes: dict[str, Any], bench: Bench) -> None:
    line = bench.open(TOKENS[:12])
    drawn = set()
    for seed, attempt in [(1, 0), (1, 1), (1, 2), (2, 0), (2, 5)]:
        target = Target(law="chain", seed=seed, temperature=1.7, **changes)
        proposal = bench.drafts(line, TOKENS[12], 3, target=target, attempt=attempt)
        q = proposal.q
        assert isinstance(q, torch.Tensor)
        assert (proposal.law, q.shape, q.dtype) == ("sampled", (3, VOCAB), torch.float64)
        scores = reference.filtered(steps(bench, line, TOKENS[12], proposal.tokens), target)
        assert torch.allclose(q, scores.softmax(-1), rtol=1e-12, atol=0)
        for depth, token in enumerate(proposal.tokens):
            x = word(seed, DRAFT, 12 + depth, fourth=salt(0, attempt))
            assert token == inverse(q[depth].tolist(), x)
            assert q[depth, token] > 0
        drawn.add(proposal.tokens)
        assert bench.drafts(line, TOKENS[12], 3, target=target, attempt=attempt).tokens == proposal.tokens
    assert len(drawn) > 1
    bench.close(line)


def test_laws_may_be_mixed_in_a_launch(bench: Bench) -> None:
    """And a request stops early where it is asked for less."""
    lines = [bench.open(TOKENS[:6]) for _ in range(3)]
    targets = [Target(), Target(law="coupled", seed=5), Target(law="chain", seed=6)]
    alone = [
        bench.drafts(line, TOKENS[6], 4 - place, target=target)
        for place, (line, target) in enumerate(zip(lines, targets, strict=True))
    ]
    plans = [
        bench.plan(line, TOKENS[6], 5 - place, target=target)
        for place, (line, target) in enumerate(zip(lines, targets, strict=True))
    ]
    together = bench.executor.draft(plans)
    for one, other in zip(alone, together, strict=True):
        assert attrs.evolve(one, q=None) == attrs.evolve(other, q=None)
    assert torch.equal(alone[2].q, together[2].q)  # type: ignore[arg-type]
    bench.abandon(plans)
    for line in lines:
        bench.close(line)
