"""A second model beside the one that decodes, to draft for it. Loads torch."""

from __future__ import annotations

import re
from typing import cast

import attrs
from tokenizers import Tokenizer

from txdecode.kernels.capability import DtypeName
from txdecode.kernels.executor import DenseExecutor
from txdecode.kernels.models.loading import load_config, load_text
from txdecode.kernels.models.shortened import shortened
from txdecode.kernels.models.source import ModelSource, resolve
from txdecode.kernels.models.weights import DenseWeights, HybridWeights, load_weights
from txdecode.kernels.paired import VocabularyMismatch
from txdecode.kernels.paired_executor import PairedExecutor
from txdecode.runtime.errors import InvalidRequest
from txdecode.state.groups import of_kind
from txdecode.transactions.executor import Description, Executor, Rollback

_FIRST = re.compile(r"first:([0-9]{1,4})", re.ASCII)


def paired(
    target: Executor, weights: DenseWeights | HybridWeights, tokenizer: Tokenizer, name: str, dtype: str
) -> PairedExecutor:
    """``target``, which runs ``weights``, with the model ``name`` to draft for it: ``first:N``, its own first N
    layers, or a model as for ``open_model``. It gets as many pages as the target has.

    Raises subclasses of ``ModelError`` for what can't be loaded, ``InvalidRequest`` for what can't be cut,
    ``VocabularyMismatch`` and ``CapabilityMissing`` for a pair that does not fit, ``MemoryPlanRefused``.
    """
    description = target.describe()
    made: DenseWeights | HybridWeights
    if name.startswith("first:"):
        made = _first(weights, name)
    else:
        source = resolve(name)
        _check_vocabulary(source, description, tokenizer)
        made = load_weights(source, dtype)
        if isinstance(made, HybridWeights):
            # A drafter needs none of its own.
            made = attrs.evolve(made, config=attrs.evolve(made.config, mtp=False))
    return PairedExecutor(target, _executor(made, cast(DtypeName, dtype), description))


def _first(weights: DenseWeights | HybridWeights, name: str) -> DenseWeights:
    match = _FIRST.fullmatch(name)
    if isinstance(weights, HybridWeights):
        raise InvalidRequest(
            f"draft_model '{name}' cuts dense models, and '{weights.config.architecture}' is a hybrid; draft with "
            f"'mtp' or with a copying drafter"
        )
    most = weights.config.layer_count - 1
    if not most:
        raise InvalidRequest(
            f"draft_model '{name:.80}' cuts layers off the model, and '{weights.config.architecture}' has one layer "
            f"alone; draft with a smaller model of the same vocabulary, or with a copying drafter"
        )
    if match is None or not 1 <= int(match[1]) <= most:
        raise InvalidRequest(
            f"draft_model 'first:N' must keep 1 to {most} of the model's {most + 1} layers, found {name!r:.80}"
        )
    return shortened(weights, int(match[1]))


def _check_vocabulary(source: ModelSource, target: Description, tokenizer: Tokenizer) -> None:
    """Sizes first, which cost nothing to read; then, where the drafter has a tokenizer, every token."""
    size = load_config(source).vocab_size
    if size != target.vocab_size:
        raise VocabularyMismatch("vocab_size", target.vocab_size, size)
    if source.kind == "folder" and not (source.path / "tokenizer.json").is_file():
        return
    expected, found = (
        {token: text for text, token in each.get_vocab(with_added_tokens=True).items()}
        for each in (tokenizer, load_text(source).tokenizer)
    )
    for token in sorted(expected.keys() | found.keys()):
        if expected.get(token) != found.get(token):
            raise VocabularyMismatch(f"token {token} to be", expected.get(token), found.get(token))


def _executor(weights: DenseWeights | HybridWeights, dtype: DtypeName, target: Description) -> Executor:
    pooled = of_kind(target.groups, "pages")
    pages = pooled[0].capacity if pooled else None
    context, batch_max, rows_max = target.context, target.batch_max, target.rows_max
    if isinstance(weights, DenseWeights):
        return DenseExecutor(
            weights, dtype=dtype, page_count=pages, context=context, batch_max=batch_max, rows_max=rows_max
        )
    # It compiles loops, which dense models need not wait for.
    from txdecode.kernels.hybrid_executor import HybridExecutor

    form: Rollback = target.capabilities.rollback or "columns"
    return HybridExecutor(
        weights,
        dtype=dtype,
        rollback=form,
        page_count=pages,
        context=context,
        batch_max=batch_max,
        rows_max=rows_max,
    )
