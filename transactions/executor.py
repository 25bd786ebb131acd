"""The executor: the narrow side of the runtime behind which the kernels sit.

A launch is a batch of rounds. An executor serves it verb by verb (``draft``, ``verify``, ``accept``, then
``settle`` or ``abandon``) or fused (``launch``, ``collect``, then ``settle`` or ``abandon``); it says which
in its capabilities. Rows beyond what ``settle`` names are scratch: they may be written by a round, and are
never read by a later one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import attrs

from txdecode.state.errors import TxDecodeError
from txdecode.state.groups import StateGroup
from txdecode.transactions.target import GREEDY, History, Target, TokenLogprobs

ProposalLaw = Literal["point", "sampled"]
Rollback = Literal["", "columns", "replay", "restore"]
ROLLBACKS: tuple[Rollback, ...] = ("columns", "replay", "restore")
"""Physical forms of recurrent state: how the state after row t-1 is had without that after a rejected row."""


class ExecutorFault(TxDecodeError):
    """A verb failed. The launch rolls back; committed state is what it was before the launch."""


class CapabilityMissing(TxDecodeError):
    """The executor lacks something that the configuration needs; raised when the runtime binds to it."""


@attrs.frozen
class Capabilities:
    """What an executor can do; checked once, when the runtime binds.

    ``row_invariant``: logits, KV and state are one function of the token prefix, to the bit, whatever the
    width, chunking, batch mates or recomputation. ``fused``: it is driven by ``launch`` and ``collect``.
    ``drafts``: it has drafters of its own behind ``draft``. ``advance``: who moves the tentative state.
    ``sampling``: it chooses by all of a plan's ``target``, logprobs included, and not by the argmax alone.
    ``tolerance``: the class of numeric differences where ``row_invariant`` does not hold.

    ``rollback``: the physical form of its recurrent state, for all groups of kind ``column``; empty where it has
    none. ``columns``: the state after row i is written to the i-th reserved column. ``replay``: compact records of
    the rows are folded into the one reserved column at settle, in forward order. ``restore``: the accepted rows run
    again from the current column into the reserved one. ``commits``: what it can move to the last row of a path:
    the kinds of groups, and of groups of kind ``column`` the forms. A group whose form is not named here is refused
    when the runtime binds (``txdecode.transactions.binding``).
    """

    row_invariant: bool
    fused: bool = False
    drafts: bool = False
    sampling: bool = False
    advance: Literal["on_settle", "on_device"] = "on_settle"
    tolerance: str = "exact"
    rollback: Rollback = ""
    commits: tuple[str, ...] = ("pages",)


@attrs.frozen
class Description:
    """The static facts of an executor.

    ``context``: most tokens of a sequence, prompt and generated together. ``rows_max``: widest round W.
    ``prefill_rows_max``: most rows of one prefill plan. ``batch_max``: most requests of a launch.
    ``memory``: the memory plan, bytes by name. ``fingerprint``: what must agree for equal bits.
    """

    name: str
    vocab_size: int
    context: int
    rows_max: int
    prefill_rows_max: int
    batch_max: int
    groups: tuple[StateGroup, ...]
    capabilities: Capabilities
    memory: Mapping[str, int]
    fingerprint: Mapping[str, str]


@attrs.frozen
class SequenceView:
    """Where the committed state of a sequence lies: all that an executor needs to find it.

    ``length`` is the number of consumed tokens N. ``pages[g]`` is the page table of page group g,
    ``columns[g]`` the current column of column group g, ``slots[g]`` the ring of ring group g.
    """

    request: int
    epoch: int
    length: int
    pages: tuple[tuple[int, ...], ...]
    columns: tuple[int, ...]
    slots: tuple[int, ...]


@attrs.frozen
class PrefillPlan:
    """Consume ``tokens`` at positions ``view.length ..``: no logits are wanted.

    ``pages[g]`` is the table of group g with the reserved pages appended; ``columns[g]`` the column that
    takes the state after the last token. A plan that fails is not rolled back but recomputed from position
    zero, so rings may be overwritten. A plan with ``view.length == 0`` starts from the zero state.
    """

    view: SequenceView
    tokens: tuple[int, ...]
    pages: tuple[tuple[int, ...], ...]
    columns: tuple[int, ...]


@attrs.frozen
class Border:
    """Row ``row`` of a round ends a page: if it is committed, the recurrent state after it is wanted in
    ``columns[g]`` of each column group g as well, whatever the round's last row is."""

    row: int
    columns: tuple[int, ...]


@attrs.frozen
class RoundPlan:
    """What one round of one request may touch, frozen before the launch.

    Row i of the verified rows is ``[pending, d[0], d[1], ...][i]``, at position ``view.length + depth(i)``;
    ``parents[i]`` is the row before it (-1 for row 0; in a chain i-1). The width W = ``len(parents)`` is
    an upper bound: a drafter may propose less than W-1 tokens.

    ``pages[g]``: the table of group g, reserved pages appended, covering W rows. ``columns[g][i]``: the
    column that takes the state after row i; one entry, the column that takes the state after the last committed
    row, where the group has ``columns="round"``. ``rng``: the half-open range of output positions whose draws
    the round may use. ``budget``: most tokens that it may emit.

    ``target``: how the tokens are chosen; row i decides output position ``rng[0] + i``. ``history``: the tokens
    that the logits of row 0 are conditioned on, where the target needs them. ``attempt``: rounds that the request
    began before in this epoch; with the epoch it salts what a drafter draws under the chain law. ``borders``: where
    settle is to leave checkpoints of recurrent state.
    """

    view: SequenceView
    ordinal: int
    pending: int
    parents: tuple[int, ...]
    pages: tuple[tuple[int, ...], ...]
    columns: tuple[tuple[int, ...], ...]
    rng: tuple[int, int]
    budget: int
    target: Target = GREEDY
    history: History | None = None
    attempt: int = 0
    borders: tuple[Border, ...] = ()

    @property
    def request(self) -> int:
        """Identity of the request; rows and slots are none."""
        return self.view.request

    @property
    def width(self) -> int:
        """Most rows W of the round."""
        return len(self.parents)

    def narrowed(self, drafts: int) -> RoundPlan:
        """This plan for at most ``drafts`` drafts: what an executor is asked to draft for where the rest is not its
        own to propose. Units stay those of the whole round."""
        if drafts >= self.width - 1:
            return self
        return attrs.evolve(self, parents=self.parents[: drafts + 1])


@attrs.frozen
class Proposal:
    """Draft tokens and their law: ``point`` (copied or argmax) or ``sampled`` from ``q``.

    ``q`` is the executor's own handle on the distributions as they were when the tokens were drawn; host
    drafters leave it ``None``. ``source`` names the drafter in the log. The last ``copied`` tokens were appended by
    the host to what the executor drafted: they are point masses whatever ``law`` says of the tokens before them,
    and ``q`` knows nothing of them.
    """

    tokens: tuple[int, ...] = ()
    source: str = "none"
    law: ProposalLaw = "point"
    q: object | None = None
    copied: int = 0

    @property
    def drawn(self) -> int:
        """Number of leading tokens that ``law`` and ``q`` speak of."""
        return len(self.tokens) - self.copied


NO_PROPOSAL = Proposal()


@attrs.frozen
class Round:
    """A plan with what is offered to it. ``proposal`` is ``None`` where the executor itself drafts."""

    plan: RoundPlan
    proposal: Proposal | None


@attrs.frozen
class Outcome:
    """What acceptance decided, before any clip: ``path`` are the accepted rows beginning with row 0
    (a chain: 0..a), ``next_token`` the correction or bonus after its last row. ``logprobs`` are of the accepted
    drafts and that token where the target wants them, else empty."""

    proposal: Proposal
    path: tuple[int, ...]
    next_token: int
    logprobs: tuple[TokenLogprobs, ...] = ()

    @property
    def accepted(self) -> int:
        """Number a of accepted drafts."""
        return len(self.path) - 1


@attrs.frozen
class Settlement:
    """Move the state of ``plan``'s request to the state after the last row of ``path`` (t rows)."""

    plan: RoundPlan
    path: tuple[int, ...]


@attrs.frozen
class Ticket:
    """A fused launch in flight."""

    launch: int


@attrs.frozen
class AuditEntry:
    """Digest of one piece of committed device state: ``index`` is a page ordinal, or 0; ``row`` is the position of
    one row, or -1 for all of the piece."""

    group: str
    layer: int
    index: int
    digest: int
    row: int = -1


class Executor(Protocol):
    """Batch first; every verb takes all requests of a launch. Raises ``ExecutorFault`` where it fails."""

    def describe(self) -> Description:
        """Static facts; the same object each time."""

    def prefill(self, batch: Sequence[PrefillPlan]) -> None:
        """Consume prompt tokens."""

    def draft(self, plans: Sequence[RoundPlan]) -> list[Proposal]:
        """Propose at most ``width - 1`` tokens for each plan. Only where ``capabilities.drafts``. The round may turn
        out wider than the plan given here: the host may append copies (``Proposal.copied``). Under a sampled
        law q is kept as it was when the tokens were drawn: from the target's own words under ``coupled``, from
        draft words salted with epoch and attempt under ``chain`` (specs/rng.md)."""

    def verify(self, rounds: Sequence[Round]) -> None:
        """One forward over all rows of all rounds; what acceptance needs stays inside the executor."""

    def accept(self, rounds: Sequence[Round]) -> list[Outcome]:
        """Apply each plan's target and its law to the verified rows, in the order of ``rounds``."""

    def launch(self, launch: int, rounds: Sequence[Round]) -> Ticket:
        """Draft, verify and accept as one program. Only where ``capabilities.fused``."""

    def collect(self, ticket: Ticket) -> list[Outcome] | None:
        """The outcomes of a launch in the order of its rounds, or ``None`` while it still runs."""

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """Make the named rows the committed state. Called after the record is in the log."""

    def abandon(self, plans: Sequence[RoundPlan]) -> None:
        """Forget the tentative state of these rounds. Must not fail, and may come at any phase."""

    def drop(self, request: int) -> None:
        """The request holds no state any more (finished or preempted)."""

    def audit(self, view: SequenceView, rows: bool = False) -> tuple[AuditEntry, ...]:
        """Digests of the committed state of a sequence, by page, column and ring: a function of its consumed
        tokens alone, so physical page, column and slot numbers must not enter. With ``rows`` also one for every
        row that the state has."""


class Drafter(Protocol):
    """A drafter on the host. It sees committed tokens only and never decides what is emitted."""

    @property
    def name(self) -> str:
        """Name in the log."""

    def begin(self, request: int, tokens: Sequence[int]) -> None:
        """A request starts, or continues after a preemption, with these known tokens."""

    def propose(self, request: int, count: int) -> tuple[int, ...]:
        """At most ``count`` tokens expected to follow the known ones; empty where nothing is likely."""

    def commit(self, request: int, tokens: Sequence[int]) -> None:
        """These tokens were emitted and committed."""

    def end(self, request: int) -> None:
        """The request is over."""


@attrs.frozen
class Copy:
    """Tokens that followed an earlier occurrence of a context, and how many tokens of the context that was.
    ``source`` names the drafter in the log where the one that was asked asks others."""

    tokens: tuple[int, ...] = ()
    length: int = 0
    source: str = ""


class MatchingDrafter(Drafter, Protocol):
    """A host drafter that copies, and can be composed with one that the executor has: it says how good its match is,
    and copies what followed tokens that are not committed yet."""

    def match(self, request: int, count: int, after: Sequence[int] = ()) -> Copy:
        """At most ``count`` tokens expected to follow the known ones and ``after``, from one match that ends with the
        last of them; an empty copy where there is none."""
