"""Every operating error of the project, drawn once.

::

    TxDecodeError
      ├─ InvalidRequest (ValueError)     a request that cannot be taken
      │    ├─ PromptTooLong              prompt and one token exceed the context
      │    └─ RequestTooLarge            it could never fit into the state pools
      ├─ RequestFailed                   a request ended with an error; its cause is chained
      ├─ RuntimeClosed                   the runtime takes no more work
      ├─ TextUnavailable                 text was asked of a runtime without a tokenizer
      ├─ RecoveryRefused                 a log that this model or configuration cannot go on with
      ├─ LedgerExhausted                 a reservation did not fit
      ├─ LedgerCorrupt                   a ledger contradicts itself, an event or a digest
      ├─ IllegalTransition               a signal that a phase does not know
      ├─ ExecutorFault                   a verb of the executor failed
      ├─ CapabilityMissing               the executor lacks what the configuration needs
      ├─ MemoryPlanRefused               the state does not fit into memory; see txdecode.kernels.capability
      ├─ VocabularyMismatch              a draft model of other tokens; see txdecode.kernels.paired
      ├─ EventUndecodable                a record that this version cannot read
      ├─ InvalidDraftLength (ValueError)
      ├─ Divergence                      a log and its ledgers part; see txdecode.runtime.replay
      ├─ NotInLog (LookupError)          a log that does not have what was asked for; see the same
      ├─ InvalidArgument (ValueError)    what no log could have; see the same
      ├─ OutputUnavailable               a file that cannot be written; see txdecode.runtime.export
      ├─ ExecutionDivergence             a log and its execution part; see txdecode.runtime.execution
      ├─ ExecutionRefused                a log that these kernels cannot run again; see the same
      ├─ PromiseBroken (AssertionError)  a check failed; see txdecode.runtime.testing
      ├─ TestExtraMissing (ImportError)  the state machine without hypothesis; see the same
      ├─ NothingMeasured, MachineContended, OutputUnwritable, PeerMissing, PeerFailed: see runtime.bench.errors
      ├─ SweepRefused, SweepUnwritable, PlotExtraMissing: see txdecode.runtime.sweep.errors
      ├─ TextError                       see txdecode.runtime.text_errors
      ├─ JournalError                    see txdecode.runtime.journal.errors
      └─ ModelError                      see txdecode.kernels.models.errors
"""

from __future__ import annotations

from txdecode.kernels.models.errors import ModelError
from txdecode.runtime.journal.errors import JournalError
from txdecode.runtime.policy.bounds import InvalidDraftLength
from txdecode.runtime.text_errors import TextError
from txdecode.state.errors import LedgerCorrupt, LedgerExhausted, TxDecodeError
from txdecode.transactions.codec import EventUndecodable
from txdecode.transactions.executor import CapabilityMissing, ExecutorFault
from txdecode.transactions.phase import IllegalTransition


class InvalidRequest(TxDecodeError, ValueError):
    """A request that cannot be taken; raised at ``submit``, never later."""


class PromptTooLong(InvalidRequest):
    """The prompt and one generated token do not fit into the context."""

    def __init__(self, tokens: int, context: int) -> None:
        super().__init__(
            f"the prompt has {tokens} tokens, the context takes {context} including at least one to generate; "
            f"shorten the prompt"
        )
        self.tokens = tokens
        self.context = context


class RequestTooLarge(InvalidRequest):
    """The request could not fit even alone."""

    def __init__(self, group: str, needed: int, capacity: int) -> None:
        super().__init__(
            f"the request needs {needed} of state group '{group}', the runtime has {capacity}; lower max_tokens, "
            f"shorten the prompt, or open the runtime with a larger pool"
        )
        self.group = group
        self.needed = needed
        self.capacity = capacity


class RequestFailed(TxDecodeError):
    """A request ended with an error. ``request`` is its number; the cause is chained."""

    def __init__(self, request: int, reason: str) -> None:
        super().__init__(f"request {request} failed: {reason}")
        self.request = request


class RuntimeClosed(TxDecodeError):
    """The runtime was closed, or its journal failed."""


class TextUnavailable(TxDecodeError):
    """Text in or out was asked of a runtime without a tokenizer."""


class RecoveryRefused(TxDecodeError):
    """A log that cannot be continued here. ``field`` names what differs."""

    def __init__(self, field: str, recorded: object, found: object) -> None:
        super().__init__(
            f"the log cannot be continued: {field} was {recorded!r} when it was written and is {found!r} now; "
            f"open the same model and configuration"
        )
        self.field = field


__all__ = [
    "CapabilityMissing",
    "EventUndecodable",
    "ExecutorFault",
    "IllegalTransition",
    "InvalidDraftLength",
    "InvalidRequest",
    "JournalError",
    "LedgerCorrupt",
    "LedgerExhausted",
    "ModelError",
    "PromptTooLong",
    "RecoveryRefused",
    "RequestFailed",
    "RequestTooLarge",
    "RuntimeClosed",
    "TextError",
    "TextUnavailable",
    "TxDecodeError",
]
