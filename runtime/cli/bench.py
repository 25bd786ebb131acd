"""``txdecode bench``: speculation off and on, side by side in one run."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import attrs
import click

from txdecode.runtime.bench.arms import ArmOpener, Models, Settings, open_models
from txdecode.runtime.bench.contention import Calibration, Load, load_now, machine_facts
from txdecode.runtime.bench.errors import MachineContended, NothingMeasured, OutputUnwritable
from txdecode.runtime.bench.measure import AGAIN, PLAIN, SPECULATIVE, Measured, measure
from txdecode.runtime.bench.prompts import BUILT_IN, CONTINUED, chosen, units_of
from txdecode.runtime.bench.report import report_data, row_data
from txdecode.runtime.bench.summary import ArmFigures, GroupFigures, Summary, summarise
from txdecode.runtime.cli.options import (
    dtype_option,
    model_option,
    rollback_option,
    sampling_options,
    threads_option,
)
from txdecode.runtime.cli.render import Progress, print_json, print_table
from txdecode.runtime.cli.run import draft_length
from txdecode.runtime.gates.prompts import GatePrompt, read_prompts
from txdecode.runtime.opening import Opened
from txdecode.runtime.sampling import Sampling

FAILED = 1
STANDARD_OUTPUT = "-"


@click.command()
@model_option
@dtype_option
@click.option("--prompts", type=click.Path(path_type=Path), metavar="FILE.jsonl", help="Prompts of your own.")
@click.option("--category", multiple=True, metavar="NAME", help="Only this one; may be given several times.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most so many prompts.")
@click.option("--max-tokens", type=click.IntRange(min=2), help="Cap every prompt's budget.")
@click.option(
    "--draft",
    default="lookup",
    show_default=True,
    metavar="NAME",
    help="Who drafts in the arm that speculates, as for 'txdecode run'.",
)
@click.option("--draft-model", metavar="MODEL|first:N", help="As for 'txdecode run'.")
@click.option("--draft-depth", type=click.IntRange(min=1), metavar="N", help="As for 'txdecode run'.")
@click.option(
    "--draft-len",
    default="goodput",
    show_default=True,
    metavar="N|CONTROLLER",
    help="Draft tokens a round, as for 'txdecode run'.",
)
@click.option("--spec-fallback", type=float, default=1.0, show_default=True, help="As for 'txdecode run'.")
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True, help="Runs of each arm.")
@click.option(
    "--plain-twice", is_flag=True, help="A third arm, plain again: what the noise of this machine is."
)
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, help="Prompts at once.")
@click.option(
    "--by-prompt", is_flag=True, help="A table of the prompts too, with the spread over the repeats."
)
@click.option("--strict", is_flag=True, help="End with exit code 2 where the machine is not quiet.")
@sampling_options
@rollback_option
@threads_option
@click.option(
    "--json",
    "json_to",
    is_flag=False,
    flag_value=STANDARD_OUTPUT,
    metavar="FILE|-",
    help="Write all figures as one JSON object; to standard output ('-' or no FILE) instead of the tables.",
)
@click.option(
    "--raw",
    type=click.Path(path_type=Path),
    metavar="FILE.jsonl",
    help="Write every run, one JSON object a line.",
)
def bench(
    model: str,
    dtype: str,
    prompts: Path | None,
    category: tuple[str, ...],
    limit: int | None,
    max_tokens: int | None,
    draft: str,
    draft_model: str | None,
    draft_depth: int | None,
    draft_len: str,
    spec_fallback: float,
    repeats: int,
    plain_twice: bool,
    batch: int,
    by_prompt: bool,
    strict: bool,
    sampling: Sampling,
    rollback: str | None,
    threads: int | None,
    json_to: str | None,
    raw: Path | None,
) -> None:
    """Measure speculation against plain decoding, by category.

    Every prompt is decoded by both arms in turns, in an order that alternates, over the same open model; medians over
    the repeats. Decode time is without prefill. Texts must be equal (exit code 1 where one is not), but under the law
    'chain', where texts go on to --max-tokens past their end so that both arms emit the same count. A prompt that
    fails or is cut is left out and listed. The checkpoint's sampling defaults do not apply: decoding is greedy unless
    a temperature is given, with the seed 0 unless one is given.

    A repeat in which plain decoding left its own band, or the clock drifted, is left out with both its arms, as long
    as half of the repeats remain.

    \b
    Prompts are lines of JSON: {"id": ..., "category": ..., "messages": [...], "max_tokens": ...}
    Examples:
      txdecode bench --model smollm2 --plain-twice
      txdecode bench --model smollm2 --prompts mine.jsonl --json figures.json --raw rows.jsonl
    """
    load = load_now()
    if strict and load.high:
        raise MachineContended(str(load))
    file = None if json_to is None or json_to == STANDARD_OUTPUT else Path(json_to)
    for target in filter(None, (raw, file)):
        # Before minutes go into what it is to hold; what it has now stays until then.
        _write(target, "", mode="a")
    given = None if prompts is None else read_prompts(prompts)
    settings = attrs.evolve(
        settings_of(sampling, draft, draft_len, draft_depth, batch, spec_fallback), draft_model=draft_model
    )
    form = {} if rollback is None else {"rollback": rollback}
    models = open_models(model, dtype, draft, batch, threads, draft_model, **form)
    found = _prompts(given, models, category, limit, max_tokens)
    arms = (PLAIN, SPECULATIVE, AGAIN) if plain_twice else (PLAIN, SPECULATIVE)
    measured = _measure(found, arms, models, settings, repeats)
    summary = summarise(measured)
    if raw is not None:
        _write(raw, "".join(json.dumps(row_data(row), ensure_ascii=False) + "\n" for row in summary.rows))
    data = report_data(
        measured,
        summary,
        settings,
        machine_facts(load),
        _fingerprint(models.speculative),
        model=models.speculative.name,
        dtype=dtype,
        repeats=repeats,
    )
    if json_to == STANDARD_OUTPUT:
        print_json(data)
    else:
        print_summary(measured, summary, load, by_prompt=by_prompt)
    if file is not None:
        _write(file, json.dumps(data, ensure_ascii=False, indent=1) + "\n")
    _verdict(measured, summary, strict)


def settings_of(
    sampling: Sampling,
    draft: str,
    draft_len: str,
    draft_depth: int | None = None,
    batch: int = 1,
    spec_fallback: float = 1.0,
) -> Settings:
    """What the options mean. Raises ``InvalidRequest``."""
    # With every field filled in, a checkpoint has nothing to say any more.
    resolved = sampling.resolved({}, lambda: 0)
    return Settings(
        draft,
        draft_length(draft_len),
        resolved,
        ignore_eos=resolved.law == "chain",
        batch=batch,
        more={
            "spec_fallback": spec_fallback,
            **({} if draft_depth is None else {"draft_depth": draft_depth}),
        },
    )


def _fingerprint(opened: Opened) -> dict[str, str]:
    description = opened.executor.describe()
    return {"executor": description.name, **description.fingerprint, **opened.fingerprint}


def _prompts(
    given: Sequence[GatePrompt] | None,
    models: Models,
    categories: Sequence[str],
    limit: int | None,
    max_tokens: int | None,
) -> tuple[GatePrompt, ...]:
    text = models.plain.text
    default = BUILT_IN if text is not None and text.has_chat else CONTINUED
    found = chosen(given or default, categories, limit)
    if max_tokens is None:
        return found
    return tuple(attrs.evolve(item, max_tokens=min(item.max_tokens, max_tokens)) for item in found)


def _measure(
    prompts: Sequence[GatePrompt], arms: Sequence[str], models: Models, settings: Settings, repeats: int
) -> Measured:
    progress = Progress("bench")
    try:
        with tempfile.TemporaryDirectory(prefix="txdecode-bench-") as folder:
            return measure(
                units_of(prompts, settings.batch),
                arms,
                ArmOpener(models, settings, Path(folder)),
                repeats=repeats,
                calibrate=Calibration(time.perf_counter),
                same_text=settings.same_text,
                progress=progress,
            )
    finally:
        progress.close()


def _write(path: Path, text: str, mode: Literal["w", "a"] = "w") -> None:
    try:
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise OutputUnwritable(path, error.strerror or str(error)) from error


def _verdict(measured: Measured, summary: Summary, strict: bool) -> None:
    """Leave with the exit code that the run earned."""
    for item in measured.mismatches:
        click.echo(click.style("texts differ: ", fg="red", bold=True) + str(item), err=True)
    if measured.mismatches:
        sys.exit(FAILED)
    if not summary.prompts:
        raise NothingMeasured(measured.left_out)
    if strict and summary.contended:
        shown = ", ".join(summary.contended[:5])
        raise MachineContended(f"{len(summary.contended)} prompts were disturbed in most repeats ({shown})")


def print_summary(measured: Measured, summary: Summary, load: Load, *, by_prompt: bool = False) -> None:
    """Tables for people."""
    if summary.total is not None:
        groups = {**summary.categories, "total": summary.total}
        _print_speed(groups)
        click.echo()
        _print_rounds(groups)
        click.echo()
        _print_depths(summary.total)
        click.echo()
        _print_parts(summary.total)
        click.echo()
        if by_prompt:
            _print_prompts(summary)
            click.echo()
    for name, reason in measured.left_out:
        click.echo(f"left out: '{name}' {reason}")
    for name in summary.below:
        click.echo(f"below the spread of plain against plain: '{name}'")
    for name in summary.contended:
        click.echo(f"contended: '{name}' was disturbed in most repeats, so all of them count")
    flagged = sum(bool(row.flags) for row in summary.rows)
    if flagged:
        click.echo(f"flagged as disturbed: {flagged} of {len(summary.rows)} rows")
    if load.high:
        click.echo(f"the machine was not quiet at the start: {load}")


def _print_speed(groups: dict[str, GroupFigures]) -> None:
    again = any(group.again for group in groups.values())
    header = ["category", "prompts", "tokens", "plain tok/s", "spec tok/s", "speedup", "least", "most"]
    rows = []
    for name, group in groups.items():
        row: list[Any] = [name, group.prompts, group.tokens]
        row += [f"{group.plain.tok_s.median:.1f}", f"{group.speculative.tok_s.median:.1f}"]
        row += [f"{value:.2f}" for value in (group.speedup.median, group.speedup.low, group.speedup.high)]
        if again:
            row += ["-"] * 2 if group.again is None else [f"{group.again.low:.3f}", f"{group.again.high:.3f}"]
        rows.append(row)
    print_table([*header, *(["A/A least", "A/A most"] if again else [])], rows)


def _print_prompts(summary: Summary) -> None:
    rows = []
    for item in summary.prompts:
        speeds = [
            f"{arm.tok_s.median:.1f} ({arm.tok_s.low:.1f} to {arm.tok_s.high:.1f})"
            for arm in (item.plain, item.speculative)
        ]
        again = "-" if item.again is None else f"{item.again:.3f}"
        kept = f"{item.kept} of {item.repeats}"
        rows.append((item.unit, item.tokens, *speeds, f"{item.speedup:.2f}", again, kept))
    print_table(
        ("prompt", "tokens", "plain tok/s", "spec tok/s", "speedup", "A/A", "repeats that count"), rows
    )


def _print_rounds(groups: dict[str, GroupFigures]) -> None:
    rows = []
    for name, group in groups.items():
        facts = group.speculative.facts
        ratio = group.cost_ratio
        sources = ", ".join(
            f"{source} {accepted}/{offered}"
            for source, (offered, accepted) in group.speculative.by_source.items()
        )
        rows.append(
            (name, facts.rounds, f"{facts.tokens_a_round:.2f}", f"{facts.mean_width:.2f}")
            + (
                "-" if ratio is None else f"{ratio:.2f}",
                f"{group.speculative.host_share:.1%}",
                sources or "-",
            )
        )
    header = (
        "category",
        "rounds",
        "tokens a round",
        "mean width",
        "cost ratio",
        "host",
        "accepted by source",
    )
    print_table(header, rows)


def _print_depths(group: GroupFigures) -> None:
    depths = group.speculative.facts.depths
    if not depths:
        click.echo("nothing was drafted")
        return
    rows = [
        ("offered in", *(str(offered) for offered, _, _ in depths)),
        ("accepted", *(f"{accepted / offered:.0%}" for offered, _, accepted in depths)),
        (
            "where all before were",
            *("-" if not reached else f"{accepted / reached:.0%}" for _, reached, accepted in depths),
        ),
    ]
    print_table(("rounds", *(f"draft {depth}" for depth in range(1, len(depths) + 1))), rows)


def _print_parts(group: GroupFigures) -> None:
    arms: dict[str, ArmFigures] = {"plain": group.plain, "spec": group.speculative}
    names = dict.fromkeys(part for arm in arms.values() for part in arm.parts)
    rows = []
    for label, arm in arms.items():
        shares = [f"{arm.parts.get(part, 0.0) / arm.decode_s:.2%}" if arm.decode_s else "-" for part in names]
        rows.append((label, *shares, f"{arm.host_share:.2%}"))
    print_table(("share of decode time", *names, "host in all"), rows)
