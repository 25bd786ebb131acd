"""``txdecode bench`` on a small random model: files, exit codes, one-line errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from txdecode.runtime.bench.contention import Load
from txdecode.runtime.bench.measure import Measured, Mismatch
from txdecode.runtime.cli import bench as bench_module
from txdecode.runtime.cli import main

QUIET = Load(0.0, 2)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_module, "load_now", lambda: QUIET)


def invoke(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["bench", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def common(tiny: Path) -> tuple[object, ...]:
    """The model has a context of 128, of which some prompts take all."""
    return ("--model", tiny, "--dtype", "fp32", "--threads", 1, "--max-tokens", 6, "--category", "code")


def test_json_goes_to_a_file_beside_the_tables_and_raw_rows_to_another(
    common: tuple[object, ...], tmp_path: Path
) -> None:
    to, raw = tmp_path / "figures.json", tmp_path / "rows.jsonl"
    code, out, err = invoke(
        *common, "--plain-twice", "--repeats", 2, "--json", to, "--raw", raw, "--by-prompt"
    )
    assert code == 0, err
    assert "tokens a round" in out
    assert "repeats that count" in out
    data = json.loads(to.read_text())
    assert set(data["categories"]) == {"code"}
    group = data["categories"]["code"]
    assert group["prompts"] == len(data["prompts"]) > 0
    assert group["speedup"] > 0
    assert group["plain_tok_s"] > 0
    assert group["tok_s"] > 0
    assert data["settings"]["draft"] == "lookup"
    assert data["settings"]["draft_len"] == "goodput"
    assert data["settings"]["spec_fallback"] == 1.0
    assert data["settings"]["sampling"]["temperature"] == 0
    assert data["machine"]["cores"] == 2
    assert data["fingerprint"]["weights"]
    assert data["texts_equal"] is True
    # The longest prompts of the set do not fit into this context.
    assert data["left_out"]
    assert all("context" in item["reason"] for item in data["left_out"])
    rows = [json.loads(line) for line in raw.read_text().splitlines()]
    assert len(rows) == 3 * 2 * len(data["prompts"])
    assert {row["arm"] for row in rows} == {"plain", "spec", "again"}


@pytest.mark.parametrize("option", [("--json",), ("--json", "-")])
def test_json_on_standard_output_stands_alone(option: tuple[str, ...], common: tuple[object, ...]) -> None:
    code, out, err = invoke(*common, "--repeats", 1, *option)
    assert code == 0, err
    assert json.loads(out)["categories"]["code"]["prompts"]


def test_the_chain_law_decodes_past_the_end(common: tuple[object, ...]) -> None:
    code, out, err = invoke(*common, "--repeats", 1, "--temperature", 1, "--law", "chain", "--json")
    assert code == 0, err
    data = json.loads(out)
    assert data["texts_equal"] is None
    assert data["settings"]["ignore_eos"] is True
    assert {prompt["tokens"] for prompt in data["prompts"]} == {6}


def test_a_text_that_differs_is_exit_code_1(
    common: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = bench_module.measure

    def lying(*args: Any, **options: Any) -> Measured:
        found = real(*args, **options)
        return Measured(found.rows, found.left_out, (Mismatch("u", "a prompt", "spec", 0, 7, 1, 2),))

    monkeypatch.setattr(bench_module, "measure", lying)
    code, out, err = invoke(*common, "--repeats", 1, "--json")
    assert code == 1
    assert "'a prompt': token 7" in err
    assert json.loads(out)["texts_equal"] is False


def test_a_busy_machine_is_refused_under_strict_and_named_without(
    common: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_module, "load_now", lambda: Load(1.5, 2))
    code, _, err = invoke(*common, "--strict")
    assert code == 2
    assert "load average 1.50 on 2 cores" in err
    assert len(err.splitlines()) == 1
    code, out, _ = invoke(*common, "--repeats", 1, "--limit", 5)
    assert code == 0
    assert "not quiet at the start" in out


def test_disturbed_prompts_are_refused_under_strict(
    common: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([1.0, 1.0, *[1.0, 2.0, 3.0, 4.0] * 9])
    monkeypatch.setattr(bench_module, "Calibration", lambda clock: lambda: next(times))
    code, out, err = invoke(*common, "--repeats", 2, "--strict")
    assert code == 2
    assert "disturbed in most repeats" in err
    assert "flagged as disturbed" in out


def test_bad_input_is_one_line(common: tuple[object, ...], tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"id": "a"}\n')
    for arguments in (
        ("--prompts", bad),
        ("--prompts", tmp_path / "absent.jsonl"),
        ("--json", tmp_path / "no" / "folder.json"),
        ("--raw", tmp_path / "no" / "rows.jsonl"),
        ("--draft", "telepathy"),
        ("--draft-len", "99"),
        ("--spec-fallback", "-3"),
        ("--category", "poetry"),
        ("--temperature", "-1"),
    ):
        code, _, err = invoke(*common, *arguments)
        assert code == 2, arguments
        assert len(err.splitlines()) == 1, err
    kept = tmp_path / "kept.json"
    kept.write_text("figures of yesterday")
    assert "line 1" in invoke(*common, "--prompts", bad, "--json", kept)[2]
    assert kept.read_text() == "figures of yesterday"


def test_nothing_measured_is_an_error(common: tuple[object, ...], tmp_path: Path) -> None:
    prompts = tmp_path / "p.jsonl"
    line = {"id": "a", "category": "code", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
    prompts.write_text(json.dumps(line) + "\n")
    # This model has no chat template.
    code, _, err = invoke(*common, "--prompts", prompts)
    assert code == 2
    assert "none of 1 prompts could be measured" in err
