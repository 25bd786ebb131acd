"""Matrices in panels: the order in which ``product`` reads them, from the first byte to the last.

A panel holds eight outputs. Inputs come in pairs, so that one 32-bit word holds an output's weights for both:
``[panel, pair, output in the panel, input in the pair]``, bf16, zeros where a size is no multiple.
"""

from __future__ import annotations

import torch

from txdecode.kernels.native.lanes import LANES


def panel_count(outputs: int) -> int:
    """Panels of a matrix with so many outputs."""
    return -(-outputs // LANES)


def pack(weight: torch.Tensor) -> torch.Tensor:
    """``weight`` [out, in] rounded to bf16, as [panels, pairs, 8, 2]."""
    outputs, inputs = weight.shape
    padded = torch.nn.functional.pad(weight.to(torch.bfloat16), (0, inputs % 2, 0, -outputs % LANES))
    panels = panel_count(outputs)
    return padded.view(panels, LANES, -1, 2).transpose(1, 2).contiguous()


def unpack(panels: torch.Tensor, outputs: int, inputs: int) -> torch.Tensor:
    """The matrix [out, in] in bf16 that ``pack`` made ``panels`` of."""
    count, pairs = panels.shape[:2]
    return panels.transpose(1, 2).reshape(count * LANES, 2 * pairs)[:outputs, :inputs]


def words(panels: torch.Tensor) -> torch.Tensor:
    """The same memory as 16-bit words, which numpy has a name for."""
    return panels.view(torch.uint16)
