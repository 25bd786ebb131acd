"""What the machine is said to have."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from txdecode.kernels import capability
from txdecode.kernels.capability import cpu_name, free_memory, numerics


def test_classes_of_numerics_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for amx in (True, False):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda amx=amx: amx)
        names += [numerics("bf16").name, numerics("fp32").name]
        assert ("AMX" in cpu_name()) == amx
    assert names[0] != names[2]
    assert names[1] == names[3]
    assert len(set(names)) == 3


def test_without_tiles_keys_are_padded_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert numerics("bf16").key_multiple == 512
    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported")
    assert numerics("bf16").key_multiple == 512


def test_free_memory_is_that_of_the_machine_or_of_the_cgroup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 99 kB\nMemAvailable:  40 kB\n")
    monkeypatch.setattr(capability, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(capability, "_CGROUP", tmp_path)
    assert free_memory() == 40 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert free_memory() == 40 * 1024
    (tmp_path / "memory.max").write_text("5000\n")
    assert free_memory() == 4000
    (tmp_path / "memory.max").write_text("500\n")
    assert free_memory() == 0
    monkeypatch.setattr(capability, "_MEMINFO", tmp_path / "absent")
    monkeypatch.setattr(capability, "_CGROUP", tmp_path / "absent")
    assert free_memory() > 2**20
