"""What recurrent checkpoints and history have in common: a position, and one unit a group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from txdecode.state.changes import Admit, Advance, Change, Close, Evict, Ids
from txdecode.state.digest import mix
from txdecode.state.errors import LedgerCorrupt
from txdecode.state.groups import StateGroup


class HoldingsLedger:
    """For every resident sequence: the position its state stands at, and the unit (column or ring) that
    holds it in each pooled group. ``groups`` are the pooled groups; ``active`` says whether the executor has
    any state of this kind at all, pooled or not."""

    name: ClassVar[str]
    unit: ClassVar[str]
    fields: ClassVar[dict[int, str]]
    UNIT: ClassVar[int]
    POSITION: ClassVar[int]

    def __init__(self, groups: tuple[StateGroup, ...], active: bool) -> None:
        self.groups = groups
        self.active = active
        self.units: dict[int, Ids] = {}
        self.positions: dict[int, int] = {}
        self.owners: list[dict[int, int]] = [{} for _ in groups]

    def granted(self, change: Admit) -> Ids:
        """The units that an admission grants."""
        raise AssertionError("a ledger names its units")

    def moved(self, change: Advance, units: Ids) -> Ids:
        """The units after an advance; ``units`` are those before."""
        raise AssertionError("a ledger names its units")

    def _units(self, request: int) -> Ids:
        units = self.units.get(request)
        if units is None:
            raise LedgerCorrupt(self.name, f"request {request}", "a resident sequence", "none")
        return units

    def _check_grant(self, request: int, units: Ids, held: Ids) -> None:
        if len(units) != len(self.groups):
            raise LedgerCorrupt(self.name, f"request {request} groups", len(self.groups), len(units))
        for g, unit in enumerate(units):
            group = self.groups[g]
            where = f"group '{group.name}' {self.unit} {unit}"
            if not 0 <= unit < group.capacity:
                raise LedgerCorrupt(self.name, where, f"below {group.capacity}", unit)
            owner = self.owners[g].get(unit)
            if owner is not None and not (held and held[g] == unit):
                raise LedgerCorrupt(self.name, where, "free", f"held by request {owner}")

    def delta(self, change: Change) -> int:
        """Digest increment of ``change``; pure. Raises ``LedgerCorrupt`` where it contradicts the ledger."""
        if not self.active:
            return 0
        r = change.request
        if type(change) is Advance and not change.close:
            units = self._units(r)
            position = self.positions[r]
            total = mix(self.POSITION, r, 0, position + change.consumed) - mix(self.POSITION, r, 0, position)
            moved = self.moved(change, units)
            if moved is not units:
                self._check_grant(r, moved, units)
                for g, (old, new) in enumerate(zip(units, moved, strict=True)):
                    total += mix(self.UNIT, r, g, new) - mix(self.UNIT, r, g, old)
            return total
        if type(change) is Admit:
            if r in self.units:
                raise LedgerCorrupt(self.name, f"request {r}", "not resident", "resident")
            units = self.granted(change)
            self._check_grant(r, units, ())
            return mix(self.POSITION, r, 0, 0) + sum(
                mix(self.UNIT, r, g, unit) for g, unit in enumerate(units)
            )
        if type(change) is Evict or type(change) is Advance:
            self._units(r)
            if type(change) is Advance and self.moved(change, ()):
                where = f"request {r} {self.unit} at its end"
                raise LedgerCorrupt(self.name, where, (), self.moved(change, ()))
        if type(change) is Evict or type(change) is Close or type(change) is Advance:
            if r not in self.units:
                return 0
            return -mix(self.POSITION, r, 0, self.positions[r]) - sum(
                mix(self.UNIT, r, g, unit) for g, unit in enumerate(self.units[r])
            )
        return 0

    def apply(self, change: Change) -> None:
        """Perform ``change``, which ``delta`` has checked against this very state."""
        if not self.active:
            return
        r = change.request
        if type(change) is Advance and not change.close:
            self.positions[r] += change.consumed
            units = self.units[r]
            moved = self.moved(change, units)
            if moved is not units:
                self._own(r, units, moved)
        elif type(change) is Admit:
            self.positions[r] = 0
            self._own(r, (), self.granted(change))
        elif (type(change) is Evict or type(change) is Close or type(change) is Advance) and r in self.units:
            for owners, unit in zip(self.owners, self.units.pop(r), strict=True):
                del owners[unit]
            del self.positions[r]

    def _own(self, request: int, before: Ids, after: Ids) -> None:
        for owners, unit in zip(self.owners, before, strict=False):
            del owners[unit]
        for owners, unit in zip(self.owners, after, strict=True):
            owners[unit] = request
        self.units[request] = after

    def cells(self) -> Iterator[tuple[int, int, int, int]]:
        """Every cell (tag, a, b, value)."""
        for r, units in self.units.items():
            yield self.POSITION, r, 0, self.positions[r]
            for g, unit in enumerate(units):
                yield self.UNIT, r, g, unit

    def check(self) -> None:
        """Every invariant within this ledger; raises ``LedgerCorrupt``."""
        if self.units.keys() != self.positions.keys():
            raise LedgerCorrupt(self.name, "requests", sorted(self.units), sorted(self.positions))
        for g, group in enumerate(self.groups):
            for r, units in self.units.items():
                if not 0 <= units[g] < group.capacity:
                    where = f"request {r} group '{group.name}' {self.unit}"
                    raise LedgerCorrupt(self.name, where, f"below {group.capacity}", units[g])
            owners = {units[g]: r for r, units in self.units.items()}
            if len(owners) != len(self.units):
                where = f"group '{group.name}' {self.unit}s"
                raise LedgerCorrupt(self.name, where, f"{len(self.units)} distinct", len(owners))
            if owners != self.owners[g]:
                raise LedgerCorrupt(self.name, f"group '{group.name}' owners", owners, self.owners[g])

    def free(self, group: int) -> list[int]:
        """Free units of group number ``group``, ascending."""
        return [unit for unit in range(self.groups[group].capacity) if unit not in self.owners[group]]

    def snapshot(self) -> dict[str, Any]:
        """Plain data, from which ``restore`` builds an equal ledger."""
        return {str(r): [list(units), self.positions[r]] for r, units in self.units.items()}

    def restore(self, data: dict[str, Any]) -> None:
        """Replace the content by that of a snapshot.

        Raises ``LedgerCorrupt`` where it is of other groups.
        """
        self.units = {int(key): tuple(units) for key, (units, _) in data.items()}
        for r, units in self.units.items():
            if len(units) != len(self.groups):
                raise LedgerCorrupt(self.name, f"request {r} groups", len(self.groups), len(units))
        self.positions = {int(key): position for key, (_, position) in data.items()}
        self.owners = [{units[g]: r for r, units in self.units.items()} for g in range(len(self.groups))]
