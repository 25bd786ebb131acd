"""``demo`` and the defaults of the other commands on the bundled model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner

from txdecode.runtime.acceptance import acceptance_by_depth
from txdecode.runtime.cli import demo as demo_module
from txdecode.runtime.cli import main
from txdecode.runtime.cli.demo import _Run, repeats, words
from txdecode.runtime.gates.prompts import BUILT_IN, CODE_PROMPTS
from txdecode.runtime.replay import replay

DRAFTERS = ("none", "lookup", "mtp", "mtp+lookup")


def invoke(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def rows(out: str, name: str) -> list[list[str]]:
    """Lines of tables that begin with ``name``, in columns."""
    return [re.split(r"  +", line.strip()) for line in out.splitlines() if line.startswith(f"{name} ")]


def test_demo_decodes_with_every_drafter_and_replays(tmp_path: Path) -> None:
    log = tmp_path / "demo.txlog"
    code, out, err = invoke("demo", "--max-tokens", 12, "--log", log)
    assert code == 0, err
    assert CODE_PROMPTS[0].text in out
    report = replay(log)
    written = [len(request.ids) for request in report.requests.values()]
    assert len(written) == 3
    assert sum(written) > 3
    greedy, sampled = out[out.index("--- greedy") :].split("--- sampled, temperature 0.8")
    assert int(rows(greedy, "none")[0][1]) == sum(written)
    for part in (greedy, sampled):
        for name in DRAFTERS:
            table = rows(part, name)[0]
            tokens, rounds, a_round, drafted, accepted = (float(cell) for cell in table[1:6])
            assert tokens == float(rows(part, "none")[0][1])
            assert a_round == pytest.approx(tokens / rounds, abs=0.006)
            assert table[-1] == "the same, token for token"
            assert (drafted == accepted == 0) if name == "none" else drafted >= accepted >= 0
        assert rows(part, "none")[0][7] == "1.00"
        offered = next(row for row in rows(part, "mtp") if "offered in" in row)
        assert sum(map(int, offered[2:])) == int(rows(part, "mtp")[0][4])
        assert part.count("mtp+lookup is ") + part.count("mtp+lookup gains nothing here, ") == 1
    assert "records reached the digests" in out
    assert acceptance_by_depth(log)


def test_a_text_that_differs_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measure = demo_module._measure

    def broken(*arguments: Any) -> list[_Run]:
        first, *others = measure(*arguments)
        return [first, *(attrs.evolve(run, ids=((1, 2), *run.ids[1:])) for run in others)]

    monkeypatch.setattr(demo_module, "_measure", broken)
    monkeypatch.setattr(demo_module, "_PASSES", 1)
    code, out, err = invoke("demo", "--max-tokens", 2, "--log", tmp_path / "demo.txlog")
    assert code == 1
    assert "DIFFERENT" in out
    assert "must never happen" in err


def run_of(draft: str, decode_s: float, rounds: int) -> _Run:
    return _Run(draft, ((1, 2, 3, 4),), rounds, 4, 2, decode_s, ())


def test_the_words_follow_from_the_figures() -> None:
    plain, fast, slow = run_of("none", 4.0, 4), run_of("mtp", 2.0, 2), run_of("lookup", 4.0, 3)
    said = list(words([plain, fast, slow]))
    assert said[0] == "mtp is 2.00 times as fast as plain decoding"
    assert said[1].startswith("lookup gains nothing here, 1.00 times plain: 1.33 tokens a round")
    assert len(said) == 2


def test_repeats_are_counted_within_a_text() -> None:
    assert repeats([range(8)]) == (1, 0)
    assert repeats([range(7)]) == (0, 0)
    assert repeats([[*range(8), *range(8)], range(8)]) == (10, 1)


def test_the_bundled_model_is_the_default(tmp_path: Path) -> None:
    log = tmp_path / "run.txlog"
    prompt = ("run", "def mean(values):\n", "--max-tokens", 8, "--json", "--log", log)
    code, out, err = invoke(*prompt)
    assert code == 0, err
    assert len(json.loads(out)["ids"]) == 8
    assert replay(log).configuration["options"]["model"] == "bundled"
    assert json.loads(invoke("describe", "--json")[1])["name"] == "bundled"


def test_gate_lossless_goes_on_with_code_where_there_is_no_chat_template(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    def gate(opened: Any, prompts: Any, **rest: Any) -> Any:
        seen.append((opened.name, prompts))
        raise demo_module.click.ClickException("enough")

    monkeypatch.setattr("txdecode.runtime.cli.gate.lossless_gate", gate)
    assert invoke("gate", "lossless")[0] == 1
    assert seen == [("bundled", CODE_PROMPTS)]
    assert all(prompt.text and not prompt.messages for prompt in CODE_PROMPTS)
    assert all(prompt.content == list(prompt.messages) for prompt in BUILT_IN)
