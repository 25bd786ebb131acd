"""The sampling options of ``txdecode run`` on a tiny model."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from txdecode.runtime import Runtime, Sampling
from txdecode.runtime.cli import main
from txdecode.runtime.cli.options import sampling_of, sampling_options
from txdecode.runtime.cli.run import logprobs_data
from txdecode.transactions.target import TokenLogprobs

PROMPT = "abcabcabc"


def invoke(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def decoded(model: Path, *arguments: object) -> dict[str, Any]:
    # In bf16 the largest logits of so small a model are often equal.
    common = ["run", PROMPT, "--model", model, "--dtype", "fp32", "--max-tokens", 16, "--json"]
    code, out, err = invoke(*common, *arguments)
    assert code == 0, err
    made: dict[str, Any] = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    return made


def checkpoint(tiny: Path, folder: Path, **settings: Any) -> Path:
    shutil.copytree(tiny, folder)
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return folder


def test_every_option_reaches_its_field() -> None:
    seen: list[Sampling] = []

    @click.command()
    @sampling_options
    @click.option("--other")
    def command(sampling: Sampling, other: str) -> None:
        seen.append(sampling)
        assert other == "x"

    values = {
        "temperature": 0.7,
        "top-k": 5,
        "top-p": 0.9,
        "min-p": 0.1,
        "repetition-penalty": 1.1,
        "presence-penalty": -0.2,
        "frequency-penalty": 0.3,
        "seed": 2**64 - 1,
        "min-tokens": 3,
        "logprobs": 2,
        "law": "chain",
    }
    arguments = [f"--{name}={value}" for name, value in values.items()]
    bias = ["--logit-bias", "4=-inf", "--logit-bias", "1=2.5"]
    for line in ([*arguments, *bias, "--other=x"], ["--other=x"]):
        result = CliRunner().invoke(command, line)
        assert result.exception is None, result.output
    fields = {name.replace("-", "_"): value for name, value in values.items()}
    assert seen == [Sampling(**fields, logit_bias={4: -math.inf, 1: 2.5}), Sampling()]  # type: ignore[arg-type]


def test_sampling_of_nothing_is_nothing_given() -> None:
    assert sampling_of() == Sampling()


def test_a_run_is_repeated_with_its_seed_whatever_drafts(tiny: Path) -> None:
    first, second = (decoded(tiny, "--temperature", 1.5) for _ in range(2))
    assert first["law"] == "coupled"
    assert first["seed"] != second["seed"]
    assert first["ids"] != second["ids"]
    same = ["--temperature", 1.5, "--seed", first["seed"]]
    assert decoded(tiny, *same)["ids"] == first["ids"]
    assert decoded(tiny, *same, "--draft", "none")["ids"] == first["ids"]
    chain = decoded(tiny, *same, "--law", "chain")
    assert (chain["law"], chain["seed"]) == ("chain", first["seed"])


def test_options_change_what_is_chosen(tiny: Path) -> None:
    greedy = decoded(tiny)
    assert (greedy["seed"], greedy["law"], greedy["logprobs"]) == (None, None, None)
    assert decoded(tiny, "--temperature", 0, "--top-k", 3)["ids"] == greedy["ids"]
    assert decoded(tiny, "--temperature", 5, "--top-k", 1)["ids"] == greedy["ids"]
    assert decoded(tiny, "--temperature", 5, "--top-p", 1e-9)["ids"] == greedy["ids"]
    assert decoded(tiny, "--temperature", 5, "--min-p", 1)["ids"] == greedy["ids"]
    first = greedy["ids"][0]
    assert first not in decoded(tiny, "--logit-bias", f"{first}=-inf")["ids"]
    assert set(decoded(tiny, "--logit-bias", "7=1e4")["ids"]) == {7}
    for penalty in ("--repetition-penalty=100", "--presence-penalty=2", "--frequency-penalty=2"):
        assert len(set(decoded(tiny, penalty)["ids"])) == 16 > len(set(greedy["ids"]))


def test_min_tokens_keep_a_stop_string_from_ending_the_text(tiny: Path) -> None:
    bias = ["--logit-bias", f"{ord('a') - 33}=1e4", "--stop", "aa"]
    assert decoded(tiny, *bias)["text"] == ""
    kept = decoded(tiny, *bias, "--min-tokens", 5)
    assert (kept["text"], len(kept["ids"]), kept["finish"]) == ("aaaaa", 7, "stop")


def test_logprobs_of_every_token(tiny: Path) -> None:
    made = decoded(tiny, "--temperature", 0.8, "--top-k", 4, "--seed", 1, "--logprobs", 6)
    with Runtime.open(str(tiny), dtype="fp32", draft="none") as runtime:
        options = Sampling(temperature=0.8, top_k=4, seed=1, logprobs=6)
        result = runtime.submit(PROMPT, max_tokens=16, sampling=options).result()
        assert runtime.text is not None
        texts = [runtime.text.token_text(token) for token in result.ids]
    assert result.logprobs is not None
    assert len(made["logprobs"]) == len(made["ids"]) == 16
    for item, theirs, token, text in zip(made["logprobs"], result.logprobs, result.ids, texts, strict=True):
        assert (item["token"], item["text"]) == (token, text)
        assert (item["raw"], item["target"]) == (theirs.raw, theirs.target)
        assert [tuple(pair) for pair in item["raw_top"]] == list(theirs.raw_top)
        assert [tuple(pair) for pair in item["target_top"]] == list(theirs.target_top)
        assert (len(item["raw_top"]), len(item["target_top"])) == (6, 4)
        assert item["raw"] < item["target"] <= 0


def test_json_has_no_infinity() -> None:
    item = logprobs_data(TokenLogprobs(1, -math.inf, -0.5, ((1, -math.inf),), ((2, -0.5),)), str)
    assert item == {
        "token": 1,
        "text": "1",
        "raw": None,
        "target": -0.5,
        "raw_top": [[1, None]],
        "target_top": [[2, -0.5]],
    }


def test_people_see_the_seed_and_a_table(tiny: Path) -> None:
    common = ["run", PROMPT, "--model", tiny, "--max-tokens", 3]
    _, out, err = invoke(*common, "--temperature", 1, "--seed", 77, "--logprobs", 2)
    lines = err.splitlines()
    assert lines[0].split() == ["token", "raw", "target", "raw", "alternatives", "target", "alternatives"]
    assert len(lines) == 5
    assert "seed 77" in lines[-1]
    assert lines[1].count(", ") >= 2
    assert "alternatives" not in out
    bare = invoke(*common, "--logprobs", 0)[2].splitlines()
    assert bare[0].split() == ["token", "raw", "target"]
    assert "seed" not in bare[-1]
    assert len(invoke(*common)[2].splitlines()) == 1


def test_the_checkpoints_defaults_apply_and_options_win(tiny: Path, tmp_path: Path) -> None:
    model = checkpoint(tiny, tmp_path / "warm", do_sample=True, temperature=1.5, top_k=7)
    made = decoded(model, "--seed", 5)
    assert (made["law"], made["seed"]) == ("coupled", 5)
    assert made["ids"] == decoded(tiny, "--temperature", 1.5, "--top-k", 7, "--seed", 5)["ids"]
    assert decoded(model, "--temperature", 0)["ids"] == decoded(tiny)["ids"]
    assert decoded(model, "--top-k", 1)["ids"] == decoded(tiny)["ids"]


def test_a_checkpoints_unusable_default_is_named(tiny: Path, tmp_path: Path) -> None:
    model = checkpoint(tiny, tmp_path / "odd", do_sample=True, temperature=1.5, top_p=7)
    code, out, err = invoke("run", PROMPT, "--model", model)
    assert (code, out) == (2, "")
    assert "generation_config.json" in err
    assert len(err.strip().splitlines()) == 1
    assert decoded(model, "--top-p", 1)["law"] == "coupled"


def test_the_demo_compares_greedy_texts_whatever_the_checkpoint_asks_for(tiny: Path, tmp_path: Path) -> None:
    model = checkpoint(tiny, tmp_path / "warm", do_sample=True, temperature=5.0)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    (model / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    log = tmp_path / "demo.txlog"
    code, out, err = invoke("demo", "--model", model, "--max-tokens", 8, "--log", log)
    assert code == 0, err
    assert "the same, token for token" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--temperature", "-1"], "temperature must be"),
        (["--temperature", "nan"], "temperature must be"),
        (["--temperature", "1e-5"], "use 0 for greedy"),
        (["--top-k", "-1"], "top_k must be"),
        (["--top-p", "0"], "top_p must be"),
        (["--min-p", "1.5"], "min_p must be"),
        (["--repetition-penalty", "0"], "repetition_penalty must be"),
        (["--presence-penalty", "3"], "presence_penalty must be"),
        (["--frequency-penalty", "-3"], "frequency_penalty must be"),
        (["--seed", "-1"], "seed must be"),
        (["--seed", str(2**64)], "seed must be"),
        (["--min-tokens", "-1"], "min_tokens must be"),
        (["--logprobs", "21"], "logprobs must be"),
        (["--logit-bias", "3"], "logit-bias must be ID=VALUE"),
        (["--logit-bias", "a=1"], "logit-bias must be ID=VALUE"),
        (["--logit-bias", "-1=1"], "logit-bias must be ID=VALUE"),
        (["--logit-bias", "3=x"], "logit-bias must be ID=VALUE"),
        (["--logit-bias", "3=1\n=2"], "logit-bias must be ID=VALUE"),
        (["--logit-bias", "9" * 5000 + "=1"], "logit-bias must be ID=VALUE"),
        (["--logit-bias", "3=inf"], r"logit_bias[3] must be"),
        (["--logit-bias", "3=1", "--logit-bias", "3=2"], "found 3 twice"),
    ],
)
def test_what_is_out_of_range_is_refused_before_a_model_is_opened(arguments: list[str], words: str) -> None:
    code, out, err = invoke("run", "x", "--model", "no-such-model", *arguments)
    assert (code, out) == (2, "")
    assert len(err.strip().splitlines()) == 1
    assert words in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--law", "chain"], "law has no effect"),
        (["--top-p", "0.5"], "top_p has no effect"),
        (["--min-tokens", "9", "--max-tokens", "8"], "min_tokens must be at most 8"),
        (["--logit-bias", "256=1"], "0..255"),
    ],
)
def test_what_this_request_cannot_take(tiny: Path, tmp_path: Path, arguments: list[str], words: str) -> None:
    log = tmp_path / "run.txlog"
    code, out, err = invoke("run", "x", "--model", tiny, "--log", log, *arguments)
    assert (code, out) == (2, "")
    assert len(err.strip().splitlines()) == 1
    assert words in err
    assert not log.exists()


def test_another_law_and_what_is_no_number_are_usage_errors() -> None:
    for arguments in (["--law", "greedy"], ["--seed", "x"], ["--top-k", "1.5"]):
        assert invoke("run", "x", *arguments)[0] == 2
