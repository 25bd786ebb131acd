"""The greedy choice as a sentence."""

from __future__ import annotations

import torch


def lowest_argmax(logits: torch.Tensor) -> list[int]:
    """For each row of ``logits`` [rows, vocab] the lowest id among those with the largest value."""
    return [int((row == row.max()).nonzero()[0]) for row in logits]
