"""The tables of one member as they are stored: which of them leads, and where the member stands. Rules in ``delta.py``.

A table's record has the digest of its member's name. If no table has that of this member, the records of another name
are its own if all have the same, and if they are of exactly these tables: the destination was renamed (T9). Otherwise
they belong to another member. Records of older releases have no digest, and belong to the member that has the table.

The source may have lost the table that leads before anyone could say so. Then it is looked for beside the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Generic

from trunkline.delivery.config.addresses import Address
from trunkline.delivery.destinations.contract import Standing
from trunkline.delivery.destinations.delta_record import UNKNOWN, TableRecord, digest_of
from trunkline.delivery.destinations.lone_tables import LoneTable, Prepared, Version


class MemberState(Generic[Version, Prepared]):
    """What one read of all tables found, by path. A lead that is none of ``addresses`` is found, too."""

    def __init__(
        self, member: str, addresses: Iterable[Address], opened: Callable[[Address], LoneTable[Version, Prepared]]
    ) -> None:
        self.member = member
        found = (opened(address) for address in addresses)
        self.tables: dict[str, LoneTable[Version, Prepared]] = {table.path: table for table in found}
        self.loaded: dict[str, Version | None] = {path: each.load() for path, each in self.tables.items()}
        self._sort()
        if self.records and self.lead is None and (address := self._lead_beside()) is not None:
            lead = opened(address)
            self.tables[lead.path] = lead
            self.loaded[lead.path] = lead.load()
            self._sort()

    def _sort(self) -> None:
        found = {path: each.record for path, each in self.loaded.items() if each is not None and each.record}
        mine = self._own(found)
        self.records: dict[str, TableRecord] = {path: each for path, each in found.items() if path in mine}
        self.foreign = {path for path in found if path not in mine}  # of other members

    @property
    def versions(self) -> dict[str, object]:
        return {path: -1 if each is None else each.version for path, each in self.loaded.items()}

    @property
    def lead(self) -> str | None:
        """The table that leads; of several the one that is behind (E5)."""
        leads = [(record.position, path) for path, record in self.records.items() if record.is_lead]
        return min(leads)[1] if leads else None

    def standing(self) -> Standing | None:
        """``None`` without a record."""
        if not self.records:
            return None
        token = max(record.standing.token for record in self.records.values())
        path = self.lead
        if path is None or self._lost_one(path):
            return Standing(0, token, next(iter(self.records.values())).standing.source)
        lead = self.records[path]
        later = [record.position for record in self.records.values() if record.position > lead.position]
        if lead.going > lead.position:
            later.append(lead.going)
        ahead = min(later, default=0) if lead.position else 0  # from 0, only a seed can follow (E4)
        return Standing(lead.position, token, lead.standing.source, lead.standing.mark, ahead)

    def _lost_one(self, lead: str) -> bool:
        """Whether a table is missing that the member had; one that is to join is not."""
        return None in self.loaded.values() and self.records[lead].tables == digest_of(self.loaded)

    def _lead_beside(self) -> Address | None:
        """The address of the table that leads, in the folder or namespace of one of the others."""
        wanted = {record.leads for record in self.records.values()}
        for table in [self.tables[path] for path in self.records]:
            for path, address in table.beside():
                if digest_of([path]) in wanted:
                    return address
        return None

    def _own(self, records: Mapping[str, TableRecord]) -> set[str]:
        name = digest_of([self.member])
        mine = {path for path, record in records.items() if record.member in (name, UNKNOWN)}
        if mine or not records:
            return mine
        [leader, *others] = sorted(records, key=lambda path: (not records[path].is_lead, path))
        listed = digest_of([leader]) if records[leader].leads is None else records[leader].tables
        renamed = len({record.member for record in records.values()}) == 1 and listed == digest_of(self.loaded)
        return set(records) if renamed and not any(records[path].is_lead for path in others) else set()
