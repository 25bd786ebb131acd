"""``txdecode sweep``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from txdecode.kernels.capability import MemoryPlanRefused
from txdecode.runtime.cli import sweep as command
from txdecode.runtime.cli.main import main
from txdecode.runtime.opening import Opened
from txdecode.runtime.sweep.plot import draw
from txdecode.runtime.sweep.store import Row, Sweep, load, place_of
from txdecode.transactions.toy import ToyExecutor

QUICK = ("--repeats", "2", "--kmax", "3", "--contexts", "8,24", "--batches", "1,2")


@pytest.fixture(autouse=True)
def _toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_model(model: str, dtype: str, draft: str, **options: Any) -> Opened:
        assert options["context"] >= 24 + 2 * 5 + 4
        return Opened(ToyExecutor(page_count=200, accuracy=6 if draft == "mtp" else 0), "toy")

    monkeypatch.setattr(command, "open_model", open_model)
    monkeypatch.setenv("TXDECODE_CACHE", str(tmp_path / "cache"))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["sweep", *arguments])


def test_a_table_with_plateaus_and_suggestions() -> None:
    result = run(*QUICK)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["batch", "context", "width", "ms", "spread", "times", "plain", "region"]
    assert [line.split()[:3] for line in lines[1:17]] == [
        [str(batch), str(context), str(width)]
        for batch in (1, 2)
        for context in (8, 24)
        for width in range(1, 5)
    ]
    assert lines[1].split()[5] == "1.00"
    assert "batch 2, context 24: draft lengths at the top of a plateau:" in result.stdout


def test_it_is_kept_for_later_runs_unless_told_not_to() -> None:
    about = ToyExecutor(page_count=200).describe()
    assert run(*QUICK, "--no-store").exit_code == 0
    assert load(place_of(about), about) is None
    result = run(*QUICK)
    kept = load(place_of(about), about)
    assert kept is not None
    assert {(row.batch, row.context) for row in kept.rows} == {(1, 8), (1, 24), (2, 8), (2, 24)}
    assert str(place_of(about)) in result.stderr


def test_json(tmp_path: Path) -> None:
    assert run(*QUICK, "--mtp", "--json", str(tmp_path / "sweep.json")).exit_code == 0
    data = json.loads((tmp_path / "sweep.json").read_text())
    assert {len(row["samples"]) for row in data["sweep"]["rows"]} == {2}
    assert data["sweep"]["steps"].keys() == {"1", "2"}
    assert {(made["batch"], made["context"]) for made in data["shapes"]} == {(1, 8), (1, 24), (2, 8), (2, 24)}
    result = run(*QUICK, "--json", "-", "--no-store")
    assert json.loads(result.stdout).keys() == {"sweep", "shapes"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--contexts", "8,x"), "expected numbers from 1 on with commas between"),
        (("--batches", "0"), "expected numbers from 1 on with commas between"),
        (("--kmax", "16"), "16 is not in the range 1<=x<=15"),
        ((*QUICK[:4], "--contexts", "5000", "--batches", "1"), "nothing to measure"),
        ((*QUICK, "--json", "/proc/none/x.json"), "cannot be written"),
    ],
)
def test_what_cannot_be_swept(arguments: tuple[str, ...], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.output
    assert "Traceback" not in result.output


def test_a_plot_without_matplotlib_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(command, "open_model", None)
    result = run("--plot", "x.png")
    assert result.exit_code == 2
    assert result.output.splitlines()[-1].endswith("pip install 'txdecode[plot]'")


def test_a_plot() -> None:
    pytest.importorskip("matplotlib")
    rows = tuple(
        Row(batch, context, width, (1.0, 2.0)) for batch in (1, 2) for context in (8, 9) for width in (1, 2)
    )
    assert draw(Sweep(1, "toy", {}, rows), "a title")[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("refuse", [False, True])
def test_pages_for_every_sequence_to_its_end_or_the_default_pool(
    refuse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The usual pool expects sequences of 2,048 tokens; longer contexts were skipped where they would fit."""
    asked: list[int | None] = []

    def open_model(model: str, dtype: str, draft: str, pages: int | None = None, **options: Any) -> Opened:
        asked.append(pages)
        if pages is not None and refuse:
            raise MemoryPlanRefused({"kv_pages": 1 << 40}, 1 << 30)
        return Opened(ToyExecutor(page_count=200), "toy")

    monkeypatch.setattr(command, "open_model", open_model)
    assert run(*QUICK).exit_code == 0
    # 24 tokens of context, 2 repeats of widths 1 to 4 and the widest round, 2 sequences: a page each.
    assert asked == ([2, None] if refuse else [2])
