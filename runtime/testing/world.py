"""One runtime, its disk and its executor, with everything that may happen to them, and every promise checked
after each of it. The state machine drives it; so can a plain script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, get_args

import attrs

from txdecode.runtime.drafters.spelling import learned_part
from txdecode.runtime.errors import InvalidRequest, JournalError, RuntimeClosed
from txdecode.runtime.journal import SEGMENT_BYTES, Durability
from txdecode.runtime.replay import replay
from txdecode.runtime.runtime import Runtime
from txdecode.runtime.sampling import Sampling
from txdecode.runtime.testing import checks
from txdecode.runtime.testing.checks import DeviceCheck, Tracked
from txdecode.runtime.testing.crashes import lose
from txdecode.runtime.testing.disk import Disk, DiskFault
from txdecode.runtime.testing.faults import (
    Behaviour,
    Breaker,
    ScriptedDrafter,
    Tell,
    Verb,
    When,
    possible_faults,
)
from txdecode.runtime.testing.harness import Harness, target_of
from txdecode.runtime.testing.promises import PromiseBroken, keep
from txdecode.runtime.testing.shadow import Shadow
from txdecode.state.digest import LEDGERS
from txdecode.transactions.executor import Description, Drafter
from txdecode.transactions.phase import Phase, Signal

Draft = Literal[
    "none",
    "lookup",
    "scripted",
    "executor",
    "mtp+lookup",
    "suffix",
    "shared",
    "suffix:2+shared",
    "model",
    "model+suffix",
    "mtp+lookup+shared",
]
DRAFTS: tuple[Draft, ...] = get_args(Draft)[:5]
"""Drafters of the kinds that differ in what a round may do; the others copy too."""
Interrupt = Literal["cancel", "preempt"]


@attrs.frozen
class Setting:
    """How the runtime under test is opened. ``executor`` drafts only where the executor can, else nothing, and of
    ``mtp+lookup`` and the like the half that can; ``draft_depth`` applies where it may."""

    draft: Draft = "none"
    draft_len: int | str = "additive"
    draft_depth: int | None = None
    durability: Durability = "write"
    paranoid: bool = False
    segment_bytes: int = SEGMENT_BYTES
    audit_every: int = 0


class World:
    """Everything around one log. Each method does one thing and then checks; all raise ``PromiseBroken``, or the
    typed error of a check inside the runtime (``LedgerCorrupt``, ``Divergence``)."""

    def __init__(self, harness: Harness, setting: Setting, folder: Path, tell: Tell) -> None:
        self.harness = harness
        self.setting = setting
        self.path = folder / "world.txlog"
        self.tell = tell
        self.tracked: dict[int, Tracked] = {}
        self._interrupts: list[tuple[Interrupt, Phase]] = []
        self._broken: Exception | None = None
        self._faults = 0
        self._check_device = DeviceCheck(harness)
        self._runtime: Runtime | None = None
        self.shadow: Shadow | None = None
        self.disk = Disk(self._before_write, self._after_write, tell)
        self.breaker = Breaker(harness.make(), tell)
        self.description: Description = self.breaker.describe()
        self.scripted = ScriptedDrafter(
            self._continuation, self.description.vocab_size, self.description.context, tell
        )
        capabilities = self.description.capabilities
        self._runtime = Runtime.open(
            self.breaker,
            log=self.path,
            draft=self._drafter(),
            draft_len=setting.draft_len,
            draft_depth=setting.draft_depth if self._learned and not capabilities.fused else None,
            durability=setting.durability,
            paranoid=setting.paranoid,
            audit_every=setting.audit_every,
            segment_bytes=setting.segment_bytes,
            rollback=capabilities.rollback or None,
            observer=self._observe,
            storage=self.disk.open,
        )
        self.shadow = Shadow(self.path, tell)

    # What is there.

    @property
    def runtime(self) -> Runtime:
        """The runtime of the moment."""
        assert self._runtime is not None, "between two runtimes"
        return self._runtime

    @property
    def log(self) -> Shadow:
        """The log, folded."""
        assert self.shadow is not None, "between two logs"
        return self.shadow

    @property
    def live(self) -> list[Tracked]:
        """Requests that are not over, oldest first."""
        return [self.tracked[number] for number in sorted(self.tracked) if not self._over(number)]

    @property
    def possible_faults(self) -> list[tuple[Verb, When]]:
        """How the verbs that this runtime calls may fail."""
        return possible_faults(self.description.capabilities.fused, self._learned)

    @property
    def faults(self) -> int:
        """Faults of the executor so far."""
        return self._faults + self.breaker.fired

    @property
    def _ordered(self) -> bool:
        """Whether the file has whatever the runtime believes; with durability ``none`` it may come later."""
        return self.setting.durability != "none"

    def _over(self, number: int) -> bool:
        return self.tracked[number].handle.done

    @property
    def _learned(self) -> bool:
        """Whether the executor's own drafter is used."""
        return bool(learned_part(self._drafter()))

    def _drafter(self) -> str | Drafter:
        if self.setting.draft == "scripted":
            return self.scripted
        learned, _, copies = self.setting.draft.partition("+")
        if learned_part(learned) and not self.description.capabilities.drafts:
            return copies or "none"
        return self.setting.draft

    # What may happen.

    def submit(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        stop_ids: Sequence[int] = (),
        draft_len: int | str | None = None,
        sampling: Sampling | None = None,
    ) -> Tracked | None:
        """A request; ``None`` where it is refused, which it is if and only if it can't fit. ``sampling`` needs a
        seed of its own where it samples, and a harness with an oracle for it."""
        fits = checks.fits(self.description, len(prompt), max_tokens)
        budget = min(max_tokens, self.description.context - len(prompt))
        if sampling is not None:
            # A minimum past what the context leaves is refused for a reason of its own.
            sampling = attrs.evolve(sampling, min_tokens=min(sampling.min_tokens or 0, max(budget, 0)))
        try:
            handle = self.runtime.submit(
                prompt, max_tokens=max_tokens, stop_ids=stop_ids, draft_len=draft_len, sampling=sampling
            )
        except InvalidRequest as error:
            keep(not fits, "what fits is taken", str(error))
            self.tell("submit refused")
            return None
        keep(fits, "what cannot fit is refused", f"{len(prompt)} and {max_tokens} tokens")
        stops = frozenset(stop_ids)
        target = target_of(sampling, stops)
        text = None if target.law == "chain" else tuple(self.harness.text(prompt, budget, stops, target))
        made = Tracked(handle.request, tuple(prompt), budget, stops, text, handle, target=target)
        self.tracked[made.number] = made
        self.tell(f"law {target.law}")
        self.tell("submit while others run" if len(self.live) > 1 else "submit")
        return made

    def _continuation(self, request: int, tokens: Sequence[int], count: int) -> Sequence[int]:
        """How the text of a request goes on; a likely one where only its distribution is fixed."""
        tracked = self.tracked.get(request)
        if tracked is None or tracked.text is None:
            return self.harness.oracle(tokens, count, frozenset())
        done = len(tokens) - len(tracked.prompt)
        return self.harness.text(tracked.prompt, done + count, frozenset(), tracked.target)[done:]

    def step(self, times: int = 1) -> None:
        """Turns of the loop, until nothing is left to do."""
        for _ in range(times):
            asked = [tracked for tracked in self.live if tracked.cancelled]
            more = self._step()
            if more is None:
                return
            for tracked in asked:
                keep(tracked.handle.done, checks.CANCEL, f"request {tracked.number}")
            if not more:
                return

    def _step(self) -> bool | None:
        """One turn; ``None`` where the journal failed."""
        try:
            more = self.runtime.step()
        except JournalError as error:
            self._raise_broken()
            self._journal_failed(error)
            return None
        except Exception:
            self._raise_broken()
            raise
        self._raise_broken()
        self.check()
        return more

    def run(self) -> None:
        """To the end. Raises ``PromiseBroken`` where it does not come."""
        left = 64 + 16 * sum(len(tracked.prompt) + tracked.budget for tracked in self.live)
        while self.live:
            left -= 1
            keep(left > 0, checks.ENDS, f"{[tracked.number for tracked in self.live]} do not")
            self.step()

    def cancel(self, tracked: Tracked) -> None:
        """Ask for the end of a request."""
        tracked.cancelled = True
        tracked.handle.cancel()
        self.tell("cancel")

    def preempt(self, tracked: Tracked) -> None:
        """Make a request give up its state."""
        self.runtime.preempt(tracked.handle)
        self.tell("preempt")

    def interrupt_at(self, interrupt: Interrupt, phase: Phase) -> None:
        """Cancel or preempt the next request whose round enters ``phase``, at that moment."""
        self._interrupts.append((interrupt, phase))

    def fault(self, verb: Verb, when: When, count: int = 1) -> None:
        """Let the executor fail."""
        self.breaker.arm(verb, when, count)

    def script(self, behaviours: Sequence[Behaviour]) -> None:
        """Another script for the scripted drafter."""
        self.scripted.follow(behaviours)

    def fail_disk(self, fault: DiskFault, after: int = 0) -> None:
        """Let the disk fail, after some calls that do not."""
        self.disk.arm(fault, after)

    def flush(self) -> None:
        """Write what waits in the process."""
        try:
            self.runtime.log.flush()
        except JournalError:
            # Nothing was promised of what waited, and the next append would fail.
            self.tell("journal failed at flush")
            self._kill(0.0)
            return
        self.log.compare(self.runtime.ledgers, checks.FOLD)

    # Ends and beginnings.

    def crash(self, cut: float = 0.0) -> None:
        """The process is killed; with ``cut`` the machine is, and that share of what was not synced is lost."""
        self.tell("crash with cut tail" if self._kill(cut) else "crash")

    def _kill(self, cut: float) -> int:
        """Bytes lost."""
        self._runtime = None
        self.disk.crash()
        self._faults += self.breaker.fired
        assert self.disk.path is not None
        lost = lose(self.path, self.disk.path, self.disk.synced, cut)
        self._recover(lossless=self.setting.durability == "fsync" or (self._ordered and not lost))
        return lost

    def reopen(self) -> None:
        """Close in order, and go on."""
        open_handles = [tracked.handle for tracked in self.live]
        self.disk.disarm()
        self.runtime.close()
        self._raise_broken()
        for handle in open_handles:
            keep(checks.failed(handle), "a closed runtime ends its handles", repr(handle))
        self.log.compare(self.runtime.ledgers, checks.FOLD)
        self._faults += self.breaker.fired
        self._runtime = None
        self.tell("reopen")
        self._recover(lossless=True)

    def _journal_failed(self, error: JournalError) -> None:
        """The journal took no more: nothing is published past it, everybody is told, the file is recovered."""
        self.tell("journal failed")
        for tracked in self.tracked.values():
            keep(tracked.handle.done, "a failed journal ends every request", f"request {tracked.number}")
            if self._ordered:
                checks.check_not_ahead(tracked, self.log.lines.get(tracked.number))
        for attempt in (self.runtime.step, lambda: self.runtime.submit([0])):
            try:
                attempt()
            except RuntimeClosed:
                continue
            except JournalError:
                # It came as far as the log.
                pass
            raise PromiseBroken("a failed runtime takes no more work", str(error))
        with suppress(JournalError):
            self.runtime.close()
        self._kill(0.0)

    def _recover(self, lossless: bool) -> None:
        before = self.shadow
        published = {tracked.number: tracked.handle.published for tracked in self.tracked.values()}
        self._interrupts.clear()
        runtime = None
        while runtime is None:
            self.shadow = Shadow(self.path, self.tell)
            self.breaker = Breaker(self.harness.make(), self.tell)
            try:
                runtime = Runtime.recover(
                    self.path,
                    self.breaker,
                    draft=self._drafter() if self.setting.draft == "scripted" else None,
                    durability=self.setting.durability,
                    paranoid=self.setting.paranoid,
                    audit_every=self.setting.audit_every,
                    observer=self._observe,
                    storage=self.disk.open,
                )
            except JournalError:
                self.tell("journal failed in recovery")
                self.disk.crash()
        self._raise_broken()
        self._runtime = runtime
        self.tell("recover")
        self._take_over(before, published, lossless)
        self.check()

    def _take_over(
        self, before: Shadow | None, published: dict[int, tuple[int, ...]], lossless: bool
    ) -> None:
        """What the recovered runtime has must be a prefix, in whole rounds, of what was there."""
        handles = self.runtime.handles
        unfinished = self.log.unfinished
        keep(handles.keys() == unfinished, checks.TAKEN_UP, f"{set(handles)}, {unfinished} in the log")
        for number, tracked in list(self.tracked.items()):
            line = self.log.lines.get(number)
            was = published.get(number, ())
            if lossless:
                checks.check_not_lost(number, was, line)
            if line is None:
                del self.tracked[number]
                continue
            checks.check_whole(number, line, None if before is None else before.lines.get(number))
            if number in handles:
                tracked.handle, tracked.cancelled, tracked.verified = handles[number], False, False
            elif not tracked.verified:
                # It ended in a record that was written and never published.
                checks.check_end(tracked, tuple(line.ids), line.finish, self.faults, self.tell)
                tracked.verified = True

    def finish(self) -> None:
        """Run to the end, close, and replay the log from its first record."""
        self.disk.disarm()
        self.run()
        self.runtime.close()
        self.log.compare(self.runtime.ledgers, checks.FOLD)
        report = replay(self.path)
        digests = [f"{digest:016x}" for digest in self.log.ledgers.digests]
        keep([report.digests[name] for name in LEDGERS] == digests, "the log replays", f"{report.digests}")
        for number, history in report.requests.items():
            line = self.log.lines[number]
            keep((history.ids, history.finish) == (line.ids, line.finish), "the log replays", f"{history}")
        self.tell("finish")

    def drop(self) -> None:
        """Let go of the file."""
        self.disk.crash()

    # The checks.

    def check(self) -> None:
        """Every promise that holds between two steps."""
        runtime = self.runtime
        runtime.check()
        if self._ordered:
            self.log.compare(runtime.ledgers, checks.FOLD)
        # Before the texts: what the device holds names the cause, a text only shows it.
        self._check_device(runtime.ledgers, self.breaker, self.breaker.inner)
        for tracked in self.tracked.values():
            if tracked.verified:
                continue
            checks.check_text(tracked, tracked.handle.published)
            if self._ordered:
                checks.check_shown(tracked, self.log.lines.get(tracked.number))
            if tracked.handle.done:
                checks.check_finished(tracked, self.faults, self.tell)
                tracked.verified = True

    # Called from inside.

    def _latch(self, check: Callable[[], None]) -> None:
        """Run a check inside the runtime, which may swallow what it raises: kept until the step is over."""
        try:
            check()
        except Exception as error:
            if self._broken is None:
                self._broken = error
            raise

    def _raise_broken(self) -> None:
        if self._broken is not None:
            raise self._broken

    def _before_write(self) -> None:
        if self._runtime is not None and self.shadow is not None and self._ordered:
            self._latch(self._check_order)

    def _check_order(self) -> None:
        """At the moment of a write: whatever it is about, none of it has happened yet."""
        self.log.compare(self.runtime.ledgers, checks.ORDER_APPLY)
        for tracked in self.tracked.values():
            checks.check_not_ahead(tracked, self.log.lines.get(tracked.number))

    def _after_write(self, data: bytes) -> None:
        shadow = self.shadow
        if shadow is not None:
            self._latch(lambda: shadow.feed(data))

    def _observe(self, request: int, before: Phase, signal: Signal, after: Phase) -> None:
        self.tell(f"edge {before.name} {signal.name}")
        for entry in self._interrupts:
            interrupt, phase = entry
            tracked = self.tracked.get(request)
            if after is phase and tracked is not None:
                self._interrupts.remove(entry)
                self.tell(f"{interrupt} at {phase.name}")
                (self.cancel if interrupt == "cancel" else self.preempt)(tracked)
                return
