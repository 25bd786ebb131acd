"""The recurrence in compiled loops (numba): one pass over the rows, each state row touched twice.

With torch's operators a row costs seven calls a layer; here it costs its arithmetic. Loops are compiled
without relaxed floating point, so products and sums keep their order, and no multiply-add is fused: the
state that ``fold`` makes from records equals the one that ``advance`` made, to the bit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from txdecode.kernels.gdn.rows import ZERO, GdnWeights, Places, Records, Stretch, places
from txdecode.kernels.native.compiled import compiled

_ONE, _HALF, _TINY = np.float32(1.0), np.float32(0.5), np.float32(1e-6)
_LOG2E = np.float32(1.4426950408889634)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_P5, _P4, _P3 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_P2, _P1, _P0 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
# Beyond these exp is zero or too large for fp32; a sigmoid has long been 0 or 1.
_LOWEST, _HIGHEST = np.float32(-87.0), np.float32(88.0)
# Above it softplus is its argument, as in torch.
_LINEAR = np.float32(20.0)
_NO_RECORDS = Records.empty(1, 1, 1, 1, 1)


def advance(
    projected: torch.Tensor,
    weights: GdnWeights,
    states: torch.Tensor,
    ring: torch.Tensor,
    places: Places,
    records: Records | None,
    out: torch.Tensor,
) -> None:
    """See ``reference``."""
    kept = _NO_RECORDS if records is None else records
    _advance(
        projected.numpy(),
        weights.conv.numpy(),
        weights.decay.numpy(),
        weights.dt_bias.numpy(),
        weights.norm.numpy(),
        weights.key_heads,
        weights.key_dim,
        np.float32(weights.eps),
        states.numpy(),
        ring.numpy(),
        places.starts,
        places.windows,
        places.writes,
        places.sources,
        places.targets,
        records is not None,
        kept.keys.numpy(),
        kept.deltas.numpy(),
        kept.decays.numpy(),
        out.numpy(),
    )


def fold(states: torch.Tensor, source: int, target: int, records: Records, first: int, count: int) -> None:
    """See ``reference``."""
    _fold(
        states.numpy(),
        source,
        target,
        records.keys.numpy(),
        records.deltas.numpy(),
        records.decays.numpy(),
        first,
        count,
    )


def warm() -> None:
    """Compile now what the first launch would wait for."""
    one = torch.ones(1)
    ones = GdnWeights(torch.ones(2, 3), one, one, one, key_heads=1, key_dim=1, eps=1e-6)
    where = places([Stretch(0, 0, 1, 0, (0,))], 2, 2)
    states, records = torch.zeros(2, 1, 1, 1), Records.empty(1, 1, 1, 1, 1)
    advance(torch.zeros(1, 6), ones, states, torch.zeros(2, 3), where, records, torch.zeros(1, 1))
    fold(states, 0, 1, records, 0, 1)


@compiled
def _exp(x: Any) -> Any:
    """exp in fp32 within two units in the last place, by arithmetic alone: a loop over it is vectorised, and
    a lane does what a scalar does. Range reduction to a power of two and a polynomial, after Cephes' expf."""
    x = min(max(x, _LOWEST), _HIGHEST)
    n = np.float32(math.floor(x * _LOG2E + _HALF))
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    y = _P5
    y = y * r + _P4
    y = y * r + _P3
    y = y * r + _P2
    y = y * r + _P1
    y = y * r + _P0
    y = (y * (r * r) + r) + _ONE
    return y * np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)


@compiled
def _sigmoid(x: Any) -> Any:
    return _ONE / (_ONE + _exp(-x))


@compiled
def _softplus(x: Any) -> Any:
    return x if x > _LINEAR else np.float32(math.log1p(np.float32(math.exp(x))))


@compiled
def _convolve(mixed: Any, projected: Any, conv: Any, ring: Any, window: Any, start: Any, row: Any) -> None:
    """The short convolution at ``row``, activated, into ``mixed``."""
    width, size = conv.shape
    for c in range(size):
        mixed[c] = np.float32(0.0)
    for tap in range(width):
        place = row - start - (width - 1) + tap
        weight = conv[tap]
        if place >= 0:
            own = projected[start + place]
            for c in range(size):
                mixed[c] += weight[c] * own[c]
        elif window[width - 1 + place] != ZERO:
            kept = ring[window[width - 1 + place]]
            for c in range(size):
                mixed[c] += weight[c] * kept[c]
    for c in range(size):
        mixed[c] = mixed[c] * _sigmoid(mixed[c])


@compiled
def _normalise(x: Any, scale: Any) -> None:
    total = np.float32(0.0)
    for i in range(x.shape[0]):
        total += x[i] * x[i]
    factor = scale / np.float32(math.sqrt(total + _TINY))
    for i in range(x.shape[0]):
        x[i] = x[i] * factor


@compiled
def _remember(before: Any, zero: Any, after: Any, decay: Any, key: Any, found: Any) -> None:
    """``after`` = ``before`` * decay; ``found`` = what it holds under ``key``."""
    dim, size = after.shape
    for j in range(size):
        found[j] = np.float32(0.0)
    for i in range(dim):
        made, k = after[i], key[i]
        if zero:
            for j in range(size):
                made[j] = np.float32(0.0)
        else:
            old = before[i]
            for j in range(size):
                value = old[j] * decay
                made[j] = value
                found[j] += value * k


@compiled
def _correct(state: Any, key: Any, delta: Any, query: Any, o: Any) -> None:
    """``state`` += key (x) delta; ``o`` = what it then answers to ``query``."""
    dim, size = state.shape
    for j in range(size):
        o[j] = np.float32(0.0)
    for i in range(dim):
        made, k, q = state[i], key[i], query[i]
        for j in range(size):
            value = made[j] + k * delta[j]
            made[j] = value
            o[j] += value * q


@compiled
def _finish(o: Any, gate: Any, norm: Any, eps: Any, out: Any) -> None:
    """Normed, scaled and gated."""
    size = o.shape[0]
    total = np.float32(0.0)
    for j in range(size):
        total += o[j] * o[j]
    factor = _ONE / np.float32(math.sqrt(total / np.float32(size) + eps))
    for j in range(size):
        out[j] = o[j] * factor * norm[j] * (gate[j] * _sigmoid(gate[j]))


@compiled
def _advance(
    projected: Any,
    conv: Any,
    decays: Any,
    dt_bias: Any,
    norm: Any,
    key_heads: Any,
    dim: Any,
    eps: Any,
    states: Any,
    ring: Any,
    starts: Any,
    windows: Any,
    writes: Any,
    sources: Any,
    targets: Any,
    record: Any,
    kept_keys: Any,
    kept_deltas: Any,
    kept_decays: Any,
    out: Any,
) -> None:
    size = conv.shape[1]
    heads, value_dim = states.shape[1], states.shape[3]
    key_size, value_size = key_heads * dim, heads * value_dim
    repeat = heads // key_heads
    query_scale = np.float32(1.0 / math.sqrt(dim))
    mixed = np.empty(size, np.float32)
    found = np.empty(value_dim, np.float32)
    delta = np.empty(value_dim, np.float32)
    o = np.empty(value_dim, np.float32)
    for index in range(starts.shape[0] - 1):
        start, stop = starts[index], starts[index + 1]
        for row in range(start, stop):
            given = projected[row]
            _convolve(mixed, projected, conv, ring, windows[index], start, row)
            for h in range(key_heads):
                _normalise(mixed[h * dim : (h + 1) * dim], query_scale)
                _normalise(mixed[key_size + h * dim : key_size + (h + 1) * dim], _ONE)
            source, target = sources[row], targets[row]
            for h in range(heads):
                first = (h // repeat) * dim
                query = mixed[first : first + dim]
                key = mixed[key_size + first : key_size + first + dim]
                value = mixed[2 * key_size + h * value_dim : 2 * key_size + (h + 1) * value_dim]
                beta = _sigmoid(given[size + value_size + h])
                a = given[size + value_size + heads + h] + dt_bias[h]
                decay = np.float32(math.exp(decays[h] * _softplus(a)))
                state = states[target, h]
                _remember(states[source, h], source == ZERO, state, decay, key, found)
                for j in range(value_dim):
                    delta[j] = (value[j] - found[j]) * beta
                _correct(state, key, delta, query, o)
                if record:
                    kept_decays[row, h] = decay
                    for j in range(value_dim):
                        kept_deltas[row, h, j] = delta[j]
                gate = given[size + h * value_dim : size + (h + 1) * value_dim]
                _finish(o, gate, norm, eps, out[row, h * value_dim : (h + 1) * value_dim])
            if record:
                for h in range(key_heads):
                    for i in range(dim):
                        kept_keys[row, h, i] = mixed[key_size + h * dim + i]
        for row in range(start, stop):
            if writes[row] != ZERO:
                raw = ring[writes[row]]
                for c in range(size):
                    raw[c] = projected[row, c]


@compiled
def _fold(
    states: Any, source: Any, target: Any, keys: Any, deltas: Any, decays: Any, first: Any, count: Any
) -> None:
    heads, dim, value_dim = states.shape[1], states.shape[2], states.shape[3]
    repeat = heads // keys.shape[1]
    for h in range(heads):
        state = states[target, h]
        for i in range(dim):
            made, old = state[i], states[source, h, i]
            if source == ZERO:
                for j in range(value_dim):
                    made[j] = np.float32(0.0)
            else:
                for j in range(value_dim):
                    made[j] = old[j]
            for row in range(first, first + count):
                decay, k, delta = decays[row, h], keys[row, h // repeat, i], deltas[row, h]
                for j in range(value_dim):
                    made[j] = made[j] * decay + k * delta[j]
