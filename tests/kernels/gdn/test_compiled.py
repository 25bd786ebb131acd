"""Compilation where nothing can be written: every process compiles for itself, and nobody is stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from txdecode.kernels.gdn import compiled as module


def test_without_a_place_for_its_cache_it_compiles_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    real = module.njit

    def njit(*, cache: bool = False, **options: Any) -> Callable[..., Any]:
        asked.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        made: Callable[..., Any] = real(**options)
        return made

    monkeypatch.setattr(module, "njit", njit)
    twice = module.compiled(lambda x: 2 * x)
    assert asked == [True, False]
    assert twice(21) == 42
