"""Rejected rows leave no trace: after every settlement all state is, to the bit, that of a sequence which only ever
read the committed tokens; in all three physical forms of recurrent state, which are equal to each other."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import torch

from tests.hybrid_bench import FORMS, Bench, Line, tokens_of, weights_of
from tests.hybrids import FAMILIES, Family
from txdecode.kernels import hybrid_executor, hybrid_state, rollback
from txdecode.kernels.attention.cache import Segment
from txdecode.transactions.executor import (
    Border,
    PrefillPlan,
    Proposal,
    Rollback,
    Round,
    RoundPlan,
    Settlement,
)

FULL = bool(os.environ.get("TXDECODE_FULL"))
WIDEST = 6
TOKENS = tokens_of(400)
WRONG = tokens_of(400, seed=2)


def benches(family: Family = "qwen3_5", **arguments: Any) -> list[Bench]:
    """One of each form."""
    return [Bench(weights_of(family), form, **arguments) for form in FORMS]


def one(form: Rollback, family: Family = "qwen3_5", **arguments: Any) -> Bench:
    return Bench(weights_of(family), form, **arguments)


def rows_at(position: int, width: int, count: int) -> tuple[int, ...]:
    """The rows of a round of which the first ``count`` are to be committed."""
    return TOKENS[position : position + count] + WRONG[position + count : position + width]


def assert_as_prefilled(it: Bench, line: Line) -> None:
    audit, state = it.fresh(line.tokens)
    found = it.audit(line)
    assert len(found) == len(audit)
    other = {want.group for want, have in zip(audit, found, strict=True) if want != have}
    assert not other, f"other bits in {sorted(other)}"
    assert torch.equal(it.state(line), state)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_number_of_committed_rows_of_every_width(family: Family) -> None:
    made = benches(family)
    for width in range(1, WIDEST + 1):
        for count in range(1, width + 1):
            found = []
            for it in made:
                line = it.open(TOKENS[:21])
                it.step(line, rows_at(21, width, count), count)
                found.append((it.audit(line), it.state(line)))
                it.close(line)
            audit, state = made[0].fresh(TOKENS[: 21 + count])
            assert {entry.group for entry in audit} == {"kv", "gdn", "conv", "pairs", "tail"}
            for its, theirs in found:
                assert its == audit, (width, count)
                assert torch.equal(theirs, state), (width, count)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("form", FORMS)
def test_from_the_first_token_on(form: Rollback, dtype: str) -> None:
    """A sequence without a prompt: no column is read, and pairs and tail begin."""
    it = Bench(weights_of(dtype=dtype), form, dtype=dtype)
    for count in range(1, WIDEST + 1):
        line = it.open()
        assert it.audit(line) == ()
        it.step(line, rows_at(0, WIDEST, count), count)
        assert_as_prefilled(it, line)
        it.close(line)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("form", FORMS)
def test_rounds_of_a_batch_commit_as_many_rows_as_each_will(form: Rollback, family: Family) -> None:
    it = one(form, family, page_count=16)
    lines = [it.open(TOKENS[:length]) for length in (5, 62, 64)]
    for widths, counts in [((6, 3, 5), (1, 3, 4)), ((1, 6, 6), (1, 2, 6)), ((6, 6, 6), (5, 1, 3))]:
        rows = [rows_at(len(line.tokens), *each) for line, *each in zip(lines, widths, counts, strict=True)]
        plans = [it.plan(line, own[0], len(own)) for line, own in zip(lines, rows, strict=True)]
        it.verify(plans, [own[1:] for own in rows])
        kept = [own[:count] for own, count in zip(rows, counts, strict=True)]
        # Any order, and not all at once.
        it.settle([lines[2], lines[0]], [plans[2], plans[0]], [kept[2], kept[0]])
        it.settle(lines[1:2], plans[1:2], kept[1:2])
        for line in lines:
            assert_as_prefilled(it, line)


@pytest.mark.parametrize("form", FORMS)
def test_an_abandoned_round_leaves_what_was(form: Rollback) -> None:
    it = one(form)
    line, mate = it.open(TOKENS[:30]), it.open(TOKENS[:8])
    before, state = it.audit(line), it.state(line)
    for phase in ("draft", "verify", "accept", "twice"):
        plans = [it.plan(line, TOKENS[30], WIDEST), it.plan(mate, TOKENS[8], 2)]
        it.executor.draft(plans)
        for _ in range({"draft": 0, "twice": 2}.get(phase, 1)):
            it.verify(plans, [WRONG[: WIDEST - 1], WRONG[:1]])
        it.abandon(plans)
        assert it.audit(line) == before, phase
        assert torch.equal(it.state(line), state), phase
    it.step(line, rows_at(30, WIDEST, 4), 4)
    it.step(mate, rows_at(8, 3, 2), 2)
    assert_as_prefilled(it, line)
    assert_as_prefilled(it, mate)


@pytest.mark.parametrize("form", FORMS)
def test_a_mate_may_be_abandoned_and_the_other_settled(form: Rollback) -> None:
    it = one(form)
    lines = [it.open(TOKENS[:30]), it.open(TOKENS[:9])]
    before = it.audit(lines[0])
    rows = [rows_at(30, 5, 2), rows_at(9, 6, 4)]
    plans = [it.plan(line, own[0], len(own)) for line, own in zip(lines, rows, strict=True)]
    it.verify(plans, [own[1:] for own in rows])
    it.abandon(plans[:1])
    it.settle(lines[1:], plans[1:], [rows[1][:4]])
    assert it.audit(lines[0]) == before
    assert_as_prefilled(it, lines[1])


@pytest.mark.parametrize("seed", range(12 if FULL else 1))
def test_sixty_rounds_side_by_side(seed: int) -> None:
    """A random walk of three executors of three forms over the same tokens, over page borders."""
    made = benches(FAMILIES[seed % 3])
    lines = [it.open(TOKENS[:11]) for it in made]
    draw = random.Random(seed)
    for step in range(60):
        position, width = len(lines[0].tokens), 1 + draw.randint(0, WIDEST - 1)
        count = draw.randint(1, width)
        if position + width > 190:
            break
        rows = rows_at(position, width, count)
        for it, line in zip(made, lines, strict=True):
            it.step(line, rows, count)
        audits = [it.audit(line) for it, line in zip(made, lines, strict=True)]
        assert audits[0] == audits[1] == audits[2], step
        if FULL or step % 10 == 9:
            for it, line in zip(made, lines, strict=True):
                assert_as_prefilled(it, line)
    assert len(lines[0].tokens) > 128


# Borders of pages.


@pytest.mark.parametrize("start", [58, 60, 63])
@pytest.mark.parametrize("form", FORMS)
def test_a_checkpoint_at_the_border_of_a_page(form: Rollback, start: int) -> None:
    """The path ends before the border, on it and behind it; a mate has none."""
    it = one(form)
    border = 63 - start
    for count in range(1, WIDEST + 1):
        line, mate = it.open(TOKENS[:start]), it.open(TOKENS[:7])
        rows, others = rows_at(start, WIDEST, count), rows_at(7, 3, 2)
        plans = [it.plan(mate, others[0], 3), it.plan(line, rows[0], WIDEST, border=border)]
        (checkpoint,) = plans[1].borders[0].columns
        it.put(checkpoint, 7.0)
        it.verify(plans, [others[1:], rows[1:]])
        it.settle([mate, line], plans, [others[:2], rows[:count]])
        found = it.column(checkpoint)
        if start + count >= 64:
            assert torch.equal(found, it.fresh(TOKENS[:64])[1]), count
        else:
            assert bool((found == 7.0).all()), count
        assert_as_prefilled(it, line)
        assert_as_prefilled(it, mate)
        it.close(line)
        it.close(mate)


def test_a_checkpoint_is_a_state_to_go_on_from() -> None:
    """A sequence that begins at the border's column goes on as if it had read the tokens itself."""
    for form in FORMS:
        it = one(form)
        line = it.open(TOKENS[:60])
        plan = it.step(line, rows_at(60, 6, 5), 5, border=3)
        other = it.open(TOKENS[:64])
        it.put(other.column, it.column(plan.borders[0].columns[0]))
        it.step(other, rows_at(64, 4, 3), 3)
        assert_as_prefilled(it, other)


# Rounds of changing width.


@pytest.mark.parametrize("form", FORMS)
def test_four_drafts_then_none_then_plain(form: Rollback) -> None:
    """K = 4, then a round of as many rows for which nobody drafts, then rounds of one row."""
    it = one(form)
    line = it.open(TOKENS[:40])
    it.step(line, rows_at(40, 5, 2), 2)
    plan = it.plan(line, TOKENS[42], 5)
    it.verify([plan], [()])
    it.settle([line], [plan], [TOKENS[42:43]])
    assert_as_prefilled(it, line)
    for position in range(43, 47):
        it.step(line, TOKENS[position : position + 1], 1)
        assert_as_prefilled(it, line)


# What these checks would miss, they could not promise: each damage below is found.


def walk(it: Bench) -> None:
    """Rounds of the widest kind and others, one of them abandoned, with all checks."""
    line = it.open(TOKENS[:21])
    for width, count in [(6, 0), (6, 3), (4, 1), (6, 6), (5, 2)]:
        rows = rows_at(len(line.tokens), width, max(count, 1))
        plan = it.plan(line, rows[0], width)
        it.executor.draft([plan])
        it.verify([plan], [rows[1:]])
        if count:
            it.settle([line], [plan], [rows[:count]])
        else:
            it.abandon([plan])
        assert_as_prefilled(it, line)


@pytest.mark.parametrize("form", FORMS)
def test_the_walk_passes_unharmed(form: Rollback) -> None:
    walk(one(form))


def caught(it: Bench, *groups: str) -> None:
    """The walk finds other bits in just these groups."""
    with pytest.raises(AssertionError, match=re.escape(f"other bits in {sorted(groups)}")):
        walk(it)


def test_finds_a_fold_of_one_record_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    it = one("replay")
    fold = it.executor.model.fold
    monkeypatch.setattr(
        it.executor.model, "fold", lambda source, target, first, count: fold(source, target, first, count - 1)
    )
    caught(it, "gdn")


def test_finds_a_fold_of_another_sequences_records(monkeypatch: pytest.MonkeyPatch) -> None:
    it = one("replay")
    fold = it.executor.model.fold
    monkeypatch.setattr(
        it.executor.model, "fold", lambda source, target, first, count: fold(source, target, 0, count)
    )
    lines = [it.open(TOKENS[:9]), it.open(TOKENS[:20])]
    plans = [it.plan(line, TOKENS[len(line.tokens)], 4) for line in lines]
    it.verify(plans, [WRONG[:3], WRONG[:3]])
    it.settle(lines, plans, [TOKENS[9:10], TOKENS[20:21]])
    assert_as_prefilled(it, lines[0])
    with pytest.raises(AssertionError, match="gdn"):
        assert_as_prefilled(it, lines[1])


def test_finds_a_column_of_the_wrong_row(monkeypatch: pytest.MonkeyPatch) -> None:
    it = one("columns")
    monkeypatch.setattr(
        rollback.Taken,
        "stretch",
        lambda self, targets, count=None, real=rollback.Taken.stretch: real(self, targets[::-1], count),
    )
    caught(it, "gdn")


def test_finds_a_tail_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    it = one("columns")
    settle = it.executor.settle

    def stays(settlements: Sequence[Any]) -> None:
        before = it.executor._tails.clone()
        settle(settlements)
        with torch.inference_mode():
            it.executor._tails.copy_(before)

    monkeypatch.setattr(it.executor, "settle", stays)
    caught(it, "tail")


def test_finds_pairs_of_the_drafters_own_hidden_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    it = one("columns")
    mtp = it.executor.mtp
    assert mtp is not None
    step, absorb = mtp.step, mtp.absorb
    shown: list[torch.Tensor] = []

    def remembered(segments: Sequence[Segment], hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = step(segments, hidden)
        shown.append(made[0])
        return made

    def absorbed(segments: Sequence[Segment], hidden: torch.Tensor) -> None:
        own = torch.cat([hidden[:1], *shown])[: hidden.shape[0]]
        absorb(segments, own if len(own) == len(hidden) else hidden)
        shown.clear()

    monkeypatch.setattr(mtp, "step", remembered)
    monkeypatch.setattr(mtp, "absorb", absorbed)
    caught(it, "pairs")


@pytest.mark.parametrize("form", FORMS)
def test_finds_a_conv_ring_that_is_one_row_short(form: Rollback, monkeypatch: pytest.MonkeyPatch) -> None:
    real = hybrid_state.geometry

    def short(*arguments: Any) -> Any:
        made = real(*arguments)
        return attrs.evolve(made, sizes=attrs.evolve(made.sizes, ring_rows=made.sizes.ring_rows - 1))

    monkeypatch.setattr(hybrid_executor, "geometry", short)
    caught(one(form), "conv")


def test_finds_a_second_forward_without_the_keys_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    it = one("restore")
    spare = it.open()

    def blind(self: rollback.Restore, runs: Sequence[Any]) -> None:
        self._model.forward(
            [Segment(item.tokens[:count], item.view.length, spare.pages[0]) for item, count, _ in runs],
            [item.stretch(targets, count) for item, count, targets in runs],
            logits=False,
        )

    monkeypatch.setattr(rollback.Restore, "_again", blind)
    # What lies there is another sequence's.
    it.consume(spare, WRONG[:40])
    caught(it, "conv", "gdn")


@pytest.mark.parametrize("form", ["replay", "restore"])
def test_finds_a_scratch_column_that_is_not_copied(form: Rollback, monkeypatch: pytest.MonkeyPatch) -> None:
    it = one(form)
    monkeypatch.setattr(it.executor.model, "copy_column", lambda source, target: None)
    caught(it, "gdn")


# Guards.


def opened(form: Rollback = "columns", mtp: bool = True) -> tuple[Bench, Line, RoundPlan]:
    it = Bench(weights_of(mtp=mtp), form)
    line = it.open(TOKENS[:10])
    return it, line, it.plan(line, TOKENS[10], 4)


@pytest.mark.parametrize("path", [(), (0, 2), (1,), (0, 1, 2)])
def test_settle_takes_a_chain_of_verified_rows(path: tuple[int, ...]) -> None:
    """Three rows would be too many: two were verified."""
    it, _, plan = opened(mtp=False)
    it.verify([plan], [WRONG[:1]])
    with pytest.raises(AssertionError):
        it.executor.settle([Settlement(plan, path)])


@pytest.mark.parametrize("form", FORMS)
def test_settle_of_what_is_over_is_refused(form: Rollback) -> None:
    it, line, plan = opened(form)
    it.verify([plan], [WRONG[:3]])
    it.settle([line], [plan], [TOKENS[10:11]])
    with pytest.raises(KeyError):
        it.executor.settle([Settlement(plan, (0,))])
    again = it.plan(line, TOKENS[11], 2)
    it.verify([again], [WRONG[:1]])
    it.executor.drop(line.request)
    with pytest.raises(KeyError):
        it.executor.settle([Settlement(again, (0,))])


@pytest.mark.parametrize("form", ["replay", "restore"])
def test_a_round_is_settled_after_its_own_verify_alone(form: Rollback) -> None:
    """Records and scratch columns are of one launch: a later verify takes them."""
    bench = Bench(weights_of(), form)
    one, two = (bench.open(tokens_of(9, seed)) for seed in (1, 2))
    first, second = (bench.plan(line, 3, 3) for line in (one, two))
    bench.verify([first], [(4, 5)])
    bench.verify([second], [(4, 5)])
    with pytest.raises(AssertionError, match="not in the last verify"):
        bench.executor.settle([Settlement(first, (0,))])


@pytest.mark.parametrize("form", FORMS)
def test_scratch_columns_are_nobodys_to_plan_with(form: Rollback) -> None:
    bench = Bench(weights_of(), form)
    line = bench.open(tokens_of(9))
    beyond = bench.column_group.capacity
    plan = bench.plan(line, 3, 2)
    for wrong in (
        attrs.evolve(plan, columns=((beyond,) * len(plan.columns[0]),)),
        attrs.evolve(plan, borders=(Border(0, (beyond,)),)),
    ):
        with pytest.raises(AssertionError):
            bench.executor.verify([Round(wrong, Proposal((4,), "test"))])
    with pytest.raises(AssertionError):
        bench.executor.prefill([PrefillPlan(line.view(), (1,), line.pages, (beyond,))])
