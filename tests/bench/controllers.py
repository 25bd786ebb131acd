"""Draft lengths against each other: every fixed K, ``additive`` and ``goodput``, in turns over the same prompts.

Run by hand on a quiet machine: ``python tests/bench/controllers.py --prompts FILE.jsonl``. Prints by category tokens
a second and tokens a round: the second is what is often reported, the first is what pays.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path

from txdecode.runtime import Runtime
from txdecode.runtime.bench.prompts import BUILT_IN
from txdecode.runtime.gates.prompts import read_prompts
from txdecode.runtime.opening import open_model

ARMS = (
    "none 0",
    "lookup 1",
    "lookup 2",
    "lookup 3",
    "lookup 4",
    "lookup 7",
    "lookup 8",
    "lookup additive:7",
    "lookup goodput",
    "suffix goodput",
    "suffix+shared goodput",
)


def main() -> None:
    """Print the tables."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", default="smollm2")
    options.add_argument("--prompts", type=Path)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--max-tokens", type=int, default=160)
    options.add_argument("--every", type=int, default=1, help="take every n-th prompt")
    options.add_argument("--arms", nargs="*", default=ARMS, help="'DRAFT LENGTH' each")
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    prompts = BUILT_IN if chosen.prompts is None else read_prompts(chosen.prompts)
    model = open_model(chosen.model, threads=chosen.threads)
    rows = []
    opened = {}
    for arm in chosen.arms:
        draft, length = arm.split()
        opened[arm] = Runtime.open(
            model.executor, text=model.text, eos_ids=sorted(model.eos_ids), draft=draft, draft_len=length
        )
    for index, prompt in enumerate(prompts[:: chosen.every]):
        order = chosen.arms if index % 2 else chosen.arms[::-1]
        for arm in order:
            handle = opened[arm].submit(
                prompt.content,
                max_tokens=min(prompt.max_tokens, chosen.max_tokens),
                sampling={"temperature": 0},
            )
            stats = handle.result().stats
            rows.append(
                {
                    "arm": arm,
                    "category": prompt.category,
                    "tokens": stats.emitted,
                    "rounds": stats.rounds,
                    "drafted": stats.drafted,
                    "seconds": stats.decode_s,
                }
            )
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(rows))
    for title, figure in (
        ("tokens a second", lambda row: row["tokens"] / row["seconds"]),
        ("tokens a round", lambda row: row["tokens"] / row["rounds"]),
    ):
        table = defaultdict(dict)
        for arm in chosen.arms:
            found = defaultdict(list)
            for row in rows:
                if row["arm"] == arm:
                    found[row["category"]].append(figure(row))
                    found["all"].append(figure(row))
            table[arm] = {name: statistics.median(values) for name, values in found.items()}
        names = list(dict.fromkeys(row["category"] for row in rows)) + ["all"]
        print(f"\n{title}, medians\n{'':<24}" + "".join(f"{name:>14}" for name in names))
        for arm in chosen.arms:
            print(f"{arm:<24}" + "".join(f"{table[arm][name]:>14.2f}" for name in names))


if __name__ == "__main__":
    main()
