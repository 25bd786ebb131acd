"""Which implementation of a dense decoder computes: our own operators for bf16, torch's for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from txdecode.kernels.attention.cache import Segment
from txdecode.kernels.capability import Numerics
from txdecode.kernels.models import llama
from txdecode.kernels.models.config import DenseConfig
from txdecode.kernels.models.llama import Limits, LlamaModel
from txdecode.kernels.models.weights import DenseWeights

NATIVE = "native-1/bf16"
"""Name of the numerics of our own operators for the fingerprint."""

_VECTOR = 8

__all__ = ["NATIVE", "DenseModel", "Limits", "Pages", "build", "fits_vectors", "memory_plan"]


class Pages(Protocol):
    """The keys and values of a model."""

    def page_rows(self, layer: int, page: int, rows: int) -> torch.Tensor:
        """The first ``rows`` rows of a page, [rows, 2 * kv_heads, head_dim], keys first."""


class DenseModel(Protocol):
    """A dense decoder with its cache. Call it under ``torch.inference_mode``."""

    @property
    def cache(self) -> Pages:
        """Keys and values."""

    @property
    def parameter_bytes(self) -> int:
        """Bytes of weights that a forward pass reads once, whatever its rows."""

    def forward(self, segments: Sequence[Segment], logits: bool) -> torch.Tensor | None:
        """Write keys and values of all rows; with ``logits`` return those of every row, [rows, vocab].

        Rows are in the order of the segments. The result may be a view. Raises ``NonFiniteActivation``, or
        ``RuntimeError`` where a kernel fails; keys and values of the rows are then undefined.
        """

    def choices(self, rows: int) -> list[int] | None:
        """The likeliest token of each of the ``rows`` rows of the last forward with logits, the lowest id of equals,
        ``NOTHING`` where a logit is not finite; ``None`` where the model leaves that to the caller."""


def fits_vectors(config: DenseConfig, numerics: Numerics) -> bool:
    """Whether our own operators take the model: bf16, and sizes that are whole vectors."""
    sizes = (config.hidden_size, config.intermediate_size, config.head_dim)
    return numerics.dtype == torch.bfloat16 and all(size % _VECTOR == 0 for size in sizes)


def build(weights: DenseWeights, numerics: Numerics, limits: Limits) -> DenseModel:
    """The model for these weights."""
    if not fits_vectors(weights.config, numerics):
        return LlamaModel(weights, numerics, limits)
    # It compiles loops, which fp32 models need not wait for.
    from txdecode.kernels.models.native_llama import NativeLlama

    return NativeLlama(weights, limits, torch.get_num_threads())


def memory_plan(config: DenseConfig, numerics: Numerics, limits: Limits) -> dict[str, int]:
    """Bytes that the model of this shape allocates, by name, beyond the weights it is given."""
    if not fits_vectors(config, numerics):
        return llama.memory_plan(config, numerics, limits)
    from txdecode.kernels.models import native_llama

    return native_llama.memory_plan(config, limits, torch.get_num_threads())
