"""Drafters that run on the host: they copy, and need no weights."""

from txdecode.runtime.drafters.prompt_lookup import PromptLookup

__all__ = ["PromptLookup"]
