"""How drafters are spelled, and several copying drafters as one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from txdecode.runtime import InvalidRequest, Runtime, Sampling
from txdecode.runtime.drafters import PromptLookup, SharedHistory, SuffixAutomaton
from txdecode.runtime.drafters.composed import Copied, extension, replacement, source_of
from txdecode.runtime.drafters.longest import LongestMatch
from txdecode.runtime.drafters.spelling import (
    HOSTED,
    MIN_MATCH_MAX,
    SPELLINGS,
    Spelled,
    is_spelled,
    learned_part,
    parse_draft,
)
from txdecode.runtime.execution import execute
from txdecode.runtime.journal import iterate
from txdecode.runtime.testing.harness import target_of
from txdecode.transactions.codec import decode
from txdecode.transactions.events import RoundCommitted
from txdecode.transactions.executor import Copy
from txdecode.transactions.toy import ToyExecutor, plain


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("none", Spelled()),
        ("lookup", Spelled("", "lookup", 1)),
        ("lookup:2", Spelled("", "lookup", 2)),
        ("suffix", Spelled("", "suffix", 1)),
        ("suffix:64", Spelled("", "suffix", 64)),
        ("shared", Spelled("", "", 0, True)),
        ("lookup+shared", Spelled("", "lookup", 1, True)),
        ("suffix:4+shared", Spelled("", "suffix", 4, True)),
        ("mtp", Spelled("executor")),
        ("executor", Spelled("executor")),
        ("model", Spelled("model")),
        ("mtp+lookup", Spelled("executor", "lookup", 1)),
        ("executor+lookup:3", Spelled("executor", "lookup", 3)),
        ("mtp+shared", Spelled("executor", "", 0, True)),
        ("model+suffix", Spelled("model", "suffix", 1)),
        ("model+lookup+shared", Spelled("model", "lookup", 1, True)),
    ],
)
def test_spellings(name: str, expected: Spelled) -> None:
    assert parse_draft(name) == expected
    assert is_spelled(name)
    assert learned_part(name) == expected.learned
    assert expected.composed == ("+" in name and bool(expected.learned))


@pytest.mark.parametrize(
    "name",
    [
        "",
        "guess",
        "lookup+mtp",
        "mtp+model",
        "model+mtp",
        "lookup+suffix",
        "shared+lookup",
        "shared+shared",
        "lookup+lookup",
        "none+lookup",
        "mtp+none",
        "mtp+",
        "+lookup",
        "lookup:",
        "lookup:x",
        "lookup:-1",
        "lookup:2.5",
        "lookup:1000",
        "lookup: 2",
        "suffix:٣",
        "shared:4",
        "mtp:2",
        "LOOKUP",
        "mtp+lookup+suffix",
        "lookup\n",
    ],
)
def test_what_is_none(name: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        parse_draft(name)
    assert str(error.value) == f"draft must be {SPELLINGS}; found {name!r}"
    assert not is_spelled(name)
    assert learned_part(name) == ""


@pytest.mark.parametrize("least", [0, MIN_MATCH_MAX + 1, 999])
@pytest.mark.parametrize("own", ["lookup", "suffix"])
def test_a_minimum_out_of_range(own: str, least: int) -> None:
    with pytest.raises(
        InvalidRequest, match=f"minimum match of draft '{own}' must be 1 to 64.*found {least}"
    ):
        parse_draft(f"mtp+{own}:{least}")


def test_names_of_ones_own_are_not_spelled() -> None:
    assert learned_part(ToyExecutor()) == ""
    assert learned_part("scripted") == ""


def test_hosts() -> None:
    assert parse_draft("none").host() is None
    assert parse_draft("mtp").host() is None
    assert isinstance(parse_draft("shared").host(), SharedHistory)
    both = parse_draft("model+suffix:2+shared").host()
    assert isinstance(both, LongestMatch)
    assert both.name == "suffix_automaton+shared_history"
    assert {"none", "prompt_lookup", "suffix_automaton", "shared_history"} == HOSTED


@pytest.mark.parametrize("name", ["lookup", "suffix"])
@pytest.mark.parametrize("least", [1, 2, 3, 4, 7])
def test_so_many_tokens_must_agree(name: str, least: int) -> None:
    drafter = parse_draft(f"{name}:{least}").host()
    assert isinstance(drafter, PromptLookup | SuffixAutomaton)
    for agreeing in range(1, 9):
        known = [100, *range(agreeing), 50, 101, *range(agreeing)]
        drafter.begin(agreeing, known)
        assert drafter.propose(agreeing, 1) == ((50,) if agreeing >= least else ())
    # Prompt lookup goes as far as 3, or as asked.
    expected = max(least, 3) if name == "lookup" else 8
    assert drafter.match(8, 1).length == expected


# Several as one.


class Fixed:
    """Says one thing, or fails at a verb."""

    def __init__(self, name: str, copy: Copy, fails: str = "") -> None:
        self.name = name
        self._copy = copy
        self._fails = fails
        self.heard: list[str] = []

    def _hear(self, verb: str) -> None:
        self.heard.append(verb)
        if verb == self._fails:
            raise RuntimeError(f"{self.name} broke")

    def begin(self, request: int, tokens: Sequence[int]) -> None:
        self._hear("begin")

    def propose(self, request: int, count: int) -> tuple[int, ...]:
        return self.match(request, count).tokens

    def match(self, request: int, count: int, after: Sequence[int] = ()) -> Copy:
        self._hear("match")
        return Copy(self._copy.tokens[:count], self._copy.length)

    def commit(self, request: int, tokens: Sequence[int]) -> None:
        self._hear("commit")

    def end(self, request: int) -> None:
        self._hear("end")


@pytest.mark.parametrize(
    ("own", "other", "source"),
    [((3,), (4,), "other"), ((4,), (4,), "own"), ((9,), (8,), "own"), ((), (4,), "other"), ((4,), (), "own")],
)
def test_the_longest_match_wins(own: Any, other: Any, source: str) -> None:
    copies = [Copy((1, 2), *own), Copy((3, 4), *other)]
    both = LongestMatch([Fixed("own", copies[0]), Fixed("other", copies[1])])
    winner = copies[source == "other"]
    assert both.match(0, 9) == Copy(winner.tokens, winner.length, source)
    assert both.propose(0, 1) == winner.tokens[:1]
    answers = [both.propose(0, 1), replacement(both, 0, 1), extension(both, 0, 1, (5,))]
    assert [source_of(answer, both) for answer in answers] == [source] * 3


def test_a_match_without_tokens_is_none() -> None:
    both = LongestMatch([Fixed("own", Copy((), 9)), Fixed("other", Copy((3,), 4))])
    assert both.match(0, 9) == Copy((3,), 4, "other")
    neither = LongestMatch([Fixed("own", Copy()), Fixed("other", Copy())])
    assert neither.match(0, 9) == Copy()
    assert neither.propose(0, 9) == ()
    assert source_of(neither.propose(0, 9), neither) == "own+other"


@pytest.mark.parametrize("verb", ["commit", "end"])
def test_one_that_fails_keeps_the_news_from_no_other(verb: str) -> None:
    members = [Fixed("own", Copy(), verb), Fixed("other", Copy())]
    both = LongestMatch(members)
    both.begin(0, ())
    with pytest.raises(RuntimeError, match="own broke"):
        both.commit(0, (1,)) if verb == "commit" else both.end(0)
    assert members[1].heard == ["begin", verb]


def test_tokens_of_a_single_drafter_have_its_name() -> None:
    lookup = PromptLookup()
    assert source_of((1, 2), lookup) == "prompt_lookup"
    assert source_of(Copied((1,), ""), lookup) == "prompt_lookup"
    assert source_of(Copied((1,), "x"), lookup) == "x"


# Opened with them.

PROMPT = [6, 33, 24, 27, 42, 21, 12, 15, 30, 9, 0, 3, 18, 45, 36, 39] * 2
SAMPLINGS = {"greedy": None, "coupled": Sampling(temperature=0.7, seed=5)}


def rounds_of(log: Path) -> list[RoundCommitted]:
    events = [decode(r.type, r.version, r.flags, r.payload) for r in iterate(log)]
    return [event for event in events if isinstance(event, RoundCommitted)]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    "draft", ["lookup:2", "suffix", "suffix:3", "shared", "lookup+shared", "suffix:2+shared", "mtp+shared"]
)
def test_the_text_is_that_of_plain_decoding(draft: str, sampling: str, tmp_path: Path) -> None:
    """With a request that is cancelled, one that is preempted, and a recovery in the middle."""
    log = tmp_path / "run.txlog"
    chosen = SAMPLINGS[sampling]
    prompts = [PROMPT, PROMPT, PROMPT[:7], PROMPT[3:]]
    accuracy = 6 if "mtp" in draft else 0
    runtime = Runtime.open(
        ToyExecutor(accuracy=accuracy), log=log, draft=draft, draft_len=5, paranoid=True, audit_every=3
    )
    handles = [runtime.submit(prompt, max_tokens=80, sampling=chosen) for prompt in prompts]
    for turn in range(16):
        runtime.step()
        if turn == 9:
            handles[1].cancel()
        if turn == 5:
            runtime.preempt(handles[2])
    runtime.close()
    with Runtime.recover(log, ToyExecutor(accuracy=accuracy)) as recovered:
        assert recovered.options.draft == draft
        rest = recovered.handles
        recovered.run()
    target = target_of(chosen, frozenset())
    for number, handle in rest.items():
        assert handle.result().ids == tuple(plain(prompts[number], 80, 48, target=target))
    assert sorted(rest) == [0, 2, 3]
    rounds = rounds_of(log)
    sources = {source for event in rounds if event.drafts for source in event.source.split("+")}
    expected = {"lookup": "prompt_lookup", "suffix": "suffix_automaton", "shared": "shared_history"}
    names = {expected[part.partition(":")[0]] for part in draft.split("+") if part != "mtp"}
    assert sources >= names
    assert sources <= names | {"toy"}
    assert execute(log, ToyExecutor(accuracy=accuracy)).counts.rounds == len(rounds)


def test_what_one_request_said_drafts_for_the_next() -> None:
    with Runtime.open(ToyExecutor(), draft="shared", draft_len=7) as runtime:
        for _ in range(2):
            handle = runtime.submit(PROMPT, max_tokens=60)
            runtime.run()
    # All of it but the first context was said before, in the same words.
    stats = handle.result().stats
    assert stats.by_source["shared_history"][1] >= 48
    assert stats.rounds < 20


class Broken(SuffixAutomaton):
    """Fails at one verb."""

    def __init__(self, verb: str) -> None:
        super().__init__()
        self._verb = verb

    def _fail(self, verb: str) -> None:
        if verb == self._verb:
            raise RuntimeError("it broke")

    def begin(self, request: int, tokens: Sequence[int]) -> None:
        self._fail("begin")
        super().begin(request, tokens)

    def match(self, request: int, count: int, after: Sequence[int] = ()) -> Copy:
        self._fail("match")
        return super().match(request, count, after)

    def commit(self, request: int, tokens: Sequence[int]) -> None:
        if self._streams[request].tokens != PROMPT and tokens:
            self._fail("commit")
        super().commit(request, tokens)

    def end(self, request: int) -> None:
        self._fail("end")
        super().end(request)


@pytest.mark.parametrize("verb", ["begin", "match", "commit", "end"])
def test_a_copying_drafter_that_fails_leaves_plain_decoding(verb: str) -> None:
    drafter = LongestMatch([Broken(verb), SharedHistory()])
    with Runtime.open(ToyExecutor(), draft=drafter, draft_len=5) as runtime:
        handles = [runtime.submit(PROMPT, max_tokens=40) for _ in range(2)]
        runtime.run()
    for handle in handles:
        assert handle.result().ids == tuple(plain(PROMPT, 40, 48))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draft": "model"}, r"'toy' has no drafter of its own"),
        ({"draft": "lookup", "draft_model": ToyExecutor()}, r"draft='lookup' does not use"),
        ({"draft": "mtp", "draft_model": "smollm2"}, r"draft='mtp' does not use"),
        ({"draft": "model", "draft_model": "first:1"}, r"must be an Executor where model is.*'first:1'"),
        ({"draft": "model", "model": "smollm2"}, r"needs the model that drafts; give draft_model="),
        (
            {"draft": "model", "model": "smollm2", "draft_model": ToyExecutor()},
            r"must be a name or path where model is",
        ),
    ],
)
def test_a_draft_model_in_the_wrong_place(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Runtime.open(**{"model": ToyExecutor(), **options})
