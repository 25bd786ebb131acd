"""Binding: an executor that cannot commit some of its state is refused by form and group."""

from __future__ import annotations

import attrs
import pytest

from txdecode.state.groups import StateGroup
from txdecode.transactions.binding import check_binding
from txdecode.transactions.executor import ROLLBACKS, Capabilities, CapabilityMissing
from txdecode.transactions.toy import ToyExecutor


def described(rollback="columns", groups=None, **capabilities):
    """The toy's description with other capabilities, and with some groups changed by name."""
    description = ToyExecutor(rollback=rollback).describe()
    changed = groups or {}
    made = tuple(
        attrs.evolve(group, **changed.get(group.name, {}))
        for group in description.groups
        if changed.get(group.name, {}) is not None
    )
    return attrs.evolve(
        description, groups=made, capabilities=attrs.evolve(description.capabilities, **capabilities)
    )


@pytest.mark.parametrize("form", ROLLBACKS)
def test_every_form_binds(form):
    check_binding(described(form))
    check_binding(described(form), form)


def test_pages_alone_need_nothing_said():
    description = attrs.evolve(
        described(),
        groups=(StateGroup("kv", "pages", 4, 1, 8, "target", 4),),
        capabilities=Capabilities(row_invariant=True),
    )
    check_binding(description)


REFUSED = {
    "advances by itself": (described(advance="on_device"), None, "advances its state on the device"),
    "no form": (described(rollback="columns", commits=("pages", "ring", "tokens")), None, "'gdn'.*'columns'"),
    "form not told": (
        attrs.evolve(described(), capabilities=Capabilities(row_invariant=True)),
        None,
        "recurrent state in group 'gdn'.*'columns', 'replay', 'restore', found ''",
    ),
    "unknown form": (
        attrs.evolve(described(), capabilities=attrs.evolve(described().capabilities, rollback="snapshots")),
        None,
        "group 'gdn'.*found 'snapshots'",
    ),
    "ring not committed": (described(commits=("pages", "columns", "tokens")), None, "'conv'.*form 'ring'"),
    "context not committed": (
        described(commits=("pages", "columns", "ring")),
        None,
        "'ngram'.*form 'tokens'",
    ),
    "nothing committed": (described(commits=()), None, "'kv'.*form 'pages'.*performs none"),
    "another form asked": (described("columns"), "replay", "'gdn' in the form 'columns', and 'replay'"),
    "one column, form of many": (
        described("columns", {"gdn": {"columns": "round"}}),
        None,
        "'columns'.*one column a row.*'gdn' reserves one a round",
    ),
    "many columns, form of one": (
        described("replay", {"gdn": {"columns": "row"}}),
        None,
        "'replay'.*one column a round.*'gdn' reserves one a row",
    ),
    "a form without state": (described("replay", {"gdn": None}), None, "'replay' and has no group"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_committed_is_refused(name):
    description, asked, message = REFUSED[name]
    with pytest.raises(CapabilityMissing, match=message) as refused:
        check_binding(description, asked)
    assert "\n" not in str(refused.value)
