"""The rotation in three passes over the rows."""

from __future__ import annotations

import torch


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, out: torch.Tensor) -> None:
    """See ``reference``. ``x`` [rows, heads, size] is left as it is."""
    torch.addcmul(torch.roll(x, x.shape[-1] // 2, -1).mul_(sin), x, cos, out=out)
