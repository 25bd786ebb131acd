"""A whole forward of a dense decoder in one call: no operator is dispatched, no row is copied between two.

Each layer is seven stages, between which the threads of a team meet:

    norm ─ queries, keys, values ─ rotation, pages ─ attention ─ output + residual ─ norm ─ gate, up ─ down + residual

Activations are fp32, weights, keys and values bf16. Within a stage threads claim rows, tiles of panels, or
attention of some rows with one head.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from txdecode.kernels.native.attention import attend, store_key, store_value
from txdecode.kernels.native.compiled import compiled
from txdecode.kernels.native.lanes import LANES, argmax_lanes, silu_multiply, square_sum
from txdecode.kernels.native.product import PANEL_TILE, panel_product
from txdecode.kernels.native.team import meet, take

STAGES_A_LAYER = 8
STAGES_BESIDE = 4
"""Stages before and after the layers."""
_ONE, _INFINITE, _NOTHING = np.float32(1.0), np.float32(np.inf), np.float32(np.nan)
_TILE_COLUMNS = PANEL_TILE * LANES


class Matrix(NamedTuple):
    """``panels`` [panels, pairs, 8, 2] uint16, and ``bias`` [8 * panels] fp32, zeros where there is none."""

    panels: Any
    bias: Any


class Layer(NamedTuple):
    """One layer, or with one more dimension in front all of them. ``feed`` has panels of gate and up in turn.
    ``scales`` [4, size] fp32: of the two norms, and of those of query and key heads where ``head_norms``. ``keys``
    and ``values`` [pages, kv_heads, 64 * head_dim] uint16."""

    attention: Matrix
    output: Matrix
    feed: Matrix
    down: Matrix
    scales: Any
    keys: Any
    values: Any


class Shape(NamedTuple):
    """Sizes of a model; ``fold`` query heads share a key/value head."""

    hidden: int
    inner: int
    kv_heads: int
    fold: int
    dim: int
    eps: Any
    scale: Any
    head_norms: bool


class Rows(NamedTuple):
    """The rows of a launch: ``rows`` [rows, 4]: token, position, and the page and the row in it that it goes to;
    ``segments`` [sequences, 4]: first row, rows, position of the first, where its pages begin in ``pages``; ``tasks``
    [.., 4]: sequence, key/value head, first row in the sequence, rows."""

    rows: Any
    segments: Any
    pages: Any
    tasks: Any


class Scratch(NamedTuple):
    """Activations [rows, ..] fp32: ``x`` the residual, ``normal`` of it, ``projected``, ``queries`` [kv_heads, rows *
    fold, dim], ``attended``, ``inner``; by thread ``tile`` [threads, rows, 48], ``scores``, ``made``; and what comes
    out: ``sizes``, a sum of squares that is finite where a row is all the way through, and ``choices``, the likeliest
    token of each, -1 where a logit is not finite."""

    x: Any
    normal: Any
    projected: Any
    queries: Any
    attended: Any
    inner: Any
    tile: Any
    scores: Any
    made: Any
    sizes: Any
    choices: Any


@compiled
def _matrix(matrices: Any, index: Any) -> Any:
    return Matrix(matrices.panels[index], matrices.bias[index])


@compiled
def _layer(layers: Any, index: Any) -> Any:
    return Layer(
        _matrix(layers.attention, index),
        _matrix(layers.output, index),
        _matrix(layers.feed, index),
        _matrix(layers.down, index),
        layers.scales[index],
        layers.keys[index],
        layers.values[index],
    )


@compiled
def _normalise(x: Any, scale: Any, eps: Any, out: Any) -> None:
    """RMSNorm of one row."""
    size = out.shape[0]
    mean = square_sum(x.ctypes.data, size // LANES) / np.float32(size)
    # What is too large to be squared must not become nothing.
    factor = _ONE / np.float32(math.sqrt(mean + eps)) if mean < _INFINITE else _NOTHING
    for i in range(size):
        out[i] = x[i] * factor * scale[i]


@compiled
def _norm_rows(counters: Any, stage: Any, rows: Any, x: Any, scale: Any, eps: Any, out: Any) -> None:
    while True:
        row = take(counters, stage)
        if row >= rows:
            return
        _normalise(x[row], scale, eps, out[row])


@compiled
def _tile(matrix: Any, first: Any, x: Any, rows: Any, out: Any, out_bytes: Any) -> Any:
    """One tile of a product into ``out`` (an address); its panels."""
    panels = min(PANEL_TILE, matrix.panels.shape[0] - first)
    panel_bytes = matrix.panels.shape[1] * LANES * 4
    panel_product(
        x.ctypes.data,
        x.shape[1] * 4,
        rows,
        matrix.panels.ctypes.data + first * panel_bytes,
        panel_bytes,
        matrix.panels.shape[1],
        panels,
        out,
        out_bytes,
        0,
    )
    return panels


@compiled
def _project(counters: Any, stage: Any, matrix: Any, x: Any, rows: Any, out: Any) -> None:
    """``out`` = ``x`` W^T + b."""
    while True:
        first = take(counters, stage) * PANEL_TILE
        if first >= matrix.panels.shape[0]:
            return
        panels = _tile(matrix, first, x, rows, out.ctypes.data + first * LANES * 4, out.shape[1] * 4)
        for row in range(rows):
            for c in range(first * LANES, (first + panels) * LANES):
                out[row, c] += matrix.bias[c]


@compiled
def _add(counters: Any, stage: Any, matrix: Any, x: Any, rows: Any, tile: Any, out: Any) -> None:
    """``out`` += ``x`` W^T + b."""
    while True:
        first = take(counters, stage) * PANEL_TILE
        if first >= matrix.panels.shape[0]:
            return
        panels = _tile(matrix, first, x, rows, tile.ctypes.data, _TILE_COLUMNS * 4)
        column = first * LANES
        for row in range(rows):
            for c in range(panels * LANES):
                out[row, column + c] += tile[row, c] + matrix.bias[column + c]


@compiled
def _gate(counters: Any, stage: Any, matrix: Any, x: Any, rows: Any, tile: Any, out: Any) -> None:
    """``out`` = silu(gate) * up: an even panel is a gate, the odd one after it its up."""
    while True:
        first = take(counters, stage) * PANEL_TILE
        if first >= matrix.panels.shape[0]:
            return
        panels = _tile(matrix, first, x, rows, tile.ctypes.data, _TILE_COLUMNS * 4)
        for row in range(rows):
            for c in range(panels * LANES):
                tile[row, c] += matrix.bias[first * LANES + c]
            for pair in range(panels // 2):
                at = tile.ctypes.data + row * _TILE_COLUMNS * 4 + pair * 2 * LANES * 4
                to = out.ctypes.data + row * out.shape[1] * 4 + (first // 2 + pair) * LANES * 4
                silu_multiply(at, at + LANES * 4, to, 1)


@compiled
def _embed(counters: Any, stage: Any, embedding: Any, rows: Any, x: Any, sizes: Any) -> None:
    """The embedding of each row's token, bf16 widened."""
    while True:
        row = take(counters, stage)
        if row >= rows.rows.shape[0]:
            return
        sizes[row] = np.float32(0.0)
        token, bits = embedding[rows.rows[row, 0]], x[row].view(np.uint32)
        for i in range(token.shape[0]):
            bits[i] = np.uint32(token[i]) << np.uint32(16)


@compiled
def _choose(counters: Any, stage: Any, logits: Any, vocab: Any, choices: Any) -> None:
    """The likeliest token of each row, the lowest of equals; logits from ``vocab`` on are none."""
    lanes = np.empty((3, LANES), np.float32)
    while True:
        row = take(counters, stage)
        if row >= logits.shape[0]:
            return
        for i in range(vocab, logits.shape[1]):
            logits[row, i] = logits[row, vocab - 1]
        argmax_lanes(logits[row].ctypes.data, logits.shape[1] // LANES, lanes.ctypes.data)
        places = lanes[1].view(np.int32)
        best, at, damage = lanes[0, 0], places[0], lanes[2, 0]
        for lane in range(1, LANES):
            damage += lanes[2, lane]
            if lanes[0, lane] > best or (lanes[0, lane] == best and places[lane] < at):
                best, at = lanes[0, lane], places[lane]
        choices[row] = at if damage == np.float32(0.0) else -1


@compiled
def _turn(x: Any, angles: Any, scale: Any, out: Any) -> None:
    """Rotary positions in halves: ``angles`` [2, dim / 2] cosines and sines; times ``scale``."""
    half = out.shape[0] // 2
    for i in range(half):
        a, b = x[i], x[half + i]
        out[i] = (a * angles[0, i] - b * angles[1, i]) * scale
        out[half + i] = (b * angles[0, i] + a * angles[1, i]) * scale


@compiled
def _place(counters: Any, stage: Any, layer: Any, shape: Any, table: Any, rows: Any, scratch: Any) -> None:
    """Rotate queries and keys of each row, and put keys and values into their pages."""
    dim, fold, kv_heads = shape.dim, shape.fold, shape.kv_heads
    heads = kv_heads * fold
    turned = np.empty(dim, np.float32)
    while True:
        row = take(counters, stage)
        if row >= rows.rows.shape[0]:
            return
        given, angles = scratch.projected[row], table[rows.rows[row, 1]]
        page, slot = rows.rows[row, 2], rows.rows[row, 3]
        queries = scratch.queries[:, row * fold : (row + 1) * fold]
        size = square_sum(given.ctypes.data, given.shape[0] // LANES)
        for head in range(heads + kv_heads):
            part = given[head * dim : (head + 1) * dim]
            if shape.head_norms:
                _normalise(part, layer.scales[2 if head < heads else 3, :dim], shape.eps, part)
            if head < heads:
                query = queries[head // fold, head % fold]
                _turn(part, angles, shape.scale, query)
                size += square_sum(query.ctypes.data, dim // LANES)
            else:
                _turn(part, angles, _ONE, turned)
                size += square_sum(turned.ctypes.data, dim // LANES)
                store_key(layer.keys[page, head - heads], slot, turned.view(np.uint32))
        for head in range(kv_heads):
            first = (heads + kv_heads + head) * dim
            store_value(layer.values[page, head], slot, given[first : first + dim].view(np.uint32))
        # Finite squares of queries, keys and values: no product of them and nothing in a page can be infinite.
        scratch.sizes[row] += size


@compiled
def _attend(
    counters: Any, stage: Any, layer: Any, shape: Any, rows: Any, scratch: Any, scores: Any, made: Any
) -> None:
    while True:
        index = take(counters, stage)
        if index >= rows.tasks.shape[0]:
            return
        task = rows.tasks[index]
        segment = rows.segments[task[0]]
        first = segment[0] + task[2]
        attend(
            scratch.queries[task[1]],
            first * shape.fold,
            task[3],
            shape.fold,
            segment[2] + task[2],
            layer.keys,
            layer.values,
            rows.pages[segment[3] :],
            task[1],
            scores,
            made,
            scratch.attended[first:],
        )


@compiled
def forward_layer(
    rank: Any,
    threads: Any,
    counters: Any,
    meetings: Any,
    stage: Any,
    layer: Any,
    shape: Any,
    table: Any,
    rows: Any,
    scratch: Any,
    writes_only: Any,
) -> Any:
    """One layer over ``scratch.x``. With ``writes_only`` it stops once keys and values are in their pages. Returns
    the number of the next meeting."""
    count = rows.rows.shape[0]
    x, normal, tile = scratch.x, scratch.normal, scratch.tile[rank]
    _norm_rows(counters, stage, count, x, layer.scales[0], shape.eps, normal)
    meetings = meet(counters, threads, meetings)
    _project(counters, stage + 1, layer.attention, normal, count, scratch.projected)
    meetings = meet(counters, threads, meetings)
    _place(counters, stage + 2, layer, shape, table, rows, scratch)
    meetings = meet(counters, threads, meetings)
    if writes_only:
        return meetings
    _attend(counters, stage + 3, layer, shape, rows, scratch, scratch.scores[rank], scratch.made[rank])
    meetings = meet(counters, threads, meetings)
    _add(counters, stage + 4, layer.output, scratch.attended, count, tile, x)
    meetings = meet(counters, threads, meetings)
    _norm_rows(counters, stage + 5, count, x, layer.scales[1], shape.eps, normal)
    meetings = meet(counters, threads, meetings)
    _gate(counters, stage + 6, layer.feed, normal, count, tile, scratch.inner)
    meetings = meet(counters, threads, meetings)
    _add(counters, stage + 7, layer.down, scratch.inner, count, tile, x)
    return meet(counters, threads, meetings)


@compiled
def forward(
    rank: Any,
    threads: Any,
    counters: Any,
    meetings: Any,
    layers: Any,
    shape: Any,
    table: Any,
    embedding: Any,
    rows: Any,
    scratch: Any,
    head: Any,
    scale: Any,
    logits: Any,
) -> None:
    """All layers, and the head where ``logits`` [rows, 8 * panels] has rows. ``table`` [context, 2, dim / 2];
    ``embedding`` [vocab, hidden] bf16 words."""
    count, wanted, depth = rows.rows.shape[0], logits.shape[0], layers.scales.shape[0]
    stage = depth * STAGES_A_LAYER
    _embed(counters, stage, embedding, rows, scratch.x, scratch.sizes)
    meetings = meet(counters, threads, meetings)
    for index in range(depth):
        meetings = forward_layer(
            rank,
            threads,
            counters,
            meetings,
            index * STAGES_A_LAYER,
            _layer(layers, index),
            shape,
            table,
            rows,
            scratch,
            index == depth - 1 and wanted == 0,
        )
    if wanted:
        _norm_rows(counters, stage + 1, count, scratch.x, scale, shape.eps, scratch.normal)
        meetings = meet(counters, threads, meetings)
        _project(counters, stage + 2, head, scratch.normal, count, logits)
        meetings = meet(counters, threads, meetings)
        for row in range(rank, count, threads):
            scratch.sizes[row] += square_sum(scratch.normal[row].ctypes.data, shape.hidden // LANES)
        _choose(counters, stage + 3, logits, embedding.shape[0], scratch.choices)
        meet(counters, threads, meetings)
