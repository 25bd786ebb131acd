"""Causal attention over a paged cache, with bits that do not depend on what is computed together.

``cache`` holds keys and values, ``folded`` computes on it, ``reference`` says what is computed.
"""
