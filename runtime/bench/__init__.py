"""Honest speed: plain and speculative decoding side by side, in turns, in one run."""
