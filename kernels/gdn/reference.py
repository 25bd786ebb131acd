"""The gated delta net as formulas, in double precision; states and rings are kept in fp32."""

from __future__ import annotations

import torch
from torch.nn.functional import silu, softplus

from txdecode.kernels.gdn.rows import ZERO, GdnWeights, Places, Records


def advance(
    projected: torch.Tensor,
    weights: GdnWeights,
    states: torch.Tensor,
    ring: torch.Tensor,
    places: Places,
    records: Records | None,
    out: torch.Tensor,
) -> None:
    """Run the rows of a launch through one linear layer, between its projections.

    ``projected`` [rows, conv_size + value_size + 2 * value_heads], fp32: raw conv columns (queries, keys,
    values), gate z, b, a. ``states`` [columns, value_heads, key_dim, value_dim], fp32; ``ring`` [ring rows of all
    slots, conv_size], fp32. ``out`` [rows, value_size], fp32, takes the normed and gated outputs; ``records``, if
    given, what each row did to the state.
    """
    width, conv_size = weights.conv.shape
    heads, dim, value_dim = weights.value_heads, weights.key_dim, weights.value_dim
    key_size, value_size = weights.key_heads * dim, heads * value_dim
    repeat = heads // weights.key_heads
    raw = projected[:, :conv_size].double()
    gate, b, a = projected[:, conv_size:].double().split_with_sizes([value_size, heads, heads], -1)
    for index in range(len(places.starts) - 1):
        start, stop = int(places.starts[index]), int(places.starts[index + 1])
        before = [
            torch.zeros(conv_size) if row == ZERO else ring[row] for row in places.windows[index].tolist()
        ]
        taps = torch.cat([torch.stack(before).double() if before else raw[:0], raw[start:stop]])
        for row in range(start, stop):
            window = taps[row - start : row - start + width]
            mixed = silu((window * weights.conv.double()).sum(0))
            q, k, v = mixed.split_with_sizes([key_size, key_size, value_size])
            q, k = (unit(x.view(weights.key_heads, dim)) for x in (q, k))
            beta = b[row].sigmoid()
            decay = (weights.decay.double() * softplus(a[row] + weights.dt_bias.double())).exp()
            source = int(places.sources[row])
            state = torch.zeros(heads, dim, value_dim) if source == ZERO else states[source]
            key = k.repeat_interleave(repeat, 0)
            query = q.repeat_interleave(repeat, 0) * dim**-0.5
            decayed = state.double() * decay[:, None, None]
            delta = (v.view(heads, value_dim) - torch.einsum("hk,hkv->hv", key, decayed)) * beta[:, None]
            made = decayed + key[:, :, None] * delta[:, None, :]
            states[int(places.targets[row])] = made.float()
            if records is not None:
                records.keys[row] = k.float()
                records.deltas[row] = delta.float()
                records.decays[row] = decay.float()
            o = torch.einsum("hk,hkv->hv", query, made)
            o = o / torch.sqrt(o.square().mean(-1, keepdim=True) + weights.eps) * weights.norm.double()
            out[row] = (o * silu(gate[row].view(heads, value_dim))).flatten().float()
        for row in range(start, stop):
            if places.writes[row] != ZERO:
                ring[int(places.writes[row])] = projected[row, :conv_size]


def fold(states: torch.Tensor, source: int, target: int, records: Records, first: int, count: int) -> None:
    """Make the state after rows ``first`` .. ``first + count - 1`` of ``records`` from that before them:
    ``states[target]`` from ``states[source]`` (``ZERO``: the zero state), in forward order."""
    state = torch.zeros_like(states[target]) if source == ZERO else states[source].clone()
    repeat = states.shape[1] // records.keys.shape[1]
    for row in range(first, first + count):
        key = records.keys[row].repeat_interleave(repeat, 0)
        state = state * records.decays[row][:, None, None]
        state = state + key[:, :, None] * records.deltas[row][:, None, :]
    states[target] = state


def unit(x: torch.Tensor) -> torch.Tensor:
    """Rows of length one, but for the epsilon of the published layer."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
