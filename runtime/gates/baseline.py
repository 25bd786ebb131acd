"""The gate ``baseline``: our plain loop against other engines on the same weights, by text and by speed.

Text: the reference reads prompt and text of ours in one forward in fp32, and says at every position which token it
finds likeliest. Where that is another one than ours, the margin between both says whether it is a near-tie, which
sums in another order or of another precision may decide either way, or a difference.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs

from txdecode.runtime.bench.errors import PeerMissing
from txdecode.runtime.bench.measure import PLAIN, order_of
from txdecode.runtime.bench.peer_process import load_hf
from txdecode.runtime.bench.statistics import first_difference, median
from txdecode.runtime.errors import InvalidRequest
from txdecode.runtime.gates.prompts import GatePrompt
from txdecode.runtime.opening import Opened, open_runtime
from txdecode.runtime.sampling import Sampling

GREEDY = Sampling(temperature=0)

TIES = {"fp32": 1e-3, "bf16": 0.5}
"""By our precision: largest margin of the reference's logits that counts as a tie. In bf16 a logit near 20 has steps
of an eighth, and activations are rounded in every layer."""

Ids = Sequence[int]
Progress = Callable[[int, int, str], None]
"""Done, in all, what comes next."""


class Scores(Protocol):
    """Logits of a reference over one text."""

    def best(self, position: int) -> int:
        """The likeliest token after ``position`` tokens."""

    def margin(self, position: int, better: int, worse: int) -> float:
        """By how much the logit of one token is above that of another, after ``position`` tokens."""


class Reference(Protocol):
    """Who judges texts."""

    def scores(self, ids: Ids) -> Scores:
        """Read a text in one forward."""


class Engine(Protocol):
    """Who is compared by speed, and by its own greedy text."""

    name: str

    def decode(self, name: str, ids: Ids, count: int) -> tuple[Ids, float]:
        """Greedy text after ``ids``, and its tokens a second, the prompt left out. Raises ``PeerFailed``."""


@attrs.frozen
class Divergence:
    """The first token that is another one than the reference's: its ``index`` in the text, both ids, and by how much
    the reference prefers its own."""

    index: int
    ours: int
    theirs: int
    margin: float


@attrs.frozen
class BaselineCase:
    """One prompt against one engine. ``differing`` positions of ``tokens`` were not the reference's likeliest;
    ``worst`` is the largest margin among them, ``first`` the first. Speeds are medians of tokens a second."""

    prompt: str
    engine: str
    tokens: int
    differing: int
    first: Divergence | None
    worst: float
    tie: float
    tok_s: float
    engine_tok_s: float

    @property
    def same(self) -> bool:
        """Whether all that differs is a tie."""
        return self.worst <= self.tie

    @property
    def ratio(self) -> float:
        """Our speed over theirs."""
        return self.tok_s / self.engine_tok_s if self.engine_tok_s else 0.0


@attrs.frozen
class BaselineReport:
    """All cases. ``at_least`` is what the median ratio of every engine must reach, where one was given; ``absent``
    are engines that are not installed, with what is missing."""

    model: str
    dtype: str
    cases: tuple[BaselineCase, ...]
    at_least: float | None = None
    absent: tuple[str, ...] = ()

    @property
    def ratios(self) -> dict[str, float]:
        """By engine: the median over prompts of our speed over theirs."""
        names = dict.fromkeys(case.engine for case in self.cases)
        return {name: median(case.ratio for case in self.cases if case.engine == name) for name in names}

    @property
    def slow(self) -> tuple[str, ...]:
        """Engines against which the floor is not reached."""
        if self.at_least is None:
            return ()
        return tuple(name for name, ratio in self.ratios.items() if ratio < self.at_least)

    @property
    def passed(self) -> bool:
        """Whether the gate holds."""
        return all(case.same for case in self.cases) and not self.slow


def baseline_gate(
    opened: Opened,
    prompts: Sequence[GatePrompt],
    reference: Reference,
    engines: Sequence[Engine],
    *,
    dtype: str,
    tie: float | None = None,
    at_least: float | None = None,
    max_tokens: int | None = None,
    repeats: int = 3,
    absent: Sequence[str] = (),
    progress: Progress = lambda done, total, what: None,
) -> BaselineReport:
    """Decode every prompt plainly by us and by each engine, in turns that alternate, ``repeats`` times.

    The reference judges our text once a prompt, position by position. Against an engine that is not the first, its
    own text is compared as well: the reference's margin at the first token in which they part must be a tie.
    Raises ``InvalidRequest`` where a prompt has no ids, ``PeerFailed`` where an engine fails.
    """
    bound = TIES[dtype] if tie is None else tie
    cases: list[BaselineCase] = []
    for number, prompt in enumerate(prompts):
        progress(number, len(prompts), prompt.name)
        ids = encode(opened, prompt)
        most = prompt.max_tokens if max_tokens is None else min(prompt.max_tokens, max_tokens)
        text, speeds, theirs = _decoded(opened, prompt.name, ids, most, engines, repeats)
        scores = reference.scores([*ids, *text])
        for place, engine in enumerate(engines):
            found = (
                judged(scores, len(ids), text)
                if not place
                else parted(scores, len(ids), text, theirs[engine.name])
            )
            differing, first, worst = found
            cases.append(
                BaselineCase(
                    prompt.name,
                    engine.name,
                    len(text),
                    differing,
                    first,
                    worst,
                    bound,
                    median(speeds[PLAIN]),
                    median(speeds[engine.name]),
                )
            )
    progress(len(prompts), len(prompts), "done")
    return BaselineReport(opened.name, dtype, tuple(cases), at_least, tuple(absent))


def _decoded(
    opened: Opened, name: str, ids: Ids, count: int, engines: Sequence[Engine], repeats: int
) -> tuple[Ids, dict[str, list[float]], dict[str, Ids]]:
    """Our text, the speeds by engine (ours as ``plain``), and the engines' texts."""
    by_name = {engine.name: engine for engine in engines}
    speeds: dict[str, list[float]] = {item: [] for item in (PLAIN, *by_name)}
    texts: dict[str, Ids] = {}
    with open_runtime(
        opened.executor, text=opened.text, eos_ids=sorted(opened.eos_ids), draft="none", draft_len=0
    ) as runtime:
        for repeat in range(repeats):
            for item in order_of((PLAIN, *by_name), repeat):
                if item == PLAIN:
                    result = runtime.submit(list(ids), max_tokens=count, sampling=GREEDY).result()
                    texts[item] = result.ids
                    speeds[item].append(result.stats.tok_s)
                else:
                    texts[item], speed = by_name[item].decode(name, ids, count)
                    speeds[item].append(speed)
    return texts.pop(PLAIN), speeds, texts


def judged(scores: Scores, start: int, text: Ids) -> tuple[int, Divergence | None, float]:
    """Our text position by position against what the reference finds likeliest there: how many differ, the first of
    them, and the largest margin."""
    found = []
    for index, token in enumerate(text):
        best = scores.best(start + index)
        if best != token:
            found.append(Divergence(index, token, best, scores.margin(start + index, best, token)))
    return len(found), found[0] if found else None, max((item.margin for item in found), default=0.0)


def parted(scores: Scores, start: int, text: Ids, theirs: Ids) -> tuple[int, Divergence | None, float]:
    """Our text against that of an engine, up to the first token in which they part: after it they are two texts. One
    that ends where the other goes on does not differ: engines count their stop tokens in different ways."""
    index = first_difference(text, theirs)
    if index is None or index >= min(len(text), len(theirs)):
        return 0, None, 0.0
    margin = abs(scores.margin(start + index, theirs[index], text[index]))
    return 1, Divergence(index, text[index], theirs[index], margin), margin


def encode(opened: Opened, prompt: GatePrompt) -> list[int]:
    """The ids that every engine gets. Raises ``InvalidRequest`` and ``TextError``."""
    if opened.text is None:
        raise InvalidRequest(f"model '{opened.name}' has no tokenizer, which prompts need; use one that has")
    content = prompt.content
    return opened.text.encode(content) if isinstance(content, str) else opened.text.encode_chat(content)


class HuggingFace:
    """transformers on the same weights: the judge in fp32 (over weights rounded as ours are), and an engine in our
    precision. Raises ``PeerMissing``."""

    name = "hf"

    def __init__(self, path: Path, dtype: str, threads: int | None) -> None:
        try:
            self._torch, self._judge = load_hf(path, "float32")
        except ImportError as error:
            raise PeerMissing("gate baseline", f"the package '{error.name}'", "this environment") from error
        self._model = self._judge
        if threads is not None:
            self._torch.set_num_threads(threads)
        if dtype == "bf16":
            import copy

            self._model = copy.deepcopy(self._judge).to(self._torch.bfloat16)
            for weight in self._judge.parameters():
                weight.data = weight.data.to(self._torch.bfloat16).float()

    def scores(self, ids: Ids) -> Scores:
        """Read a text in one forward."""
        with self._torch.inference_mode():
            return _Logits(self._judge(input_ids=self._torch.tensor([list(ids)])).logits[0])

    def decode(self, name: str, ids: Ids, count: int) -> tuple[Ids, float]:
        """Its ``generate``, less the time of a run of one token."""
        first, _ = self._timed(ids, 1)
        spent, made = self._timed(ids, count)
        return made, (len(made) - 1) / max(spent - first, 1e-9)

    def _timed(self, ids: Ids, count: int) -> tuple[float, list[int]]:
        known = self._torch.tensor([list(ids)])
        with self._torch.inference_mode():
            start = time.perf_counter()
            out = self._model.generate(
                input_ids=known,
                attention_mask=self._torch.ones_like(known),
                do_sample=False,
                max_new_tokens=count,
            )
            spent = time.perf_counter() - start
        return spent, [int(token) for token in out[0, len(ids) :]]


class _Logits:
    def __init__(self, logits: Any) -> None:
        self._logits = logits

    def best(self, position: int) -> int:
        return int(self._logits[position - 1].argmax())

    def margin(self, position: int, better: int, worse: int) -> float:
        row = self._logits[position - 1]
        return float(row[better] - row[worse])
