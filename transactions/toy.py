"""The toy executor: a pure-Python integer model with every kind of state.

Its model is in ``toy_model``. A drafter with a paged cache of
(hidden, next token) pairs guesses well but not always. Nothing here is a language model; it exists so that
the whole runtime runs thousands of rounds a second against a plain loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from txdecode.state.groups import StateGroup
from txdecode.transactions.accept import greedy, inverse, probabilities, race
from txdecode.transactions.draws import DRAFT, Words, salt, word
from txdecode.transactions.executor import (
    NO_PROPOSAL,
    AuditEntry,
    Capabilities,
    CapabilityMissing,
    Description,
    ExecutorFault,
    Outcome,
    PrefillPlan,
    Proposal,
    Rollback,
    Round,
    RoundPlan,
    SequenceView,
    Settlement,
    Ticket,
)
from txdecode.transactions.judge import judge
from txdecode.transactions.target import filtered
from txdecode.transactions.toy_model import (
    CONV_WINDOW,
    NGRAM_CONTEXT,
    PRIME,
    ToyRow,
    ToyState,
    advance,
    expected_audit,
    logits,
    plain,
    recur,
    toy_hash,
)

Hook = Callable[[str], None]
"""Called with ``verb`` before and ``verb:late`` after the work of each verb; raising makes the verb fail."""


@attrs.define
class _Scratch:
    tokens: tuple[int, ...]
    rows: list[ToyRow]


class ToyExecutor:
    """Implements ``Executor`` over integers, verb by verb or (``fused``) by launch and collect.

    ``accuracy`` is the share, in eighths, of draft tokens that its drafter gets right; 0 leaves drafting to
    the host. ``rollback`` is the form of the recurrent state.
    ``delay(launch)`` is how many polls a fused launch takes, so launches may finish in any order; its
    writes happen at the last moment. ``hook`` injects faults.
    """

    def __init__(
        self,
        *,
        vocab_size: int = 48,
        context: int = 256,
        page: int = 4,
        page_count: int = 64,
        batch_max: int = 4,
        rows_max: int = 8,
        fused: bool = False,
        accuracy: int = 0,
        rollback: Rollback = "columns",
        delay: Callable[[int], int] = lambda launch: 0,
        hook: Hook = lambda verb: None,
    ) -> None:
        self.accuracy = accuracy
        self.delay = delay
        self.hook = hook
        self.page = page
        self.ring = CONV_WINDOW + rows_max
        by_row = rollback == "columns"
        columns = batch_max * (rows_max + 1) + rows_max if by_row else 2 * batch_max + 2
        self._description = Description(
            name="toy",
            vocab_size=vocab_size,
            context=context,
            rows_max=rows_max,
            prefill_rows_max=16,
            batch_max=batch_max,
            groups=(
                StateGroup("kv", "pages", page, 1, 8, "target", page_count),
                StateGroup("gdn", "column", 1, 1, 8, "target", columns, "row" if by_row else "round"),
                StateGroup("conv", "ring", self.ring, 1, 8, "target", batch_max),
                StateGroup("ngram", "tokens", NGRAM_CONTEXT, 1, 8),
                StateGroup("pairs", "pages", page, 1, 8, "drafter", page_count),
            ),
            capabilities=Capabilities(
                row_invariant=True,
                fused=fused,
                drafts=accuracy > 0,
                sampling=True,
                rollback=rollback,
                commits=("pages", rollback, "ring", "tokens"),
            ),
            memory={"kv": page_count * page * 8, "gdn": columns * 8, "conv": batch_max * self.ring * 8},
            fingerprint={"executor": "toy-1", "vocab": str(vocab_size), "page": str(page)},
        )
        self.vocab_size = vocab_size
        self.rollback = rollback
        self.kv = [[0] * page for _ in range(page_count)]
        self.pairs = [[0] * page for _ in range(page_count)]
        self.columns = [0] * columns
        self.rings = [[0] * self.ring for _ in range(batch_max)]
        self.contexts = [(0,) * NGRAM_CONTEXT for _ in range(batch_max)]
        self.tails = [0] * batch_max
        self._scratch: dict[tuple[int, int], _Scratch] = {}
        self._programs: dict[int, tuple[list[int], list[Round]]] = {}
        self._abandoned: set[tuple[int, int]] = set()

    def describe(self) -> Description:
        """Static facts."""
        return self._description

    # Reading and writing physical state.

    def _read(self, view: SequenceView) -> ToyState:
        """The committed state of a sequence, read from where it lies."""
        n, (slot,) = view.length, view.slots
        if not n:
            return ToyState()
        full, rest = divmod(n, self.page)
        table = view.pages[0]
        attention = sum(sum(self.kv[page]) for page in table[:full])
        if rest:
            attention += sum(self.kv[table[full]][:rest])
        return ToyState(
            n, self.columns[view.columns[0]], attention % PRIME, self._window(slot, n), self.contexts[slot]
        )

    def _window(self, slot: int, end: int) -> tuple[int, ...]:
        ring = self.rings[slot]
        return tuple(ring[i % self.ring] if i >= 0 else 0 for i in range(end - CONV_WINDOW, end))

    def _write_row(self, view: SequenceView, pages: tuple[tuple[int, ...], ...], made: ToyRow) -> None:
        position = made.state.position - 1
        index, offset = divmod(position, self.page)
        self.kv[pages[0][index]][offset] = made.row
        self.rings[view.slots[0]][position % self.ring] = made.raw

    def _write_pair(self, pages: tuple[tuple[int, ...], ...], position: int, hidden: int, token: int) -> None:
        """Pair (hidden of row position-1, token at position) sits in slot ``position``."""
        if position:
            index, offset = divmod(position, self.page)
            self.pairs[pages[1][index]][offset] = toy_hash(hidden, token, position)

    # Verbs.

    def prefill(self, batch: Sequence[PrefillPlan]) -> None:
        """Consume prompt tokens."""
        self.hook("prefill")
        for plan in batch:
            view, slot = plan.view, plan.view.slots[0]
            state = self._read(view)
            hidden = self.tails[slot] if view.length else 0
            for token in plan.tokens:
                made = advance(state, token, self.vocab_size)
                self._write_pair(plan.pages, state.position, hidden, token)
                self._write_row(view, plan.pages, made)
                state, hidden = made.state, made.hidden
            self.columns[plan.columns[0]] = state.recurrent
            self.contexts[slot], self.tails[slot] = state.context, hidden
        self.hook("prefill:late")

    def draft(self, plans: Sequence[RoundPlan]) -> list[Proposal]:
        """Guess by running the model ahead and spoiling some guesses, as the pair cache says."""
        self.hook("draft")
        proposals = [self._guess(plan) for plan in plans]
        self.hook("draft:late")
        return proposals

    def _guess(self, plan: RoundPlan) -> Proposal:
        state = self._read(plan.view)
        noise = self._pair_sum(plan.view)
        token, tokens = plan.pending, []
        sampled = plan.target.law != "greedy"
        words = Words(plan.target.seed, plan.rng[0])
        q: list[list[float]] = []
        for depth in range(plan.width - 1):
            made = advance(state, token, self.vocab_size)
            state, token = made.state, made.target
            noise = toy_hash(noise, token, state.position)
            if noise % 8 >= self.accuracy:
                token = (token + 1) % self.vocab_size
            if sampled:
                # It does not see penalties: only what it is right about gets accepted.
                scores = filtered(logits(made.hidden, token, self.vocab_size), plan.target)
                q.append(probabilities(scores))
                token = self._draw(plan, depth, scores, q[-1], words)
            # The drafter's own row for its guess: scratch, whatever acceptance says.
            self._write_pair(plan.pages, state.position, made.hidden ^ 1, token)
            tokens.append(token)
        if sampled and tokens:
            return Proposal(tuple(tokens), "toy", "sampled", q)
        return Proposal(tuple(tokens), "toy")

    def _draw(self, plan: RoundPlan, depth: int, scores: list[float], q: list[float], words: Words) -> int:
        """A draft from the drafter's distribution, by the noise that the law says."""
        if plan.target.law == "coupled":
            return race(scores, words, depth)
        fourth = salt(plan.view.epoch, plan.attempt)
        return inverse(q, word(plan.target.seed, DRAFT, plan.rng[0] + depth, fourth=fourth))

    def _pair_sum(self, view: SequenceView) -> int:
        total = 0
        for position in range(1, view.length):
            index, offset = divmod(position, self.page)
            total += self.pairs[view.pages[1][index]][offset]
        return total % PRIME

    def verify(self, rounds: Sequence[Round]) -> None:
        """All rows of all rounds; each row sees its causal prefix."""
        self.hook("verify")
        for entry in rounds:
            assert entry.proposal is not None
            self._forward(entry.plan, entry.proposal)
        self.hook("verify:late")

    def _forward(self, plan: RoundPlan, proposal: Proposal) -> None:
        tokens = (plan.pending, *proposal.tokens)
        assert len(tokens) <= plan.width, f"{len(tokens)} rows in a plan of {plan.width}"
        state, rows = self._read(plan.view), []
        for index, token in enumerate(tokens):
            made = advance(state, token, self.vocab_size)
            self._write_row(plan.view, plan.pages, made)
            if self.rollback == "columns":
                self.columns[plan.columns[0][index]] = made.state.recurrent
            rows.append(made)
            state = made.state
        self._scratch[plan.view.request, plan.view.epoch] = _Scratch(tokens, rows)

    def accept(self, rounds: Sequence[Round]) -> list[Outcome]:
        """Each plan's target and its law."""
        self.hook("accept")
        outcomes = [self._judge(entry.plan, entry.proposal or NO_PROPOSAL) for entry in rounds]
        self.hook("accept:late")
        return outcomes

    def _judge(self, plan: RoundPlan, proposal: Proposal) -> Outcome:
        scratch = self._scratch[plan.view.request, plan.view.epoch]
        if plan.target.plain:
            path, token = greedy(proposal.tokens, [made.target for made in scratch.rows])
            return Outcome(proposal, path, token)
        rows = [logits(made.hidden, made.target, self.vocab_size) for made in scratch.rows]
        q = [*proposal.q, *[None] * proposal.copied] if isinstance(proposal.q, list) else None
        made = judge(rows, plan.target, plan.history, proposal.tokens, plan.rng[0], q)
        return Outcome(proposal, made.path, made.token, made.logprobs)

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """Rows lie where they belong, and so do columns that each row wrote; a column that the round shares takes the
        state after t rows; contexts, tails and pairs move by t rows."""
        self.hook("settle")
        for settlement in settlements:
            plan = settlement.plan
            slot = plan.view.slots[0]
            scratch = self._scratch.pop((plan.view.request, plan.view.epoch))
            for border in plan.borders:
                if border.row in settlement.path:
                    upto = Settlement(plan, settlement.path[: settlement.path.index(border.row) + 1])
                    self.columns[border.columns[0]] = self._moved(upto, scratch)
            if self.rollback != "columns":
                self.columns[plan.columns[0][0]] = self._moved(settlement, scratch)
            hidden = self.tails[slot]
            for row in settlement.path:
                made = scratch.rows[row]
                self._write_pair(plan.pages, made.state.position - 1, hidden, scratch.tokens[row])
                hidden = made.hidden
            self.contexts[slot] = scratch.rows[settlement.path[-1]].state.context
            self.tails[slot] = hidden
        self.hook("settle:late")

    def _moved(self, settlement: Settlement, scratch: _Scratch) -> int:
        """The recurrent state after the last row of the path, by the toy's form."""
        if self.rollback == "replay":
            return self._replayed(settlement, scratch)
        if self.rollback == "restore":
            return self._restored(settlement, scratch)
        return self.columns[settlement.plan.columns[0][settlement.path[-1]]]

    def _replayed(self, settlement: Settlement, scratch: _Scratch) -> int:
        """The recurrence over the records of the committed rows, in forward order."""
        # Not the column as it lies: that of a sequence with nothing consumed has what its last owner left.
        recurrent = self._read(settlement.plan.view).recurrent
        for row in settlement.path:
            recurrent = recur(recurrent, scratch.rows[row].conv)
        return recurrent

    def _restored(self, settlement: Settlement, scratch: _Scratch) -> int:
        """The committed rows once more, from the committed state of before the round."""
        state = self._read(settlement.plan.view)
        for row in settlement.path:
            state = advance(state, scratch.tokens[row], self.vocab_size).state
        return state.recurrent

    def abandon(self, plans: Sequence[RoundPlan]) -> None:
        """Forget what the rounds left in scratch, or will leave there if their program is still queued."""
        queued = [entry.plan for _, rounds in self._programs.values() for entry in rounds]
        for plan in plans:
            key = (plan.view.request, plan.view.epoch)
            self._scratch.pop(key, None)
            if plan in queued:
                self._abandoned.add(key)

    def drop(self, request: int) -> None:
        """Nothing is kept by request but scratch."""
        for key in [key for key in self._scratch if key[0] == request]:
            del self._scratch[key]

    # The fused style.

    def launch(self, launch: int, rounds: Sequence[Round]) -> Ticket:
        """Queue a program; it runs when its delay is over."""
        if not self._description.capabilities.fused:
            raise CapabilityMissing(
                "this toy is not fused: drive it verb by verb, or build it with fused=True"
            )
        self.hook("launch")
        self._abandoned.difference_update((entry.plan.request, entry.plan.view.epoch) for entry in rounds)
        self._programs[launch] = ([self.delay(launch)], list(rounds))
        return Ticket(launch)

    def collect(self, ticket: Ticket) -> list[Outcome] | None:
        """Outcomes once the program has run. It writes at the last moment, like a real one may."""
        left, rounds = self._programs[ticket.launch]
        if left[0] > 0:
            left[0] -= 1
            return None
        del self._programs[ticket.launch]
        self.hook("collect")
        outcomes = []
        for entry in rounds:
            proposal = entry.proposal if entry.proposal is not None else self._guess(entry.plan)
            self._forward(entry.plan, proposal)
            outcomes.append(self._judge(entry.plan, proposal))
            key = (entry.plan.request, entry.plan.view.epoch)
            if key in self._abandoned:
                self._abandoned.remove(key)
                del self._scratch[key]
        self.hook("collect:late")
        return outcomes

    # Audit.

    def audit(self, view: SequenceView, rows: bool = False) -> tuple[AuditEntry, ...]:
        """Digests of the committed state, by page, column and ring, and by row."""
        n, (slot,) = view.length, view.slots
        entries = []
        for g, (name, pool, first) in enumerate((("kv", self.kv, 0), ("pairs", self.pairs, 1))):
            for index, page in enumerate(view.pages[g]):
                start = index * self.page
                digest = 0
                for position in range(max(start, first), min(start + self.page, n)):
                    value = toy_hash(0, pool[page][position - start], position)
                    digest = toy_hash(digest, value, position)
                    if rows:
                        entries.append(AuditEntry(name, 0, index, value, position))
                entries.append(AuditEntry(name, 0, index, digest))
        state = self._read(view)
        entries.append(AuditEntry("gdn", 0, 0, state.recurrent))
        if rows:
            window = enumerate(state.window, n - CONV_WINDOW)
            entries.extend(AuditEntry("conv", 0, 0, raw, position) for position, raw in window)
        entries.append(AuditEntry("conv", 0, 0, toy_hash(*state.window)))
        entries.append(AuditEntry("ngram", 0, 0, toy_hash(state.context[0], state.context[1], 0)))
        entries.append(AuditEntry("tail", 0, 0, self.tails[slot] if n else 0))
        return tuple(entries)


__all__ = ["ExecutorFault", "ToyExecutor", "ToyRow", "ToyState", "advance", "expected_audit", "plain"]
