"""Processes of peers: their protocol, a stand-in for llama.cpp, what is missing, what breaks."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from txdecode.runtime.bench import peers
from txdecode.runtime.bench.errors import PeerFailed, PeerMissing
from txdecode.runtime.bench.peer_process import answer, digest, serve
from txdecode.runtime.bench.peers import PeerName, PeerProcess
from txdecode.runtime.errors import InvalidRequest

# Counts up from the prompt's last id; ends the process on id 99, raises on 98.
STAND_IN = """
import ctypes, os

LLAMA_FTYPE_MOSTLY_BF16 = 32


class Llama:
    def __init__(self, model_path, n_ctx, n_threads, n_threads_batch, verbose, draft_model, logits_all):
        assert n_ctx == 8192 and logits_all == (draft_model is not None)
        self.step = 1 if draft_model is None else draft_model.count
        self.weights = open(model_path).read()
        print("noise on standard output")

    def reset(self):
        pass

    def token_eos(self):
        return 40

    def create_chat_completion(self, messages, max_tokens, temperature):
        return {"usage": {"prompt_tokens": len(messages[0]["content"])}}

    def generate(self, ids, temp, top_k, repeat_penalty):
        token = ids[-1]
        if token == 99:
            os._exit(7)
        if token == 98:
            raise RuntimeError("does not like this one")
        while True:
            token += self.step
            yield token


class Options:
    pass


def llama_model_quantize_default_params():
    return Options()


def llama_model_quantize(source, target, options):
    assert options.ftype == 32 and options.allow_requantize
    if b"bad" in source:
        return 3
    with open(target, "w") as out:
        out.write("bf16 of " + open(source).read())
    return 0
"""
SPECULATIVE = """
class LlamaPromptLookupDecoding:
    def __init__(self, num_pred_tokens):
        self.count = num_pred_tokens
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., PeerProcess]:
    package = tmp_path / "python" / "llama_cpp"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(STAND_IN)
    (package / "llama_speculative.py").write_text(SPECULATIVE)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))

    def opened(name: str, model: str = "m.gguf", python: str = sys.executable) -> PeerProcess:
        (tmp_path / model).write_text("weights")
        return PeerProcess(
            PeerName.parse(name), tmp_path / model, python=python, threads=1, folder=tmp_path / "kept"
        )

    return opened


def test_names_of_peers() -> None:
    assert PeerName.parse("llama:7") == PeerName("llama", 7)
    assert str(PeerName.parse("llama:7")) == "llama:7"
    assert str(PeerName.parse("hf-bf16")) == "hf-bf16"
    for wrong in ("gpt", "llama:x", "llama:-1", ""):
        with pytest.raises(InvalidRequest, match="a peer is one of"):
            PeerName.parse(wrong)


def test_a_process_answers_prompt_by_prompt(start: Callable[..., PeerProcess]) -> None:
    with start("llama") as peer:
        said = peer.ask("a", [5, 6], 3)
        assert said["ids"] == [7, 8, 9]
        assert (said["id"], said["prompt_tokens"], said["new_tokens"]) == ("a", 2, 3)
        assert said["own_prompt_tokens"] is None
        assert said["output"] == digest([7, 8, 9])
        # The end of generation is no token of the text.
        assert peer.ask("b", [37], 9, [{"role": "user", "content": "four"}])["ids"] == [38, 39]
        ids, tok_s = peer.decode("c", [5], 4)
        assert ids == [6, 7, 8, 9]
        assert tok_s >= 0
    peer.close()


def test_a_lookup_is_passed_on(start: Callable[..., PeerProcess]) -> None:
    with start("llama:3") as peer:
        assert peer.ask("a", [1], 3)["ids"] == [4, 7, 10]


def test_its_own_reading_of_the_messages_is_reported(start: Callable[..., PeerProcess]) -> None:
    with start("llama") as peer:
        said = peer.ask("a", [5, 6], 2, [{"role": "user", "content": "12345"}])
    assert (said["prompt_tokens"], said["own_prompt_tokens"]) == (2, 5)


def test_weights_are_converted_once_and_kept(start: Callable[..., PeerProcess], tmp_path: Path) -> None:
    start("llama-bf16").close()
    kept = tmp_path / "kept" / "m-bf16.gguf"
    assert kept.read_text() == "bf16 of weights"
    kept.write_text("as it was")
    start("llama-bf16").close()
    assert kept.read_text() == "as it was"
    with pytest.raises(PeerFailed, match=r"could not convert 'bad\.gguf' to bf16 \(code 3\)"):
        start("llama-bf16", "bad.gguf")
    assert not (tmp_path / "kept" / "bad-bf16.gguf").exists()


def test_an_error_leaves_the_process_for_the_next_prompt(start: Callable[..., PeerProcess]) -> None:
    with start("llama") as peer:
        with pytest.raises(PeerFailed, match="RuntimeError: does not like this one"):
            peer.ask("a", [98], 2)
        assert peer.ask("b", [5], 1)["ids"] == [6]


def test_a_process_that_ends_is_an_error(start: Callable[..., PeerProcess]) -> None:
    with start("llama") as peer:
        for _ in range(2):
            with pytest.raises(PeerFailed, match="'llama' failed"):
                peer.ask("a", [99], 2)


def test_a_missing_package_is_named(
    start: Callable[..., PeerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH")
    with pytest.raises(PeerMissing, match="'llama' needs llama_cpp") as caught:
        start("llama")
    assert caught.value.package == "llama_cpp"


def test_an_interpreter_that_is_not_there(start: Callable[..., PeerProcess], tmp_path: Path) -> None:
    with pytest.raises(PeerFailed, match="cannot be run"):
        start("llama", python=str(tmp_path / "no" / "python"))


def interpreter(path: Path, *lines: str) -> str:
    """Something that is run in the place of Python."""
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    path.chmod(0o755)
    return str(path)


def test_a_process_that_speaks_another_language(start: Callable[..., PeerProcess], tmp_path: Path) -> None:
    with pytest.raises(PeerFailed, match="it said 'hello"):
        start("llama", python=interpreter(tmp_path / "sh", "echo hello"))
    with pytest.raises(PeerFailed, match="it ended: no such thing"):
        start("llama", python=interpreter(tmp_path / "sh2", "echo no such thing >&2"))


def test_a_process_that_does_not_end_is_ended(
    start: Callable[..., PeerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_PATIENCE_S", 0.05)
    peer = start("llama", python=interpreter(tmp_path / "sh", """echo '{"ready": true}'""", "exec sleep 600"))
    peer.close()
    assert peer._process.returncode == -9
    with pytest.raises(ValueError, match="closed"):
        peer.ask("a", [1], 1)


class Counting:
    """An engine whose runs take a second a token and two for the prompt."""

    def __init__(self) -> None:
        self.now = 0.0

    def encode(self, messages: Sequence[Any]) -> list[int]:
        return [1, 2, 3]

    def generate(self, ids: Sequence[int], count: int) -> list[int]:
        self.now += 2 + count
        return list(range(count))


def test_decode_time_is_a_run_less_one_of_one_token() -> None:
    engine = Counting()
    asked = {"id": "a", "ids": [], "messages": [{}], "max_tokens": 5}
    said = answer(engine, asked, lambda: engine.now)
    assert said["decode_s"] == 4.0
    assert said["tok_s"] == 1.0
    assert said["prompt_tokens"] == said["own_prompt_tokens"] == 3
    assert answer(engine, {**asked, "max_tokens": 1}, lambda: engine.now)["tok_s"] is None


def test_what_cannot_be_opened_or_read_is_said() -> None:
    def said(open_it: Callable[[], Any], *lines: str) -> list[dict[str, Any]]:
        out = io.StringIO()
        serve(open_it, io.StringIO("\n".join(lines)), out, lambda: 0.0)
        return [json.loads(line) for line in out.getvalue().splitlines()]

    def fails() -> None:
        raise OSError("no such file")

    assert said(fails) == [{"error": "OSError: no such file"}]
    ready, broken, empty = said(Counting, "{", "", '{"id": "a", "max_tokens": 3}')
    assert ready == {"ready": True}
    assert "JSONDecodeError" in broken["error"]
    assert empty["error"] == "ValueError: a prompt needs ids or messages"
