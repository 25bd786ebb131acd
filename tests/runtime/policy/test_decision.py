"""What the log keeps of a decision."""

from __future__ import annotations

import msgspec

from txdecode.runtime.policy.decision import KINDS, REASONS, Decision, read


def test_a_decision_survives_the_log() -> None:
    made = Decision("goodput", 7, "pays", 4.25, 1.471, 0.31)
    assert made.ids() == (3, 7, 1, 4250, 1471, 31)
    assert read(made.ids()) == {
        "controller": "goodput",
        "asked": 7,
        "reason": "pays",
        "expected": 4.25,
        "cost": 1.471,
        "survival": 0.31,
    }


def test_others_say_what_they_asked_for() -> None:
    assert Decision("additive", 5).ids() == (2, 5)
    assert Decision("fixed", 0).ids() == (1, 0)
    assert Decision("goodput", 0, "nothing").ids() == (3, 0, 2)
    assert read(()) == {}
    assert read((1, 4)) == {"controller": "fixed", "asked": 4}


def test_what_a_later_version_knows_stands_as_it_is() -> None:
    assert read((9, 4, 77)) == {"controller": 9, "asked": 4, "reason": 77}


def test_twelve_bytes_at_most() -> None:
    for reason in REASONS:
        made = Decision("goodput", 15, reason, 16.0, 60.0, 1.0)
        assert len(msgspec.msgpack.encode(made.ids())) <= 12
    assert len(KINDS) < 128
