"""The arms over a model that was opened once: a fresh runtime with a log of its own for each repeat."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from txdecode.runtime.bench.measure import PLAIN, SPECULATIVE, Sample, Unit
from txdecode.runtime.bench.rounds import RoundFacts, facts_by_request, total
from txdecode.runtime.handle import Handle, Result
from txdecode.runtime.opening import Opened, check_draft_model, open_model, open_runtime
from txdecode.runtime.sampling import Sampling
from txdecode.state.errors import TxDecodeError
from txdecode.transactions.executor import Drafter
from txdecode.transactions.phase import Phase, Signal

_VERB_OF_PHASE = {
    Phase.DRAFT: "draft",
    Phase.VERIFY: "verify",
    Phase.ACCEPT: "accept",
    Phase.COMMIT: "settle",
}
_ROOM = 8
"""Sequences that pages are planned for, at least: a prompt of more than 2,048 tokens takes those of several."""
_PART_OF_VERB = {"draft": "draft", "verify": "forward", "accept": "choose", "settle": "settle"}


@attrs.frozen
class Settings:
    """How the arms decode. ``draft``, ``draft_len`` and ``more`` are options of ``open_runtime`` for the speculative
    arm; ``sampling`` has every field filled in. ``ignore_eos``: texts go on to their budget.
    ``draft_model`` is the name of what the executor of the speculative arm has beside it already."""

    draft: str | Drafter = "lookup"
    draft_len: int | str = "additive"
    sampling: Sampling = attrs.Factory(lambda: Sampling(temperature=0).resolved({}, lambda: 0))
    ignore_eos: bool = False
    batch: int = 1
    more: Mapping[str, Any] = attrs.Factory(dict)
    draft_model: str | None = None

    @property
    def same_text(self) -> bool:
        """Whether drafts must not change the text: all laws but ``chain``."""
        return self.sampling.law != "chain"


@attrs.frozen
class Models:
    """What the arms run on. A model whose executor keeps state for a drafter pays for it in every commit, and plain
    decoding must not; where nothing is kept both are the same."""

    plain: Opened
    speculative: Opened

    def of(self, arm: str) -> Opened:
        """The model of an arm."""
        return self.speculative if arm == SPECULATIVE else self.plain


def open_models(
    model: str,
    dtype: str,
    draft: str,
    batch: int,
    threads: int | None,
    draft_model: str | None = None,
    **options: Any,
) -> Models:
    """Open a model once, or twice where a drafter of its own or a ``draft_model`` keeps state. Raises as
    ``open_model`` does."""
    check_draft_model(model, draft, draft_model)
    room = max(batch, _ROOM)
    found = open_model(
        model, dtype, draft, batch_max=room, threads=threads, draft_model=draft_model, **options
    )
    if not found.drafts:
        return Models(found, found)
    return Models(open_model(model, dtype, "none", batch_max=room, threads=threads, **options), found)


class Phases:
    """Nanoseconds that rounds spent in each phase: an observer of a runtime."""

    def __init__(self) -> None:
        self.spent = dict.fromkeys(_VERB_OF_PHASE, 0)
        self._entered = 0

    def __call__(self, request: int, before: Phase, signal: Signal, after: Phase) -> None:
        """A transition."""
        now = time.perf_counter_ns()
        if before in self.spent:
            self.spent[before] += now - self._entered
        self._entered = now


class RuntimeArm:
    """One arm of one repeat over ``opened``. The log is written without waiting for a disk."""

    def __init__(self, name: str, opened: Opened, settings: Settings, log: Path) -> None:
        speculative = name == SPECULATIVE
        self._settings = settings
        self._log = log
        self._units: dict[str, list[int]] = {}
        self._host_drafts = not opened.drafts
        self._phases = Phases()
        options: dict[str, Any] = {"draft": "none", "draft_len": 0}
        if speculative:
            options = {"draft": settings.draft, "draft_len": settings.draft_len, **settings.more}
        self._runtime = open_runtime(
            opened.executor,
            text=opened.text,
            eos_ids=sorted(opened.eos_ids),
            log=log,
            overwrite=True,
            durability="none",
            # Phases of a batch overlap, so that they do not add up.
            observer=self._phases if settings.batch == 1 else None,
            **options,
        )

    def decode(self, unit: Unit) -> Sample:
        """Submit all prompts of the unit and run to the end. Raises ``TxDecodeError``."""
        runtime = self._runtime
        before, phases = runtime.device_ns, dict(self._phases.spent)
        handles = self._submit(unit)
        start = time.perf_counter_ns()
        runtime.run()
        wall = time.perf_counter_ns() - start
        results = [handle.result() for handle in handles]
        self._units[unit.name] = [result.request for result in results]
        verbs = {name: (spent - before[name]) / 1e9 for name, spent in runtime.device_ns.items()}
        alone = len(results) == 1
        decode_s = results[0].stats.decode_s if alone else wall / 1e9 - verbs["prefill"]
        spent = {phase: (self._phases.spent[phase] - phases[phase]) / 1e9 for phase in phases}
        return Sample(
            tuple(result.ids for result in results),
            decode_s,
            sum(result.stats.prompt_tokens for result in results),
            sum(result.stats.rounds for result in results),
            self._parts(decode_s, verbs, spent if alone and self._settings.batch == 1 else {}),
            _sources(results),
            _cut(unit, results),
        )

    def _submit(self, unit: Unit) -> list[Handle]:
        handles: list[Handle] = []
        try:
            for prompt in unit.prompts:
                handles.append(
                    self._runtime.submit(
                        prompt.content,
                        max_tokens=prompt.max_tokens,
                        sampling=self._settings.sampling,
                        ignore_eos=self._settings.ignore_eos,
                    )
                )
        except TxDecodeError:
            # What was taken before the refused one must not run with the next unit.
            for handle in handles:
                handle.cancel()
            self._runtime.run()
            raise
        return handles

    def _parts(
        self, decode_s: float, verbs: Mapping[str, float], phases: Mapping[Phase, float]
    ) -> dict[str, float]:
        """Seconds by part; they add up to the decode time."""
        parts = {part: verbs[verb] for verb, part in _PART_OF_VERB.items()}
        if self._host_drafts:
            # Nothing but the host's own drafters ran under this verb.
            parts["host draft"] = parts.pop("draft")
        for phase, spent in phases.items():
            name = f"host {phase.name.lower()}"
            parts[name] = parts.get(name, 0.0) + max(spent - verbs[_VERB_OF_PHASE[phase]], 0.0)
        parts["host between rounds" if phases else "host"] = max(decode_s - sum(parts.values()), 0.0)
        return parts

    def close(self) -> Mapping[str, RoundFacts]:
        """Close the runtime and read its log."""
        self._runtime.close()
        found = facts_by_request(self._log)
        return {
            unit: total(found[request] for request in requests if request in found)
            for unit, requests in self._units.items()
        }


class ArmOpener:
    """Opens arms over ``models`` with logs in ``folder``."""

    def __init__(self, models: Models, settings: Settings, folder: Path) -> None:
        self._models = models
        self._settings = settings
        self._folder = folder

    def __call__(self, name: str, repeat: int) -> RuntimeArm:
        """An arm for one repeat."""
        assert name == SPECULATIVE or name.startswith((PLAIN, "again")), name
        # A log of the repeat before was read already.
        return RuntimeArm(name, self._models.of(name), self._settings, self._folder / f"{name}.txlog")


def _sources(results: list[Result]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for result in results:
        for name, (offered, accepted) in result.stats.by_source.items():
            before = found.get(name, (0, 0))
            found[name] = before[0] + offered, before[1] + accepted
    return found


def _cut(unit: Unit, results: list[Result]) -> str | None:
    for prompt, result in zip(unit.prompts, results, strict=True):
        if result.finish == "cancelled":
            return f"'{prompt.name}' was cancelled"
        if result.finish == "length" and len(result.ids) < prompt.max_tokens:
            return f"'{prompt.name}' reached the end of the context after {len(result.ids)} tokens"
    return None
