"""Sampled text on real weights: for a seed it is one, whatever drafts, batches, preemptions and crashes do.

50 pairs of prompt and seed, spread over temperatures, filters and penalties; each is decoded plainly and alone, and
again with drafts in a batch. ``TXDECODE_FULL`` runs every pair at every draft length.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from txdecode.kernels.models.errors import ModelError
from txdecode.runtime import Result, Runtime, Sampling
from txdecode.runtime.configuration import Options, fingerprint, to_data
from txdecode.runtime.journal import Journal
from txdecode.runtime.opening import Opened, open_model
from txdecode.transactions.phase import Phase, Signal

pytestmark = pytest.mark.model

FULL = bool(os.environ.get("TXDECODE_FULL"))
TOKENS = 32 if FULL else 14
PAIRS = 50
DRAFT_LENS: tuple[int | str, ...] = (1, 3, 7, 15, "additive")

TEMPERATURES = (0.3, 0.8, 1.0, 1.5)
FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"top_k": 20},
    {"top_p": 0.95},
    {"min_p": 0.05},
    {"top_k": 20, "top_p": 0.95},
)
PENALTIES: tuple[dict[str, Any], ...] = (
    {},
    {"repetition_penalty": 1.1},
    {"presence_penalty": 0.4, "frequency_penalty": 0.3},
    {"frequency_penalty": -0.2, "min_tokens": 8},
)
PROMPTS = (
    "one two three four five six seven eight. one two three four five six seven eight. one two three",
    '[{"name": "oak", "height": 31}, {"name": "elm", "height": 24}, {"name": "ash", "height": 27}, {"name":',
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):\n    return",
    "The river runs to the sea, and the sea runs to the sky, and the sky",
    "Q: What is the capital of France? A: Paris. Q: What is the capital of Italy? A:",
)


@attrs.frozen
class Pair:
    """A prompt with its sampling parameters."""

    prompt: str
    sampling: Sampling


def pairs() -> list[Pair]:
    """Every setting of each kind comes up with every one of the other kinds, though not with all at once."""
    made = []
    for index in range(PAIRS):
        fields = {**FILTERS[index % 5], **PENALTIES[index // 5 % 4]}
        temperature = TEMPERATURES[(index + index // 20) % 4]
        sampling = Sampling(
            temperature=temperature, seed=977 * index + 3, logprobs=index % 3 or None, **fields
        )
        made.append(Pair(PROMPTS[index % 3 if index < 30 else index % 5], sampling))
    return made


@pytest.fixture(scope="module")
def opened() -> Opened:
    try:
        return open_model("smollm2", draft="lookup")
    except ModelError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def plain(opened: Opened) -> list[Result]:
    """The text of every pair, decoded alone and without drafts."""
    results = []
    for pair in pairs():
        with Runtime(attrs.evolve(opened, drafter=None)) as runtime:
            results.append(runtime.submit(pair.prompt, max_tokens=TOKENS, sampling=pair.sampling).result())
    return results


def batches(length: int | str) -> Iterator[list[int]]:
    """Pairs that decode together: batches of 8, 3, 2 and 1, other ones for every draft length."""
    turn = DRAFT_LENS.index(length)
    left = list(range(PAIRS)) if FULL else [i for i in range(PAIRS) if i % len(DRAFT_LENS) == turn]
    for size in itertools.cycle((8, 3, 2, 1)[turn % 4 :] + (8, 3, 2, 1)[: turn % 4]):
        if not left:
            return
        batch, left = left[:size], left[size:]
        yield batch


def check(results: dict[int, Result], plain: list[Result]) -> None:
    for index, result in results.items():
        assert result.ids == plain[index].ids, pairs()[index]
        assert result.text == plain[index].text
        assert result.logprobs == plain[index].logprobs
        assert result.finish == plain[index].finish


def test_the_pairs_are_spread_over_the_settings(plain: list[Result]) -> None:
    made = pairs()
    assert {pair.sampling.temperature for pair in made} == set(TEMPERATURES)
    for temperature, fields in itertools.product(TEMPERATURES, (*FILTERS[1:], *PENALTIES[1:])):
        assert any(
            pair.sampling.temperature == temperature
            and all(getattr(pair.sampling, name) == value for name, value in fields.items())
            for pair in made
        )
    assert len({result.ids for result in plain}) > 40


@pytest.mark.parametrize("length", DRAFT_LENS)
def test_drafts_and_batches_change_nothing(opened: Opened, plain: list[Result], length: int | str) -> None:
    made = pairs()
    accepted = rejected = 0
    for batch in batches(length):
        with Runtime(opened) as runtime:
            handles = {
                index: runtime.submit(
                    made[index].prompt, max_tokens=TOKENS, sampling=made[index].sampling, draft_len=length
                )
                for index in batch
            }
            runtime.run()
        results = {index: handle.result() for index, handle in handles.items()}
        check(results, plain)
        accepted += sum(result.stats.accepted for result in results.values())
        rejected += sum(result.stats.drafted - result.stats.accepted for result in results.values())
    # It is speculation that changed nothing, in both directions.
    assert accepted > 0
    assert rejected > 0


def test_preemption_between_draft_and_verify_changes_nothing(opened: Opened, plain: list[Result]) -> None:
    made, chosen = pairs(), (1, 14, 27)
    drafted: dict[int, int] = {}

    def observe(request: int, before: Phase, signal: Signal, after: Phase) -> None:
        if after is Phase.VERIFY:
            drafted[request] = drafted.get(request, 0) + 1
            if drafted[request] in (2, 4):
                runtime.preempt(handles[request])

    with Runtime(opened, observer=observe) as runtime:
        handles = [
            runtime.submit(made[i].prompt, max_tokens=TOKENS, sampling=made[i].sampling, draft_len=3)
            for i in chosen
        ]
        runtime.run()
    results = [handle.result() for handle in handles]
    check(dict(zip(chosen, results, strict=True)), plain)
    assert all(result.stats.preemptions == 2 for result in results)
    assert all(result.stats.rollbacks == 2 for result in results)


def test_a_crash_changes_nothing(opened: Opened, plain: list[Result], tmp_path: Path) -> None:
    made, chosen, path = pairs(), (0, 8, 16, 33), tmp_path / "run.txlog"
    description = opened.executor.describe()
    options = Options("smollm2", pages=description.groups[0].capacity)
    journal = Journal.create(
        path,
        fingerprint=fingerprint(description, opened.fingerprint),
        configuration=to_data(description, options),
        durability="write",
    )
    died = Runtime(opened, journal, options)
    for index in chosen:
        died.submit(made[index].prompt, max_tokens=TOKENS, sampling=made[index].sampling, draft_len=3)
    for _ in range(5):
        died.step()
    # Nobody closes it: the process is gone. Only its lock has to go with it.
    journal.close()
    seen = [handle.published for handle in died.handles.values()]
    assert all(seen)
    with Runtime.recover(path) as runtime:
        handles = runtime.handles
        assert len(handles) == len(chosen)
        runtime.run()
        results = {index: handles[number].result() for number, index in enumerate(chosen)}
    check(results, plain)


def test_seeds_make_the_text(opened: Opened) -> None:
    prompt = PROMPTS[3]
    with Runtime(opened) as runtime:
        given = [
            runtime.submit(prompt, max_tokens=8, sampling=Sampling(temperature=1.0, seed=seed))
            for seed in (1, 1, 2, 2**64 - 1)
        ]
        fresh = [runtime.submit(prompt, max_tokens=8, sampling=Sampling(temperature=1.0)) for _ in range(4)]
        runtime.run()
    texts = [handle.result().ids for handle in given]
    assert texts[0] == texts[1]
    assert len(set(texts)) == 3
    assert len({handle.result().sampling.seed for handle in fresh}) == 4
    assert len({handle.result().ids for handle in fresh}) == 4


def test_chain_changes_the_text_and_keeps_its_logprobs_true(opened: Opened, plain: list[Result]) -> None:
    """Under the chain law drafts may change the text; what it reports is of the same distribution."""
    sampling = Sampling(temperature=1.0, seed=5, law="chain", logprobs=0)
    results = []
    for length in (0, 3, 7):
        with Runtime(opened) as runtime:
            handle = runtime.submit(PROMPTS[0], max_tokens=TOKENS, sampling=sampling, draft_len=length)
            results.append(handle.result())
    assert all(result.logprobs is not None and len(result.logprobs) == len(result.ids) for result in results)
    for one, other in itertools.combinations(results, 2):
        assert one.logprobs is not None
        assert other.logprobs is not None
        for a, b in zip(one.logprobs, other.logprobs, strict=True):
            if a.token != b.token:
                break
            assert a == b
