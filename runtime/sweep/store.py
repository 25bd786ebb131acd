"""Sweeps on disk: one file for each model and machine, beside its fingerprint, in a cache folder.

The folder is ``TXDECODE_CACHE``, else ``XDG_CACHE_HOME``/txdecode, else ~/.cache/txdecode. A file is written beside
its place and moved there, so a reader finds all of it or none. A file that cannot be read as a sweep of this model is
as good as none: a warning says so.
"""

from __future__ import annotations

import math
import os
import platform
import statistics
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import msgspec

from txdecode.runtime.policy.costs import Costs, LearnedCosts, Point, SweptCosts
from txdecode.runtime.report import warn
from txdecode.runtime.sweep.errors import SweepUnwritable
from txdecode.transactions.executor import Description

VERSION = 1


class Row(msgspec.Struct, frozen=True):
    """All samples, in milliseconds, of launches of ``batch`` rounds of ``width`` rows each at ``context`` tokens."""

    batch: int
    context: int
    width: int
    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """Milliseconds."""
        median: float = statistics.median(self.samples)
        return median

    @property
    def spread(self) -> float:
        """Interquartile range, milliseconds."""
        if len(self.samples) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return high - low

    @property
    def error(self) -> float:
        """Standard error of the median, from the interquartile range as if the noise were normal."""
        return 1.2533 * self.spread / 1.349 / math.sqrt(len(self.samples))


class Sweep(msgspec.Struct, frozen=True):
    """A sweep. ``steps``: milliseconds of one draft of the executor's own drafter, by number of requests. ``flags``:
    why it may not be trusted. ``skipped``: what did not fit the executor."""

    version: int
    name: str
    fingerprint: dict[str, str]
    rows: tuple[Row, ...]
    steps: dict[int, float] = {}
    flags: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()


def identity(description: Description) -> dict[str, str]:
    """What must agree for a sweep to be of this executor on this machine."""
    form = description.capabilities.rollback
    return {
        "machine": platform.machine(),
        "cores": str(os.cpu_count()),
        **({"rollback": form} if form else {}),
        **description.fingerprint,
    }


def key_of(name: str, fingerprint: Mapping[str, str]) -> str:
    """The file name of a sweep without its ending."""
    said = msgspec.json.encode([name, sorted(fingerprint.items())])
    return blake2b(said, digest_size=12).hexdigest()


def cache_folder() -> Path:
    """Where sweeps are kept."""
    chosen = os.environ.get("TXDECODE_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "txdecode"


def place_of(description: Description) -> Path:
    """The file of an executor's sweep."""
    key = key_of(description.name, identity(description))
    return cache_folder() / f"sweep-{key}.json"


def write(path: Path, data: bytes) -> None:
    """Write a whole file or none of it. Raises ``SweepUnwritable``."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, beside = tempfile.mkstemp(prefix=path.name, dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(beside)
            raise
    except OSError as error:
        raise SweepUnwritable(path, error) from error


def save(sweep: Sweep, path: Path) -> None:
    """Keep a sweep. Raises ``SweepUnwritable``."""
    write(path, msgspec.json.format(msgspec.json.encode(sweep)) + b"\n")


def load(path: Path, description: Description) -> Sweep | None:
    """The stored sweep of an executor; ``None`` where there is none that can be used."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        warn("sweep not readable", path=str(path), error=str(error))
        return None
    try:
        sweep = msgspec.json.decode(data, type=Sweep)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        warn("sweep damaged", path=str(path), error=str(error))
        return None
    if sweep.version != VERSION:
        warn("sweep of another version", path=str(path), found=sweep.version, expected=VERSION)
        return None
    if (sweep.name, sweep.fingerprint) != (description.name, identity(description)):
        warn("sweep of another model or machine", path=str(path), found=sweep.name)
        return None
    if not sweep.rows or any(not row.samples or min(row.samples) <= 0 for row in sweep.rows):
        warn("sweep without usable rows", path=str(path))
        return None
    return sweep


def costs_for(description: Description) -> Costs:
    """The costs to decide by: those of the stored sweep, else learned ones."""
    path = place_of(description)
    sweep = load(path, description)
    if sweep is None:
        return LearnedCosts(description.rows_max)
    points = [Point(row.batch, row.context, row.width, row.median) for row in sweep.rows]
    return SweptCosts(points, description.rows_max, sweep.steps, path.stem)
