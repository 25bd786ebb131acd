"""Draft-length controllers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txdecode.runtime.policy import DRAFT_MAX, Additive, Controller, Fixed, Goodput, InvalidDraftLength, parse
from txdecode.state.errors import TxDecodeError

ROUND = st.integers(0, 9).flatmap(lambda offered: st.tuples(st.just(offered), st.integers(0, offered)))


@pytest.mark.parametrize("k", [0, 1, 15])
def test_fixed_stays(k: int) -> None:
    controller = Fixed(k)
    controller.begin(1)
    for offered, accepted in ((0, 0), (3, 3), (3, 0)):
        assert controller.next(1) == k
        controller.observe(1, offered, accepted)
    assert controller.next(1) == k
    assert controller.name == str(k)


def test_additive_by_hand() -> None:
    controller = Additive(cap=7, start=1, up=2, down=1)
    controller.begin(1)
    lengths = [controller.next(1)]
    for offered, accepted in ((1, 1), (3, 3), (5, 5), (7, 7), (0, 0), (7, 6), (2, 2), (6, 0), (6, 2), (4, 0)):
        controller.observe(1, offered, accepted)
        lengths.append(controller.next(1))
    assert lengths == [1, 3, 5, 7, 7, 7, 6, 7, 6, 5, 4]


def test_additive_does_not_fall_below_one() -> None:
    controller = Additive(cap=2)
    controller.begin(1)
    controller.observe(1, 1, 0)
    assert controller.next(1) == 1
    controller.observe(1, 1, 1)
    assert controller.next(1) == 2


@given(
    rounds=st.lists(ROUND),
    shape=st.integers(1, DRAFT_MAX).flatmap(
        lambda cap: st.tuples(st.just(cap), st.integers(1, cap), st.integers(0, 4), st.integers(0, 4))
    ),
)
def test_additive_by_its_law(rounds: list[tuple[int, int]], shape: tuple[int, int, int, int]) -> None:
    cap, start, up, down = shape
    controller = Additive(cap, start, up, down)
    controller.begin(1)
    length = controller.next(1)
    assert length == start
    for offered, accepted in rounds:
        controller.observe(1, offered, accepted)
        if offered and accepted == offered:
            length = min(cap, length + up)
        elif offered:
            length = max(1, length - down)
        assert controller.next(1) == length
        assert 1 <= length <= cap


@given(steps=st.lists(st.tuples(st.integers(0, 2), ROUND)))
def test_requests_do_not_see_each_other(steps: list[tuple[int, tuple[int, int]]]) -> None:
    shared = Additive()
    alone = [Additive() for _ in range(3)]
    for request in range(3):
        shared.begin(request)
        alone[request].begin(0)
    for request, (offered, accepted) in steps:
        shared.observe(request, offered, accepted)
        alone[request].observe(0, offered, accepted)
    assert [shared.next(request) for request in range(3)] == [one.next(0) for one in alone]


def test_a_request_that_begins_again_starts_again() -> None:
    controller = Additive()
    controller.begin(1)
    controller.observe(1, 1, 1)
    controller.begin(1)
    assert controller.next(1) == 1


@pytest.mark.parametrize("controller", [Fixed(3), Additive(), Goodput()])
def test_misuse_is_a_programming_error(controller: Controller) -> None:
    with pytest.raises(AssertionError, match="request 4 has not begun"):
        controller.next(4)
    with pytest.raises(AssertionError, match="request 4 has not begun"):
        controller.observe(4, 1, 1)
    with pytest.raises(AssertionError, match="request 4 has not begun"):
        controller.end(4)
    controller.begin(4)
    for offered, accepted in ((1, 2), (1, -1)):
        with pytest.raises(AssertionError):
            controller.observe(4, offered, accepted)
    controller.end(4)
    with pytest.raises(AssertionError, match="request 4 has not begun"):
        controller.next(4)


@pytest.mark.parametrize("shape", [(7, 0, 2, 1), (7, 8, 2, 1), (7, 1, -1, 1), (7, 1, 1, -1)])
def test_impossible_shapes_are_programming_errors(shape: tuple[int, int, int, int]) -> None:
    with pytest.raises(AssertionError):
        Additive(*shape)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("additive", "additive:7"),
        ("additive:5", "additive:5"),
        ("additive:15", "additive:15"),
        ("additive:1", "additive:1"),
        ("goodput", "goodput:15"),
        ("goodput:7", "goodput:7"),
        (0, "0"),
        (15, "15"),
        ("0", "0"),
        ("15", "15"),
    ],
)
def test_parse(spec: str | int, name: str) -> None:
    controller = parse(spec)
    assert controller.name == name
    assert parse(name).name == name


@pytest.mark.parametrize(
    "spec",
    [
        *(
            "",
            "additive:",
            "goodput:",
            "goodput:0",
            "goodput:16",
            "Goodput",
            "additive:0",
            "additive:16",
            "additive:-1",
            "additive: 5",
            "Additive",
            "fixed",
        ),
        *("16", "-1", "1.5", " 3", "3\n", "additive:5\n", "\u0663", "additive:\u0663", "9" * 50),
        *(16, -1, True, False),
    ],
)
def test_what_is_no_draft_length(spec: str | int) -> None:
    with pytest.raises(
        InvalidDraftLength, match=r"draft length must be 0\.\.15, 'additive', 'goodput'"
    ) as caught:
        parse(spec)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, TxDecodeError)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 160


@pytest.mark.parametrize("cap", [0, 16])
def test_bounds_hold_for_the_classes_too(cap: int) -> None:
    with pytest.raises(InvalidDraftLength):
        Additive(cap=cap)
    with pytest.raises(InvalidDraftLength):
        Fixed(cap - 1 if cap == 0 else cap)
