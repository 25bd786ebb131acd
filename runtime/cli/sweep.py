"""``txdecode sweep``: what a launch costs by its width."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import attrs
import click
import msgspec

from txdecode.runtime.cli.options import dtype_option, model_option, rollback_option, threads_option
from txdecode.runtime.cli.render import Progress, print_table
from txdecode.runtime.opening import open_model
from txdecode.runtime.policy.bounds import DRAFT_MAX
from txdecode.runtime.sweep.errors import PlotExtraMissing
from txdecode.runtime.sweep.measure import Wanted, sweep
from txdecode.runtime.sweep.plateaus import Measured, Shape, shape
from txdecode.runtime.sweep.plot import draw
from txdecode.runtime.sweep.store import Row, Sweep, place_of, save, write


def _numbers(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[1-9][0-9]{0,6}(,[1-9][0-9]{0,6})*", value, re.ASCII):
        raise click.BadParameter(
            f"expected numbers from 1 on with commas between, such as 256,1024; found {value!r:.80}",
            ctx,
            param,
        )
    return tuple(sorted({int(part) for part in value.split(",")}))


@click.command(name="sweep")
@model_option
@dtype_option
@click.option(
    "--kmax",
    type=click.IntRange(1, DRAFT_MAX),
    default=DRAFT_MAX,
    show_default=True,
    help="Most drafts of a round: widths 1 to KMAX + 1 are measured.",
)
@click.option(
    "--contexts",
    callback=_numbers,
    metavar="N,N,..",
    default="256,1024,4096",
    show_default=True,
    help="Tokens of context.",
)
@click.option(
    "--batches",
    callback=_numbers,
    metavar="N,N,..",
    default="1,2,4,8",
    show_default=True,
    help="Requests of a launch.",
)
@click.option(
    "--repeats", type=click.IntRange(min=1), default=9, show_default=True, help="Launches of every width."
)
@rollback_option
@click.option("--mtp", is_flag=True, help="Keep the state of the model's own drafter, and time it too.")
@threads_option
@click.option(
    "--json", "json_file", metavar="FILE", help="Write everything to a file, or to standard output (-)."
)
@click.option(
    "--plot", type=click.Path(path_type=Path), metavar="FILE.png", help="Draw it (needs the extra plot)."
)
@click.option("--no-store", is_flag=True, help="Keep nothing for later runs.")
def sweep_command(
    model: str,
    dtype: str,
    kmax: int,
    contexts: tuple[int, ...],
    batches: tuple[int, ...],
    repeats: int,
    rollback: str | None,
    mtp: bool,
    threads: int | None,
    json_file: str | None,
    plot: Path | None,
    no_store: bool,
) -> None:
    """Measure what a round costs by its width: verify, accept and settle, at every width, context and batch size.

    \b
    Examples:
      txdecode sweep --model smollm2 --threads 2
      txdecode sweep --contexts 256 --batches 1 --repeats 21 --json - --no-store

    Names plateaus and steps, and the draft lengths that they suggest: a draft length should be the top of a plateau.
    The result is kept beside the model's fingerprint, and decoding with --draft-len goodput uses it. Run it on a
    quiet machine; what speaks against that is flagged. The JSON object has the raw samples (milliseconds), and for
    each context and batch the regions, steps and suggested drafts.
    """
    if plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise PlotExtraMissing
    wanted = Wanted(kmax + 1, contexts, batches, repeats)
    # The rounds of a sweep stay in the context.
    room = max(contexts) + wanted.rounds() + wanted.width_most + 1
    executor = _opened(model, dtype, max(batches), room, threads, rollback, mtp)
    bar = Progress("sweep")
    try:
        found = sweep(executor, wanted, progress=bar)
    finally:
        bar.close()
    shapes = shapes_of(found)
    if json_file == "-":
        click.echo(msgspec.json.encode(as_data(found, shapes)).decode())
    else:
        _print(found, shapes)
        if json_file is not None:
            write(Path(json_file), msgspec.json.encode(as_data(found, shapes)) + b"\n")
    if plot is not None:
        write(plot, draw(found, f"{model} ({found.name}, {dtype})"))
    if not no_store:
        place = place_of(executor.describe())
        save(found, place)
        click.echo(f"kept in {place}", err=True)


def _opened(
    model: str, dtype: str, batch: int, room: int, threads: int | None, rollback: str | None, mtp: bool
) -> Any:
    from txdecode.kernels.attention.cache import PAGE_ROWS
    from txdecode.kernels.capability import MemoryPlanRefused

    draft = "mtp" if mtp else "none"
    options: dict[str, Any] = {"batch_max": batch, "context": room, "threads": threads, "rollback": rollback}
    try:
        # Room for every sequence to its end, where usual serving expects shorter ones.
        return open_model(model, dtype, draft, pages=batch * -(-room // PAGE_ROWS), **options).executor
    except MemoryPlanRefused:
        # What the default pool has no room for is skipped and named.
        return open_model(model, dtype, draft, **options).executor


def shapes_of(found: Sweep) -> dict[tuple[int, int], Shape]:
    """The shape of each curve, by batch and context."""
    curves: dict[tuple[int, int], list[Row]] = {}
    for row in found.rows:
        curves.setdefault((row.batch, row.context), []).append(row)
    return {
        place: shape([Measured(row.width, row.median, row.error) for row in rows])
        for place, rows in curves.items()
    }


def as_data(found: Sweep, shapes: dict[tuple[int, int], Shape]) -> dict[str, Any]:
    """The JSON object."""
    return {
        "sweep": msgspec.to_builtins(found, str_keys=True),
        "shapes": [
            {"batch": batch, "context": context, "drafts": list(made.drafts), **attrs.asdict(made)}
            for (batch, context), made in shapes.items()
        ],
    }


def _print(found: Sweep, shapes: dict[tuple[int, int], Shape]) -> None:
    plain = {(row.batch, row.context): row.median for row in found.rows if row.width == 1}
    rows = []
    for row in found.rows:
        place = row.batch, row.context
        made = shapes[place]
        (region,) = (r for r in made.regions if r.first <= row.width <= r.last)
        step = next((f"step of {100 * s.rise:.0f} %" for s in made.steps if s.above == row.width), "")
        rows.append(
            [
                row.batch,
                row.context,
                row.width,
                f"{row.median:.3f}",
                f"{row.spread:.3f}",
                f"{row.median / plain[place]:.2f}",
                f"{region.kind} {region.first}-{region.last}",
                step,
            ]
        )
    print_table(["batch", "context", "width", "ms", "spread", "times plain", "region", ""], rows)
    click.echo()
    for (batch, context), made in shapes.items():
        drafts = ", ".join(map(str, made.drafts)) or "none: every row costs"
        click.echo(f"batch {batch}, context {context}: draft lengths at the top of a plateau: {drafts}")
    for batch, took in sorted(found.steps.items()):
        click.echo(f"batch {batch}: a draft of the model's own drafter takes {took:.3f} ms")
    for skipped in found.skipped:
        click.echo(f"skipped: {skipped}", err=True)
    for flag in found.flags:
        click.echo(click.style(f"contended: {flag}", fg="yellow"), err=True)
