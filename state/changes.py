"""The vocabulary of the ledgers: what an event asks of them.

Events carry more than ledgers need (times, sources, outcomes); ``transactions.fold`` reduces each event to
one of these. A sequence is *known* from ``Submit`` to its close, *resident* from ``Admit`` to ``Evict`` or
close: only a resident sequence holds pages, columns and rings.
"""

from __future__ import annotations

import attrs

Ids = tuple[int, ...]
PerGroup = tuple[Ids, ...]


@attrs.frozen
class Submit:
    """A sequence becomes known: ``prompt`` ids, at most ``budget`` tokens to generate, ``roles`` random
    roles in use by the acceptance law of number ``law``, which draws from ``seed``."""

    request: int
    prompt: Ids
    budget: int
    roles: int
    law: int = 0
    seed: int = 0


@attrs.frozen
class Admit:
    """A known sequence becomes resident at length 0: one column a column group, one ring a ring group."""

    request: int
    columns: Ids
    slots: Ids


@attrs.frozen
class Advance:
    """``consumed`` more tokens take effect in every target ledger, ``emitted`` are generated.

    ``adopted[g]`` are the pages that join the table of page group g, in table order. ``columns`` are the
    new current columns. ``rng`` are the positions reached, by role. ``round`` is true for a round, false
    for a prefill. With ``close`` the sequence ends here: nothing is adopted, ``released`` is its table.
    """

    request: int
    consumed: int
    emitted: Ids
    adopted: PerGroup
    columns: Ids
    rng: Ids
    round: bool
    close: bool = False
    released: PerGroup = ()


@attrs.frozen
class Evict:
    """A resident sequence gives up its state, keeps its tokens and will be recomputed: the epoch rises."""

    request: int
    released: PerGroup


@attrs.frozen
class Close:
    """A sequence ends outside a round (cancelled, failed). ``released`` is its table, empty groups where
    it was not resident."""

    request: int
    released: PerGroup


Change = Submit | Admit | Advance | Evict | Close
