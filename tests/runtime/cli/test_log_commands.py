"""``replay``, and ``log inspect``, ``check``, ``diff`` and ``export``: what they say, and bad input of every kind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from txdecode.runtime import Runtime, replay
from txdecode.runtime.cli import main
from txdecode.runtime.cli import replay as replay_module
from txdecode.runtime.journal import Journal, iterate, read_header
from txdecode.runtime.journal.segments import segment_path
from txdecode.state.digest import LEDGERS
from txdecode.transactions.toy import ToyExecutor

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def run(log: Path, draft: str = "executor", **options: Any) -> Path:
    with Runtime.open(ToyExecutor(accuracy=6), log=log, draft=draft, draft_len=4, **options) as runtime:
        runtime.submit(PROMPT, max_tokens=20)
        runtime.submit(PROMPT[::-1], max_tokens=9)
        runtime.run()
    return log


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return run(tmp_path / "run.txlog")


def invoke(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def hurt(log: Path, sequence: int) -> None:
    """Flip a bit of a record."""
    offset = next(record.offset for record in iterate(log) if record.sequence == sequence)
    data = bytearray(log.read_bytes())
    data[offset + 30] ^= 1
    log.write_bytes(data)


def lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


# Replay.


def test_replay_of_one_request(log: Path) -> None:
    code, out, _ = invoke("replay", log, "--request", 1, "--json")
    report = json.loads(out)
    assert code == 0
    assert [request["request"] for request in report["requests"]] == [1]
    assert report["records"] == replay(log).records
    assert invoke("replay", log, "--request", 1)[1].count("length") == 1


def test_replay_for_people_keeps_the_latest_and_counts_all(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_module, "FINISHED_SHOWN", 1)
    code, out, _ = invoke("replay", log)
    assert code == 0
    assert "1 requests that finished earlier are left out; see one with --request" in out
    assert "2 requests: 29 emitted in" in out
    assert out.count("length") == 1


def test_replay_for_people_says_law_and_seed(log: Path) -> None:
    header, row = (line.split() for line in invoke("replay", log)[1].splitlines()[1:3])
    said = dict(zip(header, row, strict=False))
    assert (said["request"], said["law"], said["seed"], said["emitted"]) == ("0", "greedy", "0", "20")


def test_replay_of_a_log_whose_beginning_was_dropped(tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"
    with Runtime.open(ToyExecutor(), log=log, draft="none", segment_bytes=4096, keep_segments=1) as runtime:
        runtime.submit([1, 2], max_tokens=150)
        runtime.run()
    code, out, _ = invoke("replay", log)
    assert code == 0
    assert f"from {replay(log).first_sequence} on: " in out
    assert "requests 0 began in segments that were dropped" in out
    assert " 150 " in out


# Inspect.


def test_inspect_by_round(log: Path) -> None:
    found = lines(invoke("log", "inspect", log, "--round", 1, "--json")[1])
    rounds = [item for item in found if item["kind"] == "record"]
    assert [(item["event"]["request"], item["event"]["ordinal"]) for item in rounds] == [(0, 1), (1, 1)]
    both = lines(invoke("log", "inspect", log, "--round", 1, "--request", 1, "--json")[1])
    assert [item["event"]["request"] for item in both if item["kind"] == "record"] == [1]


@pytest.mark.parametrize("ledger", LEDGERS)
def test_inspect_by_ledger(ledger: str, log: Path) -> None:
    found = lines(invoke("log", "inspect", log, "--ledger", ledger, "--json")[1])
    records = [item for item in found if item["kind"] == "record"]
    # What the changes add up to is what the ledger holds: in the end nothing.
    cells: dict[Any, Any] = {}
    for item in records:
        for change in item["changes"]:
            place = (change["field"], *change["key"])
            assert cells.get(place) == change["before"]
            cells[place] = change["after"]
    assert cells
    assert set(cells.values()) == {None}
    assert not [item for item in found if item["kind"] == "fold stopped"]


def test_inspect_by_ledger_for_people(log: Path) -> None:
    out = invoke("log", "inspect", log, "--ledger", "tokens", "--request", 1)[1]
    assert f"prompt 1[0]: - -> {PROMPT[-1]}" in out
    assert "budget 1[0]: - -> 9" in out
    assert "more cells (all with --json)" in out


def test_inspect_stops_folding_at_damage_and_says_so(log: Path) -> None:
    sequence = 8
    hurt(log, sequence)
    code, out, _ = invoke("log", "inspect", log, "--ledger", "tokens", "--json")
    found = lines(out)
    assert code == 0
    stopped = [index for index, item in enumerate(found) if item["kind"] == "fold stopped"]
    assert len(stopped) == 1
    assert "damage at byte" in found[stopped[0]]["reason"]
    for index, item in enumerate(found):
        if item["kind"] == "record":
            assert ("changes" in item) == (index < stopped[0]) == (item["sequence"] < sequence)
    assert "fold stopped: reason damage" in invoke("log", "inspect", log, "--ledger", "tokens")[1]


def test_inspect_stops_folding_where_the_log_contradicts_itself(log: Path, tmp_path: Path) -> None:
    header = read_header(log)
    other = tmp_path / "short.txlog"
    with Journal.create(other, fingerprint={}, configuration=header.configuration) as journal:
        for record in iterate(log):
            if record.sequence != 6:
                journal.append([(record.type, record.version, record.flags, record.payload)])
        journal.append([(4, 1, 0, b"\xc0"), (250, 1, 0, b"\xc0")])
    found = lines(invoke("log", "inspect", other, "--ledger", "pages", "--json")[1])
    assert [item["kind"] for item in found].count("fold stopped") == 1
    assert "diverges" in next(item["reason"] for item in found if item["kind"] == "fold stopped")
    assert [("undecodable" in item) for item in found[-2:]] == [True, True]


def test_inspect_of_segments(tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"
    with Runtime.open(ToyExecutor(), log=log, draft="none", segment_bytes=4096) as runtime:
        runtime.submit([1, 2], max_tokens=100)
        runtime.run()
    found = lines(invoke("log", "inspect", log, "--ledger", "rng", "--json")[1])
    headers = [item for item in found if item["kind"] == "header"]
    assert [item["segment"] for item in headers] == [*range(len(headers))]
    assert len(headers) > 1
    snapshots = [item["changes"] for item in found if item.get("name") == "Snapshot"]
    assert snapshots == [[]] * (len(headers) - 1)
    assert not [item for item in found if item["kind"] == "fold stopped"]
    assert "journal, format version 1, segment 1" in invoke("log", "inspect", log)[1]


def test_inspect_without_the_header(log: Path) -> None:
    data = bytearray(log.read_bytes())
    data[30] ^= 1
    log.write_bytes(data)
    found = lines(invoke("log", "inspect", log, "--ledger", "rng", "--json")[1])
    assert [item["kind"] for item in found][:2] == ["damage", "fold stopped"]
    assert {item["kind"] for item in found[2:]} == {"record"}


# Check.


def test_check_of_a_whole_log(log: Path) -> None:
    code, out, _ = invoke("log", "check", log, "--json")
    report = json.loads(out)
    whole = replay(log)
    assert code == 0
    assert (report["sound"], report["fixed"], report["torn_tail"]) == (True, False, None)
    assert (report["records"], report["checked"]) == (whole.records, whole.checked)
    assert (report["chain"], report["digests"]) == (whole.chain, whole.digests)
    assert [segment["segment"] for segment in report["segments"]] == ["run.txlog"]
    assert f"{whole.records} records are whole" in invoke("log", "check", log)[1]


def test_check_reports_a_torn_tail_and_cuts_it_when_asked(log: Path) -> None:
    whole = log.read_bytes()
    log.write_bytes(whole[:-5])
    code, out, _ = invoke("log", "check", log, "--json")
    report = json.loads(out)
    assert code == 1
    assert not report["sound"]
    assert report["torn_tail"]["offset"] + report["torn_tail"]["size"] == len(whole) - 5
    assert log.read_bytes() == whole[:-5]
    assert "remove it with --fix-tail" in invoke("log", "check", log)[1]
    code, out, _ = invoke("log", "check", log, "--fix-tail")
    assert code == 0
    assert ", removed" in out
    assert log.stat().st_size == report["torn_tail"]["offset"]
    assert invoke("log", "check", log)[0] == 0


def test_check_removes_an_unfinished_rotation_when_asked(tmp_path: Path) -> None:
    log = run(tmp_path / "run.txlog")
    cut = segment_path(log, 1)
    cut.write_bytes(b"")
    code, out, _ = invoke("log", "check", log)
    assert code == 1
    assert "unfinished rotation: 0 bytes in run.txlog.00001" in out
    assert "unfinished rotation: run.txlog.00001, left out" in invoke("replay", log)[1]
    assert invoke("log", "check", log, "--fix-tail")[0] == 0
    assert not cut.exists()


def test_check_changes_no_log_that_does_not_fold(log: Path, tmp_path: Path) -> None:
    other = tmp_path / "short.txlog"
    with Journal.create(other, fingerprint={}, configuration=read_header(log).configuration) as journal:
        for record in iterate(log):
            if record.sequence != 6:
                journal.append([(record.type, record.version, record.flags, record.payload)])
    torn = other.read_bytes()[:-5]
    other.write_bytes(torn)
    code, _, err = invoke("log", "check", other, "--fix-tail")
    assert code == 2
    assert "diverges" in err
    assert other.read_bytes() == torn


# Diff.


def test_diff_of_equal_and_of_plain_runs(log: Path, tmp_path: Path) -> None:
    again, plain = run(tmp_path / "again.txlog"), run(tmp_path / "plain.txlog", draft="none")
    code, out, _ = invoke("log", "diff", log, again)
    assert code == 0
    assert "events are equal" in out
    assert "text equal" in out
    code, out, _ = invoke("log", "diff", log, plain)
    assert code == 1
    assert "text equal; rounds and drafts differ from record" in out
    assert "header configuration.options.draft: executor | none" in out
    code, out, _ = invoke("log", "diff", log, plain, "--json")
    data = json.loads(out)
    assert code == 1
    assert (data["equal"], data["text_equal"]) == (False, True)
    assert data["event"]["field"] == "source"
    assert [request["text"] for request in data["requests"]] == ["equal", "equal"]
    assert data["requests"][0]["a"]["emitted"] == 20
    assert json.loads(invoke("log", "diff", log, again, "--json")[1])["equal"]


def test_diff_of_other_texts(log: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txlog"
    with Runtime.open(ToyExecutor(accuracy=6), log=other, draft="executor", draft_len=4) as runtime:
        runtime.submit(PROMPT[:4], max_tokens=20)
        runtime.run()
    code, out, _ = invoke("log", "diff", log, other)
    assert code == 1
    assert "differ in prompt: [3, 1, 4, 1, 5, 9, 2, 6] | [3, 1, 4, 1]" in out
    assert "differs from token 0" in out
    assert "only in A" in out
    assert "text differs" in out


def test_diff_of_logs_without_requests(tmp_path: Path) -> None:
    for name in ("a", "b"):
        Runtime.open(ToyExecutor(), log=tmp_path / name).close()
    code, out, _ = invoke("log", "diff", tmp_path / "a", tmp_path / "b")
    assert code == 0
    assert "no requests" in out


# Export.


def test_export_to_standard_output_and_to_a_file(log: Path, tmp_path: Path) -> None:
    out_file = tmp_path / "trace.json"
    code, out, _ = invoke("log", "export", log, "--to", "jsonl")
    assert code == 0
    assert [line["sequence"] for line in lines(out)] == [*range(replay(log).records)]
    code, out, err = invoke("log", "export", log, "--to", "chrome-trace", "-o", out_file)
    assert (code, out) == (0, "")
    assert str(out_file) in err
    assert json.loads(out_file.read_text())["traceEvents"]
    code, out, _ = invoke("log", "export", log, "--to", "chrome-trace", "-o", out_file, "--json")
    assert json.loads(out) == {
        "log": str(log),
        "to": "chrome-trace",
        "output": str(out_file),
        "records": replay(log).records,
    }
    code, out, err = invoke("log", "export", log, "--to", "jsonl", "--json")
    assert json.loads(err)["records"] == len(lines(out))


# Bad input: one line, exit code 2, nothing on standard output.

COMMANDS: list[list[str]] = [
    ["replay", "LOG"],
    ["log", "inspect", "LOG"],
    ["log", "check", "LOG"],
    ["log", "check", "LOG", "--fix-tail"],
    ["log", "export", "LOG", "--to", "jsonl"],
    ["log", "export", "LOG", "--to", "chrome-trace"],
    ["log", "diff", "LOG", "GOOD"],
    ["log", "diff", "GOOD", "LOG"],
]


def refused(*arguments: object) -> str:
    code, out, err = invoke(*arguments)
    assert code == 2
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert err.startswith("error: ")
    return err


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_log(command: list[str], log: Path, tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("these are notes\n")
    empty = tmp_path / "empty"
    empty.touch()
    for path in (text, empty, tmp_path, tmp_path / "missing"):
        given = {"LOG": path, "GOOD": log}
        assert str(path) in refused(*(given.get(word, word) for word in command))
    assert text.read_text() == "these are notes\n"


@pytest.mark.parametrize("command", [command for command in COMMANDS if "inspect" not in command])
def test_a_damaged_log(command: list[str], log: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.txlog"
    bad.write_bytes(log.read_bytes())
    hurt(bad, 8)
    before = bad.read_bytes()
    code, _, err = invoke(*({"LOG": bad, "GOOD": log}.get(word, word) for word in command))
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    assert "record 8" in err
    assert bad.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["replay", "LOG", "--until", "-1"], "--until must be a whole number of at least 0, found '-1'"),
        (["replay", "LOG", "--until", "often"], "--until must be a whole number"),
        (["replay", "LOG", "--until", "9" * 5000], "--until must be a whole number"),
        (["replay", "LOG", "--request", "-1"], "--request must be a whole number of at least 0"),
        (["replay", "LOG", "--request", "7"], "no request 7 in records 0 to"),
        (["replay", "LOG", "--request", "1", "--until", "0"], "no request 1 in records 0 to 0"),
        (["log", "inspect", "LOG", "--request", "-2"], "--request must be"),
        (["log", "inspect", "LOG", "--request", "7"], "no record of request 7"),
        (["log", "inspect", "LOG", "--round", "-2"], "--round must be"),
        (["log", "inspect", "LOG", "--round", "500"], "no record in a round 500"),
        (
            ["log", "inspect", "LOG", "--request", "1", "--round", "50"],
            "no record of request 1 in a round 50",
        ),
        (["log", "inspect", "LOG", "--limit", "0"], "--limit must be a whole number of at least 1"),
        (["log", "inspect", "LOG", "--ledger", "kv"], "--ledger must be one of tokens, pages"),
        (["log", "export", "LOG", "--to", "pdf"], "--to must be one of jsonl, chrome-trace, found 'pdf'"),
        (["log", "export", "LOG", "--to", "jsonl", "-o", "LOG"], "is a log"),
        (["log", "export", "LOG", "--to", "jsonl", "-o", "FOLDER"], "cannot write"),
        (["log", "diff", "LOG", "LOG"], "are one log; give two"),
    ],
)
def test_what_cannot_be_answered(arguments: list[str], words: str, log: Path, tmp_path: Path) -> None:
    before = log.read_bytes()
    given = {"LOG": log, "FOLDER": tmp_path}
    assert words in refused(*(given.get(word, word) for word in arguments))
    assert log.read_bytes() == before


def test_the_commands_load_no_torch(log: Path, tmp_path: Path) -> None:
    other = run(tmp_path / "other.txlog")
    script = (
        "import sys\n"
        "from txdecode.runtime.cli import main\n"
        "a, b = sys.argv[1:]\n"
        "for arguments in (['log', 'check', a], ['log', 'diff', a, b], ['log', 'export', a, '--to', 'jsonl']):\n"
        "    main(arguments, standalone_mode=False)\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(log), str(other)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
