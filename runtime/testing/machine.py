"""The state machine: everything that may happen, in any order, over a ``World``."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, event, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from txdecode.runtime.journal import SEGMENT_BYTES
from txdecode.runtime.policy.bounds import DRAFT_MAX
from txdecode.runtime.sampling import Sampling
from txdecode.runtime.testing.disk import DISK_FAULTS, DiskFault
from txdecode.runtime.testing.faults import BEHAVIOURS, Behaviour
from txdecode.runtime.testing.harness import Harness
from txdecode.runtime.testing.world import DRAFTS, Draft, Interrupt, Setting, World
from txdecode.transactions.phase import Phase as RoundPhase

REQUESTS_MAX = 6
PROMPT_MAX = 40
BUDGET_MAX = 40
AGE_MIN = 4

# Bounds below 128 draw evenly; what is drawn is taken modulo what there is.
_picks = st.integers(0, 119)

_draft_lens = st.one_of(st.none(), st.integers(0, DRAFT_MAX), st.sampled_from(("additive", "additive:15")))
_times = st.integers(1, 3)
_samplings = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from((0.0, 0.3, 0.8, 1.0, 1.5)),
        "seed": st.integers(0, 119),
        "top_k": st.sampled_from((0, 1, 8)),
        "top_p": st.sampled_from((1.0, 0.9)),
        "min_p": st.sampled_from((0.0, 0.05)),
        "repetition_penalty": st.sampled_from((1.0, 1.3)),
        "presence_penalty": st.sampled_from((0.0, 0.5)),
        "frequency_penalty": st.sampled_from((0.0, -0.5)),
        "min_tokens": st.sampled_from((0, 0, 3)),
        "logprobs": st.sampled_from((None, None, 2)),
        "law": st.sampled_from(("coupled", "coupled", "chain")),
    }
)
_requests = st.fixed_dictionaries(
    {
        "start": st.lists(_picks, min_size=1, max_size=12),
        "repeats": st.integers(1, 4),
        "max_tokens": st.integers(1, BUDGET_MAX),
        "stops": st.lists(_picks, max_size=2),
        "draft_len": _draft_lens,
        "sampling": st.one_of(st.none(), st.none(), _samplings),
    }
)
_interrupt = st.sampled_from(("cancel", "preempt"))
_interrupts = st.tuples(_interrupt, st.sampled_from(tuple(RoundPhase)))
_disk_faults = st.tuples(st.sampled_from(DISK_FAULTS), st.integers(0, 8))
_ends = st.sampled_from(("close", "crash", "cut", "cut"))
_scripts = st.lists(st.sampled_from(BEHAVIOURS), min_size=1, max_size=8, unique=True)


def _settings(drafts: Sequence[Draft]) -> st.SearchStrategy[Setting]:
    return st.builds(
        Setting,
        draft=st.sampled_from(drafts),
        draft_len=st.one_of(st.sampled_from(("additive", "additive:15")), st.integers(0, DRAFT_MAX)),
        draft_depth=st.sampled_from((None, 1, 2)),
        durability=st.sampled_from(("write", "fsync", "none")),
        paranoid=st.booleans(),
        segment_bytes=st.sampled_from((SEGMENT_BYTES, 4096)),
        audit_every=st.sampled_from((0, 0, 1, 5)),
    )


class TransactionMachine(RuleBasedStateMachine):
    """Drives one ``World``. ``harnesses`` and ``drafts`` say what to test, ``tally`` counts what happened."""

    harnesses: st.SearchStrategy[Harness]
    drafts: Sequence[Draft]
    tally: Counter[str] | None = None

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(prefix="txdecode-")
        self._world: World | None = None
        self._failed = False
        self._worn = 0

    @property
    def world(self) -> World:
        """The world of this example."""
        assert self._world is not None
        return self._world

    def _tell(self, what: str) -> None:
        event(what)
        if self.tally is not None:
            self.tally[what] += 1

    def _do(self, action: Callable[[], object]) -> None:
        """Run an action; teardown leaves a world alone in which one has failed."""
        try:
            action()
        except BaseException:
            self._failed = True
            raise

    def _room(self) -> bool:
        return len(self.world.live) < REQUESTS_MAX

    def _busy(self) -> bool:
        return bool(self.world.live)

    def _scripted(self) -> bool:
        return self._busy() and self.world.setting.draft == "scripted"

    def _aged(self) -> bool:
        # Recovering what has just been recovered shows little and takes the place of what shows more.
        return self._worn >= AGE_MIN

    # The first requests come with it: Hypothesis leaves out whole rules of a program, and without requests
    # the rest of them would show nothing.
    @initialize(data=st.data(), script=_scripts, requests=st.lists(_requests, min_size=1, max_size=3))
    def open(self, data: st.DataObject, script: list[Behaviour], requests: list[dict[str, Any]]) -> None:
        """Draw what is tested, and open it."""
        harness = data.draw(type(self).harnesses)
        setting = data.draw(_settings(type(self).drafts))
        self._do(lambda: self._open(harness, setting))
        self.world.script(script)
        for request in requests:
            self._submit(**request)

    def _open(self, harness: Harness, setting: Setting) -> None:
        self._world = World(harness, setting, Path(self._folder.name), self._tell)
        capabilities = self._world.description.capabilities
        self._tell("style fused" if capabilities.fused else "style verbs")
        self._tell(f"rollback {capabilities.rollback or 'none'}")
        self._tell(f"draft {setting.draft}")
        self._tell(f"durability {setting.durability}")

    @precondition(_room)
    @rule(requests=st.lists(_requests, min_size=1, max_size=3), times=_times)
    def submit(self, requests: list[dict[str, Any]], times: int) -> None:
        """Requests join those that run."""
        for request in requests:
            self._submit(**request)
        self._step(times)

    def _submit(
        self,
        start: list[int],
        repeats: int,
        max_tokens: int,
        stops: list[int],
        draft_len: int | str | None,
        sampling: dict[str, Any] | None,
    ) -> None:
        # Prompts repeat themselves, for drafters that copy.
        vocab_size = self.world.description.vocab_size
        prompt = [token % vocab_size for token in (start * repeats)[:PROMPT_MAX]]
        stop_ids = [token % vocab_size for token in stops]
        chosen = None if sampling is None else self._sampling(sampling, max_tokens)
        self._do(lambda: self.world.submit(prompt, max_tokens, stop_ids, draft_len, chosen))

    def _sampling(self, drawn: dict[str, Any], max_tokens: int) -> Sampling | None:
        if self.world.harness.sampled is None:
            return None
        drawn = {**drawn, "min_tokens": min(drawn["min_tokens"], max_tokens)}
        return Sampling(**(drawn if drawn["temperature"] else {**drawn, "law": None}))

    def _step(self, times: int) -> None:
        self._worn += times
        self._do(lambda: self.world.step(times))

    @precondition(_busy)
    @rule(times=st.integers(1, 8))
    def step(self, times: int) -> None:
        """Turns of the loop."""
        self._step(times)

    @precondition(_busy)
    @rule(interrupt=_interrupt, pick=_picks, times=_times)
    def ask(self, interrupt: Interrupt, pick: int, times: int) -> None:
        """The caller lost interest, or the operator wants the room."""
        live = self.world.live
        act = self.world.cancel if interrupt == "cancel" else self.world.preempt
        self._do(lambda: act(live[pick % len(live)]))
        self._step(times)

    @precondition(_busy)
    @rule(interrupts=st.lists(_interrupts, min_size=1, max_size=3), times=_times)
    def ask_within(self, interrupts: list[tuple[Interrupt, RoundPhase]], times: int) -> None:
        """Somebody asks in the middle of a round."""
        for interrupt, phase in interrupts:
            self.world.interrupt_at(interrupt, phase)
        self._step(times)

    @precondition(_busy)
    @rule(picks=st.lists(_picks, min_size=1, max_size=6), count=st.integers(1, 2), times=_times)
    def fault(self, picks: list[int], count: int, times: int) -> None:
        """The executor fails, in verbs that the runtime calls."""
        faults = self.world.possible_faults
        for pick in picks:
            self.world.fault(*faults[pick % len(faults)], count)
        self._step(times)

    @precondition(_scripted)
    @rule(script=_scripts, times=_times)
    def script(self, script: list[Behaviour], times: int) -> None:
        """The host drafter changes its ways."""
        self.world.script(script)
        self._step(times)

    @precondition(_busy)
    @rule(faults=st.lists(_disk_faults, min_size=1, max_size=3), times=_times)
    def fail_disk(self, faults: list[tuple[DiskFault, int]], times: int) -> None:
        """The disk fails, sooner or later."""
        for fault, after in faults:
            self.world.fail_disk(fault, after)
        self._step(times)

    @precondition(_aged)
    @rule(end=_ends, cut=st.floats(0, 1), flush=st.booleans(), times=_times)
    def restart(self, end: str, cut: float, flush: bool, times: int) -> None:
        """Closed in order, or the process dies, or the machine does; then recovered."""
        self._worn = 0
        if flush:
            self._do(self.world.flush)
        if end == "close":
            self._do(self.world.reopen)
        else:
            self._do(lambda: self.world.crash(cut if end == "cut" else 0.0))
        self._step(times)

    def teardown(self) -> None:
        """To the end, and a replay of everything."""
        try:
            if self._world is not None and not self._failed:
                self._world.finish()
        finally:
            if self._world is not None:
                self._world.drop()
            self._folder.cleanup()


def machine_for(
    harness: Harness | st.SearchStrategy[Harness],
    *,
    drafts: Sequence[Draft] = DRAFTS,
    tally: Counter[str] | None = None,
) -> type[TransactionMachine]:
    """The state machine over one executor, or over those that a strategy draws. ``drafts`` are the drafters to
    draw from: ``executor`` (its own, where it has any), ``mtp+lookup`` (that and copies), ``scripted`` (right, wrong
    and broken proposals), ``lookup``, ``none``. ``tally`` counts what happened, by the names that Hypothesis'
    statistics show too."""
    harnesses = st.just(harness) if isinstance(harness, Harness) else harness
    fields = {"harnesses": harnesses, "drafts": drafts, "tally": tally}
    return type("TransactionMachine", (TransactionMachine,), fields)


def check_executor(
    harness: Harness | st.SearchStrategy[Harness],
    *,
    drafts: Sequence[Draft] = DRAFTS,
    examples: int = 50,
    steps: int = 40,
    seed: int = 0,
    shrink: bool = True,
    tally: Counter[str] | None = None,
) -> None:
    """Run the machine outside a test runner and raise at the first broken promise, with the shortest program that
    breaks it in the notes of the exception (``shrink=False``: with the first one found).

    ``examples`` programs of at most ``steps`` rules are tried; equal arguments try equal ones. ``drafts`` and
    ``tally`` are as for ``machine_for``.
    """
    machine: Any = seeded(seed)(machine_for(harness, drafts=drafts, tally=tally))
    phases = (Phase.generate, Phase.shrink) if shrink else (Phase.generate,)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            phases=phases,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        ),
    )
