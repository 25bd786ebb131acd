"""Counting rows and digests that should be equal."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import torch

from txdecode.transactions.executor import AuditEntry

_WHERE_MAX = 8


@attrs.frozen
class RowsCheck:
    """One comparison. ``rows`` counts rows of logits, or digests of state: ``AuditEntry``s;
    ``mismatches`` of them differ in a bit. ``max_abs_diff`` and ``argmax_agreement`` (share of all rows) are
    over logits. ``where`` names the first places that differ, each with the largest difference there."""

    name: str
    rows: int
    mismatches: int
    max_abs_diff: float
    argmax_agreement: float
    where: tuple[str, ...]


@attrs.define
class Tally:
    """A check that is still counting."""

    name: str
    _rows: int = attrs.field(default=0, init=False)
    _mismatches: int = attrs.field(default=0, init=False)
    _logit_rows: int = attrs.field(default=0, init=False)
    _argmax_equal: int = attrs.field(default=0, init=False)
    _max_abs_diff: float = attrs.field(default=0.0, init=False)
    _where: list[str] = attrs.field(factory=list, init=False)

    def logits(self, expected: torch.Tensor, found: torch.Tensor, place: str) -> None:
        """Compare [rows, vocab] row by row and bit by bit: zeros of either sign differ, NaN equals nothing."""
        assert expected.shape == found.shape, (expected.shape, found.shape)
        rows = expected.shape[0]
        self._rows += rows
        self._logit_rows += rows
        if _same_bits(expected, found):
            self._argmax_equal += rows
            return
        for row in range(rows):
            same_choice = bool(expected[row].argmax() == found[row].argmax())
            self._argmax_equal += same_choice
            if _same_bits(expected[row], found[row]):
                continue
            gap = float((expected[row].double() - found[row].double()).abs().max())
            gap = math.inf if math.isnan(gap) else gap
            self._max_abs_diff = max(self._max_abs_diff, gap)
            choice = "same" if same_choice else "other"
            self._miss(f"{place}, row {row}: largest difference {gap:.3g}, {choice} argmax")

    def digests(self, expected: Sequence[AuditEntry], found: Sequence[AuditEntry], place: str) -> None:
        """Compare two audits entry by entry."""
        assert len(expected) == len(found), (len(expected), len(found))
        self._rows += len(expected)
        for want, have in zip(expected, found, strict=True):
            if want != have:
                self._miss(f"{place}: {want.group} layer {want.layer} page {want.index}")

    def _miss(self, place: str) -> None:
        self._mismatches += 1
        if len(self._where) < _WHERE_MAX:
            self._where.append(place)

    def check(self) -> RowsCheck:
        """The finished check."""
        agreement = self._argmax_equal / self._logit_rows if self._logit_rows else 1.0
        return RowsCheck(
            self.name, self._rows, self._mismatches, self._max_abs_diff, agreement, tuple(self._where)
        )


def _same_bits(expected: torch.Tensor, found: torch.Tensor) -> bool:
    return torch.equal(expected, found) and torch.equal(torch.signbit(expected), torch.signbit(found))
