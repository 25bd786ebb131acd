"""``run``, ``demo`` and ``describe`` on SmolLM2, and bad input of every kind: one line and exit code 2."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from txdecode.kernels.models.errors import ModelError
from txdecode.kernels.models.source import resolve
from txdecode.runtime import Runtime
from txdecode.runtime.cli import main

PROMPT = 'Repeat this list unchanged: [{"name": "oak", "height": 31}, {"name": "elm", "height": 24}]'


@pytest.fixture(scope="module")
def weights() -> Path:
    try:
        return resolve("smollm2").path
    except ModelError as error:
        pytest.skip(str(error))


def invoke(*arguments: object, stdin: str | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.model
@pytest.mark.usefixtures("weights")
def test_speculative_and_plain_runs_print_the_same_ids(tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"
    common = ["run", "--model", "smollm2", "--chat", PROMPT, "--max-tokens", 32, "--json"]
    code, out, _ = invoke(*common, "--log", log)
    fast = json.loads(out)
    plain = json.loads(invoke(*common, "--draft", "none")[1])
    assert code == 0
    assert fast["ids"] == plain["ids"]
    assert fast["text"] == plain["text"]
    assert fast["log"] == str(log)
    assert plain["log"] is None
    names = {"prompt_tokens", "rounds", "plain_steps", "drafted", "accepted", "emitted"}
    assert (fast["seed"], fast["law"], fast["logprobs"]) == (None, None, None)
    assert set(fast["stats"]) == names | {
        "prefill_s",
        "decode_s",
        "tok_s",
        "host_share",
        "by_source",
        "decisions",
    }
    stats = fast["stats"]
    assert stats["by_source"] == {"prompt_lookup": [stats["drafted"], stats["accepted"]]}
    assert plain["stats"]["by_source"] == {}
    assert fast["stats"]["accepted"] > 0
    assert fast["stats"]["rounds"] < plain["stats"]["rounds"] == plain["stats"]["plain_steps"] == 32
    replayed = json.loads(invoke("replay", log, "--json")[1])["requests"][0]
    assert replayed["ids"] == fast["ids"]
    assert [replayed[name] for name in ("rounds", "plain_steps", "drafted", "accepted")] == [
        fast["stats"][name] for name in ("rounds", "plain_steps", "drafted", "accepted")
    ]


def test_the_prompt_comes_from_a_file_or_from_standard_input(tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("def add(a, b):\n    return")
    code, from_file, _ = invoke("run", "--model", tiny, "--prompt-file", file, "--max-tokens", 4)
    _, from_stdin, err = invoke("run", "--model", tiny, "--max-tokens", 4, stdin=file.read_text())
    assert code == 0
    assert from_file == from_stdin
    assert "tokens/s" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", ""], "empty"),
        (["run", "x", "--max-tokens", "0"], "max_tokens"),
        (["run", "x", "--max-tokens", "-3"], "max_tokens"),
        (["run", "x " * 60, "--context", "20"], "context takes 20"),
        (["run", "x " * 64], "context takes 128"),
        (["run", "x", "--stop", ""], "stop"),
    ],
)
def test_a_request_that_cannot_be_taken(tiny: Path, arguments: list[str], words: str) -> None:
    code, out, err = invoke(*arguments, "--model", tiny)
    assert code == 2
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert words in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "x", "--model", "no-such-model"], "no-such-model"),
        (["run", "x", "--draft-len", "16"], "draft length"),
        (["run", "x", "--draft-len", "-1"], "draft length"),
        (["run", "x", "--draft-len", "often"], "draft length"),
        (["run", "x", "--draft-len=--5"], "draft length"),
        (["run", "x", "--draft-len", "9" * 5000], "draft length"),
        (["run", "--prompt-file", "no-such-file"], "no-such-file"),
        (["describe", "no-such-model"], "no-such-model"),
        (["gate", "lossless", "--model", "no-such-model"], "no-such-model"),
        (["gate", "rows", "--model", "no-such-model"], "no-such-model"),
        (["gate", "lossless", "--prompts", "no-such-file"], "no-such-file"),
    ],
)
def test_what_cannot_be_opened(arguments: list[str], words: str) -> None:
    code, out, err = invoke(*arguments)
    assert code == 2
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert words in err


def test_a_refused_prompt_leaves_no_log_in_the_way(tiny: Path, tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"
    assert invoke("run", "", "--model", tiny, "--log", log)[0] == 2
    assert not log.exists()
    assert invoke("run", "x", "--max-tokens", 2, "--model", tiny, "--log", log)[0] == 0
    assert log.exists()


def test_recovery_opens_what_the_log_says_wherever_the_model_lies_now(tiny: Path, tmp_path: Path) -> None:
    log, moved = tmp_path / "run.txlog", tmp_path / "moved"
    shutil.copytree(tiny, moved)
    threads = torch.get_num_threads()
    try:
        runtime = Runtime.open(str(moved), log=log, dtype="fp32", threads=1, context=100)
        expected = runtime.submit("abcabc", max_tokens=12).result().ids
        runtime.submit("abcabc", max_tokens=12)
        runtime.step()
        runtime.close()
        moved.rename(tmp_path / "elsewhere")
        torch.set_num_threads(2)
        with Runtime.recover(log, str(tmp_path / "elsewhere")) as again:
            assert again.handles[1].result().ids == expected
    finally:
        torch.set_num_threads(threads)


def test_usage_errors_are_exit_code_two(tmp_path: Path) -> None:
    assert invoke("run", "x", "--prompt-file", tmp_path / "y")[0] == 2
    assert invoke("run", "x", "--dtype", "fp8")[0] == 2
    assert invoke("nonsense")[0] == 2


@pytest.mark.model
def test_a_truncated_model_is_named(weights: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(weights.read_bytes()[: 3 << 20])
    code, _, err = invoke("run", "x", "--model", cut)
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    assert str(cut) in err


def test_an_unsupported_architecture_is_named_with_those_that_are(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"architectures": ["MambaForCausalLM"], "model_type": "mamba"})
    )
    code, _, err = invoke("run", "x", "--model", tmp_path)
    assert code == 2
    assert "Mamba" in err
    for name in ("Llama", "Qwen2", "Qwen3"):
        assert name in err


def test_an_existing_log_is_kept(tiny: Path, tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"
    log.write_bytes(b"somebody's")
    code, _, err = invoke("run", "x", "--model", tiny, "--max-tokens", 2, "--log", log)
    assert code == 2
    assert "run.txlog" in err
    assert log.read_bytes() == b"somebody's"
    assert invoke("run", "x", "--model", tiny, "--max-tokens", 2, "--log", log, "--overwrite")[0] == 0
    assert invoke("replay", log)[0] == 0


@pytest.mark.model
@pytest.mark.usefixtures("weights")
def test_demo_shows_text_figures_and_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txdecode.runtime.cli.demo._PASSES", 1)
    log = tmp_path / "demo.txlog"
    code, out, _ = invoke("demo", "--model", "smollm2", "--max-tokens", 24, "--log", log)
    assert code == 0
    for words in (
        "def mean",
        "accepted",
        "tokens/s",
        "the same, token for token",
        "reached the digests",
        str(log),
    ):
        assert words in out


@pytest.mark.model
@pytest.mark.usefixtures("weights")
def test_describe_says_what_smollm2_is() -> None:
    code, out, _ = invoke("describe", "smollm2", "--json")
    data = json.loads(out)
    assert code == 0
    assert data["architecture"] == "llama"
    assert data["supported"] is True
    assert data["parameters"] == 134515008
    assert data["states"][0]["kind"] == "pages"
    assert "llama" in invoke("describe", "smollm2")[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "x", "--rollback", "replay"], "rollback 'replay' is a form of recurrent state"),
        (["run", "x", "--draft", "mtp"], "'mtp' needs an executor that drafts"),
        (["run", "x", "--draft", "mtp+lookup"], "'mtp+lookup' needs an executor that drafts"),
        (["run", "x", "--draft-depth", "2"], "draft='lookup' does not use"),
        (["gate", "rows", "--rollback", "restore"], "rollback 'restore' is a form of recurrent state"),
        (["gate", "lossless", "--rollback", "columns"], "rollback 'columns' is a form of recurrent state"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_what_this_model_cannot_do(tiny: Path, arguments: list[str], words: str) -> None:
    code, out, err = invoke(*arguments, "--model", tiny)
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "x", "--rollback", "snapshots"],
        ["run", "x", "--draft", "oracle"],
        ["run", "x", "--draft-depth", "0"],
        ["gate", "rows", "--rollback", "none"],
    ],
)
def test_what_no_model_can_do_is_a_usage_error(arguments: list[str]) -> None:
    assert invoke(*arguments)[0] == 2
