"""Our side of a peer's process: start it with the interpreter that has its package, ask it prompt by prompt."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import attrs

from txdecode.runtime.bench import peer_process
from txdecode.runtime.bench.errors import PeerFailed, PeerMissing
from txdecode.runtime.bench.peer_process import PEERS
from txdecode.runtime.errors import InvalidRequest

_STDERR_TAIL = 300
_PATIENCE_S = 10.0


@attrs.frozen
class PeerName:
    """A peer as it is named on a command line: ``llama`` or, with its prompt lookup of seven, ``llama:7``."""

    peer: str
    lookup: int = 0

    def __str__(self) -> str:
        return f"{self.peer}:{self.lookup}" if self.lookup else self.peer

    @classmethod
    def parse(cls, name: str) -> PeerName:
        """Raises ``InvalidRequest``."""
        peer, _, lookup = name.partition(":")
        if peer not in PEERS or (lookup and not (lookup.isascii() and lookup.isdecimal())):
            raise InvalidRequest(
                f"a peer is one of {', '.join(PEERS)}, with ':N' for its prompt lookup of N; found {name!r:.60}"
            )
        return cls(peer, int(lookup or 0))


class PeerProcess:
    """A peer that is running. Use it as a context manager, or call ``close``.

    Raises ``PeerMissing`` where ``python`` does not have the peer's package, ``PeerFailed`` where it does not start.
    """

    def __init__(
        self, name: PeerName, model: Path, *, python: str = sys.executable, threads: int, folder: Path
    ) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        command = [python, str(Path(peer_process.__file__)), "--peer", name.peer, "--model", str(model)]
        command += ["--lookup", str(name.lookup), "--threads", str(threads), "--folder", str(folder)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads)},
            )
        except OSError as error:
            self._errors.close()
            raise PeerFailed(str(name), f"'{python}' cannot be run: {error.strerror or error}") from error
        try:
            said = self._read()
            if "missing" in said:
                raise PeerMissing(str(name), str(said["missing"]), f"'{python}'")
            if "ready" not in said:
                raise PeerFailed(str(name), str(said.get("error", said)))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def decode(self, name: str, ids: Sequence[int], count: int) -> tuple[list[int], float]:
        """Ids and tokens a second. Raises ``PeerFailed``."""
        said = self.ask(name, ids, count)
        return list(said["ids"]), float(said["tok_s"] or 0.0)

    def ask(
        self, name: str, ids: Sequence[int], max_tokens: int, messages: Sequence[Any] = ()
    ) -> dict[str, Any]:
        """What it generates after ``ids``; see ``peer_process.answer``. Raises ``PeerFailed``."""
        asked = {"id": name, "ids": list(ids), "max_tokens": max_tokens, "messages": list(messages)}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise PeerFailed(str(self.name), f"it is gone: {self._last_words()}") from error
        said = self._read()
        if "error" in said:
            raise PeerFailed(str(self.name), str(said["error"]))
        return said

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerFailed(str(self.name), f"it ended: {self._last_words()}")
        try:
            said: dict[str, Any] = json.loads(line)
        except ValueError as error:
            raise PeerFailed(str(self.name), f"it said {line[:80]!r}") from error
        return said

    def _last_words(self) -> str:
        self._process.wait()
        self._errors.seek(0)
        return (
            " ".join(self._errors.read()[-_STDERR_TAIL:].split()) or f"exit code {self._process.returncode}"
        )

    def close(self) -> None:
        """End it. Idempotent."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                try:
                    pipe.close()
                except OSError:
                    # It is gone already, with a line of ours unread.
                    continue
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()
