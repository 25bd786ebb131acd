"""The first layers of a dense model as a model of its own: a drafter where no smaller one is at hand.

Source: self-speculative decoding by early exit (Elhoushi et al., "LayerSkip", 2024); here with weights that were not
trained for it, so it drafts as well as its depth allows.
"""

from __future__ import annotations

import attrs

from txdecode.kernels.models.layout import tensor_shapes
from txdecode.kernels.models.weights import DenseWeights


def shortened(weights: DenseWeights, layers: int) -> DenseWeights:
    """The first ``layers`` layers with the embedding, final norm and head of the whole model. Tensors are shared."""
    count = weights.config.layer_count
    assert 1 <= layers < count, f"{layers} layers of {count}"
    config = attrs.evolve(weights.config, layer_count=layers)
    tensors = {name: weights.tensors[name] for name in tensor_shapes(config)}
    return DenseWeights(config, tensors, f"{weights.digest}/first{layers}")
