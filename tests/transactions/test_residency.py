"""How sequences come and go: each step is one record, and one that fails leaves nothing."""

from __future__ import annotations

import pytest

from txdecode.state.errors import LedgerCorrupt, LedgerExhausted
from txdecode.transactions.events import (
    PrefillCommitted,
    RequestAdmitted,
    RequestFinished,
    RequestPreempted,
    RequestSubmitted,
)
from txdecode.transactions.executor import ExecutorFault
from txdecode.transactions.residency import Chunk

LONG = tuple(range(11))


def test_each_step_is_one_record(kit):
    rig = kit.Rig()
    rig.enter(0, LONG, 5, (4, 1, 5))
    rig.round(0)
    rig.residency.evict(0, "pages")
    rig.residency.admit(0)
    rig.prefill(0)
    rig.residency.finish(0, "cancelled", "x" * 999)
    events = [event for event in rig.log.events() if type(event).__name__ != "RoundCommitted"]
    assert [type(event) for event in events] == [
        RequestSubmitted,
        RequestAdmitted,
        *[PrefillCommitted] * 3,
        RequestPreempted,
        RequestAdmitted,
        PrefillCommitted,
        RequestFinished,
    ]
    chunks = [event for event in events if type(event) is PrefillCommitted]
    assert [(event.start, event.count, event.epoch) for event in chunks] == [
        (0, 4, 0),
        (4, 1, 0),
        (5, 5, 0),
        (0, 11, 1),
    ]
    assert [event.adopted[0] for event in chunks] == [(0,), (1,), (2,), (0, 1, 2)]
    assert [event.launch for event in chunks] == [1, 2, 3, 4]
    preempted, finished = events[5], events[8]
    assert (preempted.epoch, preempted.reason, preempted.released) == (1, "pages", ((0, 1, 2),) * 2)
    assert (finished.epoch, finished.reason, len(finished.detail)) == (1, "cancelled", 500)
    rig.check()
    assert rig.free() == kit.Rig().free()


def test_chunks_of_several_requests_in_one_call(kit):
    rig = kit.Rig()
    chunks = []
    for request, size in ((0, 10), (1, 4), (2, 1)):
        rig.submit(request, LONG[: size + 1], 6)
        rig.residency.admit(request)
        chunk = Chunk(request, size)
        chunks.append((chunk, rig.residency.reserve(chunk)))
    rig.residency.prefill(chunks)
    assert [event.request for event in rig.log.events(PrefillCommitted)] == [0, 1, 2]
    assert {event.launch for event in rig.log.events(PrefillCommitted)} == {1}
    rig.check()
    for request in range(3):
        expected = rig.oracle(request, 6)
        assert rig.finish(request, ((True,),)) == expected


def test_a_chunk_takes_one_column_and_its_time_is_counted(kit):
    rig = kit.Rig()
    rig.submit(0, LONG, 6)
    rig.residency.admit(0)
    reservation = rig.residency.reserve(Chunk(0, 5))
    assert [len(units) for units in (*reservation.pages, *reservation.columns)] == [2, 2, 1]
    rig.residency.prefill([(Chunk(0, 5), reservation)])
    rig.prefill(0)
    assert [event.times for event in rig.log.events(PrefillCommitted)] == [(1,), (1,)]
    assert rig.residency.prefill_ns == 2000


def test_a_prompt_of_one_token_needs_no_prefill(kit):
    rig = kit.Rig()
    rig.enter(0, (5,), 4)
    assert not rig.log.events(PrefillCommitted)
    expected = rig.oracle(0, 4)
    assert rig.finish(0, ((True, True),)) == expected
    rig.check()


@pytest.mark.parametrize("late", ["prefill", "prefill:late"])
def test_a_prefill_that_fails_gives_back_and_is_recomputed(kit, late):
    rig = kit.Rig()
    for request in range(2):
        rig.submit(request, LONG, 6)
        rig.residency.admit(request)
    rig.prefill(1)
    digests, free = rig.ledgers.digests, rig.free()
    rig.hook.armed = late
    chunk = Chunk(0, 10)
    with pytest.raises(ExecutorFault, match="RuntimeError: prefill") as error:
        rig.residency.prefill([(chunk, rig.residency.reserve(chunk))])
    assert isinstance(error.value.__cause__, RuntimeError)
    assert (rig.ledgers.digests, rig.free()) == (digests, free)
    rig.residency.evict(0, "fault")
    rig.residency.admit(0)
    rig.prefill(0, (3, 3))
    rig.check()


@pytest.mark.parametrize("error", [ExecutorFault, AssertionError])
def test_a_typed_fault_of_a_prefill_is_raised_as_it_is(kit, error):
    rig = kit.Rig()
    rig.submit(0, LONG, 6)
    rig.residency.admit(0)
    free = rig.free()
    rig.hook.error = error
    rig.hook.armed = "prefill"
    chunk = Chunk(0, 3)
    with pytest.raises(error, match=r"^prefill$"):
        rig.residency.prefill([(chunk, rig.residency.reserve(chunk))])
    assert rig.free() == free
    rig.conserve()


def test_a_log_that_refuses_changes_nothing(kit):
    rig = kit.Rig()
    rig.submit(0, LONG, 6)
    rig.submit(1, LONG, 6)
    rig.residency.admit(0)
    rig.prefill(0, (4,))
    before = rig.standing()
    rig.log.refusing = True
    for act in (
        lambda: rig.submit(2, LONG, 6),
        lambda: rig.residency.admit(1),
        lambda: rig.residency.evict(0, "pages"),
        lambda: rig.residency.finish(0, "cancelled"),
        lambda: rig.residency.finish(1, "cancelled"),
    ):
        with pytest.raises(kit.LogRefused):
            act()
        assert rig.standing() == before
    rig.log.refusing = False
    rig.check()


def test_a_log_that_refuses_a_chunk_gives_it_back(kit):
    rig = kit.Rig()
    rig.submit(0, LONG, 6)
    rig.residency.admit(0)
    digests, free = rig.ledgers.digests, rig.free()
    rig.log.refusing = True
    with pytest.raises(kit.LogRefused):
        rig.prefill(0)
    rig.log.refusing = False
    assert (rig.ledgers.digests, rig.free()) == (digests, free)
    rig.check()


def test_a_chunk_that_contradicts_the_ledgers_is_no_fault_of_the_executor(kit):
    rig = kit.Rig()
    rig.submit(0, LONG, 6)
    rig.residency.admit(0)
    chunk = Chunk(0, 10)
    free = rig.free()
    reservation = rig.residency.reserve(chunk)
    rig.ledgers.pages.references[0][reservation.pages[0][0]] = 1
    with pytest.raises(LedgerCorrupt, match="group 'kv' page 0"):
        rig.residency.prefill([(chunk, reservation)])
    rig.ledgers.pages.references[0][0] = 0
    assert rig.free() == free
    rig.check()


def test_nothing_is_applied_before_it_is_appended(kit):
    rig = kit.Rig()
    seen = []
    rig.log.watch = lambda: seen.append((rig.ledgers.digests, len(rig.log.records)))
    applied = [rig.ledgers.digests]
    for act in (
        lambda: rig.submit(0, LONG, 6),
        lambda: rig.residency.admit(0),
        lambda: rig.prefill(0),
        lambda: rig.residency.evict(0, "pages"),
        lambda: rig.residency.finish(0, "cancelled"),
    ):
        act()
        applied.append(rig.ledgers.digests)
    assert seen == [(digests, count) for count, digests in enumerate(applied[:-1])]


def test_admission_is_refused_whole(kit):
    rig = kit.Rig(batch_max=1)
    rig.enter(0, LONG, 6)
    rig.submit(1, LONG, 6)
    free, written = rig.free(), len(rig.log.records)
    with pytest.raises(LedgerExhausted, match="conv"):
        rig.residency.admit(1)
    assert (rig.free(), len(rig.log.records)) == (free, written)
    with pytest.raises(LedgerExhausted):
        rig.residency.admit(0)
    rig = kit.Rig()
    rig.enter(0, LONG, 6)
    free = rig.free()
    with pytest.raises(LedgerCorrupt, match="not resident"):
        rig.residency.admit(0)
    assert rig.free() == free
    rig.check()


@pytest.mark.parametrize("count", [0, -1, 11])
def test_a_chunk_stays_within_what_is_known(kit, count):
    rig = kit.Rig()
    rig.submit(0, LONG, 6)
    rig.residency.admit(0)
    reservation = rig.residency.reserve(Chunk(0, 3))
    with pytest.raises(AssertionError, match="chunk of"):
        rig.residency.prefill([(Chunk(0, count), reservation)])


def test_a_drop_that_fails_keeps_the_pools_whole(kit):
    for leave in (lambda rig: rig.residency.evict(0, "pages"), lambda rig: rig.residency.finish(0, "error")):
        rig = kit.Rig()
        rig.enter(0, LONG, 6)
        rig.executor.drop = lambda request: 1 // 0
        leave(rig)
        rig.conserve()
        rig.replay()


def test_eviction_frees_everything_for_another(kit):
    # Pages for one request only: they go back and forth, and each text is its own.
    rig = kit.Rig(page_count=5, batch_max=1)
    prompts = {0: LONG, 1: tuple(reversed(LONG))}
    for request, prompt in prompts.items():
        rig.submit(request, prompt, 8)
    expected = {request: rig.oracle(request, 8) for request in prompts}
    for turn in range(6):
        request = turn % 2
        rig.residency.admit(request)
        rig.prefill(request, (5,))
        rig.round(request, (True,) if turn > 1 else ())
        rig.check()
        rig.residency.evict(request, "pages")
        rig.check()
    for request in prompts:
        rig.residency.admit(request)
        rig.prefill(request)
        assert rig.state(request).epoch == 3
        assert rig.finish(request, ((True, True, True),)) == expected[request]
    rig.check()
