"""What a published model says of itself, and that it fits."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
import torch

from tests.bundled import publish, train
from tests.bundled.evaluate import Acceptance, Figures
from tests.bundled.publish import FILES, Recipe, card, copy, read_run

LOG = """2908181 tokens to train on, 43399 held out
   590 s  step 150  4.166 4.196  1129 tokens/s
  1088 s  step 171  held out: 4.306 4.332 4.905 5.065
  2001 s  step 371  held out: 3.906 4.332 4.905 5.065
  3003 s  step 571  held out: 3.999 4.332 4.905 5.065
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run whose files are no model."""
    best = tmp_path / "run" / "best"
    best.mkdir(parents=True)
    for name in FILES:
        (best / name).write_text(name)
    torch.save({"elapsed": 3030.0, "step": 580, "best": 3.906}, tmp_path / "run" / "checkpoint.pt")
    (tmp_path / "run.log").write_text(LOG)
    return tmp_path / "run"


def test_a_run_tells_its_recipe(run: Path) -> None:
    found = read_run(run, [run.with_suffix(".log")])
    assert found == Recipe(50.5, 580, 371, 2908181)
    assert found.windows == 580 * train.BATCH
    assert read_run(run, []) == Recipe(50.5, 580, None, None)
    earlier = read_run(run, [], (200, 8))
    assert earlier.windows == 200 * 8 + 380 * train.BATCH


def test_files_are_replaced_and_those_too_large_are_refused(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "package"
    copy(run / "best", folder)
    assert {path.name: path.read_text() for path in folder.iterdir()} == {name: name for name in FILES}
    monkeypatch.setattr(publish, "BYTES_MAX", sum(map(len, FILES)))
    (run / "best" / FILES[0]).write_text("longer than its name was")
    with pytest.raises(click.ClickException, match="at most"):
        copy(run / "best", folder)
    assert (folder / FILES[0]).read_text() == FILES[0]


def test_a_card_has_the_figures(run: Path) -> None:
    greedy = Acceptance(1000, (0.5, 0.25, 0.125, 0.0, 0.0, 0.0, 0.0), (0.5, 0.5, 0.5, 0.0, None, None, None))
    sampled = Acceptance(999, (0.4,) + (0.0,) * 6, (0.4, 0.0) + (None,) * 5)
    recipe = Recipe(50.5, 580, 371, 2908181, (200, 8))
    text = card(run / "best", recipe, Figures(7108912, (3.9, 4.1, 4.2, 4.3), 43399, greedy, sampled))
    flat = " ".join(text.split())
    for words in (
        "7,108,912 parameters",
        "2,908,181 tokens",
        "held-out text, nats a token (24 windows of 512 tokens): target 3.900; draft steps 1 to 3",
        "4.100, 4.200, 4.300",
        "(after step 371)",
        "| greedy, accepted | 50.0 % | 25.0 % | 12.5 % | 0.0 % | 0.0 % | 0.0 % | 0.0 % |",
        "| greedy, where all before were | 50.0 % | 50.0 % | 50.0 % | 0.0 % | - | - | - |",
        "| sampled, accepted | 40.0 % |",
        "1.88 greedy, 1.40 sampled",
        "PSF License",
    ):
        assert words in flat, words
    assert f"about {(200 * 8 + 380 * train.BATCH) * train.ROWS:,} tokens" in flat
