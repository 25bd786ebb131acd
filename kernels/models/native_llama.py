"""The dense decoder in our own operators (``kernels.native``): bf16 weights, one call a forward.

What ``llama`` computes with torch's operators one after the other is here one compiled function. Its bits depend on
nothing but the tokens before a row: not on its neighbours, its pages, the threads or the processor.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from txdecode.kernels.attention.cache import Segment
from txdecode.kernels.models.config import DenseConfig
from txdecode.kernels.models.layout import EMBEDDING, FINAL_NORM, HEAD
from txdecode.kernels.models.llama import Limits, NonFiniteActivation
from txdecode.kernels.models.rope import attention_factor, inverse_frequencies
from txdecode.kernels.models.weights import DenseWeights
from txdecode.kernels.native.attention import PAGE_ROWS
from txdecode.kernels.native.forward import (
    STAGES_A_LAYER,
    STAGES_BESIDE,
    Layer,
    Matrix,
    Rows,
    Scratch,
    Shape,
    forward,
)
from txdecode.kernels.native.lanes import LANES
from txdecode.kernels.native.panels import pack, panel_count, words
from txdecode.kernels.native.product import PANEL_TILE
from txdecode.kernels.native.team import Team

# Rows of one sequence that attention of one head takes together, at most.
_BLOCK_ROWS = 8


class NativePages:
    """Keys and values of all layers in ``page_count`` pages of 64 rows; layouts in ``kernels.native.attention``."""

    def __init__(self, config: DenseConfig, page_count: int) -> None:
        self._heads, self._dim = config.kv_head_count, config.head_dim
        self._page_count = page_count
        shape = (2, config.layer_count, page_count, self._heads, PAGE_ROWS * self._dim)
        self._pool = torch.zeros(shape, dtype=torch.bfloat16)

    @staticmethod
    def planned_bytes(config: DenseConfig, page_count: int) -> int:
        """Bytes of a cache of this size."""
        return 4 * config.layer_count * page_count * PAGE_ROWS * config.kv_size

    @property
    def keys(self) -> Any:
        """[layers, pages, kv_heads, 64 * head_dim] uint16."""
        return words(self._pool[0]).numpy()

    @property
    def values(self) -> Any:
        """[layers, pages, kv_heads, 64 * head_dim] uint16."""
        return words(self._pool[1]).numpy()

    def page_rows(self, layer: int, page: int, rows: int) -> torch.Tensor:
        """A copy of the first ``rows`` rows of a page, [rows, 2 * kv_heads, head_dim], keys first."""
        assert 0 <= page < self._page_count, page
        keys, values = (
            part.reshape(PAGE_ROWS, self._heads, self._dim)[:rows] for part in self._by_row(layer, page)
        )
        return torch.cat([keys, values], 1)

    def clear(self, page: int, start: int, stop: int) -> None:
        """Make rows ``start`` .. ``stop`` - 1 of a page zero in all layers."""
        for layer in range(self._pool.shape[1]):
            keys, values = self._by_row(layer, page)
            for row in range(start, stop):
                keys[row // LANES, row % LANES] = 0
                values[row // 2, row % 2] = 0

    def _by_row(self, layer: int, page: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of a page: keys [blocks, rows of a block, heads, pairs, 2], values [pairs of rows, rows of a pair,
        heads, blocks, dimensions of a block]."""
        keys, values = self._pool[:, layer, page]
        keys = keys.view(self._heads, PAGE_ROWS // LANES, self._dim // 2, LANES, 2)
        values = values.view(self._heads, self._dim // LANES, PAGE_ROWS // 2, LANES, 2)
        return keys.permute(1, 3, 0, 2, 4), values.permute(2, 4, 0, 1, 3)


class NativeLlama:
    """A dense decoder with its cache, as ``LlamaModel``. Weights are rounded to bf16."""

    def __init__(self, weights: DenseWeights, limits: Limits, threads: int) -> None:
        config = weights.config
        for size in (config.hidden_size, config.intermediate_size, config.head_dim):
            assert size % LANES == 0, f"a size of {size}, no multiple of {LANES}"
        self._config, self._limits = config, limits
        tensors = weights.tensors
        self._embedding = words(tensors[EMBEDDING].to(torch.bfloat16).contiguous()).numpy()
        self._head = _matrix(tensors[EMBEDDING if config.tied_head else HEAD], None)
        self._scale = tensors[FINAL_NORM].float().numpy()
        self.cache = NativePages(config, limits.page_count)
        self._layers = _layers(tensors, config, self.cache)
        self._shape = Shape(
            config.hidden_size,
            config.intermediate_size,
            config.kv_head_count,
            config.head_count // config.kv_head_count,
            config.head_dim,
            np.float32(config.rms_eps),
            np.float32(config.head_dim**-0.5),
            config.qk_norm,
        )
        self._table = _angles(config, limits.context)
        self._scratch = _scratch(config, limits, threads, self._layers)
        stages = config.layer_count * STAGES_A_LAYER + STAGES_BESIDE
        self._team = Team(threads, stages)
        self._alone = Team(1, stages)
        self._nothing = np.empty((0, self._head.bias.shape[0]), np.float32)
        self._warm()

    @property
    def parameter_bytes(self) -> int:
        """Bytes of weights that a forward pass reads once, whatever its rows."""
        layers = self._layers
        matrices = (layers.attention, layers.output, layers.feed, layers.down, self._head)
        return sum(matrix.panels.nbytes for matrix in matrices)

    def forward(self, segments: Sequence[Segment], logits: bool) -> torch.Tensor | None:
        """Write keys and values of all rows; with ``logits`` return those of every row, [rows, vocab] fp32.

        Rows are in the order of the segments. Raises ``NonFiniteActivation``; keys and values of the rows are then
        zero.
        """
        return self._forward(segments, logits, self._team)

    def _forward(self, segments: Sequence[Segment], logits: bool, team: Team) -> torch.Tensor | None:
        rows = self._rows(segments, team.threads)
        count = len(rows.rows)
        made = np.empty((count, self._head.bias.shape[0]), np.float32) if logits else self._nothing
        team.run(
            forward,
            self._layers,
            self._shape,
            self._table,
            self._embedding,
            rows,
            self._scratch,
            self._head,
            self._scale,
            made,
        )
        if not math.isfinite(self._scratch.sizes[:count].sum()):
            for segment in segments:
                self._clear(segment)
            raise NonFiniteActivation(
                "a row of the launch is not finite: the weights or the input are damaged"
            )
        if not logits:
            return None
        shown = torch.from_numpy(made)
        return shown if shown.shape[1] == self._config.vocab_size else shown[:, : self._config.vocab_size]

    def choices(self, rows: int) -> list[int]:
        """The likeliest token of each of the ``rows`` rows of the last forward with logits, the lowest id of equals;
        ``NOTHING`` where a logit is not finite."""
        chosen: list[int] = self._scratch.choices[:rows].tolist()
        return chosen

    def _rows(self, segments: Sequence[Segment], threads: int) -> Rows:
        """The launch as arrays."""
        heads = range(self._config.kv_head_count)
        rows: list[int] = []
        pages: list[int] = []
        table: list[int] = []
        tasks: list[int] = []
        count = 0
        for index, segment in enumerate(segments):
            held = segment.pages[: -(-segment.end // PAGE_ROWS)]
            assert len(held) * PAGE_ROWS >= segment.end, f"{len(held)} pages for {segment.end} rows"
            assert 0 <= min(held) <= max(held) < self._limits.page_count, held
            assert segment.end <= self._limits.context, (segment.end, self._limits.context)
            assert 0 <= min(segment.tokens) <= max(segment.tokens) < self._config.vocab_size, segment.tokens
            wide = len(segment.tokens)
            table += (count, wide, segment.position, len(pages))
            # Two threads share a launch of one sequence evenly where its heads are odd.
            block = min(_BLOCK_ROWS, wide if threads == 1 else -(-wide // 2))
            # The longest rows first, so that threads end together.
            for first in reversed(range(0, wide, block)):
                for head in heads:
                    tasks += (index, head, first, min(block, wide - first))
            for position, token in enumerate(segment.tokens, segment.position):
                rows += (token, position, held[position // PAGE_ROWS], position % PAGE_ROWS)
            pages += held
            count += wide
        assert count <= self._limits.rows_max, (count, self._limits.rows_max)
        # One array for all of them: making one costs more than filling it.
        flat = np.array(rows + table + tasks + pages, np.int64)
        ends = (len(rows), len(rows) + len(table), len(rows) + len(table) + len(tasks))
        by_row, by_sequence, by_task = (
            flat[start:stop].reshape(-1, 4) for start, stop in zip((0, *ends), ends, strict=False)
        )
        return Rows(rows=by_row, segments=by_sequence, pages=flat[ends[-1] :], tasks=by_task)

    def _clear(self, segment: Segment) -> None:
        for ordinal in range(segment.position // PAGE_ROWS, -(-segment.end // PAGE_ROWS)):
            start = ordinal * PAGE_ROWS
            rows = max(segment.position - start, 0), min(segment.end - start, PAGE_ROWS)
            self.cache.clear(segment.pages[ordinal], *rows)

    def _warm(self) -> None:
        """Compile now what the first launch would wait for, on one thread."""
        for logits in (True, False):
            # Damaged weights are for the first launch to find, which can say so.
            with contextlib.suppress(NonFiniteActivation):
                self._forward([Segment((0,), 0, (0,))], logits, self._alone)
        self.cache.clear(0, 0, 1)


def _matrix(weight: torch.Tensor, bias: torch.Tensor | None) -> Matrix:
    made = _stacked([(weight, bias)], 1)
    return Matrix(made.panels[0], made.bias[0])


def _stacked(parts: Iterable[tuple[torch.Tensor, torch.Tensor | None]], count: int) -> Matrix:
    """``count`` matrices of one shape as one array, packed one by one: two copies of a model are too many."""
    panels = biases = None
    for index, (weight, bias) in enumerate(parts):
        packed = pack(weight)
        if panels is None or biases is None:
            panels = packed.new_empty(count, *packed.shape)
            biases = torch.zeros(count, packed.shape[0] * LANES)
        panels[index] = packed
        if bias is not None:
            biases[index, : bias.shape[0]] = bias.float()
    assert panels is not None
    assert biases is not None
    return Matrix(words(panels).numpy(), biases.numpy())


def _layers(tensors: Mapping[str, torch.Tensor], config: DenseConfig, cache: NativePages) -> Layer:
    """All layers, each kind of matrix in one array."""

    def get(index: int, name: str) -> torch.Tensor:
        return tensors[f"model.layers.{index}.{name}"]

    def matrix(index: int, name: str, biased: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        return get(index, f"{name}.weight"), get(index, f"{name}.bias") if biased else None

    def joined(index: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        parts = [matrix(index, f"self_attn.{name}_proj", config.qkv_bias) for name in "qkv"]
        biases = [bias for _, bias in parts if bias is not None]
        return torch.cat([weight for weight, _ in parts]), torch.cat(biases) if biases else None

    def feed(index: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        gate, up = (matrix(index, f"mlp.{name}_proj", config.mlp_bias) for name in ("gate", "up"))
        biased = None if gate[1] is None or up[1] is None else _in_turn(gate[1], up[1])
        return _in_turn(gate[0], up[0]), biased

    count = config.layer_count
    depth = range(count)
    scales = torch.zeros(config.layer_count, 4, max(config.hidden_size, config.head_dim))
    for index in depth:
        for row, name in enumerate(("input_layernorm", "post_attention_layernorm")):
            scales[index, row, : config.hidden_size] = get(index, f"{name}.weight").float()
        if config.qk_norm:
            for row, name in ((2, "self_attn.q_norm"), (3, "self_attn.k_norm")):
                scales[index, row, : config.head_dim] = get(index, f"{name}.weight").float()
    return Layer(
        _stacked((joined(index) for index in depth), count),
        _stacked((matrix(index, "self_attn.o_proj", config.o_bias) for index in depth), count),
        _stacked((feed(index) for index in depth), count),
        _stacked((matrix(index, "mlp.down_proj", config.mlp_bias) for index in depth), count),
        scales.numpy(),
        cache.keys,
        cache.values,
    )


def _in_turn(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Eight rows of the one, eight of the other."""
    shape = gate.shape[1:]
    return torch.stack([gate.view(-1, LANES, *shape), up.view(-1, LANES, *shape)], 1).reshape(-1, *shape)


def _angles(config: DenseConfig, context: int) -> Any:
    """Cosines and sines [context, 2, head_dim / 2] fp32, computed in fp64: a table, so that no row depends on how its
    neighbours' were computed."""
    rates = torch.tensor(inverse_frequencies(config), dtype=torch.float64)
    angles = torch.arange(context, dtype=torch.float64)[:, None] * rates
    factor = attention_factor(config)
    return (torch.stack([angles.cos(), angles.sin()], 1) * factor).float().numpy()


def _scratch(config: DenseConfig, limits: Limits, threads: int, layers: Layer) -> Scratch:
    rows, fold = limits.rows_max, config.head_count // config.kv_head_count
    queries = _BLOCK_ROWS * fold
    context = -(-limits.context // PAGE_ROWS) * PAGE_ROWS

    def zeros(*shape: int) -> Any:
        return np.zeros(shape, np.float32)

    return Scratch(
        x=zeros(rows, config.hidden_size),
        normal=zeros(rows, config.hidden_size),
        projected=zeros(rows, layers.attention.bias.shape[1]),
        queries=zeros(config.kv_head_count, rows * fold, config.head_dim),
        attended=zeros(rows, config.q_size),
        inner=zeros(rows, config.intermediate_size),
        tile=zeros(threads, rows, PANEL_TILE * LANES),
        scores=zeros(threads, queries, context),
        made=zeros(threads, queries, config.head_dim),
        sizes=zeros(rows),
        choices=np.zeros(rows, np.int64),
    )


def memory_plan(config: DenseConfig, limits: Limits, threads: int) -> dict[str, int]:
    """Bytes that ``NativeLlama`` of this shape allocates, by name, beyond the weights it is given."""
    inputs = config.q_size + 2 * config.kv_size + 2 * config.intermediate_size
    outputs = config.q_size + config.intermediate_size
    fold = config.head_count // config.kv_head_count
    hidden, rows = config.hidden_size, limits.rows_max
    vocab = panel_count(config.vocab_size) * LANES
    context = -(-limits.context // PAGE_ROWS) * PAGE_ROWS
    return {
        "weights": 2 * hidden * (config.layer_count * (inputs + outputs) + vocab),
        "embedding": 2 * config.vocab_size * hidden,
        "kv_pages": NativePages.planned_bytes(config, limits.page_count),
        "tables": 4 * limits.context * config.head_dim,
        "activations": 4
        * (
            rows
            * (2 * hidden + 2 * config.q_size + 2 * config.kv_size + config.q_size + config.intermediate_size)
            + 3 * rows
            + threads * (rows * PANEL_TILE * LANES + _BLOCK_ROWS * fold * (context + config.head_dim))
            + limits.width_max * vocab
        ),
    }
