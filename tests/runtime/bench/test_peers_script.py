"""The driver of ``make bench-peers``: passes that alternate, medians by category, texts that speculation changes."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.bench import peers as script
from tests.bench.peers import Answer, Found, Ours, changed, print_found, side_by_side, speeds
from tests.runtime.bench.test_arms import PROMPTS as TOY_PROMPTS
from tests.runtime.bench.test_arms import models, settings
from txdecode.runtime.bench.arms import ArmOpener, RuntimeArm
from txdecode.runtime.bench.errors import PeerFailed, PeerMissing
from txdecode.runtime.bench.measure import SPECULATIVE
from txdecode.runtime.bench.peers import PeerName
from txdecode.runtime.gates.prompts import GatePrompt

PROMPTS = [
    (GatePrompt("a", (), 8, False, category="chat"), [1, 2]),
    (GatePrompt("b", (), 8, False, category="chat"), [1, 2, 3]),
    (GatePrompt("c", (), 8, False, category="json"), [1]),
]


class Told:
    def __init__(
        self, name: str, seen: list[tuple[int, str, str]], fails: str = "", speed: float = 10.0
    ) -> None:
        self.name, self.seen, self.fails, self.speed = name, seen, fails, speed

    def decode(self, prompt: GatePrompt, ids: Sequence[int], repeat: int) -> Answer:
        self.seen.append((repeat, prompt.name, self.name))
        if prompt.name == self.fails and repeat:
            raise PeerFailed(self.name, "no room")
        own = None if repeat else 2
        return Answer(self.name, prompt.name, prompt.category, repeat, 8, self.speed + repeat, "text", own)


def test_engines_take_turns_prompt_by_prompt_and_the_order_alternates() -> None:
    seen: list[tuple[int, str, str]] = []
    out = io.StringIO()
    found = side_by_side([Told("x", seen), Told("y", seen)], PROMPTS, 2, out)
    assert [item[2] for item in seen] == ["x", "y"] * 3 + ["y", "x"] * 3
    assert [item[1] for item in seen] == ["a", "a", "b", "b", "c", "c"] * 2
    assert len(found.answers) == len(out.getvalue().splitlines()) == 12
    assert json.loads(out.getvalue().splitlines()[0])["engine"] == "x"


def test_what_fails_once_is_left_out_alone() -> None:
    seen: list[tuple[int, str, str]] = []
    found = side_by_side([Told("x", seen), Told("y", seen, fails="b")], PROMPTS, 3)
    assert found.failures == (("y", "b", "'y' failed: no room"),)
    assert not [item for item in found.answers if (item.engine, item.prompt) == ("y", "b")]
    assert len([item for item in found.answers if item.prompt == "b"]) == 3
    assert (2, "b", "y") not in seen


def test_prompts_that_a_peer_reads_in_its_own_way_are_reported() -> None:
    found = side_by_side([Told("x", [])], PROMPTS, 2)
    assert found.lengths == (("x", "b", 2, 3), ("x", "c", 2, 1))


def given(*rows: tuple[str, str, str, float | None, str]) -> Found:
    made = [
        Answer(engine, prompt, category, 0, 4, tok_s, text) for engine, prompt, category, tok_s, text in rows
    ]
    return Found(tuple(made), (), ())


def test_speeds_are_medians_of_medians_by_category() -> None:
    found = given(
        ("x", "a", "chat", 10, ""),
        ("x", "a", "chat", 30, ""),
        ("x", "b", "chat", 40, ""),
        ("x", "c", "json", None, ""),
        ("y", "c", "json", 5, ""),
    )
    assert speeds(found) == {"chat": {"x": 30.0}, "json": {"y": 5.0}}


def test_changed_texts_are_counted_against_the_engines_own_plain_ones() -> None:
    found = given(
        ("llama", "a", "chat", 1, "one"),
        ("llama:7", "a", "chat", 1, "two"),
        ("llama", "b", "chat", 1, "one"),
        ("llama:7", "b", "chat", 1, "one"),
        ("ours plain", "a", "chat", 1, "mine"),
        ("ours", "a", "chat", 1, "mine"),
        ("hf-bf16:7", "a", "chat", 1, "alone"),
    )
    assert changed(found) == {"llama:7": (1, 2), "ours": (0, 1)}


def test_the_table_compares_ours_with_the_best_peer(capsys: pytest.CaptureFixture[str]) -> None:
    found = given(
        ("ours plain", "a", "chat", 50, ""),
        ("ours", "a", "chat", 90, ""),
        ("llama", "a", "chat", 45, ""),
        ("hf-bf16", "a", "chat", 20, ""),
    )
    print_found(found, ["ours plain", "ours", "llama", "hf-bf16", "hf-bf16:7"])
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("chat"))
    assert line.split() == ["chat", "50.0", "90.0", "45.0", "20.0", "-", "2.00"]


def test_missing_peers_are_named_and_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pythons = {}

    class Process:
        def __init__(self, name: PeerName, model: Path, *, python: str, threads: int, folder: Path) -> None:
            pythons[str(name)] = python
            if name.peer == "llama":
                raise PeerMissing(str(name), "llama_cpp", python)
            self.name = name

        def __enter__(self) -> Process:
            return self

        def __exit__(self, *args: object) -> None:
            pythons["closed"] = str(self.name)

    monkeypatch.setattr(script, "PeerProcess", Process)
    names = [PeerName("llama"), PeerName("hf-bf16", 7)]
    with script.peers(names, tmp_path, python_llama="other", threads=1) as (running, absent):
        assert [peer.name for peer in running] == ["hf-bf16:7"]
        assert len(absent) == 1
        assert "'llama' needs llama_cpp" in absent[0]
    assert pythons["llama"] == "other"
    assert pythons["hf-bf16:7"] == script.sys.executable
    assert pythons["closed"] == "hf-bf16:7"


def test_ours_opens_afresh_in_every_pass_after_a_run_that_does_not_count(tmp_path: Path) -> None:
    opened: list[tuple[str, int]] = []
    opener = ArmOpener(models(), settings(), tmp_path)

    def noted(name: str, repeat: int) -> RuntimeArm:
        opened.append((name, repeat))
        return opener(name, repeat)

    ours = Ours("ours", SPECULATIVE, noted, frozenset())  # type: ignore[arg-type]
    answers = [ours.decode(prompt, prompt.text, repeat) for repeat in (0, 1) for prompt in TOY_PROMPTS[:2]]
    assert opened == [(SPECULATIVE, -1), (SPECULATIVE, 0), (SPECULATIVE, 1)]
    assert [answer.tokens for answer in answers] == [24] * 4
    assert [answer.output for answer in answers[:2]] == [answer.output for answer in answers[2:]]
    with pytest.raises(PeerFailed, match="it read 4 prompt tokens of 5"):
        ours.decode(TOY_PROMPTS[0], "ABCDE", 1)
    ours.close()
    ours.close()


def test_no_peer_at_all_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: PeerName, *args: object, **options: object) -> None:
        raise PeerMissing(str(name), "llama_cpp", "python")

    class Text:
        def __init__(self, assets: object) -> None:
            pass

        def encode_chat(self, messages: object) -> list[int]:
            return [1]

    monkeypatch.setattr(script, "PeerProcess", missing)
    monkeypatch.setattr(script, "resolve", lambda name: type("Source", (), {"path": Path("m.gguf")}))
    monkeypatch.setattr(script, "load_text", lambda source: None)
    monkeypatch.setattr(script, "Text", Text)
    monkeypatch.setattr(script.sys, "argv", ["peers.py", "--peer", "llama"])
    with pytest.raises(SystemExit, match="error: 'every peer' failed: none of them can be run"):
        script.main()
    assert "left out: 'llama' needs llama_cpp" in capsys.readouterr().err
