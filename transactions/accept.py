"""Acceptance laws, pure."""

from __future__ import annotations

from collections.abc import Sequence


def greedy(drafts: Sequence[int], targets: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Accept drafts while each equals the argmax of the row before it.

    ``targets[i]`` is the argmax (lowest id on ties) of verified row i: one more than there are drafts.
    Returns the accepted path of rows, beginning with row 0, and the correction or bonus token after it.
    """
    assert len(targets) == len(drafts) + 1, f"{len(targets)} target rows for {len(drafts)} drafts"
    accepted = 0
    for draft, target in zip(drafts, targets, strict=False):
        if draft != target:
            break
        accepted += 1
    return tuple(range(accepted + 1)), targets[accepted]
