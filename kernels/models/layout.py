"""Names and shapes of the tensors of a dense decoder: the contract between loaders and executors."""

from __future__ import annotations

from txdecode.kernels.models.config import DenseConfig

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"


def layer_shapes(config: DenseConfig) -> dict[str, tuple[int, ...]]:
    """Tensors of one layer, without the prefix ``model.layers.{i}.``."""
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (config.q_size, hidden),
        "self_attn.k_proj.weight": (config.kv_size, hidden),
        "self_attn.v_proj.weight": (config.kv_size, hidden),
        "self_attn.o_proj.weight": (hidden, config.q_size),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if config.qkv_bias:
        shapes["self_attn.q_proj.bias"] = (config.q_size,)
        shapes["self_attn.k_proj.bias"] = (config.kv_size,)
        shapes["self_attn.v_proj.bias"] = (config.kv_size,)
    if config.o_bias:
        shapes["self_attn.o_proj.bias"] = (hidden,)
    if config.mlp_bias:
        shapes["mlp.gate_proj.bias"] = (inner,)
        shapes["mlp.up_proj.bias"] = (inner,)
        shapes["mlp.down_proj.bias"] = (hidden,)
    if config.qk_norm:
        shapes["self_attn.q_norm.weight"] = (config.head_dim,)
        shapes["self_attn.k_norm.weight"] = (config.head_dim,)
    return shapes


def tensor_shapes(config: DenseConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the model: embedding, layers in order, final norm, head unless tied."""
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, config.hidden_size)}
    one_layer = layer_shapes(config)
    for index in range(config.layer_count):
        shapes.update({f"model.layers.{index}.{name}": shape for name, shape in one_layer.items()})
    shapes[FINAL_NORM] = (config.hidden_size,)
    if not config.tied_head:
        shapes[HEAD] = (config.vocab_size, config.hidden_size)
    return shapes
