"""Which linear layer computes in which dtype."""

from __future__ import annotations

from collections.abc import Callable

import torch

from txdecode.kernels.linear import Linear
from txdecode.kernels.linear.prepacked import PrepackedLinear

LinearFactory = Callable[[torch.Tensor, torch.Tensor | None], Linear]


def linear_for(dtype: torch.dtype) -> LinearFactory:
    """Our own panels for bf16, which every processor can compute; oneDNN for fp32."""
    if dtype == torch.float32:
        return PrepackedLinear
    # It compiles loops, which fp32 models need not wait for.
    from txdecode.kernels.linear.paneled import PanelLinear

    return PanelLinear
