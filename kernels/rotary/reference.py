"""The rotation as a formula, in double precision."""

from __future__ import annotations

import torch


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, out: torch.Tensor) -> None:
    """Turn each pair (i, i + size / 2) of ``x`` [rows, heads, size] into ``out``.

    ``cos`` and ``sin`` are [rows, heads, size]; the first half of ``sin`` carries the minus sign.
    """
    half = x.shape[-1] // 2
    a, b = x[..., :half].double(), x[..., half:].double()
    first = a * cos[..., :half].double() + b * sin[..., :half].double()
    second = b * cos[..., half:].double() + a * sin[..., half:].double()
    out.copy_(torch.cat([first, second], -1))
