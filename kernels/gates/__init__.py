"""Gates over executors: what the promises of the runtime rest on, measured on the machine in hand."""

from __future__ import annotations

from txdecode.kernels.gates.rows import RowsReport, rows_gate
from txdecode.kernels.gates.tally import RowsCheck

__all__ = ["RowsCheck", "RowsReport", "rows_gate"]
