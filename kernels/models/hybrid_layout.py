"""Names and shapes of the tensors of a hybrid decoder: the contract between loaders and executors."""

from __future__ import annotations

from txdecode.kernels.models.hybrid_config import Feed, HybridConfig, Mixer
from txdecode.kernels.models.layout import EMBEDDING, FINAL_NORM, HEAD

MTP = "mtp."
MTP_LAYER = "mtp.layers.0."

Shapes = dict[str, tuple[int, ...]]


def hybrid_layer_shapes(config: HybridConfig, mixer: Mixer, feed: Feed) -> Shapes:
    """Tensors of one layer, without the prefix ``model.layers.{i}.`` or ``mtp.layers.0.``.

    ``linear_attn.in_proj_qkv`` holds all query heads, all key heads, all value heads. A row block of
    ``self_attn.q_proj`` is one head: its query, then its gate. ``mlp.experts.gate_up_proj`` holds the gate
    rows of an expert, then its up rows.
    """
    hidden = (config.hidden_size,)
    shapes: Shapes = {"input_layernorm.weight": hidden}
    shapes |= _linear(config) if mixer == "linear" else _full(config)
    shapes["post_attention_layernorm.weight"] = hidden
    if feed == "moe":
        return shapes | _moe(config)
    return shapes | _swiglu("mlp.", config.hidden_size, config.intermediate_size)


def hybrid_tensor_shapes(config: HybridConfig) -> Shapes:
    """Every tensor of the model: embedding, layers in order, final norm, head unless tied, MTP layer."""
    hidden = config.hidden_size
    shapes: Shapes = {EMBEDDING: (config.vocab_size, hidden)}
    for index, (mixer, feed) in enumerate(zip(config.mixers, config.feeds, strict=True)):
        layer = hybrid_layer_shapes(config, mixer, feed)
        shapes.update({f"model.layers.{index}.{name}": shape for name, shape in layer.items()})
    shapes[FINAL_NORM] = (hidden,)
    if not config.tied_head:
        shapes[HEAD] = (config.vocab_size, hidden)
    if config.mtp:
        shapes["mtp.fc.weight"] = (hidden, 2 * hidden)
        for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            shapes[f"mtp.{norm}.weight"] = (hidden,)
        layer = hybrid_layer_shapes(config, "full", config.mtp_feed)
        shapes.update({MTP_LAYER + name: shape for name, shape in layer.items()})
    return shapes


def _linear(config: HybridConfig) -> Shapes:
    hidden, heads = config.hidden_size, config.value_heads
    return {
        "linear_attn.in_proj_qkv.weight": (config.conv_size, hidden),
        "linear_attn.in_proj_z.weight": (config.value_size, hidden),
        "linear_attn.in_proj_b.weight": (heads, hidden),
        "linear_attn.in_proj_a.weight": (heads, hidden),
        "linear_attn.conv1d.weight": (config.conv_size, 1, config.conv_width),
        "linear_attn.A_log": (heads,),
        "linear_attn.dt_bias": (heads,),
        "linear_attn.norm.weight": (config.value_dim,),
        "linear_attn.out_proj.weight": (hidden, config.value_size),
    }


def _full(config: HybridConfig) -> Shapes:
    hidden = config.hidden_size
    return {
        "self_attn.q_proj.weight": (2 * config.q_size, hidden),
        "self_attn.k_proj.weight": (config.kv_size, hidden),
        "self_attn.v_proj.weight": (config.kv_size, hidden),
        "self_attn.o_proj.weight": (hidden, config.q_size),
        "self_attn.q_norm.weight": (config.head_dim,),
        "self_attn.k_norm.weight": (config.head_dim,),
    }


def _moe(config: HybridConfig) -> Shapes:
    moe, hidden = config.moe, config.hidden_size
    assert moe is not None, "a layer of experts in a configuration without experts"
    shapes: Shapes = {
        "mlp.gate.weight": (moe.experts, hidden),
        "mlp.experts.gate_up_proj": (moe.experts, 2 * moe.intermediate_size, hidden),
        "mlp.experts.down_proj": (moe.experts, hidden, moe.intermediate_size),
    }
    if moe.shared_size:
        shapes |= _swiglu("mlp.shared_expert.", hidden, moe.shared_size)
        shapes["mlp.shared_expert_gate.weight"] = (1, hidden)
    return shapes


def _swiglu(prefix: str, hidden: int, inner: int) -> Shapes:
    return {
        f"{prefix}gate_proj.weight": (inner, hidden),
        f"{prefix}up_proj.weight": (inner, hidden),
        f"{prefix}down_proj.weight": (hidden, inner),
    }
