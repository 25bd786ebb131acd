"""The toy's model: integers in the place of a network. Pure.

The next token is a hash of paged rows, a recurrence over all consumed tokens, a conv window and an n-gram context,
so one row of error in any of them changes the text soon after.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from txdecode.transactions.executor import AuditEntry
from txdecode.transactions.judge import judge
from txdecode.transactions.target import GREEDY, History, Target

PRIME = (1 << 61) - 1
_A, _B, _C = 0x1F3D5B79A2C4E681, 0x0B5A3C1D2E4F6071, 0x13579BDF02468ACE
CONV_WINDOW = 3
NGRAM_CONTEXT = 2


def toy_hash(a: int, b: int, c: int) -> int:
    """Mixes three integers into one below ``PRIME``."""
    x = (a * _A + b * _B + c * _C + 1) % PRIME
    return (x ^ (x >> 29)) * _A % PRIME


@attrs.frozen
class ToyState:
    """All state after some tokens: recurrence, sum of paged rows, conv window (newest last), last tokens."""

    position: int = 0
    recurrent: int = 0
    attention: int = 0
    window: tuple[int, ...] = (0,) * CONV_WINDOW
    context: tuple[int, ...] = (0,) * NGRAM_CONTEXT


@attrs.frozen
class ToyRow:
    """What one token adds: its paged row and raw conv input, the state after it, hidden and target. ``conv`` is its
    compact record: all that the recurrence takes of it."""

    row: int
    raw: int
    conv: int
    state: ToyState
    hidden: int
    target: int


def recur(recurrent: int, conv: int) -> int:
    """The recurrence: one record folded in. The order matters."""
    return (recurrent * 0x9E3779B1 + conv) % PRIME


def advance(state: ToyState, token: int, vocab_size: int) -> ToyRow:
    """The model: one token in, the next one out. Pure."""
    raw = toy_hash(token, state.context[-1], state.context[-2])
    a, b, c = state.window
    conv = toy_hash(a + 3 * b, 7 * c, raw)
    recurrent = recur(state.recurrent, conv)
    row = toy_hash(token, state.position, conv)
    attention = (state.attention + row) % PRIME
    hidden = toy_hash(recurrent, attention, conv)
    # Three times in four the next token is a function of the last alone, so that the text repeats itself
    # and copying drafters find something; the choice itself depends on every state.
    target = hidden // 4 % vocab_size if hidden % 4 == 0 else (token * 5 + 3) % vocab_size
    after = ToyState(state.position + 1, recurrent, attention, (b, c, raw), (*state.context[1:], token))
    return ToyRow(row, raw, conv, after, hidden, target)


def logits(hidden: int, target: int, vocab_size: int) -> list[float]:
    """Logits of a row, exact in fp32: ``target`` has the largest by at least 1, the rest lies in [0, 4)."""
    made = [((((hidden ^ token * _B) * _C) >> 53) & 0xFF) / 64 for token in range(vocab_size)]
    made[target] = 5 + (hidden & 0x7F) / 64
    return made


def plain(
    prompt: Sequence[int],
    count: int,
    vocab_size: int,
    stop: frozenset[int] = frozenset(),
    target: Target = GREEDY,
) -> list[int]:
    """The oracle: the text of a plain loop without pages, columns, rounds or batches."""
    state = ToyState()
    made = None
    for token in prompt:
        made = advance(state, token, vocab_size)
        state = made.state
    assert made is not None, "a prompt has at least one token"
    out: list[int] = []
    counts: dict[int, int] = {}
    while len(out) < count:
        token = made.target
        if not target.plain:
            history = History(tuple(prompt), counts, len(out))
            row = logits(made.hidden, made.target, vocab_size)
            token = judge([row], target, history, (), len(prompt) + len(out)).token
        out.append(token)
        counts[token] = counts.get(token, 0) + 1
        if token in stop:
            break
        made = advance(state, token, vocab_size)
        state = made.state
    return out


def expected_audit(tokens: Sequence[int], page: int, vocab_size: int) -> tuple[AuditEntry, ...]:
    """What ``audit`` must say after ``tokens`` were consumed, computed from the tokens alone."""
    state, hidden = ToyState(), 0
    rows: list[int] = []
    pairs: list[int] = []
    for position, token in enumerate(tokens):
        made = advance(state, token, vocab_size)
        rows.append(made.row)
        pairs.append(toy_hash(hidden, token, position))
        state, hidden = made.state, made.hidden
    entries = []
    for name, values, first in (("kv", rows, 0), ("pairs", pairs, 1)):
        for index in range(-(-len(tokens) // page)):
            digest = 0
            for position in range(max(index * page, first), min(index * page + page, len(tokens))):
                digest = toy_hash(digest, toy_hash(0, values[position], position), position)
            entries.append(AuditEntry(name, 0, index, digest))
    entries.append(AuditEntry("gdn", 0, 0, state.recurrent))
    entries.append(AuditEntry("conv", 0, 0, toy_hash(*state.window)))
    entries.append(AuditEntry("ngram", 0, 0, toy_hash(state.context[0], state.context[1], 0)))
    entries.append(AuditEntry("tail", 0, 0, hidden))
    return tuple(entries)
