"""What a reader decides about a segment, as a table.

A crash cuts a journal short; it leaves no sound record after an unsound one, because an append is one write at
the end, and no segment after an unsound one, because a segment is on the disk before the next one is created.
So what follows a bad place decides whether a crash explains it. ``TABLE`` says it for every situation that the
facts can make, and a test holds that exactly one row fits each.
"""

from __future__ import annotations

from typing import Literal

import attrs

from txdecode.runtime.journal.format import HeaderState

RecordState = Literal["none", "short", "checksum", "misplaced"]
"""The first place without a good record: ``none`` (the file ends between two), ``short`` (the file ends inside
one), ``checksum`` (a checksum is wrong), ``misplaced`` (both are right, sequence or chain is not)."""

Verdict = Literal["whole", "torn tail", "unfinished rotation", "damage", "nothing"]
"""``whole``: go on. ``torn tail``: the records before are the journal, cut the rest. ``unfinished rotation``: the
segments before are the journal, delete the file. ``damage``: refuse. ``nothing``: no journal was begun here."""


@attrs.frozen
class Situation:
    """The facts about one segment, all segments before which are whole.

    ``lowest`` and ``last``: no segment is there before, after it. ``adjacent``: its number follows that of the one
    before (true of the lowest). ``follows``: its header names its own number and continues the segment before, or
    can begin a journal if it is the lowest. ``opened``: the records written together with the header are good.
    ``record``: what ends the good records. ``intact_after``: an intact record stands somewhere behind the bad
    header or record. Facts that a worse one hides keep their defaults.
    """

    lowest: bool
    last: bool
    adjacent: bool = True
    header: HeaderState = "whole"
    follows: bool = True
    opened: bool = True
    record: RecordState = "none"
    intact_after: bool = False


@attrs.frozen
class Row:
    """One row of the table: each fact may have one of the values listed, or any (``None``)."""

    adjacent: tuple[bool, ...] | None
    header: tuple[HeaderState, ...] | None
    lowest: tuple[bool, ...] | None
    last: tuple[bool, ...] | None
    follows: tuple[bool, ...] | None
    opened: tuple[bool, ...] | None
    record: tuple[RecordState, ...] | None
    intact_after: tuple[bool, ...] | None
    verdict: Verdict
    why: str

    def fits(self, situation: Situation) -> bool:
        """Whether every fact has one of the row's values."""
        return all(
            values is None or getattr(situation, fact) in values
            for fact, values in ((fact, getattr(self, fact)) for fact in FACTS)
        )


FACTS = tuple(field.name for field in attrs.fields(Situation))

ANY, YES, NO = None, (True,), (False,)
EMPTY: tuple[HeaderState, ...] = ("empty",)
TORN: tuple[HeaderState, ...] = ("torn",)
ALIEN: tuple[HeaderState, ...] = ("foreign",)
WHOLE: tuple[HeaderState, ...] = ("whole",)
END: tuple[RecordState, ...] = ("none",)
BAD: tuple[RecordState, ...] = ("short", "checksum")
SOUND: tuple[RecordState, ...] = ("misplaced",)

_SYNCED = "others follow the segment, so it was on the disk"
_DROPPED = "the segments before were dropped, so its opening records were on the disk"

# fmt: off
TABLE: tuple[Row, ...] = (
    #   adjacent header lowest last follows opened record intact
    Row(NO,  ANY,   ANY, ANY, ANY, ANY, ANY,   ANY, "damage", "a segment before it is missing"),
    Row(YES, EMPTY, YES, YES, ANY, ANY, ANY,   ANY, "nothing", "a file without content"),
    Row(YES, EMPTY, NO,  YES, ANY, ANY, ANY,   ANY, "unfinished rotation", "created, and nothing written"),
    Row(YES, EMPTY, ANY, NO,  ANY, ANY, ANY,   ANY, "damage", _SYNCED),
    Row(YES, ALIEN, ANY, ANY, ANY, ANY, ANY,   ANY, "damage", "no crash leaves such a header"),
    Row(YES, TORN,  YES, ANY, ANY, ANY, ANY,   ANY, "damage", "without it no record can be checked"),
    Row(YES, TORN,  NO,  NO,  ANY, ANY, ANY,   ANY, "damage", _SYNCED),
    Row(YES, TORN,  NO,  YES, ANY, ANY, ANY,   YES, "damage", "an intact record follows"),
    Row(YES, TORN,  NO,  YES, ANY, ANY, ANY,   NO,  "unfinished rotation", "the header was cut short"),
    Row(YES, WHOLE, ANY, ANY, NO,  ANY, ANY,   ANY, "damage", "it does not continue the segment before"),
    Row(YES, WHOLE, ANY, ANY, YES, YES, END,   ANY, "whole", "every byte is accounted for"),
    Row(YES, WHOLE, ANY, ANY, YES, ANY, SOUND, ANY, "damage", "a sound record in a wrong place"),
    Row(YES, WHOLE, ANY, ANY, YES, ANY, BAD,   YES, "damage", "an intact record follows"),
    Row(YES, WHOLE, ANY, NO,  YES, ANY, BAD,   NO,  "damage", _SYNCED),
    Row(YES, WHOLE, ANY, YES, YES, YES, BAD,   NO,  "torn tail", "the last append was cut short"),
    Row(YES, WHOLE, NO,  YES, YES, NO,  BAD,   NO,  "unfinished rotation", "its opening was cut short"),
    Row(YES, WHOLE, YES, YES, YES, NO,  BAD,   NO,  "damage", _DROPPED),
    Row(YES, WHOLE, ANY, NO,  YES, NO,  END,   ANY, "damage", _SYNCED),
    Row(YES, WHOLE, NO,  YES, YES, NO,  END,   ANY, "unfinished rotation", "its opening was cut short"),
    Row(YES, WHOLE, YES, YES, YES, NO,  END,   ANY, "damage", _DROPPED),
)
# fmt: on


def judge(situation: Situation) -> Row:
    """The row of the table that fits."""
    return next(row for row in TABLE if row.fits(situation))
