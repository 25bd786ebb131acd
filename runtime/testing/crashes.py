"""What is left of a log when the machine dies."""

from __future__ import annotations

import os
from pathlib import Path

from txdecode.runtime.journal import iterate, read_header


def lose(log: Path, newest: Path, synced: int, share: float) -> int:
    """Cut ``share`` of what is past ``synced`` bytes off the newest segment of a log; how much that was."""
    size = newest.stat().st_size
    floor = max(read_header(log).size, synced) if newest == log else synced
    end = _end_after_loss(log, newest, floor, size, share)
    os.truncate(newest, end)
    return size - end


def _end_after_loss(log: Path, newest: Path, floor: int, size: int, share: float) -> int:
    """Where a segment ends once ``share`` of its records past ``floor`` is lost, the last of them perhaps in part.

    By records and not by bytes: how long a record is depends on the times in it, and the same program has to lose
    the same records whenever it runs.
    """
    if not share or size <= floor:
        return size
    reader = iterate(log)
    ends = [record.offset + record.size for record in reader if reader.segment == newest]
    borders = [floor, *ends, size]
    borders = sorted({border for border in borders if floor <= border <= size})
    place = (1.0 - share) * (len(borders) - 1)
    whole, part = int(place), place - int(place)
    if part < 0.25 or whole + 1 == len(borders):
        return borders[whole]
    return borders[whole] + max(int(part * (borders[whole + 1] - borders[whole])), 1)
