"""``replay --execute`` and ``log bisect`` on a tiny model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from txdecode.runtime.cli import main
from txdecode.runtime.journal import Journal, iterate, read_header
from txdecode.transactions.codec import decode, encode
from txdecode.transactions.events import RoundCommitted, StateAudited


def invoke(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module", autouse=True)
def threads() -> Iterator[None]:
    """The commands set them for the whole process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def written(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sampled run with audits."""
    log = tmp_path_factory.mktemp("log") / "run.txlog"
    sampling = ("--temperature", 0.6, "--seed", 7, "--logprobs", 1, "--top-k", 4)
    code, _, err = invoke(
        "run", "abcabcabcabcab", "--model", tiny, "--dtype", "fp32", "--max-tokens", 24, "--log", log,
        "--audit-every", 2, "--draft-len", 3, "--threads", 1, *sampling,
    )  # fmt: skip
    assert code == 0, err
    return log


def rewritten(log: Path, to: Path, change: Callable[[Any], Any]) -> Path:
    """The log with events changed, framed anew."""
    header = read_header(log)
    with Journal.create(to, fingerprint=header.fingerprint, configuration=header.configuration) as journal:
        for record in iterate(log):
            event = decode(record.type, record.version, record.flags, record.payload)
            journal.append([encode(change(event))])
    return to


def test_a_run_is_executed_again(written: Path) -> None:
    code, out, err = invoke("replay", written, "--execute", "--json", "--threads", 1)
    assert code == 0, err
    report = json.loads(out)
    assert (report["tokens"], report["logprobs"], report["class"]) == (24, 24, "exact")
    assert report["rounds"] > 3
    assert report["entries"] > report["audits"] > 1
    code, out, _ = invoke("replay", written, "--execute", "--threads", 1)
    assert code == 0
    assert "everything that was compared is as recorded" in out
    assert "24 tokens and 24 logprobs compared" in out


def test_up_to_a_record(written: Path) -> None:
    code, out, _ = invoke("replay", written, "--execute", "--until", 5, "--json", "--threads", 1)
    assert code == 0
    assert json.loads(out)["records"] == 6


def test_nothing_differs(written: Path) -> None:
    code, out, _ = invoke("log", "bisect", written, "--execute", "--threads", 1)
    assert code == 0
    assert "nothing differs" in out
    code, out, _ = invoke("log", "bisect", written, "--json")
    assert code == 0
    report = json.loads(out)
    assert (report["found"], report["rounds"], report["class"]) == (None, 0, None)
    assert report["audits"] > 1


def test_a_wrong_audit_is_found_and_named(written: Path, tmp_path: Path) -> None:
    audits = [
        event
        for record in iterate(written)
        if isinstance(
            event := decode(record.type, record.version, record.flags, record.payload), StateAudited
        )
    ]
    bad = audits[1]

    def spoil(event: Any) -> Any:
        if event == bad:
            group, layer, index, row, digest = event.entries[-1]
            entries = (*event.entries[:-1], (group, layer, index, row, digest ^ 1))
            return msgspec.structs.replace(event, entries=entries)
        return event

    log = rewritten(written, tmp_path / "bad.txlog", spoil)
    # Folding knows nothing of the device.
    assert invoke("log", "bisect", log)[0] == 0
    code, out, _ = invoke("log", "bisect", log, "--execute", "--threads", 1)
    assert code == 1
    assert f"round {bad.ordinal}: ledger 'kv'" in out
    assert "found by   audit" in out
    assert "layer 1" in out
    code, out, _ = invoke("log", "bisect", log, "--execute", "--json", "--threads", 1)
    assert code == 1
    found = json.loads(out)["found"]
    assert (found["ordinal"], found["ledger"], found["layer"]) == (bad.ordinal, "kv", 1)
    code, _, err = invoke("replay", log, "--execute", "--threads", 1)
    assert code == 2
    assert "diverges in audit" in err


def test_a_contradiction_is_found_by_folding(written: Path, tmp_path: Path) -> None:
    def spoil(event: Any) -> Any:
        if isinstance(event, RoundCommitted) and event.ordinal == 3:
            return msgspec.structs.replace(event, rng=(event.rng[0] + 1,))
        return event

    log = rewritten(written, tmp_path / "bad.txlog", spoil)
    code, out, _ = invoke("log", "bisect", log)
    assert code == 1
    assert "round 3: ledger 'rng'" in out
    assert "found by   fold" in out


def test_another_model_is_refused(written: Path, tiny: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny, other)
    weights = load_file(other / "model.safetensors")
    name = next(iter(weights))
    weights[name] = weights[name] + 1
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    for command in (("replay", written, "--execute"), ("log", "bisect", written, "--execute")):
        code, _, err = invoke(*command, "--model", other, "--threads", 1)
        assert code == 2
        assert "cannot be executed again: fingerprint 'weights'" in err
        assert len(err.splitlines()) == 1


@pytest.mark.parametrize("command", [("replay", "--execute"), ("log", "bisect", "--execute")])
def test_bad_input_is_one_line(command: tuple[str, ...], tmp_path: Path, written: Path) -> None:
    nothing = tmp_path / "none.txlog"
    other = tmp_path / "other.txt"
    other.write_text("not a log")
    for arguments in ((nothing,), (other,), (tmp_path,), (written, "--model", tmp_path / "nowhere")):
        code, _, err = invoke(*command, *arguments)
        assert code == 2
        assert len(err.splitlines()) == 1


@pytest.mark.parametrize("value", ["-1", "x", "1.5"])
def test_audit_every_is_a_count(value: str) -> None:
    assert invoke("run", "abc", "--audit-every", value)[0] == 2


def test_other_kernels_are_said_to_be_others(written: Path) -> None:
    """The bits of another number of threads may differ: then the audits say nothing, and that is said."""
    code, out, _ = invoke("replay", written, "--execute", "--threads", 2)
    assert code == 0
    assert "run in tolerance class 'dense fp32: sums in another order'" in out
    assert "threads (1 then, 2 now) differs" in out
    assert "audits say nothing here and were left out" in out
    code, out, _ = invoke("replay", written, "--execute", "--threads", 2, "--json")
    report = json.loads(out)
    assert report["class"].startswith("dense")
    assert report["differs"] == {"threads": ["1", "2"]}
    assert report["audits_skipped"] > 1
