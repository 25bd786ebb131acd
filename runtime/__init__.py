"""The runtime: requests, scheduling, the log on disk, replay, the command line.

Importing this package loads no kernels: torch comes in when a model is opened.
"""

from txdecode.runtime.diff import DiffReport, diff
from txdecode.runtime.errors import (
    InvalidRequest,
    PromptTooLong,
    RecoveryRefused,
    RequestFailed,
    RequestTooLarge,
    RuntimeClosed,
    TextUnavailable,
    TxDecodeError,
)
from txdecode.runtime.execution import (
    Bisection,
    ExecutionDivergence,
    ExecutionRefused,
    ExecutionReport,
    bisect,
    execute,
)
from txdecode.runtime.export import export
from txdecode.runtime.handle import Handle, Result, Stats
from txdecode.runtime.history import Replay
from txdecode.runtime.replay import Divergence, InvalidArgument, NotInLog, ReplayReport, replay
from txdecode.runtime.runtime import Runtime
from txdecode.runtime.sampling import Sampling
from txdecode.transactions.target import TokenLogprobs

__all__ = [
    "Bisection",
    "DiffReport",
    "Divergence",
    "ExecutionDivergence",
    "ExecutionRefused",
    "ExecutionReport",
    "Handle",
    "InvalidArgument",
    "InvalidRequest",
    "NotInLog",
    "PromptTooLong",
    "RecoveryRefused",
    "Replay",
    "ReplayReport",
    "RequestFailed",
    "RequestTooLarge",
    "Result",
    "Runtime",
    "RuntimeClosed",
    "Sampling",
    "Stats",
    "TextUnavailable",
    "TokenLogprobs",
    "TxDecodeError",
    "bisect",
    "diff",
    "execute",
    "export",
    "replay",
]
