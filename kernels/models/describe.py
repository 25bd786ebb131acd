"""What a model is and whether it can be run, from its files alone and without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs

from txdecode.kernels.models.config import DenseConfig
from txdecode.kernels.models.errors import (
    ModelError,
    UnsupportedArchitecture,
    UnsupportedFeature,
    UnsupportedTokenizer,
)
from txdecode.kernels.models.fields import Fields, read_json_object
from txdecode.kernels.models.folder_model import CONFIG, folder_config, folder_tensors, stored_tensors
from txdecode.kernels.models.folder_text import folder_text
from txdecode.kernels.models.gguf_file import GgufFile
from txdecode.kernels.models.gguf_model import gguf_config, gguf_tensors
from txdecode.kernels.models.gguf_text import gguf_text
from txdecode.kernels.models.hybrid_config import HybridConfig, ModelConfig
from txdecode.kernels.models.hybrid_folder import VISION, says_mtp
from txdecode.kernels.models.source import ModelSource
from txdecode.kernels.models.stored import StoredTensor, bytes_by_dtype
from txdecode.kernels.models.text_assets import TextAssets
from txdecode.state.groups import Kind

STATE_ITEM_BYTES: Mapping[str, int] = {"bf16": 2, "fp32": 4}


@attrs.frozen
class StateNeed:
    """State that decoding keeps, over all layers: ``token_bytes`` for each token of context, and
    ``sequence_bytes`` for a sequence of any length.

    Of a column that is one committed state, of a ring the rows that the next token reads: what a round adds
    to them depends on the executor's form of rollback.
    """

    name: str
    kind: Kind
    layers: int
    token_bytes: int
    dtype: str
    sequence_bytes: int = 0


@attrs.frozen
class ModelDescription:
    """A model as its files describe it.

    ``architecture`` is the name that the files use. ``supported`` says whether it can be run here;
    ``reason`` why not, as one line. ``config`` is ``None`` where the architecture is not supported.
    ``parameters`` counts elements of the stored tensors. ``weight_bytes`` are stored bytes by dtype.
    ``context`` is in tokens. ``notes``: what the files hold or name and a run does without, one line each.
    The rest is ``None`` or empty where the files do not say.
    """

    name: str
    kind: str
    path: Path
    architecture: str
    supported: bool
    reason: str | None
    config: ModelConfig | None
    parameters: int
    weight_bytes: Mapping[str, int]
    tokenizer: str | None
    chat_template: bool
    eos_ids: tuple[int, ...]
    sampling: Mapping[str, float | int | bool]
    states: tuple[StateNeed, ...]
    notes: tuple[str, ...] = ()


def describe_model(source: ModelSource, dtype: str = "bf16") -> ModelDescription:
    """Describe a model; ``dtype`` (``bf16`` or ``fp32``) is that of the state it would keep.

    What is not supported is described with the reason; files that are damaged or do not belong together
    raise ``DamagedModel`` or ``TensorMismatch``.
    """
    gguf = source.gguf if source.kind == "gguf" else None
    config, reason = _config(source, gguf)
    stored = _stored(source, gguf, config)
    assets, no_text = _text(source, gguf, config)
    return ModelDescription(
        name=source.name,
        kind=source.kind,
        path=source.path,
        architecture=_declared(source, gguf),
        supported=reason is None and no_text is None,
        reason=reason or no_text,
        config=config,
        parameters=sum(tensor.elements for tensor in stored.values()),
        weight_bytes=bytes_by_dtype(stored.values()),
        tokenizer=None if assets is None else assets.kind,
        chat_template=assets is not None and assets.chat_template is not None,
        eos_ids=() if assets is None else assets.eos_ids,
        sampling={} if assets is None else assets.sampling,
        states=() if config is None else state_needs(config, dtype),
        notes=_notes(source, config, stored),
    )


def state_needs(config: ModelConfig, dtype: str) -> tuple[StateNeed, ...]:
    """The state of a model of this geometry, ``dtype`` (``bf16`` or ``fp32``) that of keys and values.

    In a hybrid, keys and values of the layers of full attention, the recurrent states and the convolutions'
    history of the others, both always in fp32, the pairs of the MTP layer and the last hidden row for it.
    """
    item = STATE_ITEM_BYTES[dtype]
    row = 2 * config.kv_size * item
    if isinstance(config, DenseConfig):
        return (StateNeed("kv", "pages", config.layer_count, config.layer_count * row, dtype),)
    full, linear = len(config.full_layers), len(config.linear_layers)
    recurrent = config.value_size * config.key_dim * STATE_ITEM_BYTES["fp32"]
    history = config.conv_size * (config.conv_width - 1) * STATE_ITEM_BYTES["fp32"]
    needs = (
        StateNeed("kv", "pages", full, full * row, dtype),
        StateNeed("gdn", "column", linear, 0, "fp32", linear * recurrent),
        StateNeed("conv", "ring", linear, 0, "fp32", linear * history),
        StateNeed("pairs", "pages", 1 if config.mtp else 0, row, dtype),
        StateNeed("tail", "ring", 1 if config.mtp else 0, 0, dtype, config.hidden_size * item),
    )
    return tuple(need for need in needs if need.layers)


def _stored(
    source: ModelSource, gguf: GgufFile | None, config: ModelConfig | None
) -> Mapping[str, StoredTensor]:
    if gguf is not None:
        return gguf.tensors
    try:
        return stored_tensors(source.path)
    except ModelError:
        # Other kinds of models may keep their weights elsewhere: the reason is already known.
        if config is not None:
            raise
        return {}


def _config(source: ModelSource, gguf: GgufFile | None) -> tuple[ModelConfig | None, str | None]:
    """The configuration, or the reason why there is none; tensors are held against it."""
    config: ModelConfig
    try:
        if gguf is not None:
            config = dense = gguf_config(gguf)
            gguf_tensors(gguf, dense)
        else:
            config = folder_config(source.path)
            folder_tensors(source.path, config)
    except (UnsupportedArchitecture, UnsupportedFeature) as error:
        return None, str(error)
    return config, None


def _notes(
    source: ModelSource, config: ModelConfig | None, stored: Mapping[str, StoredTensor]
) -> tuple[str, ...]:
    if not isinstance(config, HybridConfig):
        return ()
    notes = []
    unused = sum(name.startswith(VISION) for name in stored)
    if unused:
        notes.append(f"only the text part is run; tensors of the vision part that are not read: {unused}")
    if not config.mtp and says_mtp(Fields(source.path / CONFIG, read_json_object(source.path / CONFIG))):
        notes.append(f"{CONFIG} names an MTP layer, but the files hold no tensors of one: no MTP drafts")
    return tuple(notes)


def _text(
    source: ModelSource, gguf: GgufFile | None, config: ModelConfig | None
) -> tuple[TextAssets | None, str | None]:
    try:
        return (gguf_text(gguf) if gguf is not None else folder_text(source.path)), None
    except UnsupportedTokenizer as error:
        return None, str(error)
    except ModelError as error:
        # Other kinds of models may have no tokenizer at all.
        if config is not None:
            raise
        return None, str(error)


def _declared(source: ModelSource, gguf: GgufFile | None) -> str:
    if gguf is not None:
        return gguf.fields.text("general.architecture")
    fields = Fields(source.path / CONFIG, read_json_object(source.path / CONFIG))
    classes = fields.values.get("architectures")
    if isinstance(classes, list) and classes:
        return ", ".join(str(item) for item in classes)
    return fields.text("model_type")
