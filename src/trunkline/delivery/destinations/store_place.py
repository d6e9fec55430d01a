"""A place over any store with transactions and savepoints, in modes mirror and append.

A kind of another package gives it a ``Store``: statements about one table, and a table of records. What is written
when, and for whom, is decided here, so that a kind cannot get it wrong. The rules T1 to T12 are in ``contract.py``.

Rules
 W1  A group of members is one transaction that excludes other writers from its first read to its end. Each member is
     written behind a savepoint, and undone alone if it fails.
 W2  A record says where its member stands and which tables it has, with their columns in the source's types. A table
     that a record lists and that is not there leaves the member without a position.
 W3  Any change of columns builds the table again, in the same transaction: one way for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import reduce
from typing import Final, NamedTuple, Protocol

import pyarrow as pa
from msgspec import Struct

from trunkline.core.group_commit import GroupCommit
from trunkline.delivery.changes.column_steps import NEW, ColumnSteps, stepped_rows
from trunkline.delivery.changes.columns import Columns, check_columns, evolution
from trunkline.delivery.changes.rows import RESERVED_PREFIX
from trunkline.delivery.config.addresses import Address
from trunkline.delivery.destinations.contract import (
    Applied,
    Batches,
    MemberResult,
    MemberStep,
    MemberTables,
    MemberWrite,
    Standing,
    TableStep,
    checked_steps,
    may_retire,
    record_names,
    result_of,
    stored,
)
from trunkline.delivery.destinations.unstated import completed
from trunkline.errors import (
    DestinationHalted,
    DuplicateKey,
    OutcomeUnknown,
    SchemaMismatch,
    TrunklineError,
    Unreachable,
)

BESIDE: Final = f"{RESERVED_PREFIX}_beside"  # the table that replaces another one (W3)


class MemberRecord(Struct, frozen=True):
    """The record of a member (W2). Stores keep it as text: ``msgspec.json`` encodes and decodes it."""

    standing: Standing
    tables: dict[str, Columns]


class Merged(NamedTuple):
    """What ``StoreTransaction.merge`` did."""

    removed: int  # rows
    written: int
    duplicates: int  # INSERT rows whose key the table held
    missing: int  # keys to remove or replace that it did not hold
    duplicate: str = ""  # one of the keys that are duplicates


class StoreTransaction(Protocol):
    """A transaction that has begun. Tables are called by the names that ``Store.name`` gives them."""

    def records(self, members: Iterable[str] | None) -> dict[str, MemberRecord]:
        """The records of these members that exist; ``None``: all records."""
        ...

    def put_record(self, member: str, record: MemberRecord | None) -> None:
        """Write a record; ``None``: remove it, if there is one."""
        ...

    def columns(self, table: str, remembered: Columns) -> Columns | None:
        """A table's columns; ``None`` if there is no table. A store has fewer types than a source: return a column as
        it is ``remembered`` if the table still has it in that form."""
        ...

    def create(self, table: str, columns: Columns, key: Sequence[str]) -> None:
        """Make a table, and an index of its key if there is one; rows may share a key, and a key may be NULL."""
        ...

    def drop(self, table: str) -> int:
        """Remove a table; returns how many rows it had."""
        ...

    def rename(self, table: str, to: str) -> None: ...

    def insert(self, table: str, columns: Columns, rows: Iterable[pa.RecordBatch]) -> int:
        """Add rows that have these columns, in any order, perhaps beside others; returns how many."""
        ...

    def read(self, table: str, columns: Columns) -> Iterator[pa.RecordBatch]: ...

    def merge(self, table: str, columns: Columns, key: Sequence[str], rows: Iterable[pa.RecordBatch]) -> Merged:
        """Remove every row whose key ``rows`` has, NULL equal to NULL; then add those that are not ``Op.REMOVE``. No
        two of them share a key; ``OP_COLUMN`` has their ``Op``."""
        ...

    def lookup(self, table: str, keys: pa.Table, key: Columns, also: Columns) -> pa.Table:
        """The rows that have one of the keys: their key, and these columns."""
        ...

    def shared_key(self, table: str, key: Sequence[str]) -> str | None:
        """A key that two rows have, as text."""
        ...

    def savepoint(self) -> None: ...

    def undo(self) -> None:
        """Undo everything since the last savepoint."""
        ...

    def commit(self) -> None:
        """Raises ``OutcomeUnknown`` if it cannot tell what happened."""
        ...


class Store(Protocol):
    """Where the tables of a place are. Errors of the store become ``Unreachable`` if a later try may succeed, else
    ``DestinationHalted``."""

    def name(self, address: Address) -> str:
        """A table as the store calls it. Equal for all addresses of one table, whatever their case, if that is how the
        store compares names."""
        ...

    def transaction(self, *, writes: bool) -> AbstractContextManager[StoreTransaction]:
        """A transaction, rolled back at the end of the context unless it was committed. ``writes``: it excludes others
        that write. Else it is a snapshot: others may overlap it, and it creates nothing."""
        ...

    def close(self) -> None: ...


class StorePlace:
    """A ``Place`` over a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def close(self) -> None:
        self._store.close()

    def standings(self, members: Sequence[MemberTables]) -> dict[str, Standing | TrunklineError | None]:
        with self._store.transaction(writes=False) as sql:
            found = _found(sql, members, self._store.name)
            return {name: None if each is None else _standing(sql, each[1]) for name, each in found.items()}

    def columns(self, address: Address) -> Columns | None:
        name = self._store.name(address)
        with self._store.transaction(writes=False) as sql:
            owners = (record.tables[name] for record in sql.records(None).values() if name in record.tables)
            return sql.columns(name, next(owners, ()))

    def rows(self, member: MemberTables) -> tuple[Standing, list[Iterator[pa.RecordBatch]], Callable[[], None]]:
        with ExitStack() as stack:
            sql = stack.enter_context(self._store.transaction(writes=False))
            found = _found(sql, [member], self._store.name)[member.member]
            listed = {} if found is None else found[1].tables
            names = [self._store.name(address) for address in member.tables]
            held = [None if name not in listed else sql.columns(name, listed[name]) for name in names]
            if found is None or None in held:
                raise DestinationHalted(f"{member.member} has not delivered all its tables; seed it first")
            batches = [_read(sql, name, columns or ()) for name, columns in zip(names, held, strict=True)]
            return found[1].standing, batches, stack.pop_all().close

    def apply(self, writes: Sequence[MemberWrite]) -> dict[str, MemberResult]:
        """An error that belongs to no member is raised: then nothing was written."""
        if not writes:
            return {}
        with self._store.transaction(writes=True) as sql:
            return _Group(sql, writes, self._store.name).results()

    def retire(self, member: MemberTables) -> None:
        with self._store.transaction(writes=True) as sql:
            if (found := _found(sql, [member], self._store.name)[member.member]) is None:
                return
            name, record = found
            same = record.tables.keys() == {self._store.name(address) for address in member.tables}
            if may_retire(member, name, all_tables=same):
                sql.put_record(name, None)
                sql.commit()


def _read(sql: StoreTransaction, table: str, columns: Columns) -> Iterator[pa.RecordBatch]:
    """Rows that are read after ``StorePlace.rows`` has returned: no context turns errors of the store into ours."""
    try:
        yield from sql.read(table, columns)
    except TrunklineError:
        raise
    except Exception as error:  # of a driver: anything
        raise Unreachable(f"table {table} cannot be read to its end: {error}; retrying") from error


NameOf = Callable[[Address], str]
FoundRecord = tuple[str, MemberRecord]  # and the name under which it is stored


def _found(sql: StoreTransaction, members: Sequence[MemberTables], name_of: NameOf) -> dict[str, FoundRecord | None]:
    """The record of each member (T9); all of them are read only if one is not found by its name."""
    records = sql.records([each.member for each in members])
    if len(records) < len(members):
        records = sql.records(None)
    names = record_names(members, name_of, {name: record.tables for name, record in records.items()})
    return {member: None if name is None else (name, records[name]) for member, name in names.items()}


def _standing(sql: StoreTransaction, record: MemberRecord, among: Iterable[str] | None = None) -> Standing:
    """W2; ``among``: only these tables are looked at."""
    looked_at = record.tables.keys() if among is None else record.tables.keys() & set(among)
    lost = any(sql.columns(name, record.tables[name]) is None for name in looked_at)
    return Standing(0, record.standing.token, record.standing.source) if lost else record.standing


class _Group:
    """One transaction for several members (W1)."""

    def __init__(self, sql: StoreTransaction, writes: Sequence[MemberWrite], name_of: NameOf) -> None:
        self._sql, self._name = sql, name_of
        self._writes = {write.step.member: write for write in writes}
        self._found = _found(sql, [write.step.found_by for write in writes], name_of)
        self._owners: dict[str, str] | None = None  # the member of each table; read when one joins a member

    def results(self) -> dict[str, MemberResult]:
        group = GroupCommit({name: write.step.write for name, write in self._writes.items()})
        applied: dict[str, Applied] = {}
        errors: dict[str, TrunklineError] = {}
        for name in group.judge({name: stored(self._held(name)) for name in self._writes}):
            self._sql.savepoint()
            try:
                applied[name] = self._written(self._writes[name])
            except TrunklineError as error:
                self._sql.undo()
                self._owners = None
                errors[name] = error
                group.leave_out(name, undone_alone=True)
        if group.writing:
            try:
                self._sql.commit()
                group.committed()
            except OutcomeUnknown as error:
                errors |= dict.fromkeys(group.writing, error)
                group.unknown()
        return {
            name: result_of(verdict, self._writes[name].step, applied.get(name), errors.get(name))
            for name, verdict in group.verdicts.items()
        }

    def _held(self, member: str) -> Standing | None:
        step = self._writes[member].step
        if (found := self._found[member]) is None:
            return None
        leaving = {self._name(each.address) for each in step.leaving}
        touched = (self._name(each.address) for each in step.tables) if step.expected else found[1].tables
        return _standing(self._sql, found[1], set(touched) - leaving)

    def _written(self, write: MemberWrite) -> Applied:
        step = write.step
        name, record = self._found[step.member] or ("", None)
        tables = {} if record is None else dict(record.tables)
        mine = {self._name(each.address): each for each in step.tables}
        if joining := [each for each in mine if each not in tables]:
            self._check_claims(step, joining, name)
        if name and name != step.member:
            self._sql.put_record(name, None)
        results = []
        for at, table in mine.items():
            results.append(_TableWrite(self._sql, at, table, step.expected).run(tables.get(at), write.rows))
            tables[at] = table.columns
        for gone in step.leaving:
            if tables.pop(self._name(gone.address), None) is not None and gone.drop:
                self._drop(self._name(gone.address))
        kept = {at: columns for at, columns in tables.items() if at in mine or not step.seeds}
        if self._owners is not None:
            for at in () if record is None else record.tables:
                self._owners.pop(at, None)
            self._owners.update(dict.fromkeys(kept, step.member))
        self._sql.put_record(step.member, MemberRecord(step.reached, kept))
        return reduce(Applied.plus, results, Applied(step.through))

    def _drop(self, name: str) -> None:
        if self._sql.columns(name, ()) is not None:
            self._sql.drop(name)

    def _check_claims(self, step: MemberStep, names: Iterable[str], own: str) -> None:
        """Whether tables that the member's record does not list can become its own (T5)."""
        if self._owners is None:
            self._owners = {at: owner for owner, each in self._sql.records(None).items() for at in each.tables}
        replaced = {self._name(each.address) for each in step.tables if each.replaces and step.replace_existing}
        for name in names:
            if (owner := self._owners.get(name, own)) != own:
                raise DestinationHalted(
                    f"table {name} belongs to {owner}; choose another table for one of them, or retire {owner} first"
                )
            if name not in replaced and self._sql.columns(name, ()) is not None:
                raise DestinationHalted(
                    f"table {name} exists and was not delivered; choose another table, or set replace_existing: true "
                    "and seed it"
                )


class _TableWrite:
    """One table of a member."""

    def __init__(self, sql: StoreTransaction, name: str, step: TableStep, expected: int) -> None:
        self._sql, self._name, self._step, self._expected = sql, name, step, expected
        self._key = () if step.mode == "append" else step.key

    def run(self, remembered: Columns | None, given: Mapping[str, Batches]) -> Applied:
        held = self._sql.columns(self._name, remembered or ())
        rows = given.get(self._step.table, _no_rows)
        if self._step.replaces:
            return self._replaced(held, rows())
        reshaped = self._reshaped(held)
        applied = Applied(0, reshaped=reshaped)
        if (batches := completed(rows(), self._step, self._lookup, f"table {self._name}")) == ():
            return applied
        return applied.plus(self._appended(batches) if self._step.mode == "append" else self._merged(batches))

    def _lookup(self, keys: pa.Table, key: Columns, also: Columns) -> pa.Table:
        return self._sql.lookup(self._name, keys, key, also)

    def _appended(self, rows: Iterable[pa.RecordBatch]) -> Applied:
        return Applied(0, written=self._sql.insert(self._name, self._step.columns, rows))

    def _merged(self, rows: Iterable[pa.RecordBatch]) -> Applied:
        step = self._step
        done = self._sql.merge(self._name, step.columns, self._key, rows)
        if done.duplicates and step.duplicates == "halt":
            raise self._shared(done.duplicate)
        missing = done.missing if step.counts_missing else 0
        return Applied(0, done.removed, done.written, done.duplicates, missing)

    def _replaced(self, held: Columns | None, rows: Iterable[pa.RecordBatch]) -> Applied:
        removed = 0 if held is None else self._sql.drop(self._name)
        self._create(self._name)
        written = self._sql.insert(self._name, self._step.columns, rows)
        if self._key and (shared := self._sql.shared_key(self._name, self._key)) is not None:
            raise self._shared(shared)
        return Applied(0, removed, written)

    def _reshaped(self, held: Columns | None) -> str:
        """Make the table accept the rows (T6); returns what was done, if the source's steps were followed."""
        if held is None:
            self._create(self._name)
            return ""
        if (steps := self._steps(held)) is None:
            return ""
        self._create(BESIDE)
        old = (pa.Table.from_batches([batch]) for batch in self._sql.read(self._name, held))
        moved = (batch for table in old for batch in stepped_rows(table, steps).to_batches())
        self._sql.insert(BESIDE, self._step.columns, moved)
        self._sql.drop(self._name)
        self._sql.rename(BESIDE, self._name)
        if self._step.steps is None:
            return ""
        return f"{steps.spelled()} in {self._step.table}" if self._step.table else steps.spelled()

    def _steps(self, held: Columns) -> ColumnSteps | None:
        """Also if the source cannot tell: then columns are compared by name."""
        step, what = self._step, f"table {self._name}"
        if (steps := checked_steps(step, held, self._expected, what)) is not None:
            return steps
        change = evolution(step.columns, held)
        if change.problems:
            problems = "; ".join(change.problems)
            raise SchemaMismatch(f"{what}: {problems}; change the source back, or {step.begin_again}")
        if not change.added and not change.widened:
            return None
        places = {column.name: place for place, column in enumerate(held)}
        return ColumnSteps(held, step.columns, tuple(places.get(column.name, NEW) for column in step.columns))

    def _create(self, name: str) -> None:
        check_columns(self._step.columns, self._key, None)
        self._sql.create(name, self._step.columns, self._key)

    def _shared(self, key: str) -> DuplicateKey:
        return DuplicateKey(
            f"table {self._name}: two rows have the key ({', '.join(self._key)}) = {key}; make the key unique in the "
            "source, or set duplicates: warn"
        )


def _no_rows() -> Iterator[pa.RecordBatch]:
    return iter(())
