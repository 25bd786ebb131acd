"""What can be wrong with the text, the messages or the stop strings of a request."""

from __future__ import annotations

from txdecode.state.errors import TxDecodeError


class TextError(TxDecodeError):
    """Text cannot be turned into tokens. Every error below is one."""


class InvalidText(TextError):
    """A string that has no UTF-8 form."""

    def __init__(self, where: str, position: int) -> None:
        super().__init__(
            f"{where}: expected text, found half of a surrogate pair at character {position}; remove it"
        )
        self.position = position


class InvalidMessages(TextError):
    """Chat messages of the wrong form."""

    def __init__(self, where: str, expected: str, found: str) -> None:
        super().__init__(
            f"chat messages, {where}: expected {expected}, found {found}; "
            f'give [{{"role": "user", "content": "..."}}]'
        )


class ChatTemplateMissing(TextError):
    """The model has no chat template."""

    def __init__(self) -> None:
        super().__init__("expected a model with a chat template, found none; give plain text instead")


class ChatRefused(TextError):
    """The model's chat template does not accept the messages, or cannot be run at all."""

    def __init__(self, why: str) -> None:
        super().__init__(f"expected messages that the chat template accepts, found: {why}; change them")


class InvalidStop(TextError):
    """A stop string that cannot be used."""

    def __init__(self, expected: str, found: object) -> None:
        super().__init__(f"stop strings: expected {expected}, found {found!r:.80}; correct or drop it")
