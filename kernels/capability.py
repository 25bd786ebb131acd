"""What the machine in hand can do: the numerics class of a computation, and the memory that is free."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import attrs
import torch

from txdecode.state.errors import TxDecodeError

PREFILL_ROWS_MAX = 256
"""Most rows of one prefill plan."""

DtypeName = Literal["bf16", "fp32"]
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
DTYPES: dict[DtypeName, torch.dtype] = {"bf16": torch.bfloat16, "fp32": torch.float32}


class MemoryPlanRefused(TxDecodeError):
    """The memory plan of an executor does not fit. Nothing was allocated.

    ``plan`` has bytes by name, ``wanted`` their sum, ``free`` the bytes that are free.
    """

    def __init__(self, plan: dict[str, int], free: int, hint: str = "") -> None:
        wanted = sum(plan.values())
        parts = ", ".join(f"{name} {size / 2**20:.1f}" for name, size in plan.items())
        super().__init__(
            f"memory plan does not fit: {wanted / 2**20:.1f} MiB wanted ({parts}), "
            f"{free / 2**20:.1f} MiB free; ask for fewer pages, a smaller batch or a shorter context{hint}"
        )
        self.plan = plan
        self.wanted = wanted
        self.free = free


@attrs.frozen
class Numerics:
    """The choices that fix the bits of a forward by torch's operators on one machine.

    ``row_tile``: most rows of one call of a linear layer (torch 2.13: oneDNN's fp32 product keeps its order of
    summation up to 1,024 rows; our own panels keep it always). ``key_multiple``: the key extent of attention is
    padded to a multiple of it. With AMX the bf16 kernel packs its keys and sums in one order whatever the extent, so
    whole pages suffice; in fp32 the order changes below 256.
    """

    dtype: torch.dtype
    row_tile: int
    key_multiple: int

    @property
    def name(self) -> str:
        """Name for the fingerprint; equal names on equal machines and libraries mean equal bits."""
        kind = "bf16" if self.dtype == torch.bfloat16 else "fp32"
        return f"dense-2/{kind}/rows{self.row_tile}/keys{self.key_multiple}"


def numerics(dtype: DtypeName) -> Numerics:
    """The numerics class for ``dtype`` on this machine."""
    if dtype == "fp32":
        return Numerics(torch.float32, row_tile=256, key_multiple=512)
    return Numerics(torch.bfloat16, row_tile=256, key_multiple=64 if has_amx() else 512)


def has_amx() -> bool:
    """Whether torch sees AMX tiles, which its attention kernel and oneDNN then use for bf16."""
    probe = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return probe is not None and bool(probe())


def cpu_name() -> str:
    """Instruction set that torch dispatches to, with ``+AMX`` where tiles are used."""
    return torch.backends.cpu.get_cpu_capability() + ("+AMX" if has_amx() else "")


def free_memory() -> int:
    """Bytes that can be allocated without swapping: what the system has free, or the cgroup if less."""
    free = _meminfo_available()
    limit, used = (_number(_CGROUP / name) for name in ("memory.max", "memory.current"))
    if limit is not None and used is not None:
        free = min(free, max(limit - used, 0))
    return free


def _meminfo_available() -> int:
    try:
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
