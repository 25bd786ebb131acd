"""Going on with a log."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest

from txdecode.runtime import Divergence, RecoveryRefused, Runtime, TxDecodeError, replay
from txdecode.runtime.errors import EventUndecodable, InvalidRequest
from txdecode.runtime.execution import execute
from txdecode.runtime.execution.errors import ExecutionRefused
from txdecode.runtime.journal import (
    Journal,
    JournalCorrupt,
    JournalUnavailable,
    NotAJournal,
    iterate,
    read_header,
)
from txdecode.runtime.testing import ScriptedDrafter, toy_harness
from txdecode.transactions.codec import decode, encode
from txdecode.transactions.events import RequestSubmitted, RoundCommitted, RuntimeNote
from txdecode.transactions.toy import ToyExecutor, plain

PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6, 5, 3, 5], [8, 9]]
BUDGETS = [5, 9, 7]


def toy(**options: Any) -> ToyExecutor:
    return ToyExecutor(**{"accuracy": 6, "page_count": 8, "page": 4, **options})


def ids(log: Path) -> dict[int, tuple[int, ...]]:
    return {number: tuple(said.ids) for number, said in replay(log).requests.items()}


def oracle(number: int) -> tuple[int, ...]:
    return tuple(plain(PROMPTS[number], BUDGETS[number], 48))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small log with rounds, rollbacks, preemptions and a cancelled request."""
    log = tmp_path_factory.mktemp("written") / "run.txlog"
    with Runtime.open(toy(), log=log, draft="executor", draft_len=3) as runtime:
        handles = [runtime.submit(p, max_tokens=n) for p, n in zip(PROMPTS, BUDGETS, strict=True)]
        gone = runtime.submit([7], max_tokens=20)
        runtime.step()
        runtime.step()
        runtime.preempt(handles[1])
        gone.cancel()
        runtime.run()
    kinds = replay(log).events
    assert {"RequestPreempted", "RequestFinished", "RoundCommitted", "PrefillCommitted"} <= kinds.keys()
    return log


def borders(log: Path) -> list[int]:
    """Offsets at which a crash may leave the file: after the header, and after every record."""
    return [read_header(log).size, *(record.offset + record.size for record in iterate(log))]


def test_every_record_border_is_a_place_to_go_on_from(written: Path, tmp_path: Path) -> None:
    whole = written.read_bytes()
    for count, end in enumerate(borders(written)):
        log = tmp_path / "cut.txlog"
        log.write_bytes(whole[:end])
        before = ids(log)
        finished = {number for number, said in replay(log).requests.items() if said.finish}
        with Runtime.recover(log, toy()) as runtime:
            handles = runtime.handles
            assert handles.keys() == before.keys() - finished
            for number, handle in handles.items():
                assert handle.published == before[number]
            runtime.run()
            runtime.check()
            texts = {number: handle.result().ids for number, handle in handles.items()}
        after = ids(log)
        for number in before.keys() & {0, 1, 2}:
            assert after[number] == oracle(number), f"cut after {count} records"
        assert {number: after[number] for number in texts} == texts
        # Whoever was cancelled and finished stays so; the cancel itself may have been cut off.
        assert all(said.finish for said in replay(log).requests.values())


@pytest.mark.parametrize("missing", [1, 4, 11, 19, 33])
def test_a_torn_tail_is_cut_off_and_told(missing: int, written: Path, tmp_path: Path) -> None:
    log = tmp_path / "torn.txlog"
    whole = written.read_bytes()[: borders(written)[12]]
    log.write_bytes(whole[:-missing])
    with Runtime.recover(log, toy()) as runtime:
        runtime.run()
    notes = [decode(r.type, r.version, r.flags, r.payload) for r in iterate(log)]
    (note,) = [n for n in notes if isinstance(n, RuntimeNote) and n.kind == "recovered"]
    tail = note.data["torn_tail"]
    record = whole[: borders(written)[11]]
    assert (tail["offset"], tail["size"]) == (len(record), len(whole) - missing - len(record))
    assert replay(log).torn_tail is None
    assert all(ids(log)[number] == oracle(number) for number in (0, 1, 2))


def test_recovery_can_be_repeated(written: Path, tmp_path: Path) -> None:
    log = tmp_path / "again.txlog"
    log.write_bytes(written.read_bytes()[: borders(written)[9]])
    for _ in range(6):
        with Runtime.recover(log, toy()) as runtime:
            runtime.step()
    with Runtime.recover(log, toy()) as runtime:
        runtime.run()
        assert runtime.handles == {}
    assert all(ids(log)[number] == oracle(number) for number in (0, 1, 2))


def test_numbers_go_on(written: Path, tmp_path: Path) -> None:
    log = tmp_path / "numbers.txlog"
    shutil.copy(written, log)
    with Runtime.recover(log, toy()) as runtime:
        assert runtime.submit([1], max_tokens=5).request == 4
    # Also after those that came in just before the close, and were never run.
    with Runtime.recover(log, toy()) as runtime:
        assert sorted(runtime.handles) == [4]
        assert runtime.submit([2], max_tokens=5).request == 5


def test_parameters_are_those_of_the_submission(tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"
    text = plain([7, 7], 40, 48)
    stop = next(i for i in range(12, 40) if text[i] not in text[:i])
    with Runtime.open(
        toy(page_count=40), log=log, draft="executor", draft_len=1, eos_ids=[text[stop]]
    ) as runtime:
        runtime.submit([7, 7], max_tokens=40, draft_len=4)
        runtime.submit([7, 7], max_tokens=40, ignore_eos=True)
        runtime.step()
    with Runtime.recover(log, toy(page_count=40)) as runtime:
        first, second = runtime.handles[0], runtime.handles[1]
        runtime.run()
    assert (first.result().ids, first.result().finish) == (tuple(text[: stop + 1]), "stop")
    assert (second.result().ids, second.result().finish) == (tuple(text), "length")
    rounds = [decode(r.type, r.version, r.flags, r.payload) for r in iterate(log)]
    widths = [
        {len(e.drafts) for e in rounds if isinstance(e, RoundCommitted) and e.request == r and e.ordinal}
        for r in (0, 1)
    ]
    assert max(widths[0]) == 4
    assert max(widths[1]) == 1


def test_options_are_those_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"
    with Runtime.open(toy(accuracy=0), log=log, draft="lookup", draft_len=5) as runtime:
        runtime.submit([1, 2], max_tokens=5)
    with Runtime.recover(log, toy(accuracy=0)) as runtime:
        assert (runtime.options.draft, runtime.options.draft_len) == ("lookup", 5)
        assert type(runtime._intake.drafter).__name__ == "PromptLookup"


def test_a_drafter_of_ones_own_is_given_again_or_left_out(tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"

    def drafter() -> ScriptedDrafter:
        return ScriptedDrafter(lambda request, known, n: plain(known, n, 48), 48, 256, lambda what: None)

    with Runtime.open(toy(accuracy=0), log=log, draft=drafter(), draft_len=3) as runtime:
        runtime.submit(PROMPTS[0], max_tokens=20)
        runtime.step()
        runtime.step()
    copy = tmp_path / "copy.txlog"
    shutil.copy(log, copy)
    with Runtime.recover(copy, toy(accuracy=0)) as runtime:
        stats = runtime.handles[0].result().stats
    assert stats.drafted == 0
    with Runtime.recover(log, toy(accuracy=0), draft=drafter()) as runtime:
        stats = runtime.handles[0].result().stats
    assert 0 < stats.drafted == stats.accepted
    assert ids(log)[0] == ids(copy)[0] == tuple(plain(PROMPTS[0], 20, 48))


# Refusals. None of them keeps the log's lock.


class Renamed(ToyExecutor):
    """Another executor, by its name or its fingerprint."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(accuracy=6, page_count=8, page=4)
        for name, value in changes.items():
            object.__setattr__(self._description, name, value)


class Reshaped(ToyExecutor):
    """Other geometry of one group."""

    def __init__(self, name: str, **changes: Any) -> None:
        super().__init__(accuracy=6, page_count=8, page=4)
        groups = tuple(
            attrs.evolve(group, **changes) if group.name == name else group
            for group in self._description.groups
        )
        object.__setattr__(self._description, "groups", groups)


class Reformed(ToyExecutor):
    """Another form over equal groups."""

    def __init__(self, form: Any) -> None:
        super().__init__(accuracy=6, page_count=8, page=4, rollback=form)


REFUSED: dict[str, tuple[Callable[[], ToyExecutor], str]] = {
    "executor": (lambda: Renamed(name="other"), "executor"),
    "vocabulary": (lambda: toy(vocab_size=50), "vocab_size"),
    "context": (lambda: toy(context=128), "context"),
    "pools": (lambda: toy(page_count=9), "groups"),
    "pages": (lambda: toy(page=8, page_count=8), "groups"),
    "layers": (lambda: Reshaped("gdn", layers=2), "groups"),
    "row bytes": (lambda: Reshaped("gdn", row_bytes=16), "groups"),
    "ring": (lambda: Reshaped("conv", granularity=12), "groups"),
    "owner": (lambda: Reshaped("pairs", owner="target"), "groups"),
    "form": (lambda: Reformed("replay"), "groups"),
    "weights": (
        lambda: Renamed(fingerprint={"executor": "toy-2", "vocab": "48", "page": "4"}),
        "fingerprint 'executor'",
    ),
    "less told": (lambda: Renamed(fingerprint={"executor": "toy-1", "vocab": "48"}), "fingerprint 'page'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_another_executor_is_refused(name: str, written: Path, tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"
    shutil.copy(written, log)
    other, field = REFUSED[name]
    for _ in range(2):
        with pytest.raises(RecoveryRefused, match="cannot be continued") as refused:
            Runtime.recover(log, other())
        assert refused.value.field == field
        assert refused.value.args[0].count("\n") == 0
    assert log.read_bytes() == written.read_bytes()
    Runtime.recover(log, toy()).close()


def test_two_forms_of_equal_groups_are_told_apart(tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"
    with Runtime.open(Reformed("replay"), log=log, draft="executor") as runtime:
        runtime.submit(PROMPTS[0], max_tokens=4)
        runtime.run()
    assert Reformed("replay").describe().groups == Reformed("restore").describe().groups
    with pytest.raises(RecoveryRefused) as refused:
        Runtime.recover(log, Reformed("restore"))
    assert refused.value.field == "fingerprint 'rollback'"
    with pytest.raises(ExecutionRefused) as unlike:
        execute(log, Reformed("restore"))
    assert unlike.value.field == "fingerprint 'rollback'"
    assert execute(log, Reformed("replay")).counts.rounds > 0
    Runtime.recover(log, Reformed("replay")).close()


def test_groups_of_an_older_log_have_one_column_a_row(written: Path, tmp_path: Path) -> None:
    """A log from before groups said how a round takes columns."""
    header = read_header(written)
    log = tmp_path / "run.txlog"
    older = [fields[:7] for fields in header.configuration["groups"]]
    assert header.configuration["groups"][1][7:] == ["row"]
    fingerprint = {field: value for field, value in header.fingerprint.items() if field != "rollback"}
    with Journal.create(
        log, fingerprint=fingerprint, configuration={**header.configuration, "groups": older}
    ) as journal:
        journal.append([(r.type, r.version, r.flags, r.payload) for r in iterate(written)])
    assert execute(log, toy()).counts.rounds > 0
    Runtime.recover(log, toy()).close()
    with pytest.raises(RecoveryRefused):
        Runtime.recover(log, Reformed("replay"))


@pytest.mark.parametrize("groups", [None, 7, [["kv"]], [["kv", "pages", 0, 1, 8]]])
def test_groups_that_cannot_be_read_are_not_ours(written: Path, tmp_path: Path, groups: Any) -> None:
    header = read_header(written)
    log = tmp_path / "run.txlog"
    configuration = {**header.configuration, "groups": groups}
    Journal.create(log, fingerprint=header.fingerprint, configuration=configuration).close()
    with pytest.raises(RecoveryRefused) as refused:
        Runtime.recover(log, toy())
    assert (refused.value.field, refused.value.args[0].count("\n")) == ("groups", 0)


def test_other_versions_of_the_code_are_not_refused(written: Path, tmp_path: Path) -> None:
    header = read_header(written)
    log = tmp_path / "run.txlog"
    fingerprint = {**header.fingerprint, "txdecode": "0.0.1", "python": "3.99"}
    with Journal.create(log, fingerprint=fingerprint, configuration=header.configuration) as journal:
        journal.append([(r.type, r.version, r.flags, r.payload) for r in iterate(written)])
    Runtime.recover(log, toy()).close()


def rewritten(written: Path, log: Path, change: Callable[[Any], Any]) -> Path:
    """The log with every event changed, framed anew."""
    header = read_header(written)
    with Journal.create(
        log, fingerprint=header.fingerprint, configuration=header.configuration, overwrite=True
    ) as journal:
        for record in iterate(written):
            event = decode(record.type, record.version, record.flags, record.payload)
            journal.append([encode(change(event))])
    return log


def test_parameters_that_cannot_be_read_are_refused(written: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.txlog"
    short.write_bytes(written.read_bytes()[: borders(written)[6]])

    def spoil(event: Any) -> Any:
        if isinstance(event, RequestSubmitted):
            return msgspec.structs.replace(event, parameters={"sampling": {}})
        return event

    log = rewritten(short, tmp_path / "spoiled.txlog", spoil)
    content = log.read_bytes()
    for _ in range(2):
        with pytest.raises(EventUndecodable, match="request 0: its recorded parameters cannot be read"):
            Runtime.recover(log, toy())
    assert log.read_bytes() == content


def test_a_log_that_contradicts_itself_is_refused(written: Path, tmp_path: Path) -> None:
    def spoil(event: Any) -> Any:
        if isinstance(event, RoundCommitted) and event.ordinal == 2:
            return msgspec.structs.replace(event, ordinal=3)
        return event

    log = rewritten(written, tmp_path / "spoiled.txlog", spoil)
    content = log.read_bytes()
    for _ in range(2):
        with pytest.raises(Divergence, match=r"round 3.*ordinal: expected 2, found 3"):
            Runtime.recover(log, toy())
    assert log.read_bytes() == content


def test_files_that_are_no_logs(tmp_path: Path, written: Path) -> None:
    with pytest.raises(JournalUnavailable, match="cannot open"):
        Runtime.recover(tmp_path / "none.txlog", toy())
    other = tmp_path / "other.txt"
    other.write_text("not a log")
    with pytest.raises(NotAJournal):
        Runtime.recover(other, toy())
    data = bytearray(written.read_bytes())
    data[borders(written)[3] + 25] ^= 1
    damaged = tmp_path / "damaged.txlog"
    damaged.write_bytes(data)
    for _ in range(2):
        with pytest.raises(JournalCorrupt, match="record 3"):
            Runtime.recover(damaged, toy())
    assert damaged.read_bytes() == data


def test_an_executor_without_drafters_cannot_take_up_a_log_with_them(written: Path, tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"
    shutil.copy(written, log)
    with pytest.raises(InvalidRequest, match="executor that drafts") as refused:
        Runtime.recover(log, toy(accuracy=0))
    assert isinstance(refused.value, TxDecodeError)
    Runtime.recover(log, toy(accuracy=0), draft="none").close()


GOLDEN = Path(__file__).parents[1] / "golden"


def test_a_log_of_schema_1_can_be_gone_on_with(tmp_path: Path) -> None:
    """It knew the temperature 0 alone, and had neither law nor seed."""
    log = tmp_path / "old.txlog"
    shutil.copy(GOLDEN / "schema-1.txlog", log)
    before = replay(log)
    unfinished = {number for number, said in before.requests.items() if said.finish is None}
    assert unfinished
    with Runtime.recover(log, toy_harness(accuracy=6).make()) as runtime:
        handles = runtime.handles
        assert handles.keys() == unfinished
        runtime.run()
        results = {number: handle.result() for number, handle in handles.items()}
    submitted = {
        event.request: event
        for record in iterate(log)
        if isinstance(
            event := decode(record.type, record.version, record.flags, record.payload), RequestSubmitted
        )
    }
    for number, result in results.items():
        first = submitted[number]
        assert list(result.ids) == plain(first.prompt, first.budget, 48, frozenset(first.stop_ids))
        assert result.sampling.temperature == 0


def sampled(log: Path, **fields: Any) -> None:
    """A log of one unfinished sampled request."""
    with Runtime.open(ToyExecutor(), log=log, draft="none") as runtime:
        runtime.submit([3, 1, 4], max_tokens=9, sampling={"temperature": 1.0, "seed": 5, **fields})
        for _ in range(3):
            runtime.step()


def test_an_executor_that_cannot_sample_is_refused_before_anything_is_written(log: Path) -> None:
    class Plain(ToyExecutor):
        def describe(self) -> Any:
            made = super().describe()
            return attrs.evolve(made, capabilities=attrs.evolve(made.capabilities, sampling=False))

    sampled(log)
    before = log.read_bytes()
    with pytest.raises(RecoveryRefused, match="sampling of request 0"):
        Runtime.recover(log, Plain())
    assert log.read_bytes() == before


def test_logprobs_that_the_log_lost_are_not_made_up(log: Path, tmp_path: Path) -> None:
    sampled(log, logprobs=1)
    other = tmp_path / "other.txlog"
    header = read_header(log)
    with Journal.create(other, fingerprint=header.fingerprint, configuration=header.configuration) as journal:
        for record in iterate(log):
            event = decode(record.type, record.version, record.flags, record.payload)
            if isinstance(event, RoundCommitted):
                event = msgspec.structs.replace(event, logprobs=())
            assert event is not None
            journal.append([encode(event)])
    assert replay(other).requests[0].ids
    with pytest.raises(RecoveryRefused, match="recorded logprobs"):
        Runtime.recover(other, ToyExecutor())
    with Runtime.recover(log, ToyExecutor()) as runtime:
        handle = runtime.handles[0]
        result = handle.result()
    assert result.logprobs is not None
    assert [entry.token for entry in result.logprobs] == list(result.ids)
