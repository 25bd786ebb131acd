"""Reading untrusted configuration: every value is checked for type and range where it is read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from txdecode.kernels.models.config import DenseConfig
from txdecode.kernels.models.errors import DamagedModel

# Far above any real model; a damaged count must not become a loop or an allocation.
_COUNT_MAX = 1 << 31
LAYER_COUNT_MAX = 4096


@attrs.frozen
class Fields:
    """A configuration as it was read, with the file it came from. Every getter raises ``DamagedModel``.

    A value of ``None`` counts as absent, as it does in configuration files.
    """

    path: Path
    values: Mapping[str, Any]

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.values.get(key) is not None

    def count(self, key: str, default: int | None = None, most: int = _COUNT_MAX, least: int = 1) -> int:
        """A whole number from ``least`` to ``most``."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.wrong(key, f"a whole number from {least} to {most}", value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above zero."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, "a number", value)
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not (math.isfinite(number) and number > 0):
            raise self.wrong(key, "a finite number above zero", value)
        return number

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false", value)
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a string", value)
        return value

    def token(self, key: str) -> int | None:
        """A token id, or ``None`` where there is none."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _COUNT_MAX:
            raise self.wrong(key, "a token id", value)
        return value

    def tokens(self, key: str) -> tuple[int, ...]:
        """Token ids: one, a list of them, or none."""
        value = self.values.get(key)
        if value is None:
            return ()
        listed = value if isinstance(value, list) else [value]
        ids = [Fields(self.path, {key: item}).token(key) for item in listed]
        return tuple(dict.fromkeys(token for token in ids if token is not None))

    def wrong(self, key: str, expected: str, found: object) -> DamagedModel:
        """The error for a value that cannot be right."""
        shown = "nothing" if found is None else repr(found)[:80]
        return DamagedModel(self.path, f"'{key}' should be {expected}, found {shown}")

    def _get(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        return default if value is None else value


def read_json_object(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object. Raises ``DamagedModel``."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise DamagedModel(path, f"cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise DamagedModel(path, f"not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise DamagedModel(path, f"expected a JSON object, found {type(value).__name__}")
    return value


def checked(path: Path, config: DenseConfig) -> DenseConfig:
    """Refuse sizes that contradict each other. Raises ``DamagedModel``."""
    fields = Fields(path, {})
    if config.head_count % config.kv_head_count:
        raise fields.wrong("key/value heads", f"a divisor of {config.head_count} heads", config.kv_head_count)
    if config.head_dim % 2:
        raise fields.wrong("head dimension", "an even number", config.head_dim)
    scaling = config.rope_scaling
    if scaling is not None and scaling.kind == "divisors" and len(scaling.divisors) != config.head_dim // 2:
        raise fields.wrong("rotary divisors", f"{config.head_dim // 2} numbers", len(scaling.divisors))
    return config
