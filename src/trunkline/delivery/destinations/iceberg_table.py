"""One Iceberg table: a step writes it inside one transaction of DuckDB, which the catalog takes as one new version.

Rules
 B1  ``load`` opens a transaction, and all input of a step is read in it: record, columns, rows. The commit names the
     snapshot that it began with, and the catalog refuses it (409) if the table has another one by then. So every check
     of T2, T4 and T6 holds in the commit.
 B2  The record (``delta_record``) is table properties, which the commit changes together with the rows: one version of
     the metadata, which exists completely or not at all.
 B3  A commit that changes properties only names no snapshot, and the catalog would take it from anybody, however stale;
     nor would it refuse a stale writer of rows after it. So every commit of this class has a new snapshot: if no row
     changes, a row is added and removed again (``_touch``). A table's creation is refused if the table exists.
 B4  Each commit has a name of its own among the properties. If the catalog gives no answer, DuckDB does not learn of it
     (``catalog_relay``, Y3), and the table is read: the name shows that the commit was done. Otherwise its outcome is
     unknown: the catalog may be at work still.
 B5  Rows are prepared in the transaction that commits them. If the table changes in between because its member
     announces a step (E2), they are prepared again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Any, Final, NoReturn

import duckdb
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from trunkline.delivery.backends.catalog_relay import NAME as COMMIT
from trunkline.delivery.backends.iceberg_catalog import ALIAS, catalog_of
from trunkline.delivery.backends.iceberg_types import columns_of, read_types, written_types
from trunkline.delivery.backends.sql import identifier, literal
from trunkline.delivery.changes.columns import Column, Columns, arrow_schema
from trunkline.delivery.changes.rows import BATCH_ROWS
from trunkline.delivery.config.addresses import Address, IcebergAddress
from trunkline.delivery.destinations.contract import Applied, Batches, MemberStep, TableStep
from trunkline.delivery.destinations.delta_record import RETIRED, StoredRecord, TableRecord, numbers_of, stored_record
from trunkline.delivery.destinations.ducklake_stage import export_list
from trunkline.delivery.destinations.iceberg_errors import is_conflict, reason, translated_errors
from trunkline.delivery.destinations.iceberg_rows import IcebergRows, IcebergStage
from trunkline.delivery.destinations.lone_tables import CommitLost, LoneVersion
from trunkline.errors import OutcomeUnknown, TrunklineError, Unreachable

SOURCE: Final = "trunkline.source"
COLUMNS: Final = "trunkline.columns"
CHANGING: Final = ("INSERT INTO", "DELETE FROM", "UPDATE")


class IcebergVersion(Struct, frozen=True):
    """What one read of the table found."""

    properties: dict[str, str]
    held: Columns  # as they are stored

    @property
    def version(self) -> object:
        return self.properties

    @property
    def columns(self) -> Columns:
        return columns_of(self.held, read_types(self.properties.get(COLUMNS)))

    @property
    def stored(self) -> StoredRecord:
        return stored_record(self._number, self.properties.get(SOURCE))

    @property
    def record(self) -> TableRecord | None:
        return self.stored.record

    def _number(self, name: str) -> int | None:
        text = self.properties.get(name, "")
        return int(text) if text.removeprefix("-").isdecimal() else None


class IcebergTransaction:
    """A connection with one transaction, which writes one table. The statements of rows see it as a ``RowSession``."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, path: str, step: Callable[[str], None]) -> None:
        self.cursor = cursor
        self.alias = ALIAS
        self.moved = False  # whether the commit will have a new snapshot (B3)
        self.used = False  # whether anything was written
        self._path = path
        self._step = step
        self.run("BEGIN")

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        self._step(statement)
        found = self.cursor.execute(statement).fetchall()
        if statement.startswith(tuple(f"{each} {self._path}" for each in CHANGING)):
            self.moved = self.moved or found[0][0] > 0
        return found

    def read(self, statement: str, batch_rows: int) -> pa.RecordBatchReader:
        self._step(statement)
        return self.cursor.execute(statement).to_arrow_reader(batch_rows)

    def close(self) -> None:
        """Undoes what is not committed."""
        with suppress(duckdb.Error):  # there may be no transaction
            self.cursor.execute("ROLLBACK")
        self.cursor.close()


class PreparedIceberg(Struct, frozen=True):
    """What a step does to the table: it is in ``transaction``, if that is still open (B5)."""

    loaded: IcebergVersion | None
    transaction: IcebergTransaction
    step: MemberStep
    table: TableStep
    batches: Batches | None
    applied: Applied
    changes: bool  # anything but the record


class IcebergTable:
    """A table. ``step`` is called before each statement."""

    def __init__(self, address: IcebergAddress, step: Callable[[str], None]) -> None:
        self._address = address
        self._catalog = catalog_of(address)
        self._sql = f"{ALIAS}.{identifier(address.schema)}.{identifier(address.table)}"
        self._what = f"table {address.schema}.{address.table} of {address.catalog}"
        self._step = step
        self._loaded: IcebergVersion | None = None
        self._open: IcebergTransaction | None = None
        self._committed = ""  # the name of the last commit (B4)

    @property
    def path(self) -> str:
        return f"{self._address.schema}.{self._address.table}"

    # -------------------------------------------------------------------------------------------------------- reading

    def load(self) -> IcebergVersion | None:
        self.end()
        with self._errors():
            self._open = self._began()
            try:
                properties = dict(self._open.run(f"FROM iceberg_table_properties({self._sql})"))
            except duckdb.CatalogException:
                self.end()  # an error ends the transaction; the creation is refused if there is a table by then
                self._open = self._began()
                self._loaded = None
                return None
            described = self._open.run(f"DESCRIBE {self._sql}")
        held = tuple(Column(name, kind, null == "YES") for name, kind, null, *_ in described)
        self._loaded = IcebergVersion(properties, held)
        return self._loaded

    def rows(self, loaded: IcebergVersion, stack: ExitStack) -> Iterator[pa.RecordBatch]:
        transaction, self._open = self._open, None
        assert transaction is not None
        stack.callback(transaction.close)
        return self._read(transaction, loaded.columns)

    def _read(self, transaction: IcebergTransaction, columns: Columns) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(columns)
        with self._errors():
            for batch in transaction.read(f"SELECT {export_list(columns)} FROM {self._sql}", BATCH_ROWS):
                yield batch.cast(schema)

    def beside(self) -> Iterator[tuple[str, Address]]:
        with self._errors():
            cursor = self._catalog.cursor()
            try:
                found = cursor.execute(
                    f"SELECT table_name FROM duckdb_tables() WHERE database_name = {literal(ALIAS)} AND schema_name = "
                    f"{literal(self._address.schema)}"
                ).fetchall()
            finally:
                cursor.close()
        for (name,) in found:
            yield f"{self._address.schema}.{name}", replace(self._address, table=name)

    # ------------------------------------------------------------------------------------------------------ preparing

    def prepared(self, stack: ExitStack, step: MemberStep, table: TableStep, rows: Batches | None) -> PreparedIceberg:
        stack.callback(self.end)
        return self._prepared(step, table, rows)

    def _prepared(self, step: MemberStep, table: TableStep, batches: Batches | None) -> PreparedIceberg:
        with self._errors():
            loaded, transaction = self._loaded, self._written()
            held = None if loaded is None else loaded.columns
            # A first flush: rows that a broken one left do not count. A history is never begun again.
            again = step.expected == 0 and table.mode != "history"
            fresh = loaded is not None and (loaded.record is None or again)
            rows = IcebergRows(transaction, self._address, None if loaded is None else loaded.held)
            stage = IcebergStage(table, "0")
            stage.fill(transaction, () if batches is None else batches())
            plan = rows.prepare(step, stage, held, fresh=fresh, careful=False)
            applied = rows.write(step, stage, plan)
        changes = plan.makes or transaction.moved or bool(plan.steps or plan.change.added or plan.change.widened)
        return PreparedIceberg(loaded, transaction, step, table, batches, applied, changes)

    def _create_namespace(self) -> None:
        """In a transaction of its own: it stays, whatever becomes of the table. The next transaction sees it."""
        self.end()
        self._step("namespace")
        self._catalog.create_namespace(self._address.schema)
        self._open = self._began()

    # ----------------------------------------------------------------------------------------------------- committing

    def commit(self, prepared: PreparedIceberg, record: TableRecord, after: IcebergVersion | None = None) -> None:
        if after is not None or prepared.transaction is not self._open:
            self._load_again(after or prepared.loaded)
            prepared = self._prepared(prepared.step, prepared.table, prepared.batches)
        self._commit(record, prepared.table.columns)

    def begin(self, prepared: PreparedIceberg, record: TableRecord) -> None:
        columns = prepared.table.columns
        self._load_again(prepared.loaded)
        with self._errors():
            held = None if self._loaded is None else self._loaded.held
            IcebergRows(self._written(), self._address, held).empty(columns)
        self._commit(record, columns)

    def commit_record(self, loaded: IcebergVersion, record: TableRecord) -> None:
        if self._open is None or self._open.used or self._loaded is not loaded:
            self._load_again(loaded)
        self._written()
        self._commit(record, None)

    def retire(self, loaded: IcebergVersion) -> None:
        self.commit_record(loaded, RETIRED if loaded.stored.role is None else RETIRED.leading(0))

    def drop(self) -> None:
        self.end()
        with self._errors():
            cursor = self._catalog.cursor()
            try:
                self._step("drop")
                cursor.execute(f"DROP TABLE IF EXISTS {self._sql}")
            finally:
                cursor.close()

    def landed(self, now: LoneVersion | None, record: TableRecord, prepared: PreparedIceberg) -> bool:
        return False  # ``_commit`` has looked (B4)

    def is_next(self, after: IcebergVersion | None, loaded: IcebergVersion | None) -> bool:
        return after is not None and after.properties.get(COMMIT) == self._committed

    def end(self) -> None:
        """Undo what is not committed."""
        transaction, self._open = self._open, None
        if transaction is not None:
            transaction.close()

    def _began(self) -> IcebergTransaction:
        return IcebergTransaction(self._catalog.cursor(), self._sql, self._step)

    def _written(self) -> IcebergTransaction:
        """The open transaction, which is used from now on."""
        if self._loaded is None and self._open is not None and not self._open.used:
            self._create_namespace()
        assert self._open is not None
        self._open.used = True
        return self._open

    def _load_again(self, expected: IcebergVersion | None) -> None:
        """A new transaction, on the same version."""
        now = self.load()
        if now != expected:
            raise CommitLost(self.path, RuntimeError("another writer was faster"), now)

    def _commit(self, record: TableRecord, columns: Columns | None) -> None:
        """``columns``: of the table after it; ``None``: as before."""
        transaction = self._written()
        name = uuid.uuid4().hex
        values = {key: str(number) for key, number in numbers_of(record).items()}
        values |= {SOURCE: record.standing.source, COMMIT: name}
        if columns is not None:
            values[COLUMNS] = written_types(columns)
        with self._errors():
            if self._loaded is not None and not transaction.moved:
                self._touch(transaction)
            listed = ", ".join(f"{literal(key)}: {literal(value)}" for key, value in values.items())
            transaction.run(f"CALL set_iceberg_table_properties({self._sql}, {{{listed}}})")
        try:
            transaction.run("COMMIT")
        except duckdb.Error as error:
            self._failed(error, name)
        if self._catalog.relay.take_unknown(name):
            self._look(name)
        self._committed = name
        self.end()

    def _touch(self, transaction: IcebergTransaction) -> None:
        """A new snapshot with the same rows (B3)."""
        known = transaction.run(
            f"SELECT DISTINCT file_path FROM iceberg_metadata({self._sql}) WHERE manifest_content = 'DATA'"
        )
        [first, *_] = transaction.run(f"DESCRIBE {self._sql}")
        column = identifier(first[0])
        transaction.run(f"INSERT INTO {self._sql} ({column}) VALUES (NULL)")
        others = f" AND filename NOT IN ({', '.join(literal(path) for (path,) in known)})" if known else ""
        [(count,)] = transaction.run(f"DELETE FROM {self._sql} WHERE {column} IS NULL{others}")
        assert count == 1, f"{self._what}: {count} rows would be removed"

    def _failed(self, error: duckdb.Error, name: str) -> NoReturn:
        """The relay reports what certainly failed, and DuckDB what it could not store; nothing was written (B4)."""
        said = reason(error, self._address)
        if not is_conflict(error):
            self._catalog.abandon()
            raise Unreachable(f"{self._what}: the commit failed and nothing was written ({said}); retrying") from error
        raise CommitLost(self.path, RuntimeError(said), self.load()) from error

    def _look(self, name: str) -> None:
        """Returns if a commit without an answer was done (B4)."""
        unknown = f"{self._what}: the catalog gave no answer to a commit"
        try:
            now = self.load()
        except TrunklineError as lost:
            raise OutcomeUnknown(f"{unknown}; {lost}") from lost
        if now is None or now.properties.get(COMMIT) != name:
            raise OutcomeUnknown(f"{unknown}; the position is read again before the next write")

    def _errors(self) -> AbstractContextManager[None]:
        return translated_errors(self._address, self._what, self._catalog.abandon)
