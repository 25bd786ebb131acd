"""What a user would pick instead, on the same weights and prompts: transformers and llama.cpp, plain and with lookup.

One peer, one JSON object a prompt:

    python tests/bench/peers.py --peer llama:7 --python-llama PATH

All of them beside ours in one session, in passes that alternate the order, with a table by category:

    python tests/bench/peers.py --side-by-side --python-llama PATH

Every engine gets the token ids that our tokenizer makes of the prompt, decodes greedily at batch 1, and lives in a
process of its own (ours in this one). A peer's decode time is that of a full run less that of a one-token run. On
the first pass a peer also reads the messages by its own chat template, and a prompt of another length is reported.
Peers: hf-bf16, hf-fp32, llama (Q4_1, as shipped), llama-bf16 (converted by llama.cpp, kept in build/peers); ``:N``
after a name turns its own prompt lookup on. A peer whose package is missing is named and left out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO

import attrs

from txdecode.kernels.models.loading import load_text
from txdecode.kernels.models.source import resolve
from txdecode.runtime.bench.arms import ArmOpener, Settings, open_models
from txdecode.runtime.bench.contention import load_now, machine_facts
from txdecode.runtime.bench.errors import PeerFailed, PeerMissing
from txdecode.runtime.bench.measure import PLAIN, SPECULATIVE, WARM_TOKENS, order_of
from txdecode.runtime.bench.peer_process import digest
from txdecode.runtime.bench.peers import PeerName, PeerProcess
from txdecode.runtime.bench.prompts import BUILT_IN, chosen, units_of
from txdecode.runtime.bench.statistics import median
from txdecode.runtime.cli.bench import settings_of
from txdecode.runtime.cli.render import print_table
from txdecode.runtime.gates.prompts import GatePrompt, read_prompts
from txdecode.runtime.sampling import Sampling
from txdecode.runtime.text import Text
from txdecode.state.errors import TxDecodeError

DEFAULT = ("llama", "llama:7", "llama-bf16", "llama-bf16:7", "hf-bf16", "hf-bf16:7")
FOLDER = Path("build/peers")


@attrs.frozen
class Answer:
    """One run of one engine on one prompt. ``tok_s`` is ``None`` where there was too little to time."""

    engine: str
    prompt: str
    category: str
    repeat: int
    tokens: int
    tok_s: float | None
    output: str
    own_prompt_tokens: int | None = None
    prompt_tokens: int = 0
    decode_s: float = 0.0


class Engine(Protocol):
    """Ours or a peer."""

    name: str

    def decode(self, prompt: GatePrompt, ids: Sequence[int], repeat: int) -> Answer:
        """Decode one prompt. Raises ``TxDecodeError``."""


class Peer:
    """A peer's process."""

    def __init__(self, process: PeerProcess) -> None:
        self.name = str(process.name)
        self._process = process

    def decode(self, prompt: GatePrompt, ids: Sequence[int], repeat: int) -> Answer:
        """Ask it; on the first pass for its own reading of the messages too."""
        said = self._process.ask(prompt.name, ids, prompt.max_tokens, () if repeat else prompt.messages)
        return Answer(
            self.name,
            prompt.name,
            prompt.category,
            repeat,
            int(said["new_tokens"]),
            said["tok_s"],
            str(said["output"]),
            said["own_prompt_tokens"],
            int(said["prompt_tokens"]),
            float(said["decode_s"]),
        )


class Ours:
    """One arm of ``txdecode bench``, opened afresh for every pass."""

    def __init__(self, name: str, arm: str, opener: ArmOpener, eos_ids: frozenset[int]) -> None:
        self.name = name
        self._arm_name = arm
        self._opener = opener
        self._eos_ids = eos_ids
        self._repeat = -1
        self._arm: Any = None

    def decode(self, prompt: GatePrompt, ids: Sequence[int], repeat: int) -> Answer:
        """Decode with the state that this pass has so far."""
        if repeat != self._repeat or self._arm is None:
            if self._arm is None:
                self._warm_up(prompt)
            self.close()
            self._repeat, self._arm = repeat, self._opener(self._arm_name, repeat)
        sample = self._arm.decode(units_of((prompt,), 1)[0])
        if sample.prompt_tokens != len(ids):
            raise PeerFailed(self.name, f"it read {sample.prompt_tokens} prompt tokens of {len(ids)}")
        text = [token for token in sample.ids[0] if token not in self._eos_ids]
        return Answer(
            self.name,
            prompt.name,
            prompt.category,
            repeat,
            sample.tokens,
            sample.tok_s,
            digest(text),
            None,
            len(ids),
            sample.decode_s,
        )

    def _warm_up(self, prompt: GatePrompt) -> None:
        """Compile and touch what the first run would pay for; peers warm up before every answer."""
        arm = self._opener(self._arm_name, -1)
        try:
            short = attrs.evolve(prompt, max_tokens=min(prompt.max_tokens, WARM_TOKENS))
            arm.decode(units_of((short,), 1)[0])
        finally:
            arm.close()

    def close(self) -> None:
        """End the pass."""
        if self._arm is not None:
            self._arm.close()
            self._arm = None


@attrs.frozen
class Found:
    """All answers, which engines failed on which prompts, and where a peer reads a prompt in its own way."""

    answers: tuple[Answer, ...]
    failures: tuple[tuple[str, str, str], ...]
    lengths: tuple[tuple[str, str, int, int], ...]


def side_by_side(
    engines: Sequence[Engine],
    prompts: Sequence[tuple[GatePrompt, Sequence[int]]],
    repeats: int,
    out: TextIO | None = None,
) -> Found:
    """Every prompt by every engine in turn, ``repeats`` times, the order reversed in every other pass. An engine that
    fails on a prompt is not asked for it again, and its answers to it do not count. ``out`` gets a line an answer."""
    answers: list[Answer] = []
    failures: dict[tuple[str, str], str] = {}
    lengths = []
    by_name = {engine.name: engine for engine in engines}
    for repeat in range(repeats):
        for prompt, ids in prompts:
            for name in order_of(tuple(by_name), repeat):
                if (name, prompt.name) in failures:
                    continue
                try:
                    answer = by_name[name].decode(prompt, ids, repeat)
                except TxDecodeError as error:
                    failures[name, prompt.name] = str(error)
                    continue
                answers.append(answer)
                if out is not None:
                    out.write(json.dumps(attrs.asdict(answer)) + "\n")
                    out.flush()
                own = answer.own_prompt_tokens
                if own is not None and own != len(ids):
                    lengths.append((name, prompt.name, own, len(ids)))
    kept = tuple(item for item in answers if (item.engine, item.prompt) not in failures)
    return Found(kept, tuple((*key, reason) for key, reason in failures.items()), tuple(lengths))


def speeds(found: Found) -> dict[str, dict[str, float]]:
    """By category and engine: the median over prompts of the prompts' median tokens a second."""
    made: dict[str, dict[str, float]] = {}
    for category in dict.fromkeys(item.category for item in found.answers):
        for engine in dict.fromkeys(item.engine for item in found.answers):
            mine = [item for item in found.answers if (item.category, item.engine) == (category, engine)]
            timed = {
                prompt: [item.tok_s for item in mine if item.prompt == prompt and item.tok_s is not None]
                for prompt in dict.fromkeys(item.prompt for item in mine)
            }
            medians = [median(values) for values in timed.values() if values]
            if medians:
                made.setdefault(category, {})[engine] = median(medians)
    return made


def changed(found: Found) -> dict[str, tuple[int, int]]:
    """By engine that speculates: on how many prompts of how many its text is not its own plain one."""
    texts = {(item.engine, item.prompt): item.output for item in found.answers}
    made: dict[str, tuple[int, int]] = {}
    for engine, prompt in texts:
        plain = "ours plain" if engine == "ours" else engine.partition(":")[0]
        if plain != engine and (plain, prompt) in texts:
            differs, seen = made.get(engine, (0, 0))
            made[engine] = differs + (texts[engine, prompt] != texts[plain, prompt]), seen + 1
    return made


def print_found(found: Found, names: Sequence[str]) -> None:
    """The table by category, and what is to be said beside it."""
    rows = []
    for category, by_engine in speeds(found).items():
        best = max((value for name, value in by_engine.items() if not name.startswith("ours")), default=None)
        ours = by_engine.get("ours")
        ratio = "-" if best is None or ours is None else f"{ours / best:.2f}"
        rows.append((category or "none", *(_rate(by_engine.get(name)) for name in names), ratio))
    print_table(("tokens/s", *names, "ours / best peer"), rows)
    for engine, (differs, seen) in changed(found).items():
        print(f"{engine}: its speculation changes its text on {differs} of {seen} prompts")
    for engine, prompt, own, given in found.lengths:
        print(f"{engine}: reads '{prompt}' as {own} tokens by its own template, was given {given}")
    for engine, prompt, reason in found.failures:
        print(f"left out: {engine} on '{prompt}': {reason}")


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


@contextlib.contextmanager
def peers(
    names: Sequence[PeerName], model: Path, *, python_llama: str, threads: int
) -> Iterator[tuple[list[Peer], list[str]]]:
    """Those that are there, running, and lines about those that are not."""
    absent = []
    with contextlib.ExitStack() as stack:
        running = []
        for name in names:
            python = python_llama if name.peer.startswith("llama") else sys.executable
            try:
                process = PeerProcess(name, model, python=python, threads=threads, folder=FOLDER)
            except (PeerMissing, PeerFailed) as error:
                absent.append(str(error))
                continue
            running.append(Peer(stack.enter_context(process)))
        yield running, absent


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--side-by-side", action="store_true", help="ours and all peers, with a table")
    parser.add_argument(
        "--peer", action="append", metavar="NAME[:N]", help=f"may be given again; default {' '.join(DEFAULT)}"
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--prompts", type=Path, help="lines of JSON; default: those of txdecode bench")
    parser.add_argument("--category", action="append", default=[])
    parser.add_argument("--limit", type=int)
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "fp32"), help="ours")
    parser.add_argument("--draft", default="lookup", help="ours")
    parser.add_argument("--draft-len", default="goodput", help="ours")
    parser.add_argument("--python-llama", default=sys.executable, help="an interpreter with llama-cpp-python")
    parser.add_argument("--raw", type=Path, help="a line of JSON an answer")
    args = parser.parse_args()
    try:
        run(args)
    except TxDecodeError as error:
        sys.exit(f"error: {error}")


def run(args: argparse.Namespace) -> None:
    """Do what the command line says. Raises ``TxDecodeError``."""
    names = [PeerName.parse(name) for name in args.peer or DEFAULT]
    source = resolve(args.model)
    text = Text(load_text(source))
    found = chosen(read_prompts(args.prompts) if args.prompts else BUILT_IN, args.category, args.limit)
    if args.max_tokens:
        found = tuple(attrs.evolve(item, max_tokens=min(item.max_tokens, args.max_tokens)) for item in found)
    prompts = [(item, text.encode_chat(item.messages)) for item in found]
    machine = machine_facts(load_now())
    with contextlib.ExitStack() as stack:
        running, absent = stack.enter_context(
            peers(names, source.path, python_llama=args.python_llama, threads=args.threads)
        )
        for line in absent:
            print(f"left out: {line}", file=sys.stderr)
        if not running:
            raise PeerFailed("every peer", "none of them can be run, so there is nothing to measure")
        engines: list[Engine] = list(running)
        if args.side_by_side:
            engines = [*_ours(args, stack, frozenset(text.eos_ids)), *engines]
            raw = None if args.raw is None else stack.enter_context(args.raw.open("w", encoding="utf-8"))
        else:
            raw = sys.stdout
        result = side_by_side(engines, prompts, args.repeats if args.side_by_side else 1, raw)
    if args.side_by_side:
        shown = ("cpu", "cores", "load_at_start")
        print(", ".join(f"{name} {machine[name]}" for name in shown), f"threads {args.threads}", sep=", ")
        print_found(result, [engine.name for engine in engines])
    else:
        for name, prompt, reason in result.failures:
            print(f"left out: {name} on '{prompt}': {reason}", file=sys.stderr)


def _ours(args: argparse.Namespace, stack: contextlib.ExitStack, eos_ids: frozenset[int]) -> list[Ours]:
    models = open_models(args.model, args.dtype, args.draft, 1, args.threads)
    settings: Settings = settings_of(Sampling(temperature=0), args.draft, args.draft_len)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="txdecode-peers-")))
    opener = ArmOpener(models, settings, folder)
    made = [Ours("ours plain", PLAIN, opener, eos_ids), Ours("ours", SPECULATIVE, opener, eos_ids)]
    for ours in made:
        stack.callback(ours.close)
    return made


if __name__ == "__main__":
    main()
