"""The gate ``rows`` on a model by name. The gate itself lives beside the kernels that it judges."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from txdecode.kernels.gates import RowsReport, rows_gate
from txdecode.kernels.gates.driver import GatedExecutor
from txdecode.runtime.errors import CapabilityMissing
from txdecode.runtime.opening import Opened, open_model


def rows_report(
    model: str,
    dtype: str,
    *,
    full: bool,
    threads: int | None,
    progress: Callable[[int, int, str], None],
) -> RowsReport:
    """Open ``model`` and run the gate; one that fails is run once more before it is reported, since a contended
    run can look like a wrong one."""
    opened = open_model(model, dtype, draft="none", threads=threads)
    executor = with_logits(opened)
    report = rows_gate(executor, full=full, progress=progress)
    return report if report.passed else rows_gate(executor, full=full, progress=progress)


def with_logits(opened: Opened) -> GatedExecutor:
    """The executor, for gates that look at its logits. Raises ``CapabilityMissing`` where it keeps none."""
    if not hasattr(opened.executor, "logits_of_last_launch"):
        raise CapabilityMissing(
            f"executor '{opened.name}' has no logits_of_last_launch(): the gate compares logits and needs it"
        )
    return cast(GatedExecutor, opened.executor)
