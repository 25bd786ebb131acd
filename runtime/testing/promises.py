"""What the checks of this package raise."""

from __future__ import annotations

from txdecode.state.errors import TxDecodeError


class PromiseBroken(TxDecodeError, AssertionError):
    """The runtime, or the executor under it, did not do what it promises. ``promise`` names the check."""

    def __init__(self, promise: str, detail: str) -> None:
        super().__init__(f"promise broken: {promise}: {detail}")
        self.promise = promise


class TestExtraMissing(TxDecodeError, ImportError):
    """The state machine needs hypothesis, which is an extra of this package."""

    __test__ = False

    def __init__(self) -> None:
        super().__init__("the state machine needs the package hypothesis; install txdecode[test]")


def keep(holds: bool, promise: str, detail: str) -> None:
    """Raise ``PromiseBroken`` unless ``holds``."""
    if not holds:
        raise PromiseBroken(promise, detail)
