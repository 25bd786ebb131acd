"""What is taken for a machine that does other work."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from txdecode.runtime.bench import contention
from txdecode.runtime.bench.contention import Calibration, Load, flags_of, load_now, machine_facts


def test_a_plain_run_outside_its_band_is_flagged() -> None:
    assert flags_of([100, 101, 84], [False] * 3) == [(), (), ("band",)]
    assert flags_of([100, 101, 90], [False] * 3) == [(), (), ()]


def test_drift_is_flagged_beside_the_band() -> None:
    assert flags_of([100, 101, 84], [True, False, True]) == [("drift",), (), ("band", "drift")]


def test_half_of_the_cores_may_be_busy() -> None:
    assert not Load(1.0, 2).high
    assert Load(1.1, 2).high
    assert "1.10 on 2 cores" in str(Load(1.1, 2))


def test_the_load_is_that_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention.os, "getloadavg", lambda: (3.25, 0.0, 0.0))
    found = load_now()
    assert found.average == 3.25
    assert found.cores >= 1


def test_calibration_gives_the_least_of_three_times() -> None:
    spans = iter([5.0, 2.0, 9.0])

    def clock() -> Iterator[float]:
        now = 0.0
        for span in spans:
            yield now
            now += span
            yield now

    ticks = clock()
    assert Calibration(lambda: next(ticks))() == 2.0
    assert next(ticks, None) is None


def test_facts_of_the_machine_are_there() -> None:
    facts = machine_facts(Load(0.5, 4))
    assert facts["cores"] == 4
    assert facts["load_at_start"] == 0.5
    assert isinstance(facts["cpu"], str)
    assert facts["cpu"]
