"""How tokens are chosen."""

from __future__ import annotations

from typing import Any

import attrs

from txdecode.runtime.errors import InvalidRequest


@attrs.frozen
class Sampling:
    """Sampling parameters of a request. Greedy decoding (``temperature=0``) is the only law so far; any other
    temperature raises ``InvalidRequest``."""

    temperature: float = 0.0

    def __attrs_post_init__(self) -> None:
        if isinstance(self.temperature, bool) or not isinstance(self.temperature, int | float):
            raise InvalidRequest(f"temperature must be a number, found {self.temperature!r}")
        if self.temperature != 0:
            raise InvalidRequest(
                f"temperature must be 0 (greedy), found {self.temperature!r}; sampling is not available yet"
            )

    def to_data(self) -> dict[str, Any]:
        """Plain data for the log."""
        return {"temperature": float(self.temperature)}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Sampling:
        """Inverse of ``to_data``."""
        return cls(**data)
