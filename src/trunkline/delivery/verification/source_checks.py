"""Checks the tables of a pipeline's source against its file, before it runs.

Rules
 V1  A problem of a table of a set is that of the entry of ``tables`` that counts for it, and has the table's name.
 V2  An entry, or a column that the file names for all tables, that concerns no table is a problem: a mask with a typing
     error would deliver the values that it should hide.
 V3  A thousand tables with the same problem do not hide the others: lists are cut, with a count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from trunkline.delivery.changes.columns import Column, Columns, check_columns, check_routing
from trunkline.delivery.changes.history import check_history
from trunkline.delivery.config import ColumnsConfig, DestinationConfig, Pipeline
from trunkline.delivery.config.address_rules import address_of, clash_text, identity, identity_of
from trunkline.delivery.config.table_patterns import LEFT_OUT
from trunkline.delivery.config.table_rules import TableSettings, is_shaped, selection_of, settings_of, spot
from trunkline.delivery.shapes.shaped_table import check_shape, shaped_table
from trunkline.delivery.sources.contract import Source, SourceTable
from trunkline.delivery.verification.problems import PipelineProblem, capped, raised_problems
from trunkline.errors import ConfigError

TABLES_SHOWN_MAX: Final = 20  # problems of tables of one kind; fewer: more runs of the check, more: a flood


class DeliveredTable(Struct, frozen=True):
    """A table of the source without problems, as destinations have it."""

    name: str  # empty: the only one
    columns: Columns  # of the destinations
    settings: TableSettings


class SourceFacts(Struct, frozen=True):
    """The source as the check found it."""

    identity: str
    tables: tuple[DeliveredTable, ...] = ()
    left_out: tuple[str, ...] = ()  # tables that lack their routing column, and are left out for it


def check_source(
    pipeline: Pipeline, source: Source, unread: frozenset[int] = frozenset()
) -> tuple[SourceFacts, list[PipelineProblem]]:
    """``unread``: entries of ``tables`` with problems of their own; their tables are not checked.

    Raises if the source is unreachable, has no such table, or has an unsupported format.
    """
    state, found = source.state(0), source.tables(0)
    sound: list[DeliveredTable] = []
    left_out: list[str] = []
    problems: list[PipelineProblem] = []
    for table in found:
        if (number := _number(pipeline, table.name)) in unread:
            continue
        where = "" if number is None else f"tables[{number}]"
        try:
            settings = settings_of(pipeline, table.name, table.columns, table.key)
        except ConfigError as error:
            problems += _refused(where, pipeline, table, str(error))
            continue
        if settings is None:
            left_out.append(table.name)
            continue
        wrong = list(_table_problems(where, source, table, settings))
        if not wrong:
            columns = shaped_table(settings.shape, table.columns, settings.key, settings.routing).columns
            wrong = _history_problems(where, pipeline, table, columns, settings)
        if not wrong:
            sound.append(DeliveredTable(table.name, columns, settings))
        problems += wrong
    problems = capped(problems, TABLES_SHOWN_MAX, "tables")
    if pipeline.tables:
        names = [table.name for table in found]
        problems += _unused_entries(pipeline, names, unread)
        problems += _unused_columns(pipeline, {column.name for table in found for column in table.columns})
        shared = list(shared_tables(pipeline, [each.name for each in sound]))
        problems += capped(shared, TABLES_SHOWN_MAX, "tables of destinations")
    return SourceFacts(state.identity, tuple(sound), tuple(left_out)), problems


def _number(pipeline: Pipeline, name: str) -> int | None:
    """Of the entry that counts for a table (V1)."""
    selection = selection_of(pipeline)
    return None if selection is None else selection.entry(name)


def _refused(where: str, pipeline: Pipeline, table: SourceTable, message: str) -> Iterator[PipelineProblem]:
    if table.name:
        yield PipelineProblem(where, message.removeprefix(f"{spot(pipeline, table.name)}: "))
        return
    routing = "" if pipeline.routing is None else pipeline.routing.column
    found = [] if is_shaped(pipeline) else [*_column_problems(table.columns, TableSettings(pipeline.key, routing))]
    yield from (PipelineProblem(*each) for each in found or [("source", message)])


def _table_problems(
    where: str, source: Source, table: SourceTable, settings: TableSettings
) -> Iterator[PipelineProblem]:
    named = f"table {table.name}: " if table.name else ""
    if settings.shape is None:
        found = list(_column_problems(table.columns, settings))
    else:
        texts = check_shape(settings.shape, table.columns, settings.key, settings.routing)
        found = [_part(text) if not table.name else (where, text) for text in texts]
    if not found:
        removals = raised_problems("source", lambda: _check_removals(source, table, settings))
        found = [(problem.where, problem.what) for problem in removals]
    yield from (PipelineProblem(where or at, named + what) for at, what in found)


def _history_problems(
    where: str, pipeline: Pipeline, table: SourceTable, columns: Columns, settings: TableSettings
) -> list[PipelineProblem]:
    """Names that mode history needs, also if a rename or a computed column brings them."""
    template = [] if pipeline.discover is None else [pipeline.discover.template]
    if "history" not in {settings.mode or each.mode for each in (*pipeline.destinations, *template)}:
        return []
    named = f"table {table.name}: " if table.name else ""
    problems = raised_problems(where or "columns", lambda: check_history(columns))
    return [PipelineProblem(each.where, named + each.what) for each in problems]


def _part(text: str) -> tuple[str, str]:
    """A problem of a shape begins with the key of the file, unless it is about the secret of its masks."""
    key, colon, what = text.partition(": ")
    return (key, what) if colon else ("mask_secret_env", text)


def _check_removals(source: Source, table: SourceTable, settings: TableSettings) -> None:
    request = shaped_table(settings.shape, table.columns, settings.key, settings.routing).request()
    source.check_keys(table.name, request.key, request.routing)


def _column_problems(columns: Columns, settings: TableSettings) -> Iterator[tuple[str, str]]:
    """Each with the key of the file that it is about."""
    sound: list[Column] = []
    for column in columns:
        wrong = _texts("source", [column])
        yield from wrong
        sound += [] if wrong else [column]
    if together := _texts("source", sound):
        yield from together
        return
    broken = {column.name for column in columns} - {column.name for column in sound}
    for name in (name for name in settings.key if name not in broken):
        yield from _texts("key", sound, (name,))
    routing = settings.routing
    if routing and routing not in broken:
        yield from _texts("routing.column", sound, (), routing)
        problems = raised_problems("routing.column", lambda: check_routing(sound, routing))
        yield from ((problem.where, problem.what) for problem in problems)


def _texts(
    where: str, columns: Sequence[Column], key: tuple[str, ...] = (), routing: str | None = None
) -> list[tuple[str, str]]:
    problems = raised_problems(where, lambda: check_columns(columns, key, routing))
    return [(problem.where, problem.what) for problem in problems]


def _unused_entries(pipeline: Pipeline, names: Sequence[str], unread: frozenset[int]) -> Iterator[PipelineProblem]:
    """V2."""
    selection = selection_of(pipeline)
    assert selection is not None
    counting = {selection.entry(name) for name in names}
    for number, entry in enumerate(pipeline.tables):
        if entry.table.startswith(LEFT_OUT) or number in counting | unread:
            continue
        others = selection.matching(number, names)
        why = (
            f"has no effect: an earlier entry matches {_listed(others)}, too; move this one up, or remove it"
            if others
            else "matches no table of the source; correct it, or remove it"
        )
        yield PipelineProblem(f"tables[{number}]", f"{entry.table} {why}")


def _unused_columns(pipeline: Pipeline, known: set[str]) -> Iterator[PipelineProblem]:
    """V2, of the columns that the pipeline names for all tables."""
    columns = pipeline.columns or ColumnsConfig()
    named = {
        "columns.include": columns.include,
        "columns.exclude": columns.exclude,
        "columns.rename": tuple(columns.rename),
        "mask": tuple(pipeline.mask),
    }
    for where, names in named.items():
        for name in (name for name in names if name not in known):
            at = f"{where}.{name}" if where in ("mask", "columns.rename") else where
            yield PipelineProblem(at, f"no table has a column {name!r}; correct it, or remove it")


def shared_tables(pipeline: Pipeline, names: Sequence[str]) -> Iterator[PipelineProblem]:
    """Tables of the source that would have one table in a destination, and destinations that would share one."""
    holders: dict[tuple[str, ...], tuple[str, str]] = {}
    reported: set[tuple[str, str]] = set()
    for destination in pipeline.destinations:
        template = identity(destination.address)
        for name in names:
            other, first = holders.setdefault(identity_of(template, name), (destination.name, name))
            if (other, first) == (destination.name, name):
                continue
            if other == destination.name:
                if (first, name) not in reported:
                    reported.add((first, name))
                    yield PipelineProblem(f"tables[{_number(pipeline, name)}]", clash_text(first, name))
            else:
                why = f"its table for {name} is that of destination {other} for {first}; give each its own"
                yield PipelineProblem(destination.name, why)
        yield from _unfit(destination, names)


def _unfit(destination: DestinationConfig, names: Sequence[str]) -> Iterator[PipelineProblem]:
    for name in names:
        try:
            address_of(destination.address, name)
        except ConfigError as error:
            yield PipelineProblem(destination.name, str(error))


def _listed(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
