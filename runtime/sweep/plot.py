"""A sweep as a picture: cost by width, a line a context, a panel a batch size. Needs the extra ``plot``."""

from __future__ import annotations

import io
from typing import Any

from txdecode.runtime.sweep.errors import PlotExtraMissing
from txdecode.runtime.sweep.store import Row, Sweep


def draw(sweep: Sweep, title: str) -> bytes:
    """The PNG. Bars are interquartile ranges. Raises ``PlotExtraMissing``."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotExtraMissing from error
    batches = sorted({row.batch for row in sweep.rows})
    figure = Figure(figsize=(5 * len(batches), 4), layout="constrained")
    panels = figure.subplots(1, len(batches), squeeze=False)[0]
    for panel, batch in zip(panels, batches, strict=True):
        _panel(panel, [row for row in sweep.rows if row.batch == batch], batch)
    figure.suptitle(title)
    made = io.BytesIO()
    FigureCanvasAgg(figure).print_png(made)
    return made.getvalue()


def _panel(panel: Any, rows: list[Row], batch: int) -> None:
    for context in sorted({row.context for row in rows}):
        own = sorted((row for row in rows if row.context == context), key=lambda row: row.width)
        panel.errorbar(
            [row.width for row in own],
            [row.median for row in own],
            yerr=[row.spread / 2 for row in own],
            marker="o",
            markersize=3,
            capsize=2,
            label=f"context {context}",
        )
    panel.set_title(f"batch {batch}")
    panel.set_xlabel("rows a request")
    panel.set_ylabel("milliseconds a launch")
    panel.set_ylim(bottom=0)
    panel.grid(alpha=0.3)
    panel.legend()
