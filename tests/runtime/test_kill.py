"""The process is killed with SIGKILL at a random moment, and the log is gone on with.

A child decodes and says what it has published; it is killed in the midst of it. Then: what durability promised is in
the log, and the finished texts are those of an uninterrupted run. ``TXDECODE_FULL`` kills 100 times on the toy for
each durability, and 10 times on SmolLM2.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from txdecode.kernels.models.errors import ModelError
from txdecode.kernels.models.source import resolve
from txdecode.runtime import Runtime, replay
from txdecode.transactions.toy import ToyExecutor

FULL = bool(os.environ.get("TXDECODE_FULL"))
KILLS = 100 if FULL else 6
MODEL_KILLS = 10 if FULL else 1

CHILD = """
import json, sys
from txdecode.runtime import Runtime
from txdecode.transactions.toy import ToyExecutor

log, options, requests = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
model = ToyExecutor(accuracy=6, page_count=400, context=1024) if options.pop("toy") else "smollm2"
with Runtime.open(model, log=log, **options) as runtime:
    handles = [runtime.submit(r.pop("prompt"), **r) for r in requests]
    print("ready", flush=True)
    seen = [0] * len(handles)
    more = True
    while more:
        more = runtime.step()
        for number, handle in enumerate(handles):
            ids = handle.published
            if len(ids) > seen[number]:
                print(json.dumps([number, ids[seen[number] :]]), flush=True)
                seen[number] = len(ids)
print("done", flush=True)
"""

TOY_REQUESTS: list[dict[str, Any]] = [
    {"prompt": [3, 1, 4], "max_tokens": 400, "sampling": {"temperature": 1.0, "seed": 5, "logprobs": 1}},
    {"prompt": [1, 5, 9, 2], "max_tokens": 400},
    {"prompt": [6, 5], "max_tokens": 300, "sampling": {"temperature": 1.4, "seed": 8, "top_k": 9}},
    {"prompt": [8] * 20, "max_tokens": 300, "sampling": {"temperature": 0.0, "frequency_penalty": 0.5}},
]
TOY: dict[str, Any] = {"toy": True, "draft": "executor", "draft_len": 4, "segment_bytes": 16384}

MODEL_REQUESTS: list[dict[str, Any]] = [
    {"prompt": "one two three four. one two three four. one two", "max_tokens": 24},
    {
        "prompt": "The river runs to the sea, and the sea",
        "max_tokens": 24,
        "sampling": {"temperature": 0.8, "seed": 3, "top_p": 0.95},
    },
]
MODEL: dict[str, Any] = {"toy": False, "draft_len": 3, "pages": 16, "threads": 2}


def toy() -> ToyExecutor:
    return ToyExecutor(accuracy=6, page_count=400, context=1024)


def uninterrupted(model: Any, requests: list[dict[str, Any]], **options: Any) -> list[tuple[int, ...]]:
    with Runtime.open(model, **options) as runtime:
        handles = [
            runtime.submit(request["prompt"], **{k: v for k, v in request.items() if k != "prompt"})
            for request in requests
        ]
        runtime.run()
    return [handle.result().ids for handle in handles]


def kill(
    log: Path, options: dict[str, Any], requests: list[dict[str, Any]], after: float
) -> tuple[list[list[int]], bool]:
    """Run a child, kill it ``after`` seconds of work; what it had published by then, and whether it was done."""
    command = [sys.executable, "-c", CHILD, str(log), json.dumps(options), json.dumps(requests)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(after)
        child.kill()
        lines = child.stdout.read().split("\n")
    published: list[list[int]] = [[] for _ in requests]
    # Without its end a line is not whole.
    for line in lines[:-1]:
        if line != "done":
            number, ids = json.loads(line)
            published[number] += ids
    return published, "done" in lines


def check(
    log: Path, durability: str, published: list[list[int]], texts: list[tuple[int, ...]], model: Any
) -> None:
    """Recover, finish, compare."""
    recorded = {number: history.ids for number, history in replay(log).requests.items()}
    for number, ids in enumerate(published):
        assert tuple(ids) == texts[number][: len(ids)]
        if durability != "none":
            assert recorded.get(number, [])[: len(ids)] == ids, "what was published is in the log"
    with Runtime.recover(log, model) as runtime:
        handles = runtime.handles
        runtime.run()
        results = {number: handle.result().ids for number, handle in handles.items()}
    after = replay(log)
    for number, text in enumerate(texts):
        if number in results:
            assert results[number] == text
        if number in after.requests:
            assert tuple(after.requests[number].ids) == text


@pytest.mark.parametrize("durability", ["none", "write", "fsync"])
def test_the_toy_is_killed(tmp_path: Path, durability: str) -> None:
    texts = uninterrupted(toy(), TOY_REQUESTS, draft="none")
    chance = random.Random(durability)
    interrupted = 0
    for index in range(KILLS):
        log = tmp_path / str(index) / "run.txlog"
        log.parent.mkdir()
        options = {**TOY, "durability": durability}
        published, done = kill(log, options, TOY_REQUESTS, chance.uniform(0, 0.3))
        check(log, durability, published, texts, toy())
        interrupted += not done
    assert interrupted > KILLS // 2


@pytest.mark.model
@pytest.mark.parametrize("durability", ["none", "write", "fsync"])
def test_smollm2_is_killed(tmp_path: Path, durability: str) -> None:
    try:
        resolve("smollm2")
    except ModelError as error:
        pytest.skip(str(error))
    if durability != "write" and not FULL:
        pytest.skip("one durability is enough here; TXDECODE_FULL runs all")
    texts = uninterrupted("smollm2", MODEL_REQUESTS, draft="none", pages=16, threads=2)
    chance = random.Random(durability)
    for index in range(MODEL_KILLS):
        log = tmp_path / f"{index}.txlog"
        options = {**MODEL, "durability": durability}
        published, _ = kill(log, options, MODEL_REQUESTS, chance.uniform(0.1, 1.0))
        check(log, durability, published, texts, None)
