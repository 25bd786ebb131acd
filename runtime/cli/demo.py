"""``txdecode demo``: decode code with and without speculation, by every drafter, then replay the log."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attrs
import click

from txdecode.runtime.acceptance import Depth, acceptance_by_depth
from txdecode.runtime.cli.options import dtype_option, model_option
from txdecode.runtime.cli.render import human_bytes, print_table
from txdecode.runtime.cli.replay import print_report
from txdecode.runtime.cli.run import stream
from txdecode.runtime.gates.prompts import CODE_PROMPTS, DEMO, GatePrompt
from txdecode.runtime.opening import Opened, open_model
from txdecode.runtime.replay import replay
from txdecode.runtime.runtime import Runtime
from txdecode.runtime.sampling import Sampling
from txdecode.runtime.text import Text

# A checkpoint may ask for sampling, and two runs without a seed would differ.
_GREEDY = Sampling(temperature=0)
_SAMPLED = Sampling(temperature=0.8, seed=7)
_PASSES = 2
_PROMPTS = 3
_GAIN = 1.05
_GRAM = 8


@attrs.frozen
class _Run:
    """All prompts decoded with one drafter; ``decode_s`` is the least of the passes."""

    draft: str
    ids: tuple[tuple[int, ...], ...]
    rounds: int
    drafted: int
    accepted: int
    decode_s: float
    depths: tuple[Depth, ...]

    @property
    def tokens(self) -> int:
        return sum(map(len, self.ids))

    @property
    def tok_s(self) -> float:
        return self.tokens / self.decode_s


@click.command()
@model_option
@dtype_option
@click.option(
    "--max-tokens",
    type=click.IntRange(min=2),
    help="Most tokens of each text (default: what its prompt says).",
)
@click.option(
    "--log",
    type=click.Path(path_type=Path),
    default=Path("demo.txlog"),
    show_default=True,
    help="Where the event log goes; replaced if it is there.",
)
def demo(model: str, dtype: str, max_tokens: int | None, log: Path) -> None:
    """Decode code, stream it, compare every drafter with plain decoding, and replay the log.

    A model without a chat template goes on with the beginnings of three files; one with a template is asked to edit
    a file. The log is of greedy decoding. Then each drafter decodes all of it greedily and sampled, twice, in turn
    with the others, and the better time counts.
    """
    _heading(f"{model}: the text, as it is committed")
    with Runtime.open(model, dtype=dtype, log=log, overwrite=True, batch_max=1) as runtime:
        prompts = _prompts(runtime.text, max_tokens)
        shown = []
        for number, prompt in enumerate(prompts):
            handle = runtime.submit(prompt.content, max_tokens=prompt.max_tokens, sampling=_GREEDY)
            if prompt.text:
                click.echo(click.style(prompt.text, dim=True), nl=False)
            stream(handle, quiet=False)
            click.echo("\n" if number + 1 < len(prompts) else "")
            shown.append(handle.result().ids)
    models = _models(model, dtype)
    found = {
        "greedy": _measure(models, prompts, _GREEDY),
        f"sampled, temperature {_SAMPLED.temperature}": _measure(models, prompts, _SAMPLED),
    }
    for how, runs in found.items():
        _heading(f"{how}: every drafter against plain decoding")
        _print_runs(runs)
        _print_depths(runs)
        for line in words(runs):
            click.echo(f"  {line}")
    _heading(f"replay of {log} ({human_bytes(log.stat().st_size)}), without the model")
    print_report(replay(log))
    same = all(run.ids == runs[0].ids for runs in found.values() for run in runs)
    if not same or found["greedy"][0].ids != tuple(shown):
        raise click.ClickException("speculative and plain texts differ: that must never happen")


def _prompts(text: Text | None, max_tokens: int | None) -> tuple[GatePrompt, ...]:
    chats = text is not None and text.has_chat
    chosen = (DEMO,) if chats else CODE_PROMPTS[:_PROMPTS]
    return tuple(
        prompt if max_tokens is None else attrs.evolve(prompt, max_tokens=max_tokens) for prompt in chosen
    )


def _models(model: str, dtype: str) -> dict[str, Opened]:
    """By drafter, what it runs on: plain decoding must not pay for the state of a drafter that it does not use."""
    plain = open_model(model, dtype, "none", batch_max=1)
    models = {"none": plain, "lookup": plain}
    if "mtp" in plain.executor.describe().fingerprint:
        learned = open_model(model, dtype, "none", batch_max=1, learned=True)
        if learned.executor.describe().capabilities.drafts:
            models |= {"mtp": learned, "mtp+lookup": learned}
    return models


def _measure(models: Mapping[str, Opened], prompts: Sequence[GatePrompt], sampling: Sampling) -> list[_Run]:
    """Plain decoding first, then each drafter that the executor has a part in or needs none for."""
    runs: dict[str, _Run] = {}
    for _ in range(_PASSES):
        for name, opened in models.items():
            run = _decode(opened, prompts, name, sampling)
            before = runs.get(name, run)
            runs[name] = attrs.evolve(run, decode_s=min(run.decode_s, before.decode_s))
    return list(runs.values())


def _decode(opened: Opened, prompts: Sequence[GatePrompt], draft: str, sampling: Sampling) -> _Run:
    with tempfile.TemporaryDirectory(prefix="txdecode-demo-") as folder:
        log = Path(folder) / "run.txlog"
        with Runtime.open(
            opened.executor, log=log, draft=draft, text=opened.text, eos_ids=sorted(opened.eos_ids)
        ) as runtime:
            results = [
                runtime.submit(prompt.content, max_tokens=prompt.max_tokens, sampling=sampling).result()
                for prompt in prompts
            ]
        depths = acceptance_by_depth(log)
    stats = [result.stats for result in results]
    return _Run(
        draft,
        tuple(result.ids for result in results),
        sum(item.rounds for item in stats),
        sum(item.drafted for item in stats),
        sum(item.accepted for item in stats),
        sum(item.decode_s for item in stats),
        depths,
    )


def _print_runs(runs: Sequence[_Run]) -> None:
    plain = runs[0]
    print_table(
        (
            "drafter",
            "tokens",
            "rounds",
            "tokens a round",
            "drafted",
            "accepted",
            "tokens/s",
            "times plain",
            "text",
        ),
        [
            (run.draft, run.tokens, run.rounds, f"{run.tokens / run.rounds:.2f}", run.drafted, run.accepted)
            + (f"{run.tok_s:.1f}", f"{run.tok_s / plain.tok_s:.2f}")
            + ("the same, token for token" if run.ids == plain.ids else "DIFFERENT",)
            for run in runs
        ],
    )


def _print_depths(runs: Sequence[_Run]) -> None:
    most = max(len(run.depths) for run in runs)
    rows = []
    for run in runs:
        if run.depths:
            cells: dict[str, list[str]] = {
                "offered in": [str(item.offered) for item in run.depths],
                "accepted in": [f"{item.share:.0%}" for item in run.depths],
                "where all before were": [
                    "-" if item.conditional is None else f"{item.conditional:.0%}" for item in run.depths
                ],
            }
            padding = [""] * (most - len(run.depths))
            rows += [(run.draft, what, *values, *padding) for what, values in cells.items()]
    print_table(("drafter", "rounds", *(f"draft {depth + 1}" for depth in range(most))), rows)


def words(runs: Sequence[_Run]) -> Iterator[str]:
    """What the figures say, the plain run first among them; and what they don't."""
    plain, *others = runs
    for run in others:
        ratio = run.tok_s / plain.tok_s
        if ratio >= _GAIN:
            yield f"{run.draft} is {ratio:.2f} times as fast as plain decoding"
        else:
            yield (
                f"{run.draft} gains nothing here, {ratio:.2f} times plain: {run.tokens / run.rounds:.2f} tokens a "
                f"round do not pay for the drafts and the wider rounds"
            )
    seen, repeated = repeats(plain.ids)
    if seen:
        yield (
            f"{repeated / seen:.0%} of the runs of {_GRAM} tokens in these texts occurred before in the same text; "
            f"the more of them, the more a copy is worth, and other texts will gain less"
        )


def repeats(texts: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Runs of eight tokens in ``texts``, and how many of them occurred earlier in the same text."""
    seen = repeated = 0
    for ids in texts:
        known = set()
        for start in range(len(ids) - _GRAM + 1):
            gram = tuple(ids[start : start + _GRAM])
            seen += 1
            repeated += gram in known
            known.add(gram)
    return seen, repeated


def _heading(text: str) -> None:
    click.echo(click.style(f"--- {text}", bold=True))
