"""What may go wrong with a sweep."""

from __future__ import annotations

from txdecode.state.errors import TxDecodeError


class SweepRefused(TxDecodeError, ValueError):
    """A sweep that cannot be made: nothing of what was asked fits the executor."""


class SweepUnwritable(TxDecodeError, OSError):
    """A file of a sweep cannot be written."""

    def __init__(self, path: object, error: OSError) -> None:
        super().__init__(
            f"'{path}' cannot be written: {error.strerror or error}; free the place, or name another one"
        )


class PlotExtraMissing(TxDecodeError, ImportError):
    """A plot was asked for without matplotlib."""

    def __init__(self) -> None:
        super().__init__("a plot needs matplotlib, which is not installed; pip install 'txdecode[plot]'")
