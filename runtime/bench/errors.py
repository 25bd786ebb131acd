"""What a measurement can end with instead of a result."""

from __future__ import annotations

from collections.abc import Sequence

from txdecode.state.errors import TxDecodeError


class NothingMeasured(TxDecodeError):
    """Every prompt was left out. ``reasons`` by prompt, in order."""

    def __init__(self, reasons: Sequence[tuple[str, str]]) -> None:
        first = f"'{reasons[0][0]}' {reasons[0][1]}" if reasons else "there were none"
        super().__init__(
            f"none of {len(reasons)} prompts could be measured (the first: {first}); use prompts that both arms "
            f"decode to their end"
        )
        self.reasons = tuple(reasons)


class MachineContended(TxDecodeError):
    """The machine does other work, and ``--strict`` refuses to measure on it. ``found`` says what was seen."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"the machine is not quiet: {found}; end the other work and measure again, or leave --strict out to have "
            f"such rows flagged"
        )
        self.found = found


class OutputUnwritable(TxDecodeError):
    """A file for results cannot be written."""

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(f"'{path}' cannot be written: {reason}; choose another file")


class PeerMissing(TxDecodeError):
    """A peer's package is not installed where it was looked for."""

    def __init__(self, peer: str, package: str, where: str) -> None:
        super().__init__(f"'{peer}' needs {package}, which {where} does not have; install it there")
        self.peer = peer
        self.package = package


class PeerFailed(TxDecodeError):
    """A peer ended or answered with an error."""

    def __init__(self, peer: str, reason: str) -> None:
        super().__init__(f"'{peer}' failed: {reason}")
        self.peer = peer
