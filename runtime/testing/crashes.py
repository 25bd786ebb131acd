"""What is left of a log when the machine dies."""

from __future__ import annotations

from pathlib import Path

from txdecode.runtime.journal import iterate


def end_after_loss(path: Path, floor: int, size: int, share: float) -> int:
    """Where the file ends once ``share`` of its records past ``floor`` is lost, the last of them perhaps in part.

    By records and not by bytes: how long a record is depends on the times in it, and the same program has to lose
    the same records whenever it runs.
    """
    if not share or size <= floor:
        return size
    borders = [floor, *(record.offset + record.size for record in iterate(path)), size]
    borders = sorted({border for border in borders if floor <= border <= size})
    place = (1.0 - share) * (len(borders) - 1)
    whole, part = int(place), place - int(place)
    if part < 0.25 or whole + 1 == len(borders):
        return borders[whole]
    return borders[whole] + max(int(part * (borders[whole + 1] - borders[whole])), 1)
