"""Running a program over a world of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from txdecode.runtime.testing import Setting, World, programs, toy_harness
from txdecode.transactions.toy import ToyExecutor


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., None]:
    """``play(program, options of the toy, setting, toy)`` runs a program and lets go of its log."""

    def run(
        program: programs.Program,
        options: Mapping[str, Any],
        setting: Setting,
        toy: type[ToyExecutor] = ToyExecutor,
    ) -> None:
        world = World(toy_harness(toy=toy, **options), setting, tmp_path, lambda what: None)
        world.script(("part", "right", "wrong"))
        try:
            program(world)
        finally:
            world.drop()

    return run
