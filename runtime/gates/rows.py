"""The gate ``rows`` on a model by name. The gate itself lives beside the kernels that it judges."""

from __future__ import annotations

from collections.abc import Callable

from txdecode.kernels.gates import RowsReport, rows_gate
from txdecode.runtime.opening import open_model


def rows_report(
    model: str,
    dtype: str,
    *,
    full: bool,
    threads: int | None,
    rollback: str | None = None,
    progress: Callable[[int, int, str], None],
) -> RowsReport:
    """Open ``model`` and run the gate; one that fails is run once more before it is reported, since a contended
    run can look like a wrong one."""
    opened = open_model(model, dtype, draft="none", threads=threads, rollback=rollback, learned=True)
    report = rows_gate(opened.executor, full=full, progress=progress)
    return report if report.passed else rows_gate(opened.executor, full=full, progress=progress)
