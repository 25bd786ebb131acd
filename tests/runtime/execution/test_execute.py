"""A log that is true is executed again without a difference; one that is not is found out, at the right round."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest

from txdecode.runtime import Divergence, InvalidArgument, InvalidRequest, NotInLog, Runtime, Sampling
from txdecode.runtime.errors import EventUndecodable
from txdecode.runtime.execution import ExecutionDivergence, ExecutionRefused, execute
from txdecode.runtime.journal import read_header
from txdecode.transactions.events import (
    Event,
    PrefillCommitted,
    RequestPreempted,
    RequestSubmitted,
    RoundCommitted,
    RoundRolledBack,
    StateAudited,
)
from txdecode.transactions.executor import ROLLBACKS, Description, ExecutorFault
from txdecode.transactions.toy import ToyExecutor


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("draft", "accuracy"), [("lookup", 0), ("executor", 6), ("none", 0), ("lookup", 5)])
def test_true_log(log: Path, toy: Any, write: Any, read: Any, fused: bool, draft: str, accuracy: int) -> None:
    make = partial(toy, fused=fused, accuracy=accuracy, delay=lambda launch: launch % 3)
    made = write(log, make(), draft=draft, rounds=300, audit_every=3)
    report = execute(log, make())
    events = read(log)
    kinds = {type(event) for event in events}
    audits = [event for event in events if isinstance(event, StateAudited)]
    assert {RequestPreempted, RoundRolledBack} <= kinds
    assert (report.counts.rounds, report.records) == (made.rounds, len(events))
    assert report.counts.tokens == sum(map(len, made.texts.values()))
    assert report.counts.audits == len(audits) > 50
    assert report.counts.entries == sum(len(audit.entries) for audit in audits)
    assert report.counts.logprobs > 0
    assert (report.numerics, report.differs, report.counts.audits_skipped) == ("exact", {}, 0)
    assert report.to_data()["class"] == "exact"


def test_text_that_ends_a_block(tmp_path: Path, toy: Any, read: Any, letters: Any) -> None:
    """Only a tokenizer knows why the block ends there: the log is believed."""
    texts = []
    for number, stop in enumerate(("", "x")):
        log = tmp_path / f"{number}.txlog"
        with Runtime.open(toy(), log=log, text=letters) as runtime:
            handle = runtime.submit("ABCABC", max_tokens=40, stop=texts[0][20:22] if stop else ())
            texts.append(handle.result().text)
        (ends,) = [event for event in read(log) if isinstance(event, RoundCommitted) and event.clip]
        assert ends.clip == (1 if stop else 2)
        assert execute(log, toy()).counts.rounds > 3


def test_rows_of_paranoid_audits(log: Path, toy: Any, write: Any) -> None:
    write(log, toy(), rounds=60, tokens=20, audit_every=1, paranoid=True)
    report = execute(log, toy())
    assert report.counts.entries > 20 * report.counts.audits


class Depends(ToyExecutor):
    """Says that its bits depend on the batch."""

    def describe(self) -> Description:
        made = super().describe()
        return attrs.evolve(made, capabilities=attrs.evolve(made.capabilities, row_invariant=False))


def test_rounds_of_a_launch_run_together(log: Path, write: Any) -> None:
    sizes: list[list[int]] = [[], []]

    class Counting(ToyExecutor):
        def __init__(self, sizes: list[int]) -> None:
            super().__init__(context=256, page_count=96)
            self.sizes = sizes

        def verify(self, rounds: Any) -> None:
            self.sizes.append(len(rounds))
            super().verify(rounds)

    write(log, Counting(sizes[0]), faults=False, tokens=20)
    execute(log, Counting(sizes[1]))
    assert sizes[0] == sizes[1]
    assert max(sizes[0]) == 4


@pytest.mark.parametrize("draft", ["lookup", "executor"])
def test_recovered_log(log: Path, toy: Any, draft: str) -> None:
    make = partial(toy, accuracy=6)
    samplings = [Sampling(temperature=1.0, seed=3, law="chain"), None]
    with Runtime.open(make(), log=log, draft=draft, draft_len="additive") as runtime:
        for sampling in samplings:
            runtime.submit([1, 2, 3, 4, 5], max_tokens=50, sampling=sampling)
        for _ in range(6):
            runtime.step()
    with Runtime.recover(log, make()) as runtime:
        runtime.run()
    report = execute(log, make())
    assert report.counts.tokens == 100


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("draft", ["lookup", "executor"])
def test_log_that_begins_with_a_snapshot(log: Path, toy: Any, write: Any, fused: bool, draft: str) -> None:
    make = partial(toy, fused=fused, accuracy=6)
    samplings = [Sampling(temperature=1.0, seed=seed, law="chain") for seed in (1, 2)] + [None]
    made = write(
        log,
        make(),
        samplings=samplings,
        draft=draft,
        tokens=120,
        rounds=100,
        audit_every=3,
        segment_bytes=1 << 13,
        keep_segments=3,
    )
    assert read_header(log).place.first_sequence > 0
    report = execute(log, make())
    assert 10 < report.counts.rounds < made.rounds
    assert report.counts.audits > 2
    assert report.counts.audits_skipped == 0


def test_restored_bits_are_not_those_of_an_executor_that_depends_on_its_batch(log: Path, write: Any) -> None:
    make = partial(Depends, context=256, page_count=96)
    write(log, make(), tokens=60, audit_every=2, segment_bytes=1 << 14, keep_segments=3)
    report = execute(log, make())
    assert report.counts.audits_skipped > 0
    assert report.counts.audits > 0


# Logs that say something else.


def _rounds(events: list[Event]) -> list[tuple[int, RoundCommitted]]:
    return [(index, event) for index, event in enumerate(events) if isinstance(event, RoundCommitted)]


def _put(at: int, event: Event) -> Any:
    return lambda sequence, old: event if sequence == at else old


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, toy: Any, write: Any) -> Path:
    log: Path = tmp_path_factory.mktemp("written") / "run.txlog"
    write(log, toy(), tokens=24, audit_every=2)
    return log


@pytest.mark.parametrize("which", [5, 40, 90])
def test_flipped_id(written: Path, tmp_path: Path, toy: Any, read: Any, rewrite: Any, which: int) -> None:
    plain = [(at, event) for at, event in _rounds(read(written)) if not event.clip and not event.logprobs]
    at, event = plain[which * len(plain) // 100]
    right = event.emitted[-1]
    wrong = (right + 1) % 46
    flipped = msgspec.structs.replace(event, emitted=(*event.emitted[:-1], wrong))
    other = rewrite(written, tmp_path / "other.txlog", _put(at, flipped))
    with pytest.raises(ExecutionDivergence) as caught:
        execute(other, toy())
    error = caught.value
    assert (error.sequence, error.request, error.ordinal) == (at, event.request, event.ordinal)
    assert (error.phase, error.ledger, error.epoch) == ("accept", "tokens", event.epoch)
    assert (error.field, error.expected, error.found) == (f"emitted[{len(event.emitted) - 1}]", wrong, right)
    assert f"replay {other} --execute --until {at}" in str(error)
    # Up to the record before, and for the other requests, the log is true.
    execute(other, toy(), until=at - 1)
    report = execute(other, toy(), request=int(not event.request))
    assert report.counts.rounds > 0


def test_one_request_alone(written: Path, toy: Any, read: Any) -> None:
    report = execute(written, toy(), request=2)
    mine = [event for _, event in _rounds(read(written)) if event.request == 2]
    assert report.counts.rounds == len(mine)
    assert report.counts.tokens == sum(len(event.emitted) for event in mine)
    assert report.request == 2


def test_another_seed(written: Path, tmp_path: Path, toy: Any, read: Any, rewrite: Any) -> None:
    at, event = next(
        (index, event)
        for index, event in enumerate(read(written))
        if isinstance(event, RequestSubmitted) and event.seed == 8
    )
    other = rewrite(written, tmp_path / "other.txlog", _put(at, msgspec.structs.replace(event, seed=88)))
    with pytest.raises(ExecutionDivergence) as caught:
        execute(other, toy())
    assert (caught.value.request, caught.value.phase) == (event.request, "accept")


def test_another_draft_accepted(written: Path, tmp_path: Path, toy: Any, read: Any, rewrite: Any) -> None:
    at, event = next(
        (at, event)
        for at, event in _rounds(read(written))
        if event.accepted >= 1 and not event.clip and event.adopted == ((), ()) and not event.logprobs
    )
    fewer = msgspec.structs.replace(
        event,
        accepted=event.accepted - 1,
        emitted=event.drafts[: event.accepted],
        rng=tuple(position - 1 for position in event.rng),
    )

    def change(sequence: int, old: Event) -> Event | None:
        return old if sequence < at else fewer if sequence == at else None

    other = rewrite(written, tmp_path / "other.txlog", change)
    with pytest.raises(ExecutionDivergence) as caught:
        execute(other, toy())
    error = caught.value
    assert (error.sequence, error.field) == (at, "accepted")
    assert (error.expected, error.found) == (event.accepted - 1, event.accepted)


def test_another_clip(written: Path, tmp_path: Path, toy: Any, read: Any, rewrite: Any) -> None:
    at, end = next((at, event) for at, event in _rounds(read(written)) if event.clip == 2)
    other = rewrite(written, tmp_path / "other.txlog", _put(at, msgspec.structs.replace(end, clip=1)))
    with pytest.raises(ExecutionDivergence) as caught:
        execute(other, toy())
    assert (caught.value.sequence, caught.value.field) == (at, "clip")


def test_another_logprob(written: Path, tmp_path: Path, toy: Any, read: Any, rewrite: Any) -> None:
    at, event = next((at, event) for at, event in _rounds(read(written)) if event.logprobs)
    first = msgspec.structs.replace(event.logprobs[0], raw=event.logprobs[0].raw - 1e-12)
    changed = msgspec.structs.replace(event, logprobs=(first, *event.logprobs[1:]))
    other = rewrite(written, tmp_path / "other.txlog", _put(at, changed))
    with pytest.raises(ExecutionDivergence) as caught:
        execute(other, toy())
    assert (caught.value.sequence, caught.value.ledger, caught.value.field) == (at, "logprobs", "logprobs[0]")


def _audits(events: list[Event]) -> list[tuple[int, StateAudited]]:
    return [(index, event) for index, event in enumerate(events) if isinstance(event, StateAudited)]


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        (("kv", 0, 0, -1, 1), "index 0"),
        (("other", 0, 0, -1, 1), "group 'other'"),
    ],
)
def test_another_digest(
    written: Path, tmp_path: Path, toy: Any, read: Any, rewrite: Any, entry: Any, field: str
) -> None:
    at, event = _audits(read(written))[30]
    changed = msgspec.structs.replace(event, entries=(entry, *event.entries[1:]))
    other = rewrite(written, tmp_path / "other.txlog", _put(at, changed))
    with pytest.raises(ExecutionDivergence) as caught:
        execute(other, toy())
    error = caught.value
    assert (error.sequence, error.ordinal, error.phase) == (at, event.ordinal, "audit")
    assert (error.ledger, error.layer, error.index, error.row) == (entry[0], 0, 0, -1)
    assert field in error.field


def test_an_audit_with_a_missing_entry(
    written: Path, tmp_path: Path, toy: Any, read: Any, rewrite: Any
) -> None:
    at, event = _audits(read(written))[30]
    changed = msgspec.structs.replace(event, entries=event.entries[:-1])
    other = rewrite(written, tmp_path / "other.txlog", _put(at, changed))
    with pytest.raises(ExecutionDivergence, match="number of audit entries"):
        execute(other, toy())


@pytest.mark.parametrize("change", [{"consumed": 1}, {"epoch": 9}, {"request": 99}])
def test_an_audit_of_something_else(
    written: Path, tmp_path: Path, toy: Any, read: Any, rewrite: Any, change: dict[str, int]
) -> None:
    at, event = _audits(read(written))[30]
    changed = msgspec.structs.replace(event, **change)
    other = rewrite(written, tmp_path / "other.txlog", _put(at, changed))
    with pytest.raises(ExecutionDivergence, match="epoch and tokens consumed") as caught:
        execute(other, toy())
    assert caught.value.sequence == at


def test_what_ran_before_a_contradiction_is_reported_first(
    written: Path, tmp_path: Path, toy: Any, read: Any, rewrite: Any
) -> None:
    """Two rounds of one launch: the first emitted another id, the digests of the second are wrong."""
    rounds = _rounds(read(written))
    at, event, after = next(
        (at, event, after)
        for (at, event), (after, second) in pairwise(rounds)
        if after == at + 1 and event.launch == second.launch and not event.clip and not event.logprobs
    )
    wrong = msgspec.structs.replace(event, emitted=(*event.emitted[:-1], (event.emitted[-1] + 1) % 46))
    other = rewrite(written, tmp_path / "other.txlog", _put(at, wrong))
    bad = rewrite(
        other,
        tmp_path / "bad.txlog",
        lambda sequence, old: msgspec.structs.replace(old, digests=bytes(40)) if sequence == after else old,
        digests=False,
    )
    with pytest.raises(ExecutionDivergence) as caught:
        execute(bad, toy())
    assert caught.value.sequence == at
    with pytest.raises(Divergence):
        execute(bad, toy(), request=99)


@pytest.mark.parametrize("change", [{"request": 99}, {"adopted": ((5,),)}, {"columns": (1, 2)}, {"width": 0}])
def test_a_round_that_fits_nothing(
    written: Path, tmp_path: Path, toy: Any, read: Any, rewrite: Any, change: dict[str, Any]
) -> None:
    at, event = _rounds(read(written))[30]
    bad = msgspec.structs.replace(event, **change)
    other = rewrite(written, tmp_path / "other.txlog", _put(at, bad), digests=False)
    with pytest.raises(Divergence) as caught:
        execute(other, toy())
    assert caught.value.sequence == at


def test_a_prefill_that_fits_nothing(
    written: Path, tmp_path: Path, toy: Any, read: Any, rewrite: Any
) -> None:
    at, event = next(
        (at, event) for at, event in enumerate(read(written)) if isinstance(event, PrefillCommitted)
    )
    for change in ({"request": 99}, {"adopted": ((5,),)}, {"start": 1}):
        bad = msgspec.structs.replace(event, **change)
        other = rewrite(
            written, tmp_path / f"{len(change)}{next(iter(change))}", _put(at, bad), digests=False
        )
        with pytest.raises(Divergence) as caught:
            execute(other, toy())
        assert caught.value.sequence == at


def test_parameters_that_cannot_be_read(written: Path, tmp_path: Path, toy: Any, rewrite: Any) -> None:
    def change(sequence: int, event: Event) -> Event:
        if isinstance(event, RequestSubmitted) and event.request == 3:
            return msgspec.structs.replace(event, parameters={})
        return event

    other = rewrite(written, tmp_path / "other.txlog", change)
    with pytest.raises(EventUndecodable, match="request 3"):
        execute(other, toy())


@pytest.mark.parametrize("form", ROLLBACKS)
@pytest.mark.parametrize("fused", [False, True], ids=["verbs", "fused"])
def test_every_form_of_state_is_executed_again(
    log: Path, toy: Any, write: Any, form: str, fused: bool
) -> None:
    made = write(log, toy(accuracy=6, rollback=form, fused=fused), draft="executor", audit_every=3)
    report = execute(log, toy(accuracy=6, rollback=form, fused=fused))
    assert (report.counts.rounds, report.numerics) == (made.rounds, "exact")
    assert report.counts.audits > 0


# Other kernels.


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"vocab_size": 50}, "vocab_size"),
        ({"context": 128}, "context"),
        ({"page": 8}, "groups"),
        ({"rollback": "replay"}, "groups"),
        ({"page_count": 97}, "groups"),
    ],
)
def test_another_model_is_refused(written: Path, toy: Any, change: dict[str, int], field: str) -> None:
    with pytest.raises(ExecutionRefused, match="open the model") as caught:
        execute(written, toy(**change))
    assert caught.value.field == field


@pytest.mark.parametrize("field", ["tokenizer", "weights", "rng"])
def test_another_fingerprint_is_refused(
    written: Path, tmp_path: Path, toy: Any, rewrite: Any, field: str
) -> None:
    other = rewrite(written, tmp_path / "other.txlog", lambda _, event: event, **{field: "other"})
    with pytest.raises(ExecutionRefused) as caught:
        execute(other, toy())
    assert (caught.value.field, caught.value.recorded) == (f"fingerprint '{field}'", "other")


def test_another_release_is_the_same(written: Path, tmp_path: Path, toy: Any, rewrite: Any) -> None:
    other = rewrite(written, tmp_path / "other.txlog", lambda _, event: event, txdecode="9", python="9")
    assert execute(other, toy()).differs == {}


def test_other_kernels_run_in_their_class(
    written: Path, tmp_path: Path, toy: Any, read: Any, rewrite: Any
) -> None:
    """Audits say nothing then, ids do, and the report says so."""

    def spoil(sequence: int, event: Event) -> Event:
        if isinstance(event, StateAudited):
            return msgspec.structs.replace(event, entries=((*event.entries[0][:4], 0), *event.entries[1:]))
        return event

    other = rewrite(written, tmp_path / "other.txlog", spoil, torch="1.0")
    report = execute(other, toy())
    assert report.differs == {"torch": ("1.0", None)}
    assert (report.counts.audits, report.counts.logprobs) == (0, 0)
    assert report.counts.audits_skipped == len(_audits(read(written)))
    at, event = next(
        (at, event) for at, event in _rounds(read(other)) if not event.clip and not event.logprobs
    )
    flipped = msgspec.structs.replace(event, emitted=(*event.emitted[:-1], (event.emitted[-1] + 1) % 46))
    worse = rewrite(other, tmp_path / "worse.txlog", _put(at, flipped))
    with pytest.raises(ExecutionDivergence, match="the fingerprints differ in torch"):
        execute(worse, toy())


def test_a_fault_of_the_executor(written: Path, toy: Any) -> None:
    def fail(verb: str) -> None:
        if verb == "verify":
            raise ExecutorFault("out of order")

    with pytest.raises(ExecutorFault, match=r"records executed: out of order"):
        execute(written, toy(hook=fail))


def test_progress(written: Path, toy: Any) -> None:
    seen: list[tuple[int, int]] = []
    execute(written, toy(), progress=lambda done, size: seen.append((done, size)))
    assert len(seen) > 2
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]


def test_nothing_loads_torch_before_a_model_is_opened() -> None:
    code = "import sys, txdecode.runtime.execution; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("seed", range(6))
def test_attempts_are_in_the_snapshot(log: Path, toy: Any, write: Any, seed: int) -> None:
    """Short drafts from three tokens: many attempts would draw the same, and only one is right."""
    sampling = Sampling(temperature=1.0, top_k=3, seed=seed, law="chain")
    write(
        log,
        toy(accuracy=4),
        samplings=[sampling],
        draft="executor",
        draft_len=2,
        tokens=60,
        rounds=50,
        segment_bytes=4096,
        keep_segments=1,
    )
    assert read_header(log).place.first_sequence > 0
    assert execute(log, toy(accuracy=4)).counts.rounds > 0


def test_another_drafter_after_a_recovery(log: Path, toy: Any) -> None:
    class Mine:
        name = "mine"

        def begin(self, request: int, tokens: Any) -> None: ...

        def propose(self, request: int, count: int) -> tuple[int, ...]:
            return (1, 2)[:count]

        def commit(self, request: int, tokens: Any) -> None: ...

        def end(self, request: int) -> None: ...

    runtime = Runtime.open(toy(accuracy=6), log=log, draft="executor", draft_len=3)
    runtime.submit([3, 1, 4], max_tokens=40)
    for _ in range(4):
        runtime.step()
    runtime.close()
    with Runtime.recover(log, toy(accuracy=6), draft=Mine()) as again:
        again.run()
    assert execute(log, toy(accuracy=6)).counts.tokens == 40
    Mine.name = "executor"
    with pytest.raises(InvalidRequest, match="must not be named 'executor'"):
        Runtime.open(toy(), draft=Mine())


@pytest.mark.parametrize("question", [{"request": 99}, {"request": -4}, {"until": -1}])
def test_questions_that_the_log_cannot_answer(log: Path, toy: Any, write: Any, question: Any) -> None:
    write(log, toy(), rounds=10)
    with pytest.raises((NotInLog, InvalidArgument)):
        execute(log, toy(), **question)


def test_a_record_before_the_first(log: Path, toy: Any, write: Any) -> None:
    write(log, toy(), tokens=60, rounds=60, segment_bytes=4096, keep_segments=1)
    with pytest.raises(NotInLog, match="begins with record"):
        execute(log, toy(), until=0)


def test_one_request_alone_needs_bits_that_do_not_depend_on_the_batch(log: Path, write: Any) -> None:
    make = partial(Depends, context=256, page_count=96)
    write(log, make(), tokens=20)
    with pytest.raises(InvalidArgument, match="bits depend on the batch"):
        execute(log, make(), request=1)
