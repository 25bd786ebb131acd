"""The gate ``lossless``: speculation on equals speculation off, to the token and to the bit of the logits; and it
did engage where it could, and proposed nothing where nothing could be proposed."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from txdecode.runtime.configuration import Options
from txdecode.runtime.drafters.composed import LEARNED_DEPTH
from txdecode.runtime.drafters.spelling import LOOKUP_MATCH_MAX, Spelled, parse_draft
from txdecode.runtime.errors import InvalidRequest
from txdecode.runtime.gates.prompts import GatePrompt
from txdecode.runtime.journal import Journal, iterate
from txdecode.runtime.opening import Opened
from txdecode.runtime.runtime import Runtime
from txdecode.runtime.sampling import Sampling
from txdecode.transactions.codec import decode
from txdecode.transactions.events import RequestSubmitted, RoundCommitted
from txdecode.transactions.executor import Executor, Round, Settlement
from txdecode.transactions.target import TokenLogprobs

GREEDY = Sampling(temperature=0)

Progress = Callable[[int, int, str], None]
"""Done, in all, what comes next."""


class LogitRecorder:
    """Wraps an executor and keeps a digest of the logits of every committed row, by request and position.

    The executor shows the logits of its last ``verify``, a (rows, vocabulary) tensor a round, through
    ``logits_of_last_launch()``.
    """

    def __init__(self, executor: Executor, digest: Callable[[Any], list[bytes]]) -> None:
        self._executor = executor
        self._digest = digest
        self._verified: dict[int, list[bytes]] = {}
        self.rows: dict[int, dict[int, bytes]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def verify(self, rounds: Sequence[Round]) -> None:
        """Verify, then keep a digest of every row."""
        self._executor.verify(rounds)
        logits = self._executor.logits_of_last_launch()  # type: ignore[attr-defined]
        for entry, rows in zip(rounds, logits, strict=True):
            self._verified[entry.plan.request] = self._digest(rows)

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """Settle, and move the digests of the committed rows to ``rows``."""
        self._executor.settle(settlements)
        for settlement in settlements:
            view = settlement.plan.view
            rows = self.rows.setdefault(view.request, {})
            for row in settlement.path:
                rows[view.length + row] = self._verified[view.request][row]


@attrs.frozen
class LosslessCase:
    """One speculative run against the plain one. ``first_difference`` is the index of the first generated token
    that differs, or ``None``; ``logit_rows`` were compared, ``logit_differences`` of them differed; logprobs are
    compared where they are asked for;
    ``misproposed`` counts rounds whose drafts are not what a plain scan of the known tokens finds."""

    prompt: str
    draft_len: str
    batch: int
    tokens: int
    first_difference: int | None
    logit_rows: int
    logit_differences: int
    drafted: int
    accepted: int
    empty_rounds: int
    misproposed: int
    logprobs_equal: bool = True
    rerun: bool = False

    @property
    def passed(self) -> bool:
        """Whether this case is lossless and the drafter did what it should."""
        return (
            self.first_difference is None
            and not self.logit_differences
            and not self.misproposed
            and self.logprobs_equal
        )


@attrs.frozen
class LosslessReport:
    """All cases. ``not_engaged`` names repeating prompts on which no draft was ever accepted."""

    model: str
    dtype: str
    cases: tuple[LosslessCase, ...]
    not_engaged: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether the gate holds."""
        return all(case.passed for case in self.cases) and not self.not_engaged


@attrs.frozen
class _Run:
    ids: tuple[int, ...]
    logits: Mapping[int, bytes]
    drafted: int
    accepted: int
    empty_rounds: int
    misproposed: int
    logprobs: tuple[TokenLogprobs, ...] | None


def plan_batches(
    prompts: Sequence[GatePrompt], full: bool, drafts_max: int = 15, batch_max: int = 8
) -> list[tuple[str, tuple[GatePrompt, ...]]]:
    """Which prompts decode together at which draft length.

    Every draft length from 1 to 15 (or the executor's widest, ``drafts_max``) and ``additive``, batches of 1, 2, 3
    and 8 of mixed lengths; ``full`` runs every prompt alone at every length besides.
    """
    lengths = [*(str(k) for k in range(1, min(drafts_max, 15) + 1)), "additive"]
    sizes = tuple(size for size in (1, 2, 3, 8) if size <= batch_max)
    batches = []
    start = 0
    for index, length in enumerate(lengths):
        size = min(sizes[index % len(sizes)], len(prompts))
        chosen = tuple(prompts[(start + i) % len(prompts)] for i in range(size))
        start += size
        batches.append((length, chosen))
    if full:
        batches += [(length, (prompt,)) for length in lengths for prompt in prompts]
        batches += [
            (length, tuple(prompts[(i * 3 + j) % len(prompts)] for j in range(min(size, len(prompts)))))
            for i, length in enumerate(lengths)
            for size in sizes
        ]
    return batches


def lossless_gate(
    opened: Opened,
    prompts: Sequence[GatePrompt],
    *,
    dtype: str,
    full: bool = False,
    draft: str = "lookup",
    max_tokens: int | None = None,
    sampling: Sampling = GREEDY,
    progress: Progress = lambda done, total, what: None,
) -> LosslessReport:
    """Decode plainly, one prompt at a time; then speculatively, in batches; compare all of it.

    A batch that fails is run once more before it is reported: a contended run can look like a wrong one.
    ``draft`` says who drafts, as for ``Runtime.open``; the executor of ``opened`` must be one that can. What
    ``lookup`` proposes alone is held against a plain scan of the tokens. ``max_tokens`` caps the prompts' own
    budgets. ``sampling`` is how every prompt is decoded, with the seed 0 where it has none; what it leaves open is
    neutral, whatever the checkpoint says. Raises ``InvalidRequest`` for the chain law, under which the text may
    depend on the drafts, for a filter without a temperature, and for a ``draft`` that is no spelling or ``none``.
    """
    spelled = parse_draft(draft)
    if spelled == Spelled():
        raise InvalidRequest(
            "gate lossless compares drafting with plain decoding, and draft 'none' is plain; name a drafter, "
            "'lookup' say"
        )
    if sampling.law == "chain":
        raise InvalidRequest(
            "gate lossless compares texts, and the law 'chain' keeps their distribution alone; leave law out"
        )
    # With every field filled in, a checkpoint has nothing to say any more.
    sampling = sampling.resolved({}, lambda: 0)
    description = opened.executor.describe()
    batches = plan_batches(prompts, full, description.rows_max - 1, description.batch_max)
    total = len(prompts) + len(batches)
    plain: dict[str, _Run] = {}
    for index, prompt in enumerate(prompts):
        progress(index, total, f"plain: {prompt.name}")
        (plain[prompt.name],) = _decode(opened, spelled, (prompt,), None, max_tokens, sampling)
    cases: list[LosslessCase] = []
    for index, (length, batch) in enumerate(batches):
        progress(len(prompts) + index, total, f"drafts {length}, batch of {len(batch)}")
        found = _cases(opened, spelled, batch, length, plain, max_tokens, sampling)
        if not all(case.passed for case in found):
            # The same batch again: a fault that only a batch shows must not vanish by being tried alone.
            plain |= {p.name: _decode(opened, spelled, (p,), None, max_tokens, sampling)[0] for p in batch}
            found = [
                attrs.evolve(case, rerun=True)
                for case in _cases(opened, spelled, batch, length, plain, max_tokens, sampling)
            ]
        cases += found
    progress(total, total, "done")
    engaged = {case.prompt for case in cases if case.accepted}
    if not engaged:
        return LosslessReport(opened.name, dtype, tuple(cases), ("every prompt",))
    # A sampled text need not repeat its prompt, nor where it does as long as a match must be.
    missing = tuple(
        prompt.name
        for prompt in prompts
        if not sampling.temperature
        and not spelled.learned
        and 1 <= spelled.min_match <= LOOKUP_MATCH_MAX
        and prompt.repeats
        and prompt.name in {case.prompt for case in cases}
        and prompt.name not in engaged
    )
    return LosslessReport(opened.name, dtype, tuple(cases), missing)


def _cases(
    opened: Opened,
    spelled: Spelled,
    batch: Sequence[GatePrompt],
    length: str,
    plain: Mapping[str, _Run],
    max_tokens: int | None,
    sampling: Sampling,
) -> list[LosslessCase]:
    runs = _decode(opened, spelled, batch, length, max_tokens, sampling)
    return [
        _compare(prompt, length, len(batch), plain[prompt.name], run)
        for prompt, run in zip(batch, runs, strict=True)
    ]


def _compare(prompt: GatePrompt, length: str, batch: int, plain: _Run, run: _Run) -> LosslessCase:
    difference = next((i for i, (a, b) in enumerate(zip(plain.ids, run.ids, strict=False)) if a != b), None)
    if difference is None and len(plain.ids) != len(run.ids):
        difference = min(len(plain.ids), len(run.ids))
    shared = plain.logits.keys() & run.logits.keys()
    return LosslessCase(
        prompt.name,
        length,
        batch,
        len(run.ids),
        difference,
        len(shared),
        sum(plain.logits[position] != run.logits[position] for position in shared),
        run.drafted,
        run.accepted,
        run.empty_rounds,
        run.misproposed,
        plain.logprobs == run.logprobs,
    )


def _decode(
    opened: Opened,
    spelled: Spelled,
    batch: Sequence[GatePrompt],
    length: str | None,
    max_tokens: int | None,
    sampling: Sampling,
) -> list[_Run]:
    """Decode a batch on a fresh runtime with a log of its own, and read the log back."""
    recorder = LogitRecorder(opened.executor, _digest_rows)
    drafts = bool(spelled.learned) and length is not None
    drafter = None if length is None else spelled.host()
    draft_len: int | str = "additive" if length is None or length == "additive" else int(length)
    composed = drafts and drafter is not None and not opened.executor.describe().capabilities.fused
    depth = LEARNED_DEPTH if composed else None
    with tempfile.TemporaryDirectory(prefix="txdecode-gate-") as folder:
        path = Path(folder) / "gate.txlog"
        journal = Journal.create(path, fingerprint={}, configuration={}, durability="none")
        run_on = attrs.evolve(opened, executor=recorder, drafter=drafter, drafts=drafts)
        with Runtime(run_on, journal, Options(draft_len=draft_len, draft_depth=depth)) as runtime:
            handles = [
                runtime.submit(
                    prompt.content,
                    max_tokens=prompt.max_tokens
                    if max_tokens is None
                    else min(prompt.max_tokens, max_tokens),
                    sampling=sampling,
                )
                for prompt in batch
            ]
            runtime.run()
            results = [handle.result() for handle in handles]
        # What a learned drafter proposes, no scan of the tokens can say, nor of this request's what others said; and
        # one for matches of any length would take a while.
        checked = length is not None and spelled == Spelled("", "lookup", spelled.min_match)
        fixed = None if draft_len == "additive" else int(draft_len)
        counts = _proposals(path, fixed, spelled.min_match) if checked else {}
    return [
        _Run(
            result.ids,
            recorder.rows[result.request],
            result.stats.drafted,
            result.stats.accepted,
            counts.get(result.request, (0, 0))[0],
            counts.get(result.request, (0, 0))[1],
            result.logprobs,
        )
        for result in results
    ]


def _digest_rows(rows: Any) -> list[bytes]:
    raw = rows.contiguous().cpu().float().numpy()
    return [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in raw]


def _proposals(path: Path, length: int | None, least: int) -> dict[int, tuple[int, int]]:
    """By request: rounds in which drafts were allowed but there was nothing to propose, and rounds whose drafts
    are not what a plain scan of the known tokens finds (something where there is nothing, nothing where there
    is something, or something else). ``length`` is the fixed draft length, which every round with enough to
    propose must reach; an adaptive one (``None``) must propose at least one. ``least`` tokens must agree."""
    submitted: dict[int, RequestSubmitted] = {}
    known: dict[int, list[int]] = {}
    counts: dict[int, tuple[int, int]] = {}
    for record in iterate(path):
        event = decode(record.type, record.version, record.flags, record.payload)
        if isinstance(event, RequestSubmitted):
            submitted[event.request] = event
            known[event.request] = list(event.prompt)
            counts[event.request] = (0, 0)
        elif isinstance(event, RoundCommitted):
            tokens, first = known[event.request], submitted[event.request]
            generated = len(tokens) - len(first.prompt)
            # The first round is the last prompt row, and the last token of the budget needs no draft.
            allowed = generated > 0 and first.budget - generated > 1
            found = scan(tokens, max(least, LOOKUP_MATCH_MAX), least) if allowed else []
            left = first.budget - generated - 1
            most = max(len(event.drafts), 1) if length is None else min(length, left)
            expected = tuple(found[:most])
            empty, wrong = counts[event.request]
            counts[event.request] = (empty + (allowed and not found), wrong + (expected != event.drafts))
            tokens.extend(event.emitted)
    return counts


def scan(tokens: Sequence[int], longest: int = LOOKUP_MATCH_MAX, least: int = 1) -> list[int]:
    """The plain definition of prompt lookup: what followed the latest earlier occurrence of the last ``longest``
    tokens, else of one fewer, down to ``least``. Quadratic; the drafter's index is checked against it."""
    n = len(tokens)
    for size in range(min(longest, n - 1), least - 1, -1):
        suffix = tokens[n - size :]
        for start in range(n - size - 1, -1, -1):
            if tokens[start : start + size] == suffix:
                return list(tokens[start + size :])
    return []
