"""Drafters that run on the host: they copy, and need no weights."""

from txdecode.runtime.drafters.prompt_lookup import PromptLookup
from txdecode.runtime.drafters.shared_history import SharedHistory
from txdecode.runtime.drafters.suffix_automaton import SuffixAutomaton

__all__ = ["PromptLookup", "SharedHistory", "SuffixAutomaton"]
