"""The block with weights packed once: all pairs (row, expert) in one buffer by expert, a slice an expert."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch

from txdecode.kernels.linear import Linear
from txdecode.kernels.linear.choice import LinearFactory
from txdecode.kernels.linear.gated import GatedFeed
from txdecode.kernels.linear.tiled import TiledLinear
from txdecode.kernels.models.hybrid_config import MoeConfig
from txdecode.kernels.models.packing import with_zero
from txdecode.kernels.norm.fused import folded


@attrs.frozen(eq=False)
class Routes:
    """Pairs (row, expert) in ascending order of expert, then of row.

    ``rows`` [pairs] int64; ``weights`` [pairs, 1] of the model's dtype; ``counts``: rows of each expert.
    """

    rows: torch.Tensor
    weights: torch.Tensor
    counts: list[int]


class Moe:
    """One block of router, experts and shared expert (Qwen3NextSparseMoeBlock, Qwen3_5MoeSparseMoeBlock).

    ``tensors`` by canonical names (``{prefix}.gate.weight``, ``{prefix}.experts.gate_up_proj``, …), of which
    those under ``prefix`` are read, converted to ``dtype``. ``scale`` [hidden] is what the norm before the
    block multiplies by, which goes into the matrices that read unit rows. A matrix is called with at most
    ``row_tile`` rows (``Numerics.row_tile``).

    Rounding, as Hugging Face's where both round: router logits, weights of the chosen experts, what an expert
    gives and the share of the shared expert are in ``dtype``. Probabilities are in fp32, and so, where Hugging
    Face rounds to ``dtype`` each time, are the products with weights and the sums up to the residual.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        prefix: str,
        config: MoeConfig,
        scale: torch.Tensor,
        dtype: torch.dtype,
        linear: LinearFactory,
        row_tile: int,
    ) -> None:
        def get(name: str) -> torch.Tensor:
            return tensors[f"{prefix}.{name}"].to(dtype)

        def expert(gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> GatedFeed:
            reads_gate, reads_up = linear(folded(gate, scale), None), linear(folded(up, scale), None)
            return GatedFeed(reads_gate, reads_up, linear(with_zero(down), None))

        self._config = config
        self._dtype = dtype
        self._row_tile = row_tile
        router = get("gate.weight")
        self._shared: GatedFeed | None = None
        if config.shared_size:
            # The gate of the shared expert beside a row of zeros: sigmoid(z) is the first of softmax(z, 0),
            # and softmax treats every row alike.
            share = get("shared_expert_gate.weight")
            router = with_zero(torch.cat([router, share]))
            gate, up, down = (get(f"shared_expert.{name}_proj.weight") for name in ("gate", "up", "down"))
            self._shared = expert(gate, up, down)
        self._router = linear(folded(router, scale), None)
        # One expert at a time: converting all of them at once would hold two copies of the layer.
        gate_up, downs = tensors[f"{prefix}.experts.gate_up_proj"], tensors[f"{prefix}.experts.down_proj"]
        self._experts: list[GatedFeed] = []
        for joined, down in zip(gate_up, downs, strict=True):
            gate, up = joined.to(dtype).chunk(2)
            self._experts.append(expert(gate, up, down.to(dtype)))

    @property
    def fixed_bytes(self) -> int:
        """Bytes of weights that every call reads: router and shared expert."""
        return self._router.weight_bytes + (self._shared.weight_bytes if self._shared is not None else 0)

    @property
    def expert_bytes(self) -> int:
        """Bytes of weights of one expert."""
        return self._experts[0].weight_bytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of all packed matrices."""
        return self.fixed_bytes + len(self._experts) * self.expert_bytes

    def add(self, normal: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """``x`` plus the block of ``normal``.

        ``normal``: unit rows of ``x`` (see ``kernels.norm``); both and the result [rows, hidden + 1] in the
        model's dtype. The last column of ``x`` comes back as it was. Raises ``AssertionError`` below two rows.
        """
        assert normal.shape[0] >= 2, f"{normal.shape[0]} rows; a single row must be padded to two"
        logits = self._tiled(self._router, normal.shape[0])(normal)
        routes = route(logits[:, : self._config.experts], self._config)
        # By one index_add over pairs in order of experts: a row's terms are added in ascending expert id.
        terms = self._experts_of(normal, routes) * routes.weights.float()
        total = terms.new_zeros(x.shape).index_add_(0, routes.rows, terms)
        if self._shared is not None:
            share = torch.softmax(logits[:, self._config.experts :], -1, torch.float32)[:, :1].to(self._dtype)
            total += self._wide(self._shared, normal.shape[0])(normal) * share.float()
        return (x + total).to(self._dtype)

    def _experts_of(self, normal: torch.Tensor, routes: Routes) -> torch.Tensor:
        """What each pair's expert gives on its row: [pairs, hidden + 1]."""
        gathered = normal.index_select(0, routes.rows)
        pairs = gathered.shape[0]
        results, start = [], 0
        for expert, count in zip(self._experts, routes.counts, strict=True):
            if count > 1:
                stop = start + count
                results.append(self._wide(expert, count)(gathered[start:stop]))
                start = stop
            elif count == 1:
                # A single row takes another kernel, so the row of a neighbouring pair goes along.
                first = min(start, pairs - 2)
                results.append(expert(gathered[first : first + 2])[start - first : start - first + 1])
                start += 1
        return torch.cat(results)

    def _wide(self, expert: GatedFeed, rows: int) -> GatedFeed:
        return expert if rows <= self._row_tile else expert.tiled(self._row_tile)

    def _tiled(self, linear: Linear, rows: int) -> Linear:
        return linear if rows <= self._row_tile else TiledLinear(linear, self._row_tile)


def route(logits: torch.Tensor, config: MoeConfig) -> Routes:
    """The pairs of rows and experts for router ``logits`` [rows, experts]. One transfer to the host."""
    # topk leaves open which of equal probabilities it takes; a stable sort takes the lowest expert.
    p, order = torch.softmax(logits, -1, torch.float32).sort(dim=-1, descending=True, stable=True)
    p, order = p[:, : config.per_token], order[:, : config.per_token]
    if config.normalise:
        p = p / _sum(p)
    experts, pairs = order.reshape(-1).sort(stable=True)
    return Routes(
        rows=pairs.div(config.per_token, rounding_mode="floor"),
        weights=p.to(logits.dtype).reshape(-1, 1).index_select(0, pairs),
        counts=torch.bincount(experts, minlength=config.experts).tolist(),
    )


def _sum(p: torch.Tensor) -> torch.Tensor:
    """Sums of rows, [rows, 1], largest first: cumsum adds in order, where sum is free to group."""
    return p.cumsum(-1)[:, -1:]
