"""The gate ``baseline`` with real engines: which of them are here, over which files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from txdecode.kernels.models.source import resolve
from txdecode.runtime.bench.errors import PeerMissing
from txdecode.runtime.bench.peers import PeerName, PeerProcess
from txdecode.runtime.errors import InvalidRequest
from txdecode.runtime.gates.baseline import BaselineReport, Engine, HuggingFace, baseline_gate
from txdecode.runtime.gates.prompts import GatePrompt
from txdecode.runtime.opening import Opened

FOLDER = Path("build/peers")
"""Where weights that llama.cpp converted are kept, below the working folder."""


class Llama:
    """llama.cpp on the weights in bf16."""

    name = "llama.cpp"

    def __init__(self, process: PeerProcess) -> None:
        self._process = process

    def decode(self, name: str, ids: Sequence[int], count: int) -> tuple[Sequence[int], float]:
        """Ids and tokens a second. Raises ``PeerFailed``."""
        return self._process.decode(name, ids, count)


def run_baseline(
    opened: Opened,
    prompts: Sequence[GatePrompt],
    *,
    dtype: str,
    threads: int | None,
    python_llama: str | None,
    **options: Any,
) -> BaselineReport:
    """``baseline_gate`` against transformers and, with ``python_llama``, llama.cpp; an interpreter that lacks it is
    reported and left out. Raises ``PeerMissing`` without transformers, ``InvalidRequest`` where llama.cpp is asked
    for and the model is no GGUF file."""
    source = resolve(opened.name)
    if python_llama is not None and source.kind != "gguf":
        raise InvalidRequest(
            f"llama.cpp reads GGUF files, and '{opened.name}' is a folder; leave --python-llama out"
        )
    hugging_face = HuggingFace(source.path, dtype, threads)
    engines: list[Engine] = [hugging_face]
    absent: list[str] = []
    with contextlib.ExitStack() as stack:
        if python_llama is not None:
            count = threads or len(os.sched_getaffinity(0))
            try:
                process = PeerProcess(
                    PeerName("llama-bf16"), source.path, python=python_llama, threads=count, folder=FOLDER
                )
            except PeerMissing as error:
                absent.append(str(error))
            else:
                engines.append(Llama(stack.enter_context(process)))
        return baseline_gate(opened, prompts, hugging_face, engines, dtype=dtype, absent=absent, **options)
