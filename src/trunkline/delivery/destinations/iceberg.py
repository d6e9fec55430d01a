"""Tables of an Iceberg REST catalog as a place, through DuckDB: each table commits alone (T10), as Delta tables do.

The rules of members are those of ``delta.py``, those of one table are in ``iceberg_table.py``. A catalog may commit
several tables in one request; but not every catalog does, and those that do may do it one by one: none is relied on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import pyarrow as pa

from trunkline.delivery.changes.columns import Columns
from trunkline.delivery.config.addresses import Address, IcebergAddress
from trunkline.delivery.destinations.contract import MemberResult, MemberTables, MemberWrite, Standing
from trunkline.delivery.destinations.iceberg_table import IcebergTable, IcebergVersion, PreparedIceberg
from trunkline.delivery.destinations.lone_place import LonePlace
from trunkline.errors import TrunklineError

TABLES_MAX: Final = 300  # objects without connections; more: a little more memory


class IcebergPlace(LonePlace[IcebergVersion, PreparedIceberg]):
    """The tables of one destination, or of several. Connections are open during a call only, or while rows are read."""

    def __init__(self) -> None:
        self._tables: OrderedDict[IcebergAddress, IcebergTable] = OrderedDict()

    def _step(self, name: str) -> None:
        """Called before each statement; tests stop the process here."""

    def standings(self, members: Sequence[MemberTables]) -> dict[str, Standing | TrunklineError | None]:
        with self._call():
            return super().standings(members)

    def columns(self, address: Address) -> Columns | None:
        with self._call():
            loaded = self._table(address).load()
            return None if loaded is None else loaded.columns

    def apply(self, writes: Sequence[MemberWrite]) -> dict[str, MemberResult]:
        with self._call():
            return super().apply(writes)

    def rows(self, member: MemberTables) -> tuple[Standing, list[Iterator[pa.RecordBatch]], Callable[[], None]]:
        with self._call():
            return super().rows(member)

    def retire(self, member: MemberTables) -> None:
        with self._call():
            super().retire(member)

    def close(self) -> None:
        self._tables.clear()

    @contextmanager
    def _call(self) -> Iterator[None]:
        try:
            yield
        finally:
            for table in self._tables.values():
                table.end()
            while len(self._tables) > TABLES_MAX:
                self._tables.popitem(last=False)

    def _table(self, address: Address) -> IcebergTable:
        assert isinstance(address, IcebergAddress)
        if (table := self._tables.get(address)) is None:
            table = self._tables[address] = IcebergTable(address, lambda name: self._step(name))
        self._tables.move_to_end(address)
        return table
