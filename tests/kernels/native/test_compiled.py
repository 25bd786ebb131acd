"""Compiled code on disk: used again only where all sources are the same, and not needed."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from txdecode.kernels.native import compiled as module

_SCRIPT = """
import txdecode.kernels.native.compiled as module
if {digest!r}:
    module.sources = lambda: {digest!r}
from txdecode.kernels.native.attention import rounded
import numpy as np
rounded(np.uint32(5))
print(sum(rounded._cache_hits.values()), sum(rounded._cache_misses.values()))
"""


def hits_and_misses(folder: Path, digest: str = "") -> list[int]:
    run = subprocess.run(
        [sys.executable, "-c", _SCRIPT.format(digest=digest)],
        env={**os.environ, "NUMBA_CACHE_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(count) for count in run.stdout.split()]


def test_code_is_kept_until_any_source_changes(tmp_path: Path) -> None:
    assert hits_and_misses(tmp_path) == [0, 1]
    assert hits_and_misses(tmp_path) == [1, 0]
    assert hits_and_misses(tmp_path, "another digest") == [0, 1]


def test_the_digest_covers_every_module_with_compiled_code() -> None:
    users = [
        path
        for path in (Path(inspect.getfile(module)).parents[1]).rglob("*.py")
        if "native.compiled import compiled" in path.read_text()
    ]
    assert len(users) >= 6
    assert {path.parent.name for path in users} <= {"native", "gdn", "linear"}


def test_a_full_disk_costs_time_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile.save", full)
    double: Any = module.compiled(lambda x: 2 * x)
    assert double(4) == 8


def test_a_function_without_a_place_on_disk_is_compiled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(_: Any) -> None:
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr(module, "_Cache", nowhere)
    double: Any = module.compiled(lambda x: 2 * x)
    assert double(4) == 8
