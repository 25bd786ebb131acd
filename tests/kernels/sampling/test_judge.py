"""Whole rounds against the pure definition: paths, tokens and logprobs."""

from __future__ import annotations

import math
import random as stdlib_random
from typing import Any

import attrs
import pytest
import torch

from txdecode.kernels.sampling import chain as chain_module
from txdecode.kernels.sampling import judge, reference
from txdecode.transactions import accept
from txdecode.transactions.draws import ACCEPT, uniform, word
from txdecode.transactions.executor import ExecutorFault
from txdecode.transactions.judge import Judgement
from txdecode.transactions.target import GREEDY, History, Target

INF = math.inf
NAN = math.nan


def close(one: float, other: float) -> bool:
    return one == other or abs(one - other) < 1e-9


def assert_same(found: Judgement, expected: Judgement) -> None:
    assert (found.path, found.token) == (expected.path, expected.token)
    for mine, theirs in zip(found.logprobs, expected.logprobs, strict=True):
        assert mine.token == theirs.token
        assert close(mine.raw, theirs.raw)
        assert close(mine.target, theirs.target)
        for top, want in ((mine.raw_top, theirs.raw_top), (mine.target_top, theirs.target_top)):
            assert [token for token, _ in top] == [token for token, _ in want]
            assert all(close(a, b) for (_, a), (_, b) in zip(top, want, strict=True))


def logits_of(pick: stdlib_random.Random, rows: int, vocab: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(pick.getrandbits(32))
    made = 3 * torch.randn(rows, vocab, generator=generator)
    kind = pick.choice(["normal", "peaked", "flat", "ties", "holes", "bf16"])
    if kind == "peaked":
        made *= 5
    elif kind == "flat":
        made.zero_()
    elif kind == "ties":
        made.round_()
    elif kind == "bf16":
        made = made.bfloat16().float()
    elif kind == "holes":
        made[torch.rand(made.shape, generator=generator) < 0.5] = -INF
        made[:, pick.randrange(vocab)] = 1.0
        made[:, pick.randrange(vocab)] = 1.0
    return made


def target_of(pick: stdlib_random.Random, vocab: int) -> Target:
    biased = pick.sample(range(vocab), pick.choice([0, 0, 2]))
    return Target(
        law=pick.choice(["greedy", "coupled", "chain"]),
        seed=pick.getrandbits(64),
        temperature=pick.choice([0.05, 0.3, 0.8, 1.0, 1.5, 5.0]),
        top_k=pick.choice([0, 0, 1, 2, 5, 20, vocab, 2 * vocab]),
        top_p=pick.choice([1.0, 1.0, 0.999, 0.95, 0.75, 0.5, 0.25, 0.1]),
        min_p=pick.choice([0.0, 0.0, 0.05, 0.5, 1.0]),
        repetition_penalty=pick.choice([1.0, 1.0, 1.3, 0.7]),
        presence_penalty=pick.choice([0.0, 0.0, 0.5, -0.5]),
        frequency_penalty=pick.choice([0.0, 0.0, 0.3]),
        bias=tuple((token, pick.choice([-INF, 2.5, -1.0])) for token in biased),
        min_tokens=pick.choice([0, 0, 3, 6]),
        held=(vocab - 1,),
        logprobs=pick.choice([-1, 0, 3, 20]),
    )


def drafts_of(
    pick: stdlib_random.Random, logits: torch.Tensor, target: Target, history: History, position: int
) -> list[int]:
    """Mostly what the round would choose by itself, so that paths have all lengths."""
    drafts: list[int] = []
    while len(drafts) < logits.shape[0] - 1:
        rows = logits[: len(drafts) + 1]
        found = reference.judge(rows, attrs.evolve(target, logprobs=-1), history, drafts, position)
        follow = len(found.path) == len(drafts) + 1 and pick.random() < 0.9
        drafts.append(found.token if follow else pick.randrange(logits.shape[1]))
    return drafts


@pytest.mark.parametrize("seed", range(14))
def test_rounds_of_the_definition(seed: int) -> None:
    pick = stdlib_random.Random(seed)
    lengths = set()
    for _ in range(25):
        vocab, count = pick.choice([5, 6, 17, 50, 257, 700]), pick.choice([0, 1, 2, 4, 6])
        logits, target = logits_of(pick, count + 1, vocab), target_of(pick, vocab)
        prompt = tuple(pick.randrange(vocab) for _ in range(6))
        history = History(prompt, {pick.randrange(vocab): 2 for _ in range(2)}, pick.randrange(5))
        position = pick.randrange(2**20)
        drafts = drafts_of(pick, logits, target, history, position)
        proposals, copied = None, 0
        if pick.random() < 0.5:
            noise = torch.randn(count, vocab, generator=torch.Generator().manual_seed(seed))
            copied = pick.randrange(count + 1)
            proposals = (logits[:count] + noise).double().softmax(-1)[: count - copied]
        before = logits.clone()
        found = judge(logits, target, history, drafts, position, proposals, copied=copied)
        assert torch.equal(logits, before)
        assert_same(
            found, reference.judge(logits, target, history, drafts, position, proposals, copied=copied)
        )
        lengths.add(len(found.path))
    assert len(lengths) > 2


@pytest.mark.parametrize("copied", [1, 2, 3])
def test_a_close_call_with_copied_drafts_goes_to_the_definition(
    monkeypatch: pytest.MonkeyPatch, copied: int
) -> None:
    monkeypatch.setattr(chain_module, "_MARGIN", 10.0)
    agreed = 0
    for seed in range(60):
        drawn = torch.Generator().manual_seed(seed)
        logits = torch.randn(4, 6, generator=drawn)
        drafts = torch.randint(6, (3,), generator=drawn).tolist()
        q = torch.randn(3 - copied, 6, generator=drawn).double().softmax(-1)
        target = Target(law="chain", seed=seed)
        found = judge(logits, target, None, drafts, 5, q, copied=copied)
        assert_same(found, reference.judge(logits, target, None, drafts, 5, q, copied=copied))
        agreed += len(found.path) > 4 - copied
    assert agreed, "a copied draft was accepted somewhere"


@pytest.mark.parametrize(("rows", "copied"), [(1, 0), (2, 1), (1, 2), (3, 0)])
def test_every_draft_is_drawn_or_copied(rows: int, copied: int) -> None:
    logits = torch.randn(3, 9, generator=torch.Generator().manual_seed(1))
    q = torch.full((rows, 9), 1 / 9, dtype=torch.float64)
    with pytest.raises(AssertionError):
        judge(logits, Target(law="chain"), None, [1, 2], 4, q, copied=copied)


FILTERED: list[dict[str, Any]] = [
    {},
    {"top_k": 20, "top_p": 0.95},
    {"top_p": 0.9},
    {"min_p": 0.02, "repetition_penalty": 1.2},
]


@pytest.mark.parametrize("vocab", [49_152, 32_001])
@pytest.mark.parametrize("law", ["greedy", "coupled", "chain"])
@pytest.mark.parametrize("fields", [FILTERED[0], FILTERED[1]])
def test_a_real_vocabulary(vocab: int, law: Any, fields: dict[str, Any]) -> None:
    pick = stdlib_random.Random(vocab)
    logits = 2 * torch.randn(2, vocab, generator=torch.Generator().manual_seed(4))
    target = Target(law=law, seed=pick.getrandbits(64), logprobs=3, **fields)
    history = History((1, 2), {3: 1}, 1)
    first = judge(logits[:1], target, history, [], 40).token
    for drafts in ([first], [first + 1 if first + 1 < vocab else 0]):
        expected = reference.judge(logits, target, history, drafts, 40)
        assert_same(judge(logits, target, history, drafts, 40), expected)


@pytest.mark.parametrize("vocab", [5, 17, 1000, 32_001, 49_152, 151_936])
@pytest.mark.parametrize("law", ["greedy", "coupled", "chain"])
@pytest.mark.parametrize("fields", FILTERED)
def test_a_row_does_not_depend_on_width_or_on_other_rows(
    vocab: int, law: Any, fields: dict[str, Any]
) -> None:
    """Bits of tokens and of all logprobs: each row alone, in a round of six, and beside rows of another kind."""
    target = Target(law=law, seed=3, logprobs=4, temperature=0.8, **fields)
    logits = 2 * torch.randn(6, vocab, generator=torch.Generator().manual_seed(vocab))
    logits[3] *= 8
    history = History((0, 1, 2), {4: 1}, 2)
    drafts: list[int] = []
    alone: list[Any] = []
    for row in range(6):
        # Row alone: what came before it is history.
        counts = dict(history.counts)
        for draft in drafts:
            counts[draft] = counts.get(draft, 0) + 1
        now = History(history.prompt, counts, history.generated + row)
        one = judge(logits[row : row + 1].clone(), target, now, [], 70 + row)
        alone.append(one.logprobs[0])
        drafts.append(one.token)
    width = 6
    found = judge(logits, target, history, drafts[: width - 1], 70)
    if law != "chain":
        # Other words accept under the chain law, so its path may be shorter.
        assert found.path == tuple(range(6))
    for row, one in enumerate(found.logprobs):
        if one.token == alone[row].token:
            assert one == alone[row]
        else:
            assert (one.raw_top, one.target_top) == (alone[row].raw_top, alone[row].target_top)
    other = logits.clone()
    other[len(found.path) :] *= -20
    if len(found.path) < 6:
        assert judge(other, target, history, drafts[:5], 70) == found


@pytest.mark.parametrize("law", ["greedy", "coupled", "chain"])
@pytest.mark.parametrize("fields", FILTERED)
@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_row_of_the_path_must_be_sound(law: Any, fields: dict[str, Any], bad: float) -> None:
    target = Target(law=law, seed=5, **fields)
    history = History((1,), {}, 0)
    logits = torch.randn(3, 300, generator=torch.Generator().manual_seed(1))
    logits[1, 7] += 50.0
    first = judge(logits[:1], target, history, [], 9).token
    for row in (0, 1):
        broken = logits.clone()
        broken[row, 123] = bad
        kept = broken.clone()
        # The chain law may reject any draft; here the first row decides, or the draft has all the mass.
        if row:
            broken[0] = -50.0
            broken[0, first] = 50.0
            kept = broken.clone()
        with pytest.raises(ExecutorFault, match=rf"row {row} of a round: the model left a largest logit of"):
            judge(broken, target, history, [first, 7], 9)
        assert torch.equal(broken, kept) or math.isnan(bad)


@pytest.mark.parametrize("law", ["greedy", "coupled", "chain"])
@pytest.mark.parametrize("fields", FILTERED)
def test_what_lies_behind_a_rejection_may_be_anything(law: Any, fields: dict[str, Any]) -> None:
    target = Target(law=law, seed=5, **fields)
    history = History((1,), {}, 0)
    logits = torch.full((3, 300), -50.0)
    logits[0, 8] = 50.0
    expected = judge(logits, target, history, [9, 7], 9)
    assert (expected.path, expected.token) == ((0,), 8)
    for bad in (NAN, INF, -INF):
        logits[1:] = bad
        assert judge(logits, target, history, [9, 7], 9) == expected


@pytest.mark.parametrize("law", ["greedy", "coupled", "chain"])
def test_a_row_with_nothing_left_is_a_fault(law: Any) -> None:
    history = History((1,), {}, 0)
    with pytest.raises(ExecutorFault, match="the model left no token to choose, expected a finite one"):
        judge(torch.full((1, 9), -INF), Target(law=law), history, [], 3)
    forbidden = Target(law=law, bias=((0, -INF), (1, -INF)), min_tokens=3, held=(2,))
    with pytest.raises(ExecutorFault, match="penalties, bias and minimum length left no token"):
        judge(torch.zeros(1, 3), forbidden, history, [], 3)


@pytest.mark.parametrize("law", ["coupled", "chain"])
def test_a_call_too_close_for_vector_arithmetic_goes_to_the_definition(
    law: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a margin that calls everything close the definition decides every round of the chain law, with the same
    result; the coupled law has settled its own by then."""
    random = torch.Generator().manual_seed(8)
    logits = 2 * torch.randn(4, 60, generator=random)
    drafts = logits.argmax(-1).tolist()[:3]
    target = Target(law=law, seed=1, top_k=9)
    calls: list[int] = []

    def called(*arguments: Any) -> Any:
        calls.append(1)
        return original(*arguments)

    original = accept.chain
    monkeypatch.setattr(accept, "chain", called)
    before = [judge(logits, target, None, drafts, place) for place in range(30)]
    assert not calls
    monkeypatch.setattr(chain_module, "_MARGIN", 10.0)
    assert [judge(logits, target, None, drafts, place) for place in range(30)] == before
    assert len(calls) == (30 if law == "chain" else 0)


def test_an_acceptance_within_rounding_is_that_of_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proposals made so that v * q(d) equals p(d) but for the last place, where vector exponentials differ: on some
    processors they do for these numbers, and here on all."""
    exp = torch.Tensor.exp_

    def differing(x: torch.Tensor) -> torch.Tensor:
        return exp(x).mul_(1 + 2.0**-52)

    monkeypatch.setattr(chain_module, "_exp", differing)
    logits = 2 * torch.randn(2, 300, generator=torch.Generator().manual_seed(6))
    target = Target(law="chain", seed=4)
    p = accept.probabilities(logits[0].tolist())
    rounds = []
    for position in range(3):
        for draft in range(300):
            proposals = torch.full((1, 300), 1e-3, dtype=torch.float64)
            proposals[0, draft] = p[draft] / uniform(word(4, ACCEPT, position))
            expected = reference.judge(logits, target, None, [draft], position, proposals)
            assert judge(logits, target, None, [draft], position, proposals) == expected
            rounds.append((draft, position, proposals, expected))
    assert {len(expected.path) for *_, expected in rounds} == {1, 2}
    monkeypatch.setattr(chain_module, "_MARGIN", -1.0)
    assert any(
        judge(logits, target, None, [draft], position, proposals) != expected
        for draft, position, proposals, expected in rounds
    )


def test_a_draft_stands_where_proposal_and_target_agree() -> None:
    """Equal p and q: no residual, so any draft is accepted, even one that q forbids."""
    target = Target(law="chain", seed=2, top_k=3, logprobs=1)
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]] * 2)
    weights = torch.tensor([math.exp(value - 3.0) for value in (3.0, 2.0, 1.0)], dtype=torch.float64)
    total = sum(weights.tolist())
    q = torch.tensor([[*[weight / total for weight in weights.tolist()], 0.0]], dtype=torch.float64)
    for draft in range(4):
        found = judge(logits, target, None, [draft], 5, q)
        assert found.path == (0, 1)
        assert_same(found, reference.judge(logits, target, None, [draft], 5, q))


def test_results_are_plain_numbers() -> None:
    """They go to a log: no tensors, no numpy."""
    logits = torch.randn(3, 500, generator=torch.Generator().manual_seed(3))
    for law in ("greedy", "coupled", "chain"):
        for fields in FILTERED:
            target = Target(law=law, logprobs=20, **fields)  # type: ignore[arg-type]
            history = History((1,), {}, 0)
            found = judge(logits, target, history, logits.argmax(-1).tolist()[:2], 4)
            assert type(found.token) is int
            assert {type(row) for row in found.path} == {int}
            for item in found.logprobs:
                assert type(item.token) is int
                assert type(item.raw) is type(item.target) is float
                for token, value in (*item.raw_top, *item.target_top):
                    assert type(token) is int
                    assert type(value) is float
                assert len(item.raw_top) == 20


def test_logprobs_are_those_of_a_softmax() -> None:
    logits = torch.randn(1, 700, generator=torch.Generator().manual_seed(6))
    found = judge(logits, attrs.evolve(GREEDY, logprobs=5), None, [], 1).logprobs[0]
    expected = logits.double().log_softmax(-1)[0]
    assert found.raw == found.target == pytest.approx(float(expected.max()), abs=1e-12)
    assert [value for _, value in found.raw_top] == pytest.approx(expected.topk(5).values.tolist(), abs=1e-12)
    sampled = Target(law="coupled", temperature=2.0, top_k=2, logprobs=5)
    found = judge(logits, sampled, None, [], 1).logprobs[0]
    two = (logits[0].topk(2).values.double() / 2).log_softmax(-1).tolist()
    assert [value for _, value in found.target_top] == pytest.approx(two, abs=1e-12)
    assert len(found.raw_top) == 5


@pytest.mark.parametrize(
    ("logits", "drafts"),
    [
        (torch.zeros(2, 5, dtype=torch.float64), [1]),
        (torch.zeros(5, 2).T, [1]),
        (torch.zeros(2, 5), [1, 2]),
    ],
)
def test_shapes_and_dtypes_are_checked(logits: torch.Tensor, drafts: list[int]) -> None:
    with pytest.raises(AssertionError):
        judge(logits, GREEDY, None, drafts, 1)
