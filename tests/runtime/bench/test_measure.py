"""The order of the arms, equality of texts, and what is left out."""

from __future__ import annotations

import attrs
import pytest

from tests.runtime.bench.conftest import Told, plainly, unit
from txdecode.runtime.bench.measure import (
    AGAIN,
    PLAIN,
    SPECULATIVE,
    WARM_TOKENS,
    Measured,
    Sample,
    measure,
    order_of,
)
from txdecode.runtime.bench.rounds import RoundFacts
from txdecode.runtime.errors import InvalidRequest
from txdecode.state.errors import TxDecodeError

BOTH = (PLAIN, SPECULATIVE)


def run(told: Told, repeats: int = 2, arms: tuple[str, ...] = BOTH, **options: bool) -> Measured:
    units = [unit("a"), unit("b", "json")]
    return measure(units, arms, told, repeats=repeats, calibrate=lambda: 1.0, **options)  # type: ignore[arg-type]


def test_the_order_of_the_arms_alternates_and_repeats_lie_apart() -> None:
    told = Told(lambda arm, repeat, name: plainly(10))
    found = run(told, repeats=3)
    assert [asked for asked in told.asked if asked[0] >= 0] == [
        *[(0, name, arm) for name in "ab" for arm in (PLAIN, SPECULATIVE)],
        *[(1, name, arm) for name in "ab" for arm in (SPECULATIVE, PLAIN)],
        *[(2, name, arm) for name in "ab" for arm in (PLAIN, SPECULATIVE)],
    ]
    assert [(row.repeat, row.order, row.arm) for row in found.rows if row.unit == "a"] == [
        (0, 0, PLAIN),
        (0, 1, SPECULATIVE),
        (1, 0, SPECULATIVE),
        (1, 1, PLAIN),
        (2, 0, PLAIN),
        (2, 1, SPECULATIVE),
    ]
    assert order_of((PLAIN, SPECULATIVE, AGAIN), 1) == (AGAIN, SPECULATIVE, PLAIN)


def test_every_arm_warms_up_on_a_few_tokens_that_do_not_count() -> None:
    told = Told(lambda arm, repeat, name: plainly(10))
    long = attrs.evolve(unit("a"), prompts=tuple(attrs.evolve(p, max_tokens=500) for p in unit("a").prompts))
    found = measure([long], BOTH, told, repeats=1, calibrate=lambda: 1.0)
    assert told.asked[:2] == [(-1, "a", PLAIN), (-1, "a", SPECULATIVE)]
    assert told.budgets == [WARM_TOKENS, WARM_TOKENS, 500, 500]
    assert len(found.rows) == 2


def test_warming_up_goes_on_to_a_prompt_that_can_be_decoded() -> None:
    told = Told(lambda arm, repeat, name: InvalidRequest("no") if name == "a" else plainly(10))
    run(told, repeats=1)
    assert [asked[1] for asked in told.asked if asked[0] == -1] == ["a", "b", "a", "b"]


def test_each_repeat_opens_and_closes_its_own_arms() -> None:
    told = Told(lambda arm, repeat, name: plainly(10), {"a": RoundFacts({1: (4, 40)}, (), 4)})
    found = run(told, repeats=2)
    assert told.closed == 2 + 2 * 2
    assert {row.facts.rounds for row in found.rows if row.unit == "a"} == {4}
    assert {row.facts.rounds for row in found.rows if row.unit == "b"} == {0}


def test_a_text_that_drafting_changed_names_prompt_and_token() -> None:
    def answer(arm: str, repeat: int, name: str) -> Sample:
        lies = arm == SPECULATIVE and repeat == 1 and name == "b"
        return plainly(10, (1, 2, 9, 4) if lies else (1, 2, 3, 4))

    found = run(Told(answer))
    (item,) = found.mismatches
    assert (item.unit, item.prompt, item.arm, item.repeat) == ("b", "b", SPECULATIVE, 1)
    assert (item.index, item.expected, item.found) == (2, 3, 9)
    assert "prompt 'b': token 2" in str(item)


def test_a_shorter_text_differs_where_it_ends() -> None:
    found = run(Told(lambda arm, repeat, name: plainly(10, (1, 2) if arm == SPECULATIVE else (1, 2, 3))), 1)
    assert [(item.index, item.expected, item.found) for item in found.mismatches] == [(2, 3, None)] * 2


def test_plain_decoding_that_differs_from_itself_is_a_difference_too() -> None:
    found = run(Told(lambda arm, repeat, name: plainly(10, (1, repeat))))
    assert {(item.arm, item.repeat) for item in found.mismatches} == {(PLAIN, 1), (SPECULATIVE, 1)}


def test_texts_of_the_chain_law_are_not_compared_but_their_counts_are() -> None:
    def answer(arm: str, repeat: int, name: str) -> Sample:
        short = name == "b" and arm == SPECULATIVE
        return plainly(10, (5, 6) if short else (1, 2, 3) if arm == PLAIN else (4, 5, 6))

    found = run(Told(answer), same_text=False)
    assert not found.mismatches
    assert [name for name, _ in found.left_out] == ["b"]
    assert "plain 3, spec 2" in found.left_out[0][1]


@pytest.mark.parametrize("arm", BOTH)
def test_a_prompt_that_fails_is_left_out_and_not_tried_again(arm: str) -> None:
    def answer(name: str, repeat: int, asked: str) -> Sample | TxDecodeError:
        return InvalidRequest("too long") if (name, asked) == (arm, "a") else plainly(10)

    told = Told(answer)
    found = run(told)
    ((name, reason),) = found.left_out
    assert name == "a"
    assert reason == f"failed in arm '{arm}': too long"
    assert not [asked for asked in told.asked if asked[0] == 1 and asked[1] == "a"]
    assert len([row for row in found.rows if row.unit == "b"]) == 4


def test_a_prompt_that_was_cut_is_left_out() -> None:
    told = Told(lambda arm, repeat, name: plainly(10, cut="no room" if name == "b" else None))
    found = run(told)
    assert found.left_out == (("b", f"was cut in arm '{PLAIN}': no room"),)


def test_arms_are_closed_where_a_programmers_error_ends_the_run() -> None:
    def answer(arm: str, repeat: int, name: str) -> Sample:
        assert repeat < 0
        return plainly(10)

    told = Told(answer)
    with pytest.raises(AssertionError):
        run(told)
    assert told.closed == 4
