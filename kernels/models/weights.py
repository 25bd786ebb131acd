"""Weights of a decoder under one set of names, whatever file they came from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Generic, TypeVar

import attrs
import numpy as np
import torch
from gguf import quants
from gguf.constants import GGMLQuantizationType
from safetensors import SafetensorError, safe_open

from txdecode.kernels.models.config import DenseConfig
from txdecode.kernels.models.digest import TensorBytes, weights_digest
from txdecode.kernels.models.errors import DamagedModel, UnsupportedFeature
from txdecode.kernels.models.folder_model import folder_config, folder_tensors
from txdecode.kernels.models.gguf_file import GgufFile
from txdecode.kernels.models.gguf_model import gguf_config, gguf_tensors, is_permuted
from txdecode.kernels.models.hybrid_assembly import assembled
from txdecode.kernels.models.hybrid_config import HybridConfig, ModelConfig
from txdecode.kernels.models.layout import EMBEDDING
from txdecode.kernels.models.source import ModelSource
from txdecode.kernels.models.stored import StoredTensor, map_file

_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_FLOAT_NAMES = {dtype: name for name, dtype in _FLOATS.items()}
Config = TypeVar("Config", DenseConfig, HybridConfig)
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@attrs.frozen(eq=False)
class _Weights(Generic[Config]):
    config: Config
    tensors: Mapping[str, torch.Tensor]
    digest: str

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of every tensor."""
        return self.tensors[EMBEDDING].dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


@attrs.frozen(eq=False)
class DenseWeights(_Weights[DenseConfig]):
    """Tensors of a dense decoder in the names and layouts of Hugging Face checkpoints.

    ``tensors`` has exactly the names of ``layout.tensor_shapes(config)``: ``model.embed_tokens.weight``
    [vocab, hidden], ``model.layers.{i}.self_attn.q_proj.weight`` [q_size, hidden], ...; projections are
    [out, in]. ``lm_head.weight`` is absent when the head is tied. All are contiguous, of one dtype, on the
    CPU. They may share memory with the mapped file: never write to them. ``digest`` is that of
    ``digest.weights_digest`` over the tensors as stored, so it does not depend on the dtype asked for.
    """


@attrs.frozen(eq=False)
class HybridWeights(_Weights[HybridConfig]):
    """Tensors of a hybrid decoder in one layout, whichever the checkpoint has.

    ``tensors`` has exactly the names of ``hybrid_layout.hybrid_tensor_shapes(config)``; projections of
    Qwen3-Next that a checkpoint interleaves by key head are taken apart, experts stored one by one are
    stacked. The rest is as for ``DenseWeights``; the digest is over the canonical tensors in the dtype in
    which they are stored.
    """


def load_weights(source: ModelSource, dtype: torch.dtype | str = "bf16") -> DenseWeights | HybridWeights:
    """Read, check, dequantise and convert all tensors to ``dtype``, a key of ``DTYPES`` or a torch dtype.

    Quantised tensors are expanded in fp32 and rounded once. Raises subclasses of ``ModelError``.
    """
    target = DTYPES[dtype] if isinstance(dtype, str) else dtype
    if source.kind == "gguf":
        return _load_gguf(source.gguf, target)
    return _load_folder(source.path, target)


def digest_tensors(config: ModelConfig, tensors: Mapping[str, torch.Tensor]) -> str:
    """The digest that the same tensors have when they are stored in safetensors files."""
    entries = []
    for name, tensor in tensors.items():
        dtype = _FLOAT_NAMES.get(tensor.dtype, str(tensor.dtype))
        entries.append(TensorBytes(name, dtype, tensor.shape, _raw(tensor)))
    return weights_digest(config, entries)


def _load_folder(folder: Path, dtype: torch.dtype) -> DenseWeights | HybridWeights:
    config = folder_config(folder)
    stored = folder_tensors(folder, config)
    for name, tensor in stored.items():
        if tensor.dtype not in _FLOATS:
            raise UnsupportedFeature(f"dtype of {name}", tensor.dtype, f"one of {', '.join(_FLOATS)}")
    by_file: dict[Path, list[str]] = {}
    for name, tensor in stored.items():
        by_file.setdefault(tensor.path, []).append(name)
    read: dict[str, torch.Tensor] = {}
    for path, names in by_file.items():
        try:
            with safe_open(str(path), framework="pt") as file:
                read.update({name: file.get_tensor(stored[name].name) for name in names})
        except (SafetensorError, OSError) as error:
            raise DamagedModel(path, f"tensors cannot be read ({' '.join(str(error).split())})") from error
    if isinstance(config, HybridConfig):
        canonical = assembled(config, read)
        return HybridWeights(config, _converted(canonical, dtype), digest_tensors(config, canonical))
    in_order = {name: read[name] for name in stored}
    return DenseWeights(config, _converted(in_order, dtype), digest_tensors(config, read))


def _converted(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {name: tensor.to(dtype).contiguous() for name, tensor in tensors.items()}


def _load_gguf(gguf: GgufFile, dtype: torch.dtype) -> DenseWeights:
    config = gguf_config(gguf)
    stored = gguf_tensors(gguf, config)
    file = map_file(gguf.path)

    def expand(item: tuple[str, StoredTensor]) -> torch.Tensor:
        name, tensor = item
        values = _dequantised(tensor, file)
        if is_permuted(config, name):
            values = _to_halves(values, config.head_dim)
        return values.to(dtype).contiguous()

    # Expansion holds the interpreter only between blocks of rows, so two workers are worth it.
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 4)) as pool:
        expanded = list(pool.map(expand, stored.items()))
    digest = weights_digest(
        config,
        [TensorBytes(name, each.dtype, each.shape, _slice(each, file)) for name, each in stored.items()],
    )
    return DenseWeights(config, dict(zip(stored, expanded, strict=True)), digest)


def _dequantised(tensor: StoredTensor, file: memoryview) -> torch.Tensor:
    """The tensor in fp32, in memory of its own."""
    kind = GGMLQuantizationType[tensor.dtype]
    rows = int(np.prod(tensor.shape[:-1], dtype=np.int64))
    raw = np.frombuffer(_slice(tensor, file), dtype=np.uint8).reshape(rows, -1)
    if kind is GGMLQuantizationType.F32:
        values = raw.view(np.float32).copy()
    elif kind is GGMLQuantizationType.F16:
        values = raw.view(np.float16).astype(np.float32)
    else:
        try:
            values = quants.dequantize(raw, kind)
        except NotImplementedError as error:
            raise UnsupportedFeature(f"type of {tensor.name}", tensor.dtype, "one that can expand") from error
    return torch.from_numpy(values).reshape(tensor.shape)


def _to_halves(values: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows of each head from order (2i, 2i + 1) to (i, i + head_dim / 2)."""
    pairs = values.reshape(-1, head_dim // 2, 2, *values.shape[1:])
    return pairs.transpose(1, 2).reshape(values.shape)


def _slice(tensor: StoredTensor, file: memoryview) -> memoryview:
    return file[tensor.offset : tensor.offset + tensor.nbytes]


def _raw(tensor: torch.Tensor) -> memoryview:
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
