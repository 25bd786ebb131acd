"""How many drafts a round may have, and the error for what is no draft length."""

from __future__ import annotations

from txdecode.state.errors import TxDecodeError

DRAFT_MAX = 15
"""Most drafts of a round: 15 drafts and the pending token are 16 verified rows."""


class InvalidDraftLength(TxDecodeError, ValueError):
    """``found`` is no draft length."""

    def __init__(self, found: object) -> None:
        super().__init__(
            f"draft length must be 0..{DRAFT_MAX}, 'additive', 'goodput', or one of these with ':CAP' "
            f"(1..{DRAFT_MAX}), found {repr(found)[:24]}; leave it out for 'goodput'"
        )
        self.found = found
