"""Judges a new shape of a captured PostgreSQL table: which columns of the log it continues, exactly, or not at all.

The stream states the names and types of a table's columns where they change, but not their numbers: a renamed column
and a new one are alike there, and a column that was dropped and added again is unchanged. The catalog has the numbers,
but its definition of the table is read later; what happened in between is in the future of the stream.

Rules
 H1  Numbers of columns are used once, in order; a dropped one stays in the catalog. So with columns that were only
     added, or only dropped, since the version that the log has, the count of the columns in the stream says which of
     them are there. With both it does so only if none of one kind and all of the other have happened.
 H2  If two definitions are equal, and the place in the stream lies between their positions, then the table has just
     these columns there, whatever happened before.
 H3  A column that was added keeps the value that older rows have (`attmissingval`), or they have NULL, unless the rows
     were rewritten (`relfilenode`): then each may have a value of its own.
 H4  An alteration that computes new values (ALTER ... TYPE ... USING, also to the same type) rewrites the rows and
     changes the stamp of its column. One without the other changes no value: TRUNCATE, VACUUM FULL and CLUSTER rewrite
     only; SET NOT NULL, SET DEFAULT and a longer varchar change the stamp only.
 H5  With REPLICA IDENTITY DEFAULT or USING INDEX the stream itself states the key. With FULL it is the primary key, if
     two definitions prove that it was there all the time: before it, rows may have been equal in its columns. A new
     key is a new generation: an update that leaves the key alone does not state the old row, so that readers must
     identify all rows of a generation by one key.
 H6  Whatever is not certain is captured again. The rows are read after the definition, so they have what it has; only
     later alterations count from then on.

A version keeps parts of the definition (storage, stamps, attributes, generated, constraint) as evidence for the next
judgement, and the evidence moves on only with a definition that is not ahead of the stream in this table's columns. A
table whose columns are altered while no rows are written has no new shape in the stream: to follow it anyway, judge
``relation_of(definition)`` at a watermark that was written between two equal definitions (H2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from msgspec import Struct, structs

from trunkline.delivery.capture.postgres.catalog import FULL, IDENTITIES, DefinedColumn, TableDefinition
from trunkline.delivery.capture.postgres.pgoutput import Relation, RelationColumn
from trunkline.delivery.capture.postgres.values import UnfitValue, shown, table_values, type_of
from trunkline.delivery.changes.columns import arrow_schema, check_columns, widens
from trunkline.delivery.changes.schemas import COLUMNS_MAX, Identity, SchemaChange, SourceColumn, TableSchema
from trunkline.errors import ConfigError

MADE_UP: Final = 1_000_000  # numbers from here on are of no column in the source
TEXTS: Final = frozenset({25, 1042, 1043})  # text, char, varchar: a value that is not rewritten keeps its text


class Same(Struct, frozen=True):
    """The rows go on under the known version. ``schema``: the same version, with newer evidence; it is not written."""

    schema: TableSchema


class Changed(Struct, frozen=True):
    """The next version, which says exactly what became of the rows before."""

    schema: TableSchema


class Recapture(Struct, frozen=True):
    """The next version begins a new generation."""

    schema: TableSchema
    reason: str


class Refused(Struct, frozen=True):
    """The table cannot be captured in this shape, not even again."""

    reason: str


Verdict = Same | Changed | Recapture | Refused


class _Unclear(Exception):
    """Why it is not certain what a shape continues (H6)."""


def judged(
    known: TableSchema,
    relation: Relation,
    definition: TableDefinition | None,
    *,
    earlier: TableDefinition | None = None,
) -> Verdict:
    """``definition`` was read after the relation was received, ``earlier`` before its place in the stream.

    That place is the commit of its transaction: ``earlier.lsn`` is not after it. (A transaction that writes rows of a
    table keeps others from altering it.)
    """
    try:
        check_columns(table_values(relation).columns, (), None)
    except ConfigError as error:
        return Refused(str(error))
    if not 0 < len(relation.columns) <= COLUMNS_MAX:
        return Refused(f"it has {len(relation.columns):,} columns that could be captured; 1 to {COLUMNS_MAX:,} can be")
    if definition is None:
        return _recapture(known, relation, None, None, "it was dropped after its columns changed")
    numbers = None
    proven = earlier is not None and earlier.same_catalog(definition)
    try:
        if definition.oid != known.oid or relation.oid != known.oid:
            raise _Unclear("another table has its name now")
        if known.attributes == 0:
            raise _Unclear("its columns were altered several times before they could be compared with the catalog")
        numbers = _live_numbers(relation, definition) if proven else _numbers(known, relation, definition)
        return _followed(known, relation, definition, numbers, proven=proven)
    except _Unclear as error:
        return _recapture(known, relation, definition, numbers, str(error))
    except UnfitValue as error:
        name = relation.columns[error.index].name
        return Refused(
            f"column {name!r} has the default {shown(error.row[error.index])}, which no log can hold: {error}"
        )


def fits(schema: TableSchema, definition: TableDefinition) -> bool:
    """Whether rows that are read now have the columns of a version.

    To be sure of the rows of a query, lock the table (ACCESS SHARE is enough) before its snapshot is taken and before
    the definition: a rewritten or truncated table is empty for a snapshot that is older.
    """
    here = [(each.number, each.name, each.type_oid, each.modifier) for each in definition.live]
    return here == [(each.number, each.name, each.type_oid, each.modifier) for each in schema.columns]


# --- which columns (H1, H2) ---


def _live_numbers(relation: Relation, definition: TableDefinition) -> tuple[int, ...]:
    if relation.columns != _listed(definition):
        raise _Unclear("its columns differ from those in the catalog, which were not altered meanwhile")
    return tuple(each.number for each in definition.live)


def _numbers(known: TableSchema, relation: Relation, definition: TableDefinition) -> tuple[int, ...]:
    """The numbers of the columns in the stream."""
    before = tuple(column.number for column in known.columns)
    defined = {column.number: column for column in definition.columns}
    newer = [column for column in definition.columns if column.number > known.attributes and not column.generated]
    if any(number not in defined for number in before):
        raise _Unclear("the catalog has lost columns of it")
    gone = {number for number in before if defined[number].dropped}
    added = len(relation.columns) - len(before)  # less those that were dropped
    if added == -len(gone):
        return tuple(number for number in before if number not in gone)
    if any(number not in definition.generated for number in known.generated):
        raise _Unclear("a generated column became an ordinary one, or was dropped: the server never sent its values")
    if not any(column.dropped for column in newer) and (added == len(newer) or (not gone and 0 <= added <= len(newer))):
        return (*before, *(column.number for column in newer[:added]))
    if not newer and added == 0:
        return before
    raise _Unclear("columns were dropped and others added, too fast to tell which are which")


# --- what changed (H3, H4) ---


def _followed(
    known: TableSchema,
    relation: Relation,
    definition: TableDefinition,
    numbers: Sequence[int],
    *,
    proven: bool,
) -> Same | Changed:
    before = {column.number: column for column in known.columns}
    defined = {column.number: column for column in definition.columns}
    rewritten = definition.storage != known.storage
    changes, columns, defaults = set[SchemaChange](), list[SourceColumn](), dict[int, str]()
    for number, found in zip(numbers, relation.columns, strict=True):
        if (old := before.get(number)) is not None:
            changes |= _column_changes(old, found, defined[number], rewritten=rewritten)
        else:
            changes.add(SchemaChange.ADDED)
            if (default := _default(known, found, defined[number], rewritten=rewritten)) is not None:
                defaults[number] = default
        stamp = old.stamp if old is not None else defined[number].stamp
        columns.append(SourceColumn(found.name, type_of(found), number, found.type_oid, found.modifier, stamp))
    if before.keys() - set(numbers):
        changes.add(SchemaChange.DROPPED)
    if (known.schema, known.name) != (relation.schema, relation.name):
        changes.add(SchemaChange.TABLE_RENAMED)
    constraint = definition.constraint if proven or definition.constraint == known.constraint else 0
    identity, key = _key(relation, definition, numbers, constraint)
    names = {column.number: column.name for column in columns}
    old_key = tuple(column.number for name in known.key for column in known.columns if column.name == name)
    if set(key) != set(old_key):
        raise _Unclear(f"its key was ({', '.join(known.key)}), and is ({', '.join(map(names.__getitem__, key))}) now")
    if identity is not known.identity:
        changes.add(SchemaChange.KEY)
    after = structs.replace(
        known,
        schema=relation.schema,
        name=relation.name,
        columns=tuple(columns),
        key=tuple(names[number] for number in old_key),
        identity=identity,
        attributes=(used := max(known.attributes, *numbers)),
        generated=tuple(sorted({*known.generated, *(each for each in definition.generated if each < used)})),
        constraint=constraint,
    )
    after = _with_evidence(after, definition)
    if not changes:
        return Same(after)
    return Changed(
        structs.replace(
            after,
            version=known.version + 1,
            changes=tuple(each for each in SchemaChange if each in changes),
            defaults=_encoded(relation.columns, numbers, defaults),
        )
    )


def _column_changes(
    old: SourceColumn, found: RelationColumn, defined: DefinedColumn, *, rewritten: bool
) -> set[SchemaChange]:
    changes = {SchemaChange.RENAMED} if found.name != old.name else set()
    if rewritten and defined.stamp != old.stamp:
        raise _Unclear(f"column {found.name!r} was altered and the rows were rewritten: their values may be others now")
    if (found.type_oid, found.modifier) == (old.type_oid, old.modifier):
        return changes
    kind = type_of(found)
    if rewritten:
        raise _Unclear(f"the type of column {found.name!r} changed and the rows were rewritten")
    if found.type_oid != old.type_oid and not {found.type_oid, old.type_oid} <= TEXTS:
        raise _Unclear(f"the type of column {found.name!r} changed")
    if kind != old.type and not widens(old.type, kind):
        raise _Unclear(f"the type of column {found.name!r} changed from {old.type} to {kind}")
    return changes | {SchemaChange.WIDENED}


def _default(known: TableSchema, found: RelationColumn, defined: DefinedColumn, *, rewritten: bool) -> str | None:
    """The text of the value that older rows have."""
    if defined.number <= known.attributes or defined.number in known.generated:
        raise _Unclear(f"older rows may have values in column {found.name!r} that the server never sent")
    if defined.has_missing and defined.type_oid == found.type_oid:
        return defined.missing
    if defined.has_missing or rewritten:
        raise _Unclear(f"column {found.name!r} was added and the rows were rewritten: each may have a value of its own")
    return None


def _encoded(columns: Sequence[RelationColumn], numbers: Sequence[int], texts: dict[int, str]) -> bytes:
    """A batch of one row: the defaults of the columns that are new. Raises ``UnfitValue``."""
    if not texts:
        return b""
    values = table_values(columns)
    row = tuple(texts[number].encode() if number in texts else None for number in numbers)
    found: pa.Table = values.arrow([row])
    [batch] = found.cast(arrow_schema(values.columns)).to_batches()
    encoded: bytes = batch.serialize().to_pybytes()
    return encoded


# --- key and evidence (H5, H6) ---


def _key(
    relation: Relation, definition: TableDefinition | None, numbers: Sequence[int], constraint: int
) -> tuple[Identity, tuple[int, ...]]:
    """The numbers of the columns of the key, in the order of its index if that is known."""
    if relation.identity == FULL:
        primary = definition.primary if definition is not None and constraint else ()
        return Identity.FULL, primary if set(primary) <= set(numbers) else ()
    key = tuple(numbers[place] for place in relation.key)
    if definition is not None and set(definition.key) == set(key):
        key = definition.key
    return IDENTITIES.get(relation.identity, Identity.KEY if key else Identity.NOTHING), key


def _with_evidence(schema: TableSchema, definition: TableDefinition) -> TableSchema:
    """The evidence of the definition, unless it is ahead of the stream."""
    here = [(each.number, each.type_oid, each.modifier) for each in definition.live]
    if here != [(each.number, each.type_oid, each.modifier) for each in schema.columns]:
        return schema
    stamps = [each.stamp for each in definition.live]
    columns = tuple(structs.replace(each, stamp=stamp) for each, stamp in zip(schema.columns, stamps, strict=True))
    return structs.replace(
        schema,
        columns=columns,
        storage=definition.storage,
        attributes=definition.attributes,
        generated=definition.generated,
    )


def _recapture(
    known: TableSchema,
    relation: Relation,
    definition: TableDefinition | None,
    numbers: Sequence[int] | None,
    reason: str,
) -> Recapture:
    """The stream's columns under a new generation; their numbers are made up if they are not certain.

    Where the definition has the same names and types, its numbers are right: the rows are read later (H6).
    """
    if (
        numbers is None
        and definition is not None
        and definition.oid == relation.oid
        and _listed(definition) == relation.columns
    ):
        numbers = tuple(each.number for each in definition.live)
    made_up = numbers is None or definition is None
    places = range(MADE_UP, MADE_UP + len(relation.columns)) if numbers is None else numbers
    stamps = {} if definition is None else {column.number: column.stamp for column in definition.columns}
    columns = tuple(
        SourceColumn(found.name, type_of(found), number, found.type_oid, found.modifier, stamps.get(number, 0))
        for number, found in zip(places, relation.columns, strict=True)
    )
    constraint = 0 if made_up or definition is None else definition.constraint
    identity, key = _key(relation, definition, places, constraint)
    names = {column.number: column.name for column in columns}
    schema = TableSchema(
        known.number,
        known.generation + 1,
        known.version + 1,
        relation.schema,
        relation.name,
        columns,
        tuple(names[number] for number in key),
        identity,
        (SchemaChange.RECAPTURED,),
        oid=relation.oid,
        constraint=constraint,
    )
    if definition is None or made_up:
        return Recapture(schema, reason)
    used = max(known.attributes, *places) if definition.oid == known.oid else max(places)
    return Recapture(
        _with_evidence(
            structs.replace(schema, storage=definition.storage, attributes=used, generated=definition.generated),
            definition,
        ),
        reason,
    )


def _listed(definition: TableDefinition) -> tuple[RelationColumn, ...]:
    return tuple(RelationColumn(each.name, each.type_oid, each.modifier) for each in definition.live)
