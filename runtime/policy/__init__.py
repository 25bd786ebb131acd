"""Draft-length controllers, and what a launch costs."""

from txdecode.runtime.policy.bounds import DRAFT_MAX, InvalidDraftLength
from txdecode.runtime.policy.controllers import Additive, Controller, Fixed, parse
from txdecode.runtime.policy.goodput import Goodput

__all__ = ["DRAFT_MAX", "Additive", "Controller", "Fixed", "Goodput", "InvalidDraftLength", "parse"]
