"""What the rows of one table of a captured database come to: its net changes in a window, or its state.

Rules
 H1  A row is identified by the table's key: the last change of a key decides whether it is there, and the first one
     whether it was there before. A row of an update without an old row was there, with the same key.
 H2  Rows of a table without a key are whole, also when they are removed: a window is the difference of two multisets.
 H3  Inside a transaction, keys may change hands (their check may be deferred). Removals with whole rows come first
     then, and a row that the transaction both wrote and removed is left out.
 H4  A value that an update did not state is that of the row before the update: of its old row, if that is whole, else
     of the last change of its key. If that is not in the window, the row arrives with UNCHANGED_COLUMN, and
     ORIGIN_COLUMN names the row that has the value at the window's beginning.
 H5  A truncation, a new generation and the first chunk of a table without a key end everything before them.
 H6  A removal states its key alone, unless the replica identity is FULL. So routing column and key of a pipeline must
     be in the table's key, or its identity FULL: otherwise it is not known which destination has the row.
 H7  Changes with different keys cannot be compared. A state is put together up to the change of the key, then with the
     new one; a window over it has no net changes, and its destinations are seeded again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trunkline.delivery.changes.change_records import qualified
from trunkline.delivery.changes.columns import Columns, arrow_schema
from trunkline.delivery.changes.database_reader import PLACES, DatabaseReader
from trunkline.delivery.changes.groups import KIND, SEQ, TX, UNCHANGED, Layout, RowKind, TableRows, table_rows
from trunkline.delivery.changes.net import row_codes, surplus
from trunkline.delivery.changes.rows import ORIGIN_COLUMN, ROUTE_COLUMN, UNCHANGED_COLUMN, NetChanges
from trunkline.delivery.changes.schemas import Identity, TableSchema
from trunkline.errors import DestinationHalted, SourceExpired

COMPACT_ROWS: Final = 500_000  # of a state; more: more memory, fewer: rows are compared more often

Flags = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]


class TableChanges:
    """The rows of one table, entry by entry. ``compacts``: only the state counts, so that earlier rows may go."""

    def __init__(self, number: int, *, compacts: bool = False) -> None:
        self._number = number
        self._compacts = compacts
        self._pieces: list[_Piece] = []
        self._open: list[_Piece] = []  # of parts whose last one is to come
        self._rows = 0  # of all pieces
        self._rows_max = COMPACT_ROWS
        self._schema: TableSchema | None = None  # the newest
        self.emptied = False  # everything before was lost (H5), so that only the state counts

    @property
    def untouched(self) -> bool:
        """Nothing happened to the table."""
        return not self._pieces and not self.emptied

    def take(self, reader: DatabaseReader, transaction: int, glsn: int, rows: TableRows) -> None:
        """Rows of an entry that the reader was just fed with. ``transaction``: the number of the first one in it."""
        self._rekey(reader)
        self._open.append(_Piece(transaction, glsn, rows))

    def end(self, reader: DatabaseReader) -> None:
        """The entry is an end."""
        self._pieces += self._open
        self._rows += sum(each.rows.batch.num_rows for each in self._open)
        self._open = []
        if self._compacts and self._rows > self._rows_max:
            self._compact(reader)

    def forget(self) -> None:
        """The rows of parts since the last end never were."""
        self._open = []

    def empty(self) -> None:
        self._pieces, self._open, self._rows, self._schema = [], [], 0, None
        self.emptied = self._compacts = True

    def _rekey(self, reader: DatabaseReader) -> None:
        """H7."""
        before, self._schema = self._schema, next(reversed(reader.versions(self._number)), None)
        if before is None or self._schema is None or not self._compacts or not self._pieces:
            return
        if key_numbers(before) != key_numbers(self._schema):
            self._compact(reader, before.version)

    def _compact(self, reader: DatabaseReader, version: int | None = None) -> None:
        """Replace the changes so far by the rows that they left."""
        rows = self._history(reader, version).state()
        self._pieces = [_Piece(-1, 0, rows)]
        self._rows = rows.batch.num_rows
        self._rows_max = max(COMPACT_ROWS, 2 * self._rows)

    def history(self, reader: DatabaseReader) -> TableHistory:
        """All rows up to the last end, under the newest version of the table. Raises ``SourceExpired`` (H7)."""
        self._rekey(reader)
        return self._history(reader)

    def remember(self, reader: DatabaseReader) -> None:
        """What came so far is the state before a window: it has no transactions, and truncations name its rows."""
        if self._pieces:
            self._compact(reader)
        self._compacts, self.emptied = False, False

    def spans(self, reader: DatabaseReader) -> Spans:
        """The rows up to the last end between truncations, and the transaction of the truncation after each of them.
        Earlier changes of that transaction are left out: after it, they never were."""
        versions = reader.versions(self._number)
        placed = [(each, reader.presented(each.rows).batch) for each in self._pieces if each.rows.batch.num_rows]
        cuts = sorted(cut for piece, batch in placed for cut in _truncations(piece, batch))
        found = []
        for place in range(len(cuts) + 1):
            begin = cuts[place - 1] if place else (-1, -1, -1)
            end = cuts[place] if place < len(cuts) else None
            between = [(piece, batch.filter(pa.array(_between(piece, batch, begin, end)))) for piece, batch in placed]
            found.append((_of_pieces(versions, between), None if end is None else end[2]))
        return found

    def _history(self, reader: DatabaseReader, version: int | None = None) -> TableHistory:
        versions = [each for each in reader.versions(self._number) if version is None or each.version <= version]
        pieces = [each for each in self._pieces if each.rows.batch.num_rows]
        return _of_pieces(versions, [(each, reader.presented(each.rows, version).batch) for each in pieces])


class _Piece:
    """Rows of one entry."""

    def __init__(self, transaction: int, glsn: int, rows: TableRows) -> None:
        self.transaction = transaction  # the number of the first one
        self.glsn = glsn
        self.rows = rows


def _of_pieces(versions: Sequence[TableSchema], placed: Sequence[tuple[_Piece, pa.RecordBatch]]) -> TableHistory:
    facts = np.array([(each.transaction, each.glsn, each.rows.version) for each, _ in placed], np.int64)
    places = np.repeat(facts.reshape(-1, 3), [batch.num_rows for _, batch in placed], axis=0).T
    rows = pa.Table.from_batches([batch for _, batch in placed], Layout(versions[-1]).arrow)
    return TableHistory(versions, rows, RowPlaces(places[0] + rows.column(TX).to_numpy(), places[1], places[2]))


class RowPlaces(NamedTuple):
    """Of each row: the number of its transaction, its entry, and the version of the table that it was written with."""

    transactions: Indices
    glsns: Indices
    versions: Indices


class TableHistory:
    """Changes in order since the last truncation. ``rows``: in any order, under the last of the versions."""

    def __init__(self, versions: Sequence[TableSchema], rows: pa.Table, places: RowPlaces) -> None:
        self.schema = versions[-1]
        self.truncated = False
        self._by_version = {schema.version: schema for schema in versions}
        table = rows.combine_chunks()
        order = np.lexsort((table.column(SEQ).to_numpy(), places.glsns))
        kinds = table.column(KIND).to_numpy()[order]
        if len(cuts := np.flatnonzero(kinds == RowKind.TRUNCATE)):
            self.truncated = True
            order = order[cuts[-1] + 1 :]
        self._rows = table.take(order)
        self._kinds: npt.NDArray[np.int8] = self._rows.column(KIND).to_numpy()
        self._versions: Indices = places.versions[order]
        self._transactions: Indices = places.transactions[order]
        self._lone = _lone_updates(self._kinds)  # updates without an old row
        self._arrival = np.isin(self._kinds, (RowKind.INSERT, RowKind.UPDATE_NEW, RowKind.READ))
        whole = [version for version, each in self._by_version.items() if each.identity is Identity.FULL]
        self._whole = self._arrival | np.isin(self._versions, whole)
        self._check_one_key()
        self._unstated: dict[int, int] = {}  # row -> bits of columns whose values it lacks
        self._origins: dict[int, int] = {}  # such a row -> the row with the key that it had before; -1: it had none
        self._codes = row_codes(self._rows.select(self.schema.key)) if self.schema.key else None
        self._fill()

    def _check_one_key(self) -> None:
        """H7."""
        changes = self._versions[self._kinds != RowKind.READ]
        for version in np.unique(changes).tolist():
            if key_numbers(self._by_version[version]) != key_numbers(self.schema):
                raise SourceExpired(f"the key of {qualified(self.schema)} changed; the destination is seeded again")

    # ------------------------------------------------------------------------------------------------------- results

    def state(self) -> TableRows:
        """The rows that are there in the end, of kind READ. Those of an unfinished snapshot may lack values."""
        kept, _ = self._kept()
        held = self._rows.take(kept)
        count, width = len(kept), -(-len(self.schema.columns) // 8)
        bits = [self._unstated.get(int(row)) for row in kept] if self._unstated else [None] * count
        unchanged = pa.array([None if each is None else each.to_bytes(width, "little") for each in bits], pa.binary())
        columns = [column.combine_chunks() for column in held.columns[PLACES:]]
        return table_rows(
            Layout(self.schema),
            columns,
            tx=np.zeros(count, np.uint32),
            seq=np.arange(count, dtype=np.uint32),
            kind=np.full(count, RowKind.READ, np.int8),
            unchanged=unchanged,
        )

    def net(self, columns: Columns, key: Sequence[str], routing: str, also: Sequence[str] = ()) -> NetChanges:
        """The net changes. ``also``: more columns of removed rows; without them if not all of these rows are whole.

        Raises ``DestinationHalted`` (H6)."""
        if self.truncated:
            return self.whole(columns, key, routing)
        if key:
            self._check_removals((*key, routing))
        kept, gone = self._kept()
        arrived = self._routed(kept, columns, routing)
        stated = (*key, *also) if (self._whole & ~self._arrival)[gone].all() else tuple(key)
        removed = self._routed(gone, tuple(each for each in columns if each.name in stated), routing)
        if self._lacking(kept, columns):
            arrived = self._with_unchanged(arrived, kept, columns, key, routing)
        return NetChanges(removed.select([ROUTE_COLUMN, *stated]), arrived)

    def by_transaction(self, columns: Columns, key: Sequence[str], routing: str) -> TransactionRows:
        """What each transaction came to; rows before the first one (``TableChanges.remember``) are in none. Raises
        ``DestinationHalted`` (H6)."""
        self._check_removals((*key, routing))
        if self._codes is None:
            came, gone = self._cancelled(np.arange(len(self._kinds)))
        else:
            order, dropped = self._untangled(self._codes)
            order = order[~dropped[order]]
            pairs = np.stack([self._transactions[order], self._codes[order]])
            codes = np.unique(pairs, axis=1, return_inverse=True)[1].reshape(-1)
            first = order[np.unique(codes, return_index=True)[1]]
            last = order[len(codes) - 1 - np.unique(codes[::-1], return_index=True)[1]]
            came, gone = np.sort(last[self._arrival[last]]), np.sort(first[~self._arrival[first] | self._lone[first]])
        came, gone = (rows[self._transactions[rows] >= 0] for rows in (came, gone))
        return TransactionRows(
            self._routed(gone, columns, routing),
            self._transactions[gone],
            (self._whole & ~self._arrival)[gone],
            self._routed(came, columns, routing),
            self._transactions[came],
            bool(self._unstated) and any(self._missing(row, columns) for row in came.tolist()),
        )

    def whole(self, columns: Columns, key: Sequence[str], routing: str) -> NetChanges:
        """Net changes that replace every row by the state."""
        rows = self.whole_rows(columns, routing)
        return NetChanges(rows.slice(0, 0).select([ROUTE_COLUMN, *key]), rows, emptied=True)

    def whole_rows(self, columns: Columns, routing: str) -> pa.Table:
        """The state, with routes. Raises ``DestinationHalted`` if a row was never stated whole."""
        kept, _ = self._kept()
        if self._lacking(kept, columns):
            raise lacks_values(self.schema)
        return self._routed(kept, columns, routing)

    def lacking(self, columns: Columns) -> int:
        """How many rows of the state, or of the net changes, have values that are not known here."""
        return self._lacking(self._kept()[0], columns)

    def _lacking(self, kept: Indices, columns: Columns) -> int:
        return sum(self._missing(row, columns) > 0 for row in kept.tolist()) if self._unstated else 0

    # -------------------------------------------------------------------------------------------------------- the rule

    def _kept(self) -> tuple[Indices, Indices]:
        """The rows that are there in the end and were not as they are before; and one for each that was there."""
        if self._codes is None:
            return self._difference(np.arange(len(self._kinds)))
        order, dropped = self._untangled(self._codes)
        order = order[~dropped[order]]
        codes = self._codes[order]
        first = order[np.unique(codes, return_index=True)[1]]
        last = order[len(codes) - 1 - np.unique(codes[::-1], return_index=True)[1]]
        return np.sort(last[self._arrival[last]]), np.sort(first[~self._arrival[first] | self._lone[first]])

    def _difference(self, rows: Indices) -> tuple[Indices, Indices]:
        """Arrivals and removals without those that cancel out (H2)."""
        came, went = rows[self._arrival[rows]], rows[~self._arrival[rows]]
        table = self._rows.select(self._rows.column_names[PLACES:])
        return _less(table, came, went), _less(table, went, came)

    def _untangled(self, codes: Indices) -> tuple[Indices, Flags]:
        """The order of changes, and those that are left out (H3)."""
        count = len(codes)
        order, dropped = np.arange(count), np.zeros(count, np.bool_)
        removal = ~self._arrival
        if not (removal & self._whole).any():
            return order, dropped
        in_order = np.unique(self._transactions, return_inverse=True)[1]
        groups = np.unique(in_order * (int(codes.max()) + 1) + codes, return_inverse=True)[1]
        arrived_at = np.full(count, count)  # of each group: its first arrival
        np.minimum.at(arrived_at, groups[self._arrival], np.flatnonzero(self._arrival))
        late = removal & (np.arange(count) > arrived_at[groups])
        unsure = np.unique(groups[removal & ~self._whole])
        tangled = np.isin(groups, groups[late]) & ~np.isin(groups, unsure)
        if not tangled.any():
            return order, dropped
        mine = np.flatnonzero(tangled)
        dropped[mine] = True
        for kept in self._cancelled(mine):
            dropped[kept] = False
        early = (tangled & removal).astype(np.int8)
        return np.lexsort((order, -early, self._transactions)), dropped

    def _cancelled(self, rows: Indices) -> tuple[Indices, Indices]:
        """Arrivals and removals of tangled groups, without rows that one transaction both wrote and removed."""
        came, went = rows[self._arrival[rows]], rows[~self._arrival[rows]]
        table = self._rows.select(self._rows.column_names[PLACES:])
        table = table.append_column(TX, pa.array(self._transactions))
        return _less(table, came, went), _less(table, went, came)

    def _check_removals(self, needed: tuple[str, ...]) -> None:
        """H6."""
        removing = ~self._arrival | self._lone
        for version in np.unique(self._versions[removing]).tolist():
            check_identity(self._by_version[version], self.schema, needed)

    # ------------------------------------------------------------------------------------------------- unstated values

    def _fill(self) -> None:
        """H4."""
        stated = self._rows.column(UNCHANGED).combine_chunks()
        if self._codes is None or stated.null_count == len(stated):
            self._fill_from_old_rows(stated)
            return
        before = _before(self._codes)
        sources: dict[int, Indices] = {}
        for row in np.flatnonzero(stated.is_valid().to_numpy(zero_copy_only=False)).tolist():
            bits = int.from_bytes(stated[row].as_py(), "little")
            has_old = bool(self._kinds[row] == RowKind.UPDATE_NEW and not self._lone[row])
            origin = row - 1 if has_old else row
            at = origin if has_old and self._whole[origin] else int(before[origin])
            if at >= 0 and (at == origin or self._arrival[at]):
                for place in _places(bits):
                    if place not in sources:
                        sources[place] = np.arange(len(self._kinds))
                    sources[place][row] = sources[place][at]
                bits &= self._unstated.get(at, 0)
                origin = self._origins.get(at, -1)
            elif at >= 0:
                origin = -1  # the change before it removed the row
            if bits:
                self._unstated[row], self._origins[row] = bits, origin
        self._take(sources)

    def _fill_from_old_rows(self, stated: pa.Array) -> None:
        """Of a table without a key: old rows are whole."""
        sources: dict[int, Indices] = {}
        for row in np.flatnonzero(stated.is_valid().to_numpy(zero_copy_only=False)).tolist():
            for place in _places(int.from_bytes(stated[row].as_py(), "little")):
                if place not in sources:
                    sources[place] = np.arange(len(self._kinds))
                sources[place][row] = row - 1
        self._take(sources)

    def _take(self, sources: dict[int, Indices]) -> None:
        for place, taken in sources.items():
            at = PLACES + place
            field = self._rows.schema.field(at)
            self._rows = self._rows.set_column(at, field, self._rows.column(at).take(pa.array(taken)))

    def _missing(self, row: int, columns: Columns) -> int:
        """The bits of these columns that a row lacks."""
        unstated = self._unstated.get(row, 0)
        return unstated and sum(
            1 << place for place, each in enumerate(columns) if unstated >> self._place(each.name) & 1
        )

    def _place(self, name: str) -> int:
        place: int = self._rows.schema.get_field_index(name) - PLACES
        return place

    def _with_unchanged(
        self, arrived: pa.Table, kept: Indices, columns: Columns, key: Sequence[str], routing: str
    ) -> pa.Table:
        width = -(-len(columns) // 8)
        bits = [self._missing(row, columns) for row in kept.tolist()]
        unchanged = [each.to_bytes(width, "little") if each else None for each in bits]
        origins = [self._origins[row] if missing else None for row, missing in zip(kept.tolist(), bits, strict=True)]
        if -1 in origins:
            raise DestinationHalted(
                f"{qualified(self.schema)}: the log has an update of a row that it removed before; run "
                "`trunkline capture resnapshot`"
            )
        keys = self._routed(np.arange(len(self._kinds)), tuple(each for each in columns if each.name in key), routing)
        taken = keys.select([ROUTE_COLUMN, *key]).take(pa.array(origins, pa.int64())).combine_chunks()
        struct = pa.StructArray.from_arrays(
            [column.chunk(0) if column.num_chunks else pa.nulls(0, column.type) for column in taken.columns],
            fields=list(taken.schema),
            mask=pa.array([each is None for each in origins]),
        )
        return arrived.append_column(UNCHANGED_COLUMN, pa.array(unchanged, pa.binary())).append_column(
            ORIGIN_COLUMN, struct
        )

    def _routed(self, rows: Indices, columns: Columns, routing: str) -> pa.Table:
        """Rows as they travel: ROUTE_COLUMN and columns."""
        held = self._rows.take(rows)
        arrays = [held.column(routing).cast(pa.string()) if routing else pa.nulls(len(rows), pa.string())]
        schema = arrow_schema(columns)
        arrays += [held.column(field.name).cast(field.type) for field in schema]
        return pa.table(arrays, schema=pa.schema([pa.field(ROUTE_COLUMN, pa.string()), *schema]))


class TransactionRows(NamedTuple):
    """Rows that transactions removed and added, ROUTE_COLUMN and columns, each with the number of its transaction."""

    removed: pa.Table
    removed_in: Indices
    whole: Flags  # of removed rows: all values are stated, not only those of the key
    arrived: pa.Table
    arrived_in: Indices
    unstated: bool  # an arrived row lacks values that the rows here do not state


def _truncations(piece: _Piece, batch: pa.RecordBatch) -> list[tuple[int, int, int]]:
    """Position, number and transaction of each."""
    at = np.flatnonzero(batch.column(KIND).to_numpy() == RowKind.TRUNCATE)
    seq, tx = (batch.column(name).to_numpy()[at].tolist() for name in (SEQ, TX))
    return [(piece.glsn, each, piece.transaction + number) for each, number in zip(seq, tx, strict=True)]


def _between(
    piece: _Piece, batch: pa.RecordBatch, begin: tuple[int, int, int], end: tuple[int, int, int] | None
) -> Flags:
    """The rows after one truncation and before the transaction of the next."""
    seq, tx = (batch.column(name).to_numpy().astype(np.int64) for name in (SEQ, TX))
    found: Flags = (piece.glsn > begin[0]) | ((piece.glsn == begin[0]) & (seq > begin[1]))
    return found if end is None else found & (piece.transaction + tx < end[2])


Spans = list[tuple[TableHistory, int | None]]  # changes between truncations, and the transactions of these


def check_identity(stated: TableSchema, newest: TableSchema, needed: Sequence[str]) -> None:
    """Raises ``DestinationHalted`` if removals under the version ``stated`` lack columns that are ``needed`` (H6)."""
    if stated.identity is not Identity.KEY:  # rows are whole, or none is ever removed
        return
    numbers = {column.name: column.number for column in stated.columns}
    recorded = {numbers[name] for name in stated.key}
    lacking = [each.name for each in newest.columns if each.name in needed and each.number not in recorded]
    if lacking:
        raise DestinationHalted(
            f"the log has of a removed row of {qualified(newest)} only its key ({', '.join(stated.key) or 'nothing'}), "
            f"but not {' and '.join(map(repr, lacking))}, by which destinations are found; run "
            f"ALTER TABLE {qualified(newest)} REPLICA IDENTITY FULL, then reseed, or route and identify rows by "
            "columns of its key"
        )


def lacks_values(schema: TableSchema) -> DestinationHalted:
    return DestinationHalted(
        f"{qualified(schema)}: the log lacks values of a row, though its snapshot is complete; this is a bug, please "
        "report it, and run `trunkline capture resnapshot`"
    )


def key_numbers(schema: TableSchema) -> set[int]:
    """The columns of the key, whatever their names are."""
    return {column.number for column in schema.columns if column.name in schema.key}


def _lone_updates(kinds: npt.NDArray[Any]) -> Flags:
    """New rows of updates that come without an old row (G2)."""
    found: Flags = kinds == RowKind.UPDATE_NEW
    found[1:] &= kinds[:-1] != RowKind.UPDATE_OLD
    return found


def _before(codes: Indices) -> Indices:
    """For each row, the one before it with the same code, or -1."""
    order = np.argsort(codes, kind="stable")
    found = np.full(len(codes), -1, np.int64)
    same = np.diff(codes[order]) == 0
    found[order[1:][same]] = order[:-1][same]
    return found


def _places(bits: int) -> list[int]:
    return [place for place in range(bits.bit_length()) if bits >> place & 1]


def _less(table: pa.Table, rows: Indices, others: Indices) -> Indices:
    """Some rows of a table, less one for each of the others that equals it: the first ones of equal rows go."""
    if not len(rows) or not len(others):
        return rows
    codes = row_codes(table.take(np.concatenate([rows, others])))
    mine, theirs = np.split(codes, [len(rows)])
    return np.sort(rows[surplus(mine, theirs)])
