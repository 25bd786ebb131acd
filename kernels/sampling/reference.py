"""The operators as sentences: tensors to lists, and the definitions of ``txdecode.transactions``."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from txdecode.transactions import accept, draws
from txdecode.transactions import judge as definition
from txdecode.transactions import target as distribution
from txdecode.transactions.judge import Judgement
from txdecode.transactions.target import History, Target

NOTHING = -1
"""No id: the choice of a row that has none, and that no draft equals."""


def lowest_argmax(logits: torch.Tensor) -> list[int]:
    """For each row of ``logits`` [rows, vocab] the lowest id among those with the largest value; ``NOTHING`` where
    that is not finite, or a NaN is among them."""
    return [
        int((row == row.max()).nonzero()[0]) if bool(torch.isfinite(row.max())) else NOTHING for row in logits
    ]


def judge(
    logits: torch.Tensor,
    target: Target,
    history: History | None,
    drafts: Sequence[int],
    position: int,
    proposals: torch.Tensor | None = None,
    prompt: torch.Tensor | None = None,
    copied: int = 0,
) -> Judgement:
    """See ``txdecode.kernels.sampling.judge``. ``prompt`` repeats what ``history`` has."""
    rows = None if proposals is None else [*proposals.tolist(), *[None] * copied]
    return definition.judge(logits.tolist(), target, history, drafts, position, rows)


def words(
    keys: torch.Tensor,
    positions: torch.Tensor,
    role: int,
    ids: torch.Tensor | None = None,
    count: int = 0,
    fourth: torch.Tensor | int = 0,
) -> torch.Tensor:
    """See ``txdecode.kernels.sampling.philox``."""
    rows = positions.shape[0]
    lists = [range(count)] * rows if ids is None else ids.tolist()
    fourths = [fourth] * rows if isinstance(fourth, int) else fourth.tolist()
    return torch.tensor(
        [
            [draws.word(seed, role, position, index, last) for index in indices]
            for seed, position, indices, last in zip(
                seeds(keys, rows), positions.tolist(), lists, fourths, strict=True
            )
        ],
        dtype=torch.int64,
    )


def race(
    scores: torch.Tensor, keys: torch.Tensor, positions: torch.Tensor, ids: torch.Tensor | None = None
) -> torch.Tensor:
    """See ``txdecode.kernels.sampling.race``."""
    rows = scores.shape[0]
    names = [list(range(scores.shape[1]))] * rows if ids is None else ids.tolist()
    winners = [
        named[accept.race(row, _by_column(seed, position, named), 0)]
        for row, seed, position, named in zip(
            scores.tolist(), seeds(keys, rows), positions.tolist(), names, strict=True
        )
    ]
    return torch.tensor(winners, dtype=torch.int64)


def _by_column(seed: int, position: int, named: list[int]) -> draws.Draw:
    """Words of the ids ``named``, by where they stand."""

    def draw(role: int, row: int, index: int = 0) -> int:
        return draws.word(seed, role, position + row, named[index])

    return draw


def race_of_logits(
    logits: torch.Tensor, temperature: float, keys: torch.Tensor, positions: torch.Tensor
) -> list[int]:
    """See ``txdecode.kernels.sampling.race``."""
    scores = [[logit / temperature for logit in row] for row in logits.tolist()]
    winners: list[int] = race(torch.tensor(scores, dtype=torch.float64), keys, positions).tolist()
    return winners


def adjusted(
    logits: torch.Tensor,
    target: Target,
    history: History | None,
    drafts: Sequence[int],
    prompt: torch.Tensor | None = None,
) -> torch.Tensor:
    """See ``txdecode.kernels.sampling.adjust``. ``prompt`` repeats what ``history`` has."""
    rows = [
        distribution.adjusted(row, target, history, drafts[:index])
        for index, row in enumerate(logits.tolist())
    ]
    return torch.tensor(rows, dtype=torch.float32)


def filtered(logits: torch.Tensor, target: Target) -> torch.Tensor:
    """Scores [rows, vocab], fp64, -inf for what is left out: what ``filters.candidates`` lists."""
    rows = [distribution.filtered(row, target) for row in logits.tolist()]
    return torch.tensor(rows, dtype=torch.float64)


def chain(
    targets: torch.Tensor,
    drafts: torch.Tensor,
    proposals: torch.Tensor | None,
    keys: torch.Tensor,
    positions: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``txdecode.kernels.sampling.chain``; columns are ids."""
    rounds = targets.shape[0]
    points = [None] * (0 if proposals is None else drafts.shape[1] - proposals.shape[1])
    verdicts = [
        accept.chain(
            drafts[index].tolist(),
            targets[index].tolist(),
            None if proposals is None else [*proposals[index].tolist(), *points],
            draws.Words(seed, position),
        )
        for index, (seed, position) in enumerate(zip(seeds(keys, rounds), positions.tolist(), strict=True))
    ]
    return torch.tensor([len(path) - 1 for path, _ in verdicts]), torch.tensor(
        [token for _, token in verdicts]
    )


def seeds(keys: torch.Tensor, rows: int) -> list[int]:
    """The seeds of [rows, 2] or [1, 2] keys."""
    made = [low | high << 32 for low, high in keys.tolist()]
    return made * rows if len(made) == 1 else made
