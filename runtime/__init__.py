"""The runtime: requests, scheduling, the log on disk, replay, the command line.

Importing this package loads no kernels: torch comes in when a model is opened.
"""

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
from txdecode.runtime.handle import Handle, Result, Stats
from txdecode.runtime.replay import Divergence, ReplayReport, replay
from txdecode.runtime.runtime import Runtime
from txdecode.runtime.sampling import Sampling

__all__ = [
    "Divergence",
    "Handle",
    "InvalidRequest",
    "PromptTooLong",
    "RecoveryRefused",
    "ReplayReport",
    "RequestFailed",
    "RequestTooLarge",
    "Result",
    "Runtime",
    "RuntimeClosed",
    "Sampling",
    "Stats",
    "TextUnavailable",
    "TxDecodeError",
    "replay",
]
