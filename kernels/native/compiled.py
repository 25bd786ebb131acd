"""Compilation of loops, kept on disk where there is a place for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile ``function`` on its first call, without relaxed floating point; it runs without Python's lock.

    The result is kept beside the module or in the user's cache folder; where neither can be written to, every
    process compiles for itself.
    """
    try:
        made = njit(cache=True, error_model="numpy", nogil=True)(function)
    except RuntimeError:
        made = njit(error_model="numpy", nogil=True)(function)
    return cast(F, made)
