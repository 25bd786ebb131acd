"""Draft-length controllers."""

from txdecode.runtime.policy.controllers import (
    DRAFT_MAX,
    Additive,
    Controller,
    Fixed,
    InvalidDraftLength,
    parse,
)

__all__ = ["DRAFT_MAX", "Additive", "Controller", "Fixed", "InvalidDraftLength", "parse"]
