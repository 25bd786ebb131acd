"""``Runtime.check`` between two steps, also with programs in flight."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from txdecode.runtime import Runtime
from txdecode.state.errors import LedgerCorrupt
from txdecode.transactions.toy import ToyExecutor
from txdecode.transactions.transaction import Launch

Open = Callable[..., Runtime]


@pytest.fixture
def flying(opened: Open) -> tuple[Runtime, Launch]:
    """A runtime in which one request decodes on, and one was cancelled, while their program runs."""
    runtime = opened(
        ToyExecutor(fused=True, accuracy=6, delay=lambda launch: 5), draft="executor", draft_len=4
    )
    handles = [runtime.submit([i, 2, 3], max_tokens=20) for i in range(2)]
    runtime.step()
    handles[0].cancel()
    runtime.step()
    (launch,) = runtime._coordinator.flights
    assert (len(launch.open), len(launch.retained), len(launch.retired)) == (1, 1, 1)
    return runtime, launch


def test_everything_is_somewhere_while_a_program_runs(flying: tuple[Runtime, Launch]) -> None:
    runtime, _ = flying
    runtime.check()
    runtime.run()
    runtime.check()


def test_units_that_are_nowhere(flying: tuple[Runtime, Launch]) -> None:
    runtime, launch = flying
    launch.retired.clear()
    with pytest.raises(LedgerCorrupt, match="group 'kv' free") as found:
        runtime.check()
    assert set(found.value.expected) - set(found.value.found)  # type: ignore[call-overload]


def test_units_that_are_in_two_places(flying: tuple[Runtime, Launch]) -> None:
    runtime, launch = flying
    runtime._coordinator.store.pools.give(launch.retired[0])
    with pytest.raises(LedgerCorrupt, match="group 'kv' free"):
        runtime.check()


def test_a_reservation_that_nobody_holds(flying: tuple[Runtime, Launch]) -> None:
    runtime, launch = flying
    launch.retained.clear()
    with pytest.raises(LedgerCorrupt, match="ledger 'reservations', open: expected 1, found 2"):
        runtime.check()


def test_a_ledger_that_was_written_to(opened: Open) -> None:
    runtime = opened()
    runtime.submit([1, 2, 3])
    runtime.step()
    runtime.ledgers.pages.references[0][0] += 1
    with pytest.raises(LedgerCorrupt, match="ledger 'pages', group 'kv' page 0 references"):
        runtime.check()
