"""A digest of weights as they are stored: what must agree for two runs to be comparable."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import attrs

from txdecode.kernels.models.hybrid_config import ModelConfig

_DIGEST_BYTES = 16
_WORKERS = 4


@attrs.frozen
class TensorBytes:
    """A tensor to digest: canonical name, stored dtype, shape, and its bytes as stored."""

    name: str
    dtype: str
    shape: Sequence[int]
    data: memoryview


def weights_digest(config: ModelConfig, tensors: Iterable[TensorBytes]) -> str:
    """blake2b-128 in hexadecimal over the configuration and every tensor's name, dtype, shape and bytes.

    It does not depend on the order of the tensors, nor on how they are spread over files. Fields of the
    configuration that hold their defaults do not enter, so that a later field keeps old digests.
    """
    ordered = sorted(tensors, key=lambda tensor: tensor.name)
    # hashlib releases the interpreter for large buffers.
    with ThreadPoolExecutor(_WORKERS) as pool:
        digests = list(pool.map(_tensor_digest, ordered))
    total = hashlib.blake2b(_canonical(config), digest_size=_DIGEST_BYTES)
    for digest in digests:
        total.update(digest)
    return total.hexdigest()


def _tensor_digest(tensor: TensorBytes) -> bytes:
    header = json.dumps([tensor.name, tensor.dtype, list(tensor.shape)]).encode()
    digest = hashlib.blake2b(header, digest_size=_DIGEST_BYTES)
    digest.update(tensor.data)
    return digest.digest()


def _canonical(config: ModelConfig) -> bytes:
    changed = attrs.asdict(config, filter=lambda field, value: value != field.default)
    return json.dumps(changed, sort_keys=True).encode()
