"""Audits of device state: in the log, by page, column and ring, by row, and against the tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from txdecode.runtime import Runtime, replay
from txdecode.runtime.journal import iterate
from txdecode.state.errors import LedgerCorrupt
from txdecode.transactions.audit import entries_from
from txdecode.transactions.codec import decode
from txdecode.transactions.events import RoundCommitted, RuntimeNote, StateAudited
from txdecode.transactions.executor import ExecutorFault, SequenceView
from txdecode.transactions.rebuild import GHOST
from txdecode.transactions.toy import CONV_WINDOW, ToyExecutor, expected_audit

PROMPT = [3, 1, 4, 1, 5, 9]


def events(log: Path, kind: type[Any]) -> list[Any]:
    made = [decode(r.type, r.version, r.flags, r.payload) for r in iterate(log)]
    return [event for event in made if isinstance(event, kind)]


def run(log: Path, executor: ToyExecutor, tokens: int = 30, **options: Any) -> None:
    with Runtime.open(executor, log=log, draft="executor", draft_len=3, **options) as runtime:
        handles = [runtime.submit(PROMPT[i:], max_tokens=tokens) for i in range(2)]
        runtime.run()
        for handle in handles:
            handle.result()


@pytest.mark.parametrize("every", [1, 3])
def test_an_audit_says_what_the_tokens_make_of_the_state(log: Path, every: int) -> None:
    run(log, ToyExecutor(accuracy=6), audit_every=every)
    audits = events(log, StateAudited)
    rounds = [event for event in events(log, RoundCommitted) if not event.clip]
    assert len(audits) == sum((event.ordinal + 1) % every == 0 for event in rounds)
    texts = {number: (*PROMPT[number:], *said.ids) for number, said in replay(log).requests.items()}
    for audit in audits:
        tokens = texts[audit.request][: audit.consumed]
        assert entries_from(audit.entries) == expected_audit(tokens, 4, 48)
        assert {entry[0] for entry in audit.entries} == {"kv", "pairs", "gdn", "conv", "ngram", "tail"}


def test_without_asking_there_are_none(log: Path) -> None:
    run(log, ToyExecutor(accuracy=6))
    assert not events(log, StateAudited)


def test_paranoid_audits_have_rows(log: Path) -> None:
    run(log, ToyExecutor(accuracy=6), audit_every=1, paranoid=True)
    for audit in events(log, StateAudited):
        rows = [(group, row) for group, _, _, row, _ in audit.entries if row >= 0]
        assert [row for group, row in rows if group == "kv"] == list(range(audit.consumed))
        assert len([row for group, row in rows if group == "conv"]) == CONV_WINDOW
    assert not events(log, RuntimeNote)[:-1], "there was room to compute all of them again"


Damage = Callable[[ToyExecutor, SequenceView], None]


def kv(toy: ToyExecutor, view: SequenceView) -> None:
    toy.kv[view.pages[0][1]][2] ^= 1


def pair(toy: ToyExecutor, view: SequenceView) -> None:
    toy.pairs[view.pages[1][1]][0] ^= 1


def column(toy: ToyExecutor, view: SequenceView) -> None:
    toy.columns[view.columns[0]] ^= 1


def ring(toy: ToyExecutor, view: SequenceView) -> None:
    toy.rings[view.slots[0]][(view.length - 1) % toy.ring] ^= 1


def context(toy: ToyExecutor, view: SequenceView) -> None:
    toy.contexts[view.slots[0]] = (1, *toy.contexts[view.slots[0]][:-1])


DAMAGES: dict[str, tuple[Damage, str]] = {
    "a row of keys": (kv, "group 'kv' layer 0 index 1 row 6"),
    "a pair of the drafter": (pair, "group 'pairs' layer 0 index 1 row 4"),
    "a recurrent column": (column, "group 'gdn' layer 0 index 0"),
    "a row of the conv window": (ring, "group 'conv' layer 0 index 0 row"),
    "the n-gram context": (context, "group 'ngram' layer 0 index 0"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_at_the_next_audit_and_named(name: str, log: Path) -> None:
    damage, where = DAMAGES[name]

    class Damaged(ToyExecutor):
        rounds = 0

        def settle(self, settlements: Any) -> None:
            super().settle(settlements)
            for settlement in settlements:
                self.rounds += settlement.plan.request == 0
                if settlement.plan.request == 0 and self.rounds == 3:
                    view = settlement.plan.view
                    after = SequenceView(
                        0,
                        view.epoch,
                        view.length + len(settlement.path),
                        settlement.plan.pages,
                        tuple(columns[settlement.path[-1]] for columns in settlement.plan.columns),
                        view.slots,
                    )
                    damage(self, after)

    with pytest.raises(LedgerCorrupt) as error:
        run(log, Damaged(accuracy=6), audit_every=1, paranoid=True)
    assert error.value.ledger == "device"
    assert error.value.field.startswith(f"request 0 {where}")
    audits = [event for event in events(log, StateAudited) if event.request == 0]
    assert audits[-1].ordinal == 2, "what was found is in the log too"


def test_an_audit_without_room_says_so(log: Path) -> None:
    run(log, ToyExecutor(accuracy=6, page_count=12), tokens=16, audit_every=1, paranoid=True)
    assert any(note.kind == "audit not recomputed" for note in events(log, RuntimeNote))


def test_an_audit_gives_back_what_it_took(log: Path) -> None:
    executor = ToyExecutor(accuracy=6)
    with Runtime.open(
        executor, log=log, draft="executor", draft_len=3, audit_every=1, paranoid=True
    ) as runtime:
        runtime.submit(PROMPT, max_tokens=20)
        while runtime.step():
            runtime.check()


@pytest.mark.parametrize("verb", ["audit", "prefill"])
def test_an_executor_that_fails_at_an_audit_costs_no_request(log: Path, verb: str) -> None:
    class Failing(ToyExecutor):
        def audit(self, view: SequenceView, rows: bool = False) -> Any:
            if verb == "audit" and rows:
                raise ExecutorFault("no audit today")
            return super().audit(view, rows)

        def prefill(self, batch: Any) -> None:
            if verb == "prefill" and batch[0].view.request == GHOST:
                raise RuntimeError("no ghosts")
            super().prefill(batch)

    run(log, Failing(accuracy=6), audit_every=2, paranoid=True)
    failed = [note for note in events(log, RuntimeNote) if note.kind == "audit failed"]
    assert failed
    assert failed[0].data["error"] == (
        "ExecutorFault: no audit today" if verb == "audit" else "RuntimeError: no ghosts"
    )
    assert all(said.finish == "length" for said in replay(log).requests.values())


def test_the_executor_lets_go_of_what_was_built_again(log: Path) -> None:
    dropped: list[int] = []

    class Watched(ToyExecutor):
        def drop(self, request: int) -> None:
            dropped.append(request)
            super().drop(request)

    run(log, Watched(accuracy=6), audit_every=1, paranoid=True)
    assert dropped.count(GHOST) == len(events(log, StateAudited))
