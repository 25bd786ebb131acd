"""Rows times panels: the one product that all matrices, keys and values go through.

Row blocks of one to six rows keep their sums in registers; a wider launch takes several blocks over the same few
panels, which by then are in the cache. No choice made here changes a sum.
"""

from __future__ import annotations

from typing import Any

from txdecode.kernels.native.compiled import compiled
from txdecode.kernels.native.lanes import product

_rows_1, _rows_2, _rows_3 = product(1, 6), product(2, 3), product(3, 3)
_rows_4, _rows_5, _rows_6 = product(4, 2), product(5, 2), product(6, 2)

PANEL_TILE = 6
"""Panels that one thread takes at a time: 48 outputs."""


@compiled
def block_rows(left: Any) -> Any:
    """Rows of the next block where ``left`` remain: six, but never a last block of one or two beside others."""
    if left <= 6:
        return left
    if left < 12:
        return (left + 1) // 2
    return 6


@compiled
def panel_product(
    x: Any,
    row_bytes: Any,
    rows: Any,
    w: Any,
    panel_bytes: Any,
    pairs: Any,
    panels: Any,
    out: Any,
    out_bytes: Any,
    more: Any,
) -> None:
    """``rows`` rows at ``x`` times ``panels`` panels at ``w``, into (``more`` = 1: added to) rows at ``out``.

    Addresses and strides in bytes; ``x`` and ``out`` are fp32, ``x`` has ``2 * pairs`` inputs a row.
    """
    done = 0
    while done < rows:
        count = block_rows(rows - done)
        at, to = x + done * row_bytes, out + done * out_bytes
        if count == 1:
            _rows_1(at, row_bytes, w, panel_bytes, pairs, panels, to, out_bytes, more)
        elif count == 2:
            _rows_2(at, row_bytes, w, panel_bytes, pairs, panels, to, out_bytes, more)
        elif count == 3:
            _rows_3(at, row_bytes, w, panel_bytes, pairs, panels, to, out_bytes, more)
        elif count == 4:
            _rows_4(at, row_bytes, w, panel_bytes, pairs, panels, to, out_bytes, more)
        elif count == 5:
            _rows_5(at, row_bytes, w, panel_bytes, pairs, panels, to, out_bytes, more)
        else:
            _rows_6(at, row_bytes, w, panel_bytes, pairs, panels, to, out_bytes, more)
        done += count
