"""``replay`` and ``log inspect`` on logs of the toy: no model, no torch."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from txdecode.runtime import Runtime
from txdecode.runtime.cli import main
from txdecode.runtime.cli.render import print_json
from txdecode.runtime.journal.format import FORMAT_VERSION
from txdecode.transactions.toy import ToyExecutor, plain

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "run.txlog"
    with Runtime.open(ToyExecutor(accuracy=6), log=path, draft="executor", draft_len=4) as runtime:
        runtime.submit(PROMPT, max_tokens=20)
        runtime.submit(PROMPT[::-1], max_tokens=9)
        runtime.run()
    return path


def invoke(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def test_replay_reports_every_request(log: Path) -> None:
    code, out, _ = invoke("replay", log, "--json")
    report = json.loads(out)
    assert code == 0
    assert [request["ids"] for request in report["requests"]] == [
        plain(PROMPT, 20, 48),
        plain(PROMPT[::-1], 9, 48),
    ]
    assert [request["finish"] for request in report["requests"]] == ["length", "length"]
    assert report["checked"] == report["records"] - 1, "all but the closing note carry digests"
    assert set(report["digests"]) == {"tokens", "pages", "recurrent", "history", "rng"}


def test_replay_until_stops_with_unfinished_requests(log: Path) -> None:
    code, out, _ = invoke("replay", log, "--until", 6, "--json")
    report = json.loads(out)
    assert code == 0
    assert report["records"] == 7
    assert None in [request["finish"] for request in report["requests"]]
    assert report["digests"]["tokens"] != "0" * 16


def test_replay_for_people(log: Path) -> None:
    code, out, _ = invoke("replay", log)
    assert code == 0
    assert "reached the digests that they recorded" in out
    assert "length" in out


def test_a_damaged_log_is_refused_with_its_place(log: Path) -> None:
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    code, out, err = invoke("replay", log)
    assert code == 2
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert "record" in err


def test_inspect_goes_on_after_damage(log: Path) -> None:
    whole = [json.loads(line) for line in invoke("log", "inspect", log, "--json")[1].splitlines()]
    data = bytearray(log.read_bytes())
    data[whole[len(whole) // 2]["offset"] + 30] ^= 1
    log.write_bytes(data)
    code, out, _ = invoke("log", "inspect", log, "--json")
    damaged = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [item["kind"] for item in damaged].count("damage") == 1
    kept = [item["sequence"] for item in damaged if item["kind"] == "record"]
    assert whole[-1]["sequence"] in kept
    assert len(kept) >= len(whole) - 3


def test_inspect_filters_by_request_and_limits(log: Path) -> None:
    lines = invoke("log", "inspect", log, "--request", 1, "--limit", 3, "--json")[1].splitlines()
    records = [json.loads(line) for line in lines if json.loads(line)["kind"] == "record"]
    assert [record["event"]["request"] for record in records] == [1, 1, 1]
    assert records[0]["name"] == "RequestSubmitted"


@pytest.mark.parametrize("command", [["replay"], ["log", "inspect"]])
def test_what_is_no_log_is_one_clear_line(command: list[str], tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("these are notes\n")
    for path in (text, tmp_path, tmp_path / "missing"):
        code, out, err = invoke(*command, path)
        assert code == 2
        assert out == ""
        assert len(err.strip().splitlines()) == 1
        assert str(path) in err


def test_a_log_of_a_later_version_says_which(log: Path) -> None:
    data = bytearray(log.read_bytes())
    data[8:10] = (FORMAT_VERSION + 1).to_bytes(2, "little")
    # The version is judged before any checksum: a later format may check its header otherwise.
    log.write_bytes(data)
    code, _, err = invoke("replay", log)
    assert code == 2
    assert str(FORMAT_VERSION + 1) in err


def test_replay_and_inspect_do_not_load_torch(log: Path) -> None:
    script = (
        "import sys\n"
        "from txdecode.runtime.cli import main\n"
        "for arguments in (['replay', sys.argv[1]], ['log', 'inspect', sys.argv[1]]):\n"
        "    main(arguments, standalone_mode=False)\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(log)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_help_names_every_command() -> None:
    code, out, _ = invoke("--help")
    assert code == 0
    for command in ("run", "describe", "replay", "log", "gate", "demo"):
        assert f"  {command} " in out


def test_numbers_that_json_does_not_have_are_strings(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [math.inf, -math.inf, (1.5, {"b": math.nan})]})

    def refuse(name: str) -> None:
        raise AssertionError(name)

    assert json.loads(capsys.readouterr().out, parse_constant=refuse) == {
        "a": ["inf", "-inf", [1.5, {"b": "nan"}]]
    }
