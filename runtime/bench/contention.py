"""Is the machine quiet: its load at the start, and a fixed piece of work timed before every prompt."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

from txdecode.runtime.bench.statistics import outside

BAND = 0.15
"""Share of its median by which a plain run of a prompt may differ before it counts as disturbed."""

DRIFT = 0.10
"""Share of the session's median by which the fixed piece of work may differ: more says that the clock moved, or that
another program ran."""

LOAD = 0.5
"""Most load a core at the start."""

_LOOPS = 50_000
_READ_BYTES = 1 << 25
_TRIES = 3


class Calibration:
    """A fixed piece of work: integer arithmetic in Python and one read of 32 MiB. Calling it gives the least time of
    three, in seconds of ``clock``."""

    def __init__(self, clock: Callable[[], float]) -> None:
        import numpy as np

        self._clock = clock
        self._memory = np.ones(_READ_BYTES // 8, dtype=np.int64)

    def __call__(self) -> float:
        """Do it and time it."""
        return min(self._once() for _ in range(_TRIES))

    def _once(self) -> float:
        start = self._clock()
        value = 1
        for _ in range(_LOOPS):
            value = value * 1_103_515_245 + 12_345 & 0x7FFF_FFFF
        read = int(self._memory.sum())
        spent = self._clock() - start
        assert read == self._memory.size
        assert value >= 0
        return spent


@attrs.frozen
class Load:
    """Load average of the last minute over ``cores``."""

    average: float
    cores: int

    @property
    def high(self) -> bool:
        """Whether others keep half of the cores busy."""
        return self.average > self.cores * LOAD

    def __str__(self) -> str:
        return f"load average {self.average:.2f} on {self.cores} cores"


def load_now() -> Load:
    """The load before anything of ours ran."""
    return Load(os.getloadavg()[0], len(os.sched_getaffinity(0)))


def flags_of(plain_tok_s: Sequence[float], drifted: Sequence[bool]) -> list[tuple[str, ...]]:
    """What is wrong with each repeat of a prompt: ``band`` where plain decoding lies outside its own band, ``drift``
    where the fixed piece of work before it took unusually long or short."""
    banded = outside(plain_tok_s, BAND)
    return [
        (("band",) if band else ()) + (("drift",) if drift else ())
        for band, drift in zip(banded, drifted, strict=True)
    ]


def machine_facts(load: Load) -> dict[str, Any]:
    """What the figures were measured on: plain data."""
    return {
        "cpu": _cpu_name(),
        "cores": load.cores,
        "load_at_start": round(load.average, 2),
        "machine": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": _torch_version(),
        "threads": _torch_threads(),
    }


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except (OSError, UnicodeDecodeError):
        pass
    return platform.processor() or "unknown"


def _torch_version() -> str | None:
    torch = sys.modules.get("torch")
    return None if torch is None else str(torch.__version__)


def _torch_threads() -> int | None:
    torch = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())
