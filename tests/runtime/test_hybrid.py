"""Speculation on hybrid models: the text is that of plain decoding, and so is every bit of state that is left.

Device state is compared by the audits in the logs: wherever a speculative run and a plain one have consumed as many
tokens, their digests by layer, page, column and ring are equal. Tiny random models; the bundled one is in
tests/bundled.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from tests import hybrids
from txdecode.kernels.hybrid_executor import HybridExecutor
from txdecode.kernels.models.source import resolve
from txdecode.kernels.models.weights import HybridWeights, load_weights
from txdecode.runtime import Runtime, Sampling
from txdecode.runtime.journal import iterate
from txdecode.runtime.opening import open_model
from txdecode.transactions.codec import decode
from txdecode.transactions.events import RoundCommitted, StateAudited
from txdecode.transactions.executor import Executor, Rollback

FORMS: tuple[Rollback, ...] = ("columns", "replay", "restore")
VOCAB = 96
TOKENS = 40
PROMPTS = (
    (5, 9, 5, 9, 7, 5, 9, 5, 9, 7, 5, 9),
    (3,),
    tuple(range(1, 60)),
    (8, 8, 8, 8, 2, 8, 8, 8, 8),
)
SAMPLINGS = {"greedy": None, "coupled": Sampling(temperature=1.1, top_k=12, seed=7)}

Log = Callable[[str], Path]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> HybridWeights:
    """A hybrid of linear layers and full attention in turn, with an MTP layer, 96 tokens.

    A row depends mostly on its own token, and the MTP layer mostly on the token it is given, so that it is often
    right; the rest of both is random, so that it is often wrong.
    """
    # Recurrent state behind attention depends on keys and values: else a restore without them would go unseen.
    mixers = ["linear_attention", "full_attention"] * 2
    tiny = hybrids.build("qwen3_5", vocab_size=VOCAB, max_position_embeddings=1024, layer_types=mixers)
    with torch.no_grad():
        for name, tensor in tiny.tensors.items():
            if name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight")):
                tensor.mul_(0.2)
            elif name == "mtp.fc.weight":
                size = tensor.shape[0]
                tensor.copy_(torch.cat([torch.eye(size), 0.2 * tensor[:, size:]], 1))
    folder = hybrids.save(tiny, tmp_path_factory.mktemp("tiny"))
    loaded = load_weights(resolve(str(folder)), "fp32")
    assert isinstance(loaded, HybridWeights)
    return loaded


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return lambda name: tmp_path / f"{name}.txlog"


def make(weights: HybridWeights, rollback: Rollback, **sizes: Any) -> HybridExecutor:
    defaults: dict[str, Any] = {"page_count": 24, "batch_max": 4, "rows_max": 8, "context": 320}
    return HybridExecutor(weights, dtype="fp32", rollback=rollback, **{**defaults, **sizes})


@attrs.frozen
class Run:
    """Ids by prompt, rounds in order, and audits by prompt and number of consumed tokens."""

    ids: list[tuple[int, ...]]
    rounds: list[RoundCommitted]
    audits: dict[tuple[int, int], tuple[Any, ...]]


def run(
    executor: Executor,
    log: Path,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    sampling: Sampling | None = None,
    **options: Any,
) -> Run:
    options = {"audit_every": 1, "draft": "none", **options}
    with Runtime.open(executor, log=log, **options) as runtime:
        handles = [runtime.submit(list(p), max_tokens=tokens, sampling=sampling) for p in prompts]
        runtime.run()
        ids = [tuple(handle.result().ids) for handle in handles]
    events = [decode(r.type, r.version, r.flags, r.payload) for r in iterate(log)]
    audits = {
        (event.request, event.consumed): event.entries for event in events if isinstance(event, StateAudited)
    }
    return Run(ids, [event for event in events if isinstance(event, RoundCommitted)], audits)


def check_same(found: Run, plain: Run) -> None:
    """Equal texts, and equal device state at every length that both runs stood at."""
    assert found.ids == plain.ids
    shared = found.audits.keys() & plain.audits.keys()
    assert shared == found.audits.keys(), "plain decoding stands at every length"
    for place in sorted(shared):
        assert found.audits[place] == plain.audits[place], f"prompt {place[0]}, {place[1]} tokens consumed"


DRAFTERS: dict[str, dict[str, Any]] = {
    "lookup": {"draft": "lookup", "draft_len": "additive"},
    **{f"mtp {k}": {"draft": "mtp", "draft_len": k} for k in range(1, 8)},
    "mtp and lookup": {"draft": "mtp+lookup", "draft_len": 5, "draft_depth": 2},
    "mtp and lookup, additive": {"draft": "mtp+lookup", "draft_len": "additive"},
}


@pytest.fixture(scope="module")
def plain_runs(weights: HybridWeights, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Every prompt decoded alone and plainly."""
    folder = tmp_path_factory.mktemp("plain")
    made = {}
    for name, sampling in SAMPLINGS.items():
        runs = [
            run(make(weights, "columns"), folder / f"{name}{index}", [prompt], TOKENS, sampling)
            for index, prompt in enumerate(PROMPTS)
        ]
        made[name] = Run(
            [each.ids[0] for each in runs],
            [],
            {
                (index, n): entries
                for index, each in enumerate(runs)
                for (_, n), entries in each.audits.items()
            },
        )
    return made


@pytest.mark.parametrize("rollback", FORMS)
@pytest.mark.parametrize("law", SAMPLINGS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_batch_with_drafts_says_and_leaves_what_plain_decoding_does(
    weights: HybridWeights,
    plain_runs: dict[str, Run],
    log: Log,
    drafter: str,
    law: str,
    rollback: Rollback,
) -> None:
    found = run(make(weights, rollback), log("run"), PROMPTS, TOKENS, SAMPLINGS[law], **DRAFTERS[drafter])
    check_same(found, plain_runs[law])
    drafted = sum(len(event.drafts) for event in found.rounds)
    accepted = sum(event.accepted for event in found.rounds)
    assert accepted > 0
    assert any(event.copied for event in found.rounds) or "draft_depth" not in DRAFTERS[drafter]
    # Greedy text of a random model soon repeats itself, and then no copy is wrong.
    assert accepted < drafted or law == "greedy", "drafts were rejected too"


class Forced:
    """Proposes the true text for as many tokens as the schedule says, then wrong ones: so exactly that many of its
    drafts are accepted. It knows the text by prompt."""

    name = "forced"

    def __init__(self, texts: dict[tuple[int, ...], tuple[int, ...]], accepted: Sequence[int]) -> None:
        self._texts = texts
        self._accepted = itertools.cycle(accepted)
        self._known: dict[int, tuple[tuple[int, ...], int]] = {}

    def begin(self, request: int, tokens: Sequence[int]) -> None:
        whole = tuple(tokens)
        prompt = next(p for p in self._texts if whole[: len(p)] == p)
        self._known[request] = (prompt, len(whole) - len(prompt))

    def propose(self, request: int, count: int) -> tuple[int, ...]:
        if not count:
            return ()
        prompt, done = self._known[request]
        true = self._texts[prompt][done : done + count]
        right = min(next(self._accepted), count, len(true))
        wrong = [(token + 1) % VOCAB for token in true[right:]]
        return (*true[:right], *wrong)

    def commit(self, request: int, tokens: Sequence[int]) -> None:
        prompt, done = self._known[request]
        self._known[request] = (prompt, done + len(tokens))

    def end(self, request: int) -> None:
        del self._known[request]


def every_order(most: int) -> list[int]:
    """Numbers 0..most so that each follows each, itself too: an Eulerian circuit of the complete graph."""
    left = {a: list(range(most + 1)) for a in range(most + 1)}
    stack, circuit = [0], []
    while stack:
        if left[stack[-1]]:
            stack.append(left[stack[-1]].pop())
        else:
            circuit.append(stack.pop())
    return circuit[:-1]


def test_the_schedule_has_every_order() -> None:
    circuit = every_order(4)
    pairs = set(itertools.pairwise([*circuit, circuit[0]]))
    assert pairs == set(itertools.product(range(5), repeat=2))
    assert len(circuit) == 25


@pytest.mark.parametrize("rollback", FORMS)
@pytest.mark.parametrize("law", SAMPLINGS)
def test_forced_acceptance_in_every_order(
    weights: HybridWeights, log: Log, rollback: Rollback, law: str
) -> None:
    """A thousand rounds with K = 4, of which 0, 1, … 4 drafts are accepted in every order."""
    prompts = [(1, 2, 3), (40, 41), (7, 8, 9, 10, 11), (20,)]
    prompts += [(*prompt, 30 + i) for i, prompt in enumerate(prompts)]
    tokens = 380
    sampling = SAMPLINGS[law]
    sizes = {"context": 400, "page_count": 32}
    plain = run(make(weights, "columns", **sizes), log("plain"), prompts, tokens, sampling)
    texts = dict(zip(prompts, plain.ids, strict=True))
    drafter = Forced(texts, every_order(4))
    executor = make(weights, rollback, **sizes)
    found = run(executor, log("found"), prompts, tokens, sampling, draft=drafter, draft_len=4, audit_every=3)
    check_same(found, plain)
    offered = [event for event in found.rounds if event.drafts]
    assert len(offered) >= 1000
    assert {event.accepted for event in offered if len(event.drafts) == 4} == set(range(5))


@pytest.mark.parametrize("rollback", FORMS)
def test_a_drafter_miss_after_an_accepted_round_k4_then_0_then_plain(
    weights: HybridWeights, log: Log, rollback: Rollback
) -> None:
    prompts = [(1, 2, 3, 4)]
    plain = run(make(weights, "columns"), log("plain"), prompts, 40)
    drafter = Forced({prompts[0]: plain.ids[0]}, [4])
    asked = itertools.cycle([4, 0, 0])
    propose = drafter.propose
    drafter.propose = lambda request, count: propose(request, min(count, next(asked)))  # type: ignore[method-assign]
    found = run(make(weights, rollback), log("found"), prompts, 40, draft=drafter, draft_len=4)
    check_same(found, plain)
    counts = [(len(event.drafts), event.accepted) for event in found.rounds[1:7]]
    assert counts == [(4, 4), (0, 0), (0, 0)] * 2


@pytest.mark.parametrize("rollback", FORMS)
@pytest.mark.parametrize(("past", "name"), [(0, "ends on"), (2, "crosses")])
def test_acceptance_at_a_page_border(
    weights: HybridWeights, log: Log, rollback: Rollback, past: int, name: str
) -> None:
    """Four of four drafts are accepted in a round whose last committed row is row 63, or row 65."""
    plain = run(make(weights, "columns"), log("plain"), [(2, 3)], 80)
    prompt = (2, 3, *plain.ids[0][: 57 + past])
    # The first round has width one; the next one begins with len(prompt) consumed tokens and commits five rows.
    drafter = Forced({prompt: plain.ids[0][57 + past :]}, [4])
    found = run(make(weights, rollback), log(name), [prompt], 12, draft=drafter, draft_len=4)
    assert found.ids[0] == plain.ids[0][57 + past : 69 + past]
    assert (0, 64 + past) in found.audits
    for (_, consumed), entries in found.audits.items():
        assert entries == plain.audits[0, consumed], consumed


@pytest.mark.parametrize("rollback", FORMS)
def test_preempted_and_recovered_requests_go_on_alike(
    weights: HybridWeights, plain_runs: dict[str, Run], log: Log, rollback: Rollback
) -> None:
    path = log("run")
    sampling = SAMPLINGS["coupled"]
    with Runtime.open(
        make(weights, rollback), log=path, draft="mtp+lookup", draft_len=4, audit_every=1
    ) as runtime:
        handles = [runtime.submit(list(p), max_tokens=TOKENS, sampling=sampling) for p in PROMPTS]
        for turn in range(12):
            runtime.step()
            if turn in (4, 8):
                runtime.preempt(handles[turn % 4])
    with Runtime.recover(path, model=make(weights, rollback)) as runtime:
        recovered = runtime.handles
        runtime.run()
        ids = [tuple(recovered[number].result().ids) for number in sorted(recovered)]
    assert ids == plain_runs["coupled"].ids


def test_paranoid_audits_agree_with_a_computation_from_the_tokens(weights: HybridWeights, log: Log) -> None:
    for rollback in FORMS:
        executor = make(weights, rollback, page_count=48, batch_max=4)
        found = run(
            executor, log(rollback), PROMPTS[:2], 30, draft="mtp", draft_len=3, audit_every=4, paranoid=True
        )
        assert found.audits


def test_the_form_that_was_asked_for_is_the_one_that_is_bound(weights: HybridWeights) -> None:
    for rollback in FORMS:
        executor = make(weights, rollback)
        assert executor.describe().capabilities.rollback == rollback
        assert open_model(executor, rollback=rollback).executor is executor
