"""A log run again by kernels: ``execute`` compares all of it, ``bisect`` finds what went wrong first.

Nothing here loads torch until a model of its own is opened.
"""

from txdecode.runtime.execution.driver import Counts, Reexecutor
from txdecode.runtime.execution.errors import Difference, ExecutionDivergence, ExecutionRefused
from txdecode.runtime.execution.explain import Explanation
from txdecode.runtime.execution.rerun import ExecutionReport, execute
from txdecode.runtime.execution.search import Bisection, Finding, bisect

__all__ = [
    "Bisection",
    "Counts",
    "Difference",
    "ExecutionDivergence",
    "ExecutionRefused",
    "ExecutionReport",
    "Explanation",
    "Finding",
    "Reexecutor",
    "bisect",
    "execute",
]
