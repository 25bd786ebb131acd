"""The block of experts: a row's bits in any company, Hugging Face's blocks, and the formula."""

from __future__ import annotations

import math
from typing import Any

import attrs
import pytest
import torch

from txdecode.kernels.capability import DTYPES, DtypeName, numerics
from txdecode.kernels.linear.choice import linear_for
from txdecode.kernels.linear.reference import ReferenceLinear
from txdecode.kernels.linear.tiled import TiledLinear
from txdecode.kernels.models.hybrid_config import MoeConfig
from txdecode.kernels.moe import reference
from txdecode.kernels.moe.fused import Moe, Routes, route
from txdecode.kernels.norm.fused import extended, unit_rows

PREFIX = "model.layers.3.mlp"
EPS = 1e-6
ROWS = 256
SHAPES = {
    "few": (64, MoeConfig(experts=4, per_token=2, intermediate_size=32, shared_size=32, normalise=True)),
    "all": (33, MoeConfig(experts=5, per_token=5, intermediate_size=24, shared_size=40, normalise=False)),
    "one": (64, MoeConfig(experts=8, per_token=1, intermediate_size=48, shared_size=0, normalise=True)),
    "many": (96, MoeConfig(experts=60, per_token=10, intermediate_size=16, shared_size=24, normalise=True)),
    "wide": (
        256,
        MoeConfig(experts=32, per_token=4, intermediate_size=128, shared_size=128, normalise=False),
    ),
}
Tensors = dict[str, torch.Tensor]


@attrs.frozen(eq=False)
class Case:
    """A block, what it was built from, and ``ROWS`` rows of residual with their unit rows."""

    config: MoeConfig
    tensors: Tensors
    scale: torch.Tensor
    block: Moe
    x: torch.Tensor
    normal: torch.Tensor

    def rows(self, index: list[int]) -> torch.Tensor:
        return self.block.add(self.normal[index], self.x[index])

    def alone(self) -> torch.Tensor:
        """Every row by itself, padded to two."""
        return torch.cat([self.rows([row, row])[:1] for row in range(ROWS)])


def tensors_of(hidden: int, config: MoeConfig) -> Tensors:
    random = torch.Generator().manual_seed(hidden + config.experts)
    shapes: dict[str, tuple[int, ...]] = {
        "gate.weight": (config.experts, hidden),
        "experts.gate_up_proj": (config.experts, 2 * config.intermediate_size, hidden),
        "experts.down_proj": (config.experts, hidden, config.intermediate_size),
    }
    if config.shared_size:
        shapes |= {f"shared_expert.{n}_proj.weight": (config.shared_size, hidden) for n in ("gate", "up")}
        shapes["shared_expert.down_proj.weight"] = (hidden, config.shared_size)
        shapes["shared_expert_gate.weight"] = (1, hidden)
    return {
        f"{PREFIX}.{name}": torch.randn(shape, generator=random) / math.sqrt(shape[-1])
        for name, shape in shapes.items()
    }


def case(shape: str, dtype: DtypeName, linear: Any = None, row_tile: int | None = None) -> Case:
    hidden, config = SHAPES[shape]
    random = torch.Generator().manual_seed(1)
    kind = DTYPES[dtype]
    scale = 1 + 0.2 * torch.randn(hidden, generator=random)
    tensors = tensors_of(hidden, config)
    tile = row_tile if row_tile is not None else numerics(dtype).row_tile
    block = Moe(tensors, PREFIX, config, scale, kind, linear or linear_for(kind), tile)
    x = extended(torch.randn(ROWS, hidden, generator=random).to(kind), EPS)
    normal = unit_rows(x, torch.ones(ROWS, 1, dtype=kind))
    return Case(config, tensors, scale, block, x, normal)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("shape", SHAPES)
def test_bits_of_a_row_do_not_depend_on_the_rows_beside(shape: str, dtype: DtypeName) -> None:
    with torch.inference_mode():
        made = case(shape, dtype)
        alone = made.alone()
        assert torch.equal(made.rows(list(range(ROWS))), alone)
        random = torch.Generator().manual_seed(2)
        for count in (*range(2, 18), 31, 32, 33, 64, 65, 100, 255, 256):
            index = torch.randperm(ROWS, generator=random)[:count].tolist()
            assert torch.equal(made.rows(index), alone[index]), count
        for count in (2, 9, 40):
            index = torch.randint(6, (count,), generator=random).tolist()  # The same rows more than once.
            assert torch.equal(made.rows(index), alone[index]), count


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_rows_that_all_share_their_experts(dtype: DtypeName) -> None:
    """Every expert that is hit gets all rows, in tiles: more than one call takes."""
    with torch.inference_mode():
        made = case("few", dtype, row_tile=numerics(dtype).row_tile)
        row = made.rows([7, 7])[:1]
        for count in (33, 256, 259):
            assert torch.equal(made.rows([7] * count), row.expand(count, -1)), count


def test_no_matrix_sees_a_single_row_or_more_than_a_tile() -> None:
    counts: list[int] = []

    class Counting(ReferenceLinear):
        def _product(self, x: torch.Tensor) -> torch.Tensor:
            counts.append(x.shape[0])
            return super()._product(x)

    for shape in SHAPES:
        made = case(shape, "fp32", Counting, row_tile=16)
        for count in (2, 3, 16, 17, 100):
            made.rows(list(range(count)))
    assert set(counts) <= set(range(2, 17))
    assert {2, 16} <= set(counts)


def test_a_single_row_is_refused() -> None:
    with pytest.raises(AssertionError, match="padded to two"):
        case("few", "fp32").rows([0])


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_the_constant_column_comes_back(dtype: DtypeName) -> None:
    made = case("few", dtype)
    found = made.rows(list(range(ROWS)))
    assert found.shape == made.x.shape
    assert found.dtype == made.x.dtype
    assert torch.equal(found[:, -1], made.x[:, -1])


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_row_that_is_not_finite_stays_in_its_row(dtype: DtypeName) -> None:
    with torch.inference_mode():
        made = case("many", dtype)
        index = list(range(12))
        before = made.rows(index)
        made.normal[5] = math.nan
        found = made.rows(index)
        assert not found[5].isfinite().any()
        rest = [row for row in index if row != 5]
        assert torch.equal(found[rest], before[rest])


@pytest.mark.parametrize("shape", SHAPES)
def test_agrees_with_the_formula(shape: str) -> None:
    """fp32, relative to the largest entry of what is added: 1e-5."""
    made = case(shape, "fp32")
    expected = reference.moe(made.tensors, PREFIX, made.config, made.scale, made.normal, made.x)
    found = made.rows(list(range(ROWS))).double()
    assert error(found - made.x, expected - made.x) < 1e-5


@pytest.mark.parametrize("shape", SHAPES)
def test_agrees_with_the_formula_in_bf16(shape: str) -> None:
    """Where the choice of experts is clear; every value there is within 3 % of the largest added."""
    made = case(shape, "bf16")
    k = made.config.per_token
    plain = made.normal.double()[:, :-1] * math.sqrt(made.scale.shape[0]) * made.scale.double()
    logits = (plain @ made.tensors[f"{PREFIX}.gate.weight"].double().T).sort(-1, descending=True).values
    clear = torch.ones(ROWS, dtype=torch.bool)
    if k < made.config.experts:
        clear = logits[:, k - 1] - logits[:, k] > 0.05
    assert clear.sum() > ROWS // 4
    expected = reference.moe(made.tensors, PREFIX, made.config, made.scale, made.normal, made.x)
    found = made.rows(list(range(ROWS))).double()
    assert error((found - made.x)[clear], (expected - made.x)[clear]) < 0.03


@pytest.mark.parametrize("shape", [name for name in SHAPES if SHAPES[name][1].shared_size])
@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5_moe"])
def test_agrees_with_hugging_face(family: str, shape: str) -> None:
    made = case(shape, "fp32")
    if family == "qwen3_5_moe" and not made.config.normalise:
        made = attrs.evolve(made, block=_normalised(made))
    block, norm = hugging_face(family, made)
    with torch.no_grad():
        expected = block(norm(made.x[None, :, :-1]))[0]
    found = made.rows(list(range(ROWS)))[:, :-1] - made.x[:, :-1]
    assert error(found, expected) < 1e-5


def _normalised(made: Case) -> Moe:
    # Qwen3.5 always normalises.
    config = attrs.evolve(made.config, normalise=True)
    return Moe(made.tensors, PREFIX, config, made.scale, torch.float32, linear_for(torch.float32), 256)


def hugging_face(family: str, made: Case) -> tuple[torch.nn.Module, torch.nn.Module]:
    """The block and the norm before it, with the weights of ``made``."""
    config = made.config
    sizes: dict[str, Any] = {
        "hidden_size": made.scale.shape[0],
        "num_experts": config.experts,
        "num_experts_per_tok": config.per_token,
        "moe_intermediate_size": config.intermediate_size,
        "shared_expert_intermediate_size": config.shared_size,
    }
    if family == "qwen3_next":
        from transformers.models.qwen3_next import modeling_qwen3_next as module
        from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig

        settings: Any = Qwen3NextConfig(**sizes, norm_topk_prob=config.normalise)
        block, norm = module.Qwen3NextSparseMoeBlock(settings), module.Qwen3NextRMSNorm(len(made.scale), EPS)
    else:
        from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as other
        from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig

        settings = Qwen3_5MoeTextConfig(**sizes)
        block, norm = other.Qwen3_5MoeSparseMoeBlock(settings), other.Qwen3_5MoeRMSNorm(len(made.scale), EPS)
    settings._experts_implementation = "eager"
    block.load_state_dict({name.removeprefix(f"{PREFIX}."): value for name, value in made.tensors.items()})
    norm.load_state_dict({"weight": made.scale - 1})
    return block, norm


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).abs().max() / expected.double().abs().max())


def by_row(routes: Routes, rows: int) -> tuple[list[list[int]], list[list[float]]]:
    experts = [expert for expert, count in enumerate(routes.counts) for _ in range(count)]
    ids: list[list[int]] = [[] for _ in range(rows)]
    weights: list[list[float]] = [[] for _ in range(rows)]
    for row, expert, weight in zip(routes.rows.tolist(), experts, routes.weights[:, 0].tolist(), strict=True):
        ids[row].append(expert)
        weights[row].append(weight)
    return ids, weights


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize(("experts", "per_token"), [(4, 1), (8, 3), (32, 4), (300, 10), (6, 6)])
def test_routes_are_those_of_the_formula_with_ties(experts: int, per_token: int, normalise: bool) -> None:
    """Logits from few values, so that most choices are between equals."""
    config = MoeConfig(experts, per_token, 8, 0, normalise)
    random = torch.Generator().manual_seed(experts)
    logits = torch.randint(3, (40, experts), generator=random).float()
    routes = route(logits, config)
    ids, weights = by_row(routes, 40)
    for row in range(40):
        expected_ids, expected_weights = reference.chosen(logits[row], config)
        assert ids[row] == expected_ids
        assert weights[row] == pytest.approx(expected_weights, rel=1e-5)
    assert sum(routes.counts) == 40 * per_token
    # topk would not do: it takes others among equals.
    if experts == 300:
        taken = torch.softmax(logits, -1).topk(per_token, -1).indices.sort(-1).values.tolist()
        assert taken != ids


def test_weights_are_rounded_to_the_dtype_after_normalising() -> None:
    config = MoeConfig(16, 4, 8, 0, True)
    logits = torch.randn(20, 16, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)
    routes = route(logits, config)
    assert routes.weights.dtype == torch.bfloat16
    expected = [reference.chosen(row, config)[1] for row in logits]
    rounded = [torch.tensor(row, dtype=torch.float32).to(torch.bfloat16).tolist() for row in expected]
    assert by_row(routes, 20)[1] == rounded


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_terms_are_added_in_fp32_in_ascending_expert_id(dtype: DtypeName) -> None:
    """To the bit, from what each expert gives alone; the other direction gives other bits."""
    with torch.inference_mode():
        made = case("many", dtype)
        block = attrs.evolve(made.config, shared_size=0)
        moe = Moe(made.tensors, PREFIX, block, made.scale, DTYPES[dtype], linear_for(DTYPES[dtype]), 32)
        normal, x = made.normal[:64], torch.zeros_like(made.x[:64])
        logits = TiledLinear(moe._router, 32)(normal)
        ids, weights = by_row(route(logits, block), 64)
        given = torch.stack([expert.tiled(32)(normal).float() for expert in moe._experts])

        def added(step: int) -> torch.Tensor:
            rows = []
            for row in range(64):
                total = torch.zeros(normal.shape[1])
                for expert, weight in list(zip(ids[row], weights[row], strict=True))[::step]:
                    total = total + given[expert, row] * torch.tensor(weight)
                rows.append(total)
            return torch.stack(rows)

        assert torch.equal(moe.add(normal, x), added(1).to(x.dtype))
        assert not torch.equal(added(-1), added(1))


def test_bytes_of_weights() -> None:
    hidden, config = SHAPES["few"]
    block = case("few", "bf16").block
    feed = 2 * (2 * 32 * (hidden + 1) + (hidden + 1) * 32)
    assert block.expert_bytes == feed
    assert block.fixed_bytes == feed + 2 * (config.experts + 2) * (hidden + 1)
    assert block.weight_bytes == block.fixed_bytes + config.experts * feed
    alone = Moe(
        tensors_of(hidden, config),
        PREFIX,
        attrs.evolve(config, shared_size=0),
        torch.ones(hidden),
        torch.bfloat16,
        linear_for(torch.bfloat16),
        32,
    )
    assert alone.fixed_bytes == 2 * config.experts * (hidden + 1)
