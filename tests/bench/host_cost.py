"""Host cost of a round: the whole runtime over an executor that does nothing.

Run by hand: ``python tests/bench/host_cost.py``. Prints microseconds a round for one request and for eight, with
and without a log, for plain steps and for rounds of eight rows; medians over repeats, best beside them. With
``--profile`` also where the time of one case goes.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from txdecode.runtime import Runtime
from txdecode.state.groups import StateGroup
from txdecode.transactions.executor import (
    NO_PROPOSAL,
    AuditEntry,
    Capabilities,
    Description,
    Outcome,
    PrefillPlan,
    Proposal,
    Round,
    RoundPlan,
    SequenceView,
    Settlement,
    Ticket,
)


class NullExecutor:
    """Emits token 7 for ever and accepts what equals it."""

    def __init__(self) -> None:
        self._description = Description(
            "null",
            49152,
            1 << 20,
            16,
            256,
            8,
            (StateGroup("kv", "pages", 64, 30, 1, "target", 1 << 14),),
            Capabilities(row_invariant=True),
            {},
            {},
        )

    def describe(self) -> Description:
        return self._description

    def prefill(self, batch: Sequence[PrefillPlan]) -> None:
        pass

    def draft(self, plans: Sequence[RoundPlan]) -> list[Proposal]:
        return [NO_PROPOSAL for _ in plans]

    def verify(self, rounds: Sequence[Round]) -> None:
        pass

    def accept(self, rounds: Sequence[Round]) -> list[Outcome]:
        outcomes = []
        for entry in rounds:
            proposal = entry.proposal or NO_PROPOSAL
            outcomes.append(Outcome(proposal, tuple(range(len(proposal.tokens) + 1)), 7))
        return outcomes

    def launch(self, launch: int, rounds: Sequence[Round]) -> Ticket:
        return Ticket(launch)

    def collect(self, ticket: Ticket) -> list[Outcome] | None:
        return None

    def settle(self, settlements: Sequence[Settlement]) -> None:
        pass

    def abandon(self, plans: Sequence[RoundPlan]) -> None:
        pass

    def drop(self, request: int) -> None:
        pass

    def audit(self, view: SequenceView) -> tuple[AuditEntry, ...]:
        return ()


def measure(requests: int, drafts: int, rounds: int, log: Path | None) -> float:
    """Microseconds a round, all requests of a launch counted as rounds of their own."""
    runtime = Runtime.open(
        NullExecutor(), log=log, overwrite=True, draft="lookup" if drafts else "none", draft_len=drafts
    )
    tokens = rounds * (drafts + 1)
    handles = [runtime.submit([7] * 32, max_tokens=tokens + drafts + 2) for _ in range(requests)]
    for _ in range(4):
        runtime.step()
    start = time.perf_counter()
    runtime.run()
    spent = time.perf_counter() - start
    total = sum(handle.result().stats.rounds for handle in handles) - 4 * requests
    runtime.close()
    return spent / total * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--drafts", type=int, default=0, help="drafts a round under --profile")
    args = parser.parse_args()
    print(f"{'requests':>8} {'drafts':>6} {'log':>5} {'median µs/round':>16} {'best':>7}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "host.txlog"
        if args.profile:
            profile = cProfile.Profile()
            profile.runcall(measure, 1, args.drafts, args.rounds, path)
            pstats.Stats(profile).sort_stats("tottime").print_stats(40)
            return
        for requests in (1, 8):
            for drafts in (0, 7):
                for log in (None, path):
                    times = [measure(requests, drafts, args.rounds, log) for _ in range(args.repeats)]
                    kind = "write" if log else "none"
                    print(
                        f"{requests:>8} {drafts:>6} {kind:>5} {statistics.median(times):>16.1f} {min(times):>7.1f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
