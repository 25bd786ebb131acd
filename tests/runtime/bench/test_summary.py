"""Figures from rows, and their JSON."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import attrs
import pytest

from tests.runtime.bench.conftest import plainly
from txdecode.runtime.bench.arms import Settings
from txdecode.runtime.bench.measure import AGAIN, PLAIN, SPECULATIVE, Measured, Row
from txdecode.runtime.bench.report import report_data, row_data
from txdecode.runtime.bench.rounds import RoundFacts
from txdecode.runtime.bench.summary import Summary, summarise

FACTS = {
    PLAIN: RoundFacts({1: (4, 4000)}, (), 4),
    AGAIN: RoundFacts({1: (4, 4000)}, (), 4),
    SPECULATIVE: RoundFacts({1: (1, 1000), 4: (1, 1500)}, ((1, 1, 1), (1, 1, 1), (1, 1, 0)), 4),
}


def rows(name: str, category: str, calibration: Sequence[float] = (), **speeds: Sequence[float]) -> list[Row]:
    return [
        Row(
            name,
            category,
            arm,
            repeat,
            order,
            calibration[repeat] if calibration else 1.0,
            plainly(
                speed,
                parts={"forward": 3 / speed, "choose": 0.5 / speed, "host": 0.5 / speed},
                by_source={"lookup": (3, 2)} if arm == SPECULATIVE else {},
            ),
            FACTS[arm],
        )
        for order, (arm, values) in enumerate(speeds.items())
        for repeat, speed in enumerate(values)
    ]


def summary_of(*found: list[Row], left_out: tuple[tuple[str, str], ...] = ()) -> Summary:
    return summarise(Measured(tuple(itertools.chain(*found)), left_out, ()))


def test_a_speedup_is_a_ratio_of_medians_and_a_categorys_the_median_over_prompts() -> None:
    found = summary_of(
        rows("a", "chat", plain=(100, 101, 99), spec=(200, 210, 190)),
        rows("b", "chat", plain=(50, 50, 50), spec=(150, 150, 150)),
        rows("c", "json", plain=(10, 10, 10), spec=(10, 11, 12)),
    )
    assert [item.speedup for item in found.prompts] == pytest.approx([2.0, 3.0, 1.1])
    chat = found.categories["chat"]
    assert chat.speedup.median == pytest.approx(2.5)
    assert chat.plain.tok_s.median == pytest.approx(75)
    assert chat.speculative.tok_s.median == pytest.approx(175)
    assert found.total is not None
    assert found.total.speedup.median == pytest.approx(2.0)
    assert found.total.prompts == 3
    assert found.total.again is None


def test_rounds_acceptance_cost_and_host_time() -> None:
    (group,) = summary_of(rows("a", "chat", plain=(100, 100), spec=(200, 200))).categories.values()
    spec = group.speculative
    assert (spec.facts.rounds, spec.facts.tokens_a_round, spec.facts.mean_width) == (4, 2.0, 2.5)
    assert spec.facts.depths == ((2, 2, 2), (2, 2, 2), (2, 2, 0))
    assert spec.by_source == {"lookup": (6, 4)}
    assert group.cost_ratio == pytest.approx(1.25)
    assert group.plain.host_share == pytest.approx(0.125)


def test_a_disturbed_repeat_is_left_out_with_both_its_arms() -> None:
    found = summary_of(rows("a", "chat", plain=(100, 100, 50), spec=(200, 200, 50)))
    (item,) = found.prompts
    assert (item.kept, item.repeats, item.contended) == (2, 3, False)
    assert item.speedup == pytest.approx(2.0)
    assert item.speculative.tok_s.low == pytest.approx(200)
    assert found.total is not None
    assert found.total.speculative.facts.rounds == 4
    assert [row.flags for row in found.rows if row.repeat == 2] == [("band",)] * 2
    assert not any(row.flags for row in found.rows if row.repeat < 2)


def test_where_most_repeats_are_disturbed_all_count_and_the_prompt_is_named() -> None:
    found = summary_of(
        rows("a", "chat", (1.0, 1.0, 1.0), plain=(100, 100, 100), spec=(200, 200, 200)),
        rows("b", "chat", (1.0, 1.3, 0.8), plain=(100, 100, 100), spec=(200, 200, 200)),
    )
    assert found.contended == ("b",)
    assert [row.flags for row in found.rows if row.unit == "b" and row.arm == PLAIN] == [
        (),
        ("drift",),
        ("drift",),
    ]
    assert found.prompts[1].kept == 3


def test_a_prompt_slower_than_plain_against_plain_is_named() -> None:
    found = summary_of(
        rows("a", "chat", plain=(100, 100), spec=(96, 96), again=(105, 105)),
        rows("b", "chat", plain=(100, 100), spec=(94, 94), again=(100, 100)),
    )
    assert found.below == ("b",)
    assert [item.again for item in found.prompts] == pytest.approx([1.05, 1.0])
    assert found.total is not None
    assert found.total.again is not None
    assert found.total.again.high == pytest.approx(1.05)


def test_what_was_left_out_counts_nowhere_but_stays_in_the_rows() -> None:
    found = summary_of(
        rows("a", "chat", plain=(100,), spec=(200,)),
        rows("b", "json", plain=(100,), spec=(200,)),
        left_out=(("b", "was cut"),),
    )
    assert list(found.categories) == ["chat"]
    assert {row.unit for row in found.rows} == {"a", "b"}


def test_nothing_left_has_no_figures() -> None:
    found = summary_of(rows("a", "chat", plain=(100,), spec=(200,)), left_out=(("a", "was cut"),))
    assert found.total is None
    assert not found.prompts


def report(found: Summary, measured: Measured, settings: Settings | None = None) -> dict[str, object]:
    made = report_data(
        measured,
        found,
        settings or Settings(),
        {"cpu": "x"},
        {"weights": "abc"},
        model="toy",
        dtype="fp32",
        repeats=2,
    )
    again: dict[str, object] = json.loads(json.dumps(made, allow_nan=False))
    return again


def test_the_json_has_what_it_promises() -> None:
    made = rows("a", "code_edit", plain=(100, 100), spec=(250, 250), again=(100, 100))
    measured = Measured(tuple(made), (("z", "failed"),), ())
    data = report(summarise(measured), measured)
    category = data["categories"]["code_edit"]  # type: ignore[index]
    assert category["speedup"] == pytest.approx(2.5)
    assert category["plain_tok_s"] == pytest.approx(100)
    assert category["tok_s"] == pytest.approx(250)
    assert category["cost_ratio"] == pytest.approx(1.25)
    assert category["spec"]["by_depth"][2] == {"depth": 3, "offered": 2, "reached": 2, "accepted": 0}
    assert category["spec"]["by_source"] == {"lookup": [6, 4]}
    assert category["spec"]["parts"]["forward"] == pytest.approx(0.75)
    assert category["spec"]["by_width"][1] == {"width": 4, "rounds": 2, "forward_ms": pytest.approx(1.5)}
    assert category["plain_against_plain"]["median"] == pytest.approx(1.0)
    assert data["left_out"] == [{"id": "z", "reason": "failed"}]
    assert data["texts_equal"] is True
    assert data["below_noise"] == []
    assert (data["model"], data["fingerprint"], data["machine"]) == ("toy", {"weights": "abc"}, {"cpu": "x"})
    assert data["total"]["speedup"] == pytest.approx(2.5)  # type: ignore[index]


def test_texts_of_the_chain_law_are_not_said_to_be_equal() -> None:
    measured = Measured(tuple(rows("a", "chat", plain=(100,), spec=(250,))), (), ())
    chain = Settings(sampling=attrs.evolve(Settings().sampling, temperature=1.0, law="chain", seed=0))
    assert report(summarise(measured), measured, chain)["texts_equal"] is None


def test_a_raw_row_is_one_json_object() -> None:
    found = summary_of(rows("a", "chat", plain=(100, 50), spec=(200, 200)))
    data = json.loads(json.dumps(row_data(found.rows[-1])))
    assert (data["id"], data["category"], data["arm"], data["repeat"], data["order"]) == (
        "a",
        "chat",
        SPECULATIVE,
        1,
        1,
    )
    assert data["tokens"] == 4
    assert data["tok_s"] == pytest.approx(200)
    assert data["flags"] == ["band"]
    assert data["calibration_s"] == 1.0
