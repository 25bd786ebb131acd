"""Writes a golden log of the schemas of today, and beside it what a replay must find in it.

By hand, when a schema is released: ``python tests/golden/write.py schema-4``. A golden log is never written again; if
one can not be read any more, the reader is at fault.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from txdecode.runtime import Runtime, replay
from txdecode.runtime.testing.faults import Breaker
from txdecode.transactions.toy import ToyExecutor

FOLDER = Path(__file__).parent
SAMPLING: tuple[dict[str, Any], ...] = (
    {"temperature": 1.0, "seed": 7, "logprobs": 2},
    {"temperature": 1.0, "seed": 2**64 - 1, "law": "chain"},
    {"temperature": 0.0, "repetition_penalty": 1.5, "logit_bias": {3: float("-inf"), 4: 0.5}},
    {},
)
REPEATS = [6, 33, 24, 27, 42, 21, 12, 15, 30, 9, 0, 3, 18, 45, 36, 39] * 2
"""A text that the toy likes to go on with, so that copies replace what it drafts."""


def expected(log: Path) -> dict[str, Any]:
    """What a replay finds, as plain data."""
    report = replay(log)
    return {
        "records": report.records,
        "checked": report.checked,
        "chain": report.chain,
        "digests": report.digests,
        "events": report.events,
        "requests": {
            str(number): {
                "ids": list(said.ids),
                "finish": said.finish,
                "rounds": said.rounds,
                "drafted": said.drafted,
                "accepted": said.accepted,
            }
            for number, said in report.requests.items()
        },
    }


def write(log: Path) -> None:
    """A run with one of everything."""
    breaker = Breaker(ToyExecutor(accuracy=6), lambda what: None)
    options: dict[str, Any] = {"draft": "mtp+lookup", "draft_depth": 2, "draft_len": 4}
    options |= {"segment_bytes": 4096, "audit_every": 7}
    with Runtime.open(breaker, log=log, **options) as runtime:
        handles = [
            runtime.submit([3, 1, 4, 1, 5, number], max_tokens=24, sampling=sampling)
            for number, sampling in enumerate(SAMPLING)
        ]
        gone = runtime.submit([9] * 20, max_tokens=30, stop_ids=[40])
        for turn in range(6):
            if turn == 2:
                breaker.arm("verify", "late", 1)
            if turn == 3:
                runtime.preempt(handles[1])
            if turn == 4:
                gone.cancel()
            runtime.step()
        runtime.run()
        runtime.submit([5, 5, 5], max_tokens=40, sampling=SAMPLING[0])
        runtime.submit(REPEATS, max_tokens=40)
        runtime.submit([3, 1, 4, 1, 5, 9], max_tokens=40, draft_len="goodput")
        for _ in range(4):
            runtime.step()


if __name__ == "__main__":
    name = sys.argv[1]
    with tempfile.TemporaryDirectory() as made:
        write(Path(made) / f"{name}.txlog")
        for path in sorted(Path(made).iterdir()):
            target = FOLDER / path.name
            if target.exists():
                sys.exit(f"{target} is there already; golden logs are not written again")
            target.write_bytes(path.read_bytes())
    log = FOLDER / f"{name}.txlog"
    (FOLDER / f"{name}.json").write_text(json.dumps(expected(log), indent=1) + "\n")
