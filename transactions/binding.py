"""Whether an executor can commit all the state that it says it keeps; checked once, when a runtime binds to it."""

from __future__ import annotations

from txdecode.state.groups import StateGroup, of_kind
from txdecode.transactions.executor import ROLLBACKS, CapabilityMissing, Description


def commit_form(description: Description, group: StateGroup) -> str:
    """How a round's effect on ``group`` is committed: by its kind, and for recurrent state by the executor's
    physical form."""
    return description.capabilities.rollback if group.kind == "column" else group.kind


def check_binding(description: Description, rollback: str | None = None) -> None:
    """Every state group has a form of commit that the executor performs, and ``rollback``, where it was asked for,
    is that of its recurrent state. Raises ``CapabilityMissing`` naming form and group."""
    name, capabilities = description.name, description.capabilities
    if capabilities.advance != "on_settle":
        raise CapabilityMissing(
            f"executor '{name}' advances its state on the device; this version drives executors "
            f"that advance on settle"
        )
    recurrent = of_kind(description.groups, "column")
    for group in recurrent:
        _check_form(description, group, rollback)
    if capabilities.rollback and not recurrent:
        raise CapabilityMissing(
            f"executor '{name}' is bound with rollback '{capabilities.rollback}' and has no group of kind 'column'"
        )
    for group in description.groups:
        form = commit_form(description, group)
        if form not in capabilities.commits:
            raise CapabilityMissing(
                f"executor '{name}' cannot commit group '{group.name}': it needs the form '{form}', "
                f"and the executor performs {_listed(capabilities.commits)}"
            )


def _check_form(description: Description, group: StateGroup, wanted: str | None) -> None:
    name, form = description.name, description.capabilities.rollback
    if form not in ROLLBACKS:
        raise CapabilityMissing(
            f"executor '{name}' keeps recurrent state in group '{group.name}': expected a rollback form of "
            f"{_listed(ROLLBACKS)}, found {form!r}"
        )
    if wanted is not None and form != wanted:
        raise CapabilityMissing(
            f"executor '{name}' holds group '{group.name}' in the form '{form}', and '{wanted}' was asked for; "
            f"open it with rollback='{form}', or build it in the other form"
        )
    columns = "row" if form == "columns" else "round"
    if group.columns != columns:
        raise CapabilityMissing(
            f"executor '{name}' is bound with rollback '{form}', which takes one column a {columns}, and its group "
            f"'{group.name}' reserves one a {group.columns}"
        )


def _listed(forms: tuple[str, ...]) -> str:
    return ", ".join(f"'{form}'" for form in forms) or "none"
