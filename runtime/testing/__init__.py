"""The promises of the runtime as a state machine to run against an executor of your own.

::

    from txdecode.runtime.testing import Harness, check_executor

    check_executor(Harness("mine", make=MyExecutor, oracle=my_plain_loop))

or, under a test runner, ``TestMine = machine_for(harness).TestCase``. Requests are submitted, cancelled,
preempted; every verb fails, before, within and after its work; drafters misbehave; the log's disk fails; the
process is killed and recovered. After every step the page pools, the digests, a second fold of the log, the
published text against the plain loop and the device's audits are checked. ``World`` is the same without
Hypothesis, for scripts; ``programs`` has some. The names here that need Hypothesis raise ``TestExtraMissing``
where it is absent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from txdecode.runtime.testing.checks import Tracked
from txdecode.runtime.testing.disk import DISK_FAULTS, Disk, DiskFault
from txdecode.runtime.testing.faults import (
    BEHAVIOURS,
    VERBS,
    WHEN,
    Behaviour,
    Breaker,
    ScriptedDrafter,
    Verb,
    When,
)
from txdecode.runtime.testing.harness import Harness, Oracle, toy_harness
from txdecode.runtime.testing.promises import PromiseBroken, TestExtraMissing
from txdecode.runtime.testing.shadow import Shadow
from txdecode.runtime.testing.world import Setting, World

if TYPE_CHECKING:
    from txdecode.runtime.testing.machine import TransactionMachine, check_executor, machine_for

_NEEDS_HYPOTHESIS = ("TransactionMachine", "check_executor", "machine_for")


def __getattr__(name: str) -> Any:
    if name not in _NEEDS_HYPOTHESIS:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    try:
        from txdecode.runtime.testing import machine
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "hypothesis":
            raise
        raise TestExtraMissing from error
    return getattr(machine, name)


__all__ = [
    "BEHAVIOURS",
    "DISK_FAULTS",
    "VERBS",
    "WHEN",
    "Behaviour",
    "Breaker",
    "Disk",
    "DiskFault",
    "Harness",
    "Oracle",
    "PromiseBroken",
    "ScriptedDrafter",
    "Setting",
    "Shadow",
    "TestExtraMissing",
    "Tracked",
    "TransactionMachine",
    "Verb",
    "When",
    "World",
    "check_executor",
    "machine_for",
    "toy_harness",
]
