"""What the runtime says about itself: one ``[spec]`` line a request.

The line has, in this order: ``request``, ``finish``, ``drafter`` (name, or none), ``rounds`` (all committed
rounds), ``drafted`` (tokens offered), ``accepted``, ``plain_steps`` (rounds in which nothing was offered),
``emitted``, ``fallback`` (why the drafter was left out or failed, or none), ``decisions`` (rounds by the reason for
which ``goodput`` gave them their drafts, or none). It goes through structlog into the
standard logger ``txdecode`` at level INFO, so a program that configures nothing sees nothing.
"""

from __future__ import annotations

import logging

import structlog

from txdecode.runtime.request import Request

_LOG = structlog.wrap_logger(
    logging.getLogger("txdecode"),
    processors=[
        structlog.stdlib.filter_by_level,
        structlog.processors.KeyValueRenderer(key_order=["event"], drop_missing=True, repr_native_str=False),
    ],
    wrapper_class=structlog.stdlib.BoundLogger,
    cache_logger_on_first_use=True,
)


def spec_line(request: Request, drafter: str, finish: str) -> None:
    """Log the ``[spec]`` line of a request that is over."""
    _LOG.info(
        "[spec]",
        request=request.id,
        finish=finish,
        drafter=drafter,
        rounds=request.rounds,
        drafted=request.drafted,
        accepted=request.accepted,
        plain_steps=request.plain_steps,
        emitted=len(request.ids),
        fallback=request.fallback,
        decisions=",".join(f"{reason}:{count}" for reason, count in sorted(request.reasons.items()))
        or "none",
    )


def info(event: str, **data: object) -> None:
    """Something worth knowing that is in order."""
    _LOG.info(event, **data)


def warn(event: str, **data: object) -> None:
    """Something went wrong and was handled."""
    _LOG.warning(event, **data)
