"""Compilation of loops, kept on disk where there is a place for it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit
from numba.core.caching import FunctionCache

F = TypeVar("F", bound=Callable[..., Any])

_KERNELS = Path(__file__).resolve().parent.parent


@functools.cache
def sources() -> str:
    """Digest of all source that compiled code is made of.

    Numba asks whether the file of a function has changed; what it calls from other files is in its code as well.
    """
    digest = hashlib.sha256()
    for folder in ("native", "gdn", "linear"):
        for path in sorted((_KERNELS / folder).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


class _Cache(FunctionCache):
    """Code that is used again only where every source is the same, and whose loss costs time alone."""

    def _index_key(self, *args: Any) -> Any:
        return (super()._index_key(*args), sources())  # type: ignore[no-untyped-call]

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]
        except OSError:
            # No room, or no right to write: every process compiles for itself.
            return


def compiled(function: F) -> F:
    """Compile ``function`` on its first call, without relaxed floating point; it runs without Python's lock.

    The result is kept beside the module or in the user's cache folder; where neither can be written to, every
    process compiles for itself.
    """
    made = njit(error_model="numpy", nogil=True)(function)
    with contextlib.suppress(RuntimeError):
        cast(Any, made)._cache = _Cache(function)  # type: ignore[no-untyped-call]
    return cast(F, made)
