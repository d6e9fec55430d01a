"""What a window has to do for each table, made by the driver from the source's survey and the pipeline's settings.

Rules
 K1  A table without changes costs nothing: no task hears of it, unless a destination's tables commit alone.
 K2  An error of one table's settings names the table, and holds for every member: none is written without the others'
     tables.
 K3  A table that is left out from a window on (it lost its routing column) leaves like one that the source dropped. One
     that was left out until now joins: it is read whole. One that was left out all the time may go: no one had it.
 K4  A column that the settings name and that has another name now is an error: what they hide must not show. Of a table
     that is read whole no one knows how its columns became others: there, one that is hidden must not go.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from trunkline.delivery.changes.column_steps import check_names
from trunkline.delivery.changes.columns import Columns, check_columns
from trunkline.delivery.changes.history import check_history
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.config.address_rules import check_apart, commits_alone
from trunkline.delivery.config.addresses import Address
from trunkline.delivery.config.table_rules import TableSettings, settings_of, watched_columns
from trunkline.delivery.config.tree import Pipeline
from trunkline.delivery.job.work import TableWork, TaskDestination, TaskPipeline
from trunkline.delivery.shapes.projected_steps import check_shape_names
from trunkline.delivery.sources.contract import SourceTable, Survey, SurveyedTable
from trunkline.delivery.sources.table_set import ONE
from trunkline.errors import ConfigError, DestinationHalted, SourceExpired


class WindowTables(NamedTuple):
    """The tables of a window that have anything to do, and those that left."""

    tables: tuple[TableWork, ...]
    left: tuple[str, ...]
    quiet: tuple[TableWork, ...] = ()  # see ``FlushWork``

    @property
    def for_everyone(self) -> bool:
        """Whether every member is written, also one without rows (J3)."""
        return bool(self.left) or any(table.for_everyone for table in self.tables)


def window_tables(pipeline: TaskPipeline, survey: Survey, window: Window) -> WindowTables:
    """Raises ``ConfigError``, ``SourceExpired``, ``DestinationHalted``, each with the table's name."""
    rules = _rules(pipeline)
    earlier = _earlier(pipeline, survey, window)
    alone = any(commits_alone(target.address) for target in pipeline.targets)
    tables, quiet = list[TableWork](), list[TableWork]()
    left = [name for name in survey.left if name not in earlier or _delivered(rules, earlier[name])]
    for each in survey.tables:
        name, found = each.table.name, each.survey
        if found.restated:
            raise SourceExpired(f"{_of(name)}{found.restated}; the destination is seeded again")
        changed = found.altered or not (found.steps is None or found.steps.unchanged)
        if found.backlog.quiet and not changed and not each.whole:  # K1
            if (alone or not quiet) and (settings := _settings(rules, each.table)) is not None:
                quiet.append(_table_work(each, settings))
            continue
        before = _settings_before(rules, each) if changed and not each.whole else None
        if before is not None:
            _check_names(rules, each, before)
        if each.whole and name in earlier:
            _check_hidden(rules, earlier[name], each)
        had = before is not None or (each.whole and name in earlier and _delivered(rules, earlier[name]))
        settings = _settings(rules, each.table)
        if settings is None:
            left += [name] if had else []  # K3
            continue
        _check(pipeline, each, settings)
        late = changed and not each.whole and before is None
        joins = late or (each.whole and name != ONE and not had)
        tables.append(_table_work(each, settings, joins=joins, late=late, altered=changed))
    if left and rules.dropped_tables == "halt":
        raise DestinationHalted(
            f"the source no longer has the table {', '.join(left)} (dropped_tables: halt); create it again, or choose "
            "keep or drop, and resume the destination"
        )
    if any(table.joins for table in tables):
        check_addresses(pipeline.targets, [each.table.name for each in survey.tables])
    return WindowTables(tuple(tables), tuple(left), tuple(quiet))


def state_tables(pipeline: TaskPipeline, survey: Survey) -> tuple[TableWork, ...]:
    """Every table, for a seed. Raises ``ConfigError`` with the table's name."""
    rules = _rules(pipeline)
    tables = []
    for each in survey.tables:
        if (settings := _settings(rules, each.table)) is not None:
            _check(pipeline, each, settings)
            tables.append(_table_work(each, settings, joins=True))
    check_addresses(pipeline.targets, [table.name for table in tables])
    return tuple(tables)


def known_tables(pipeline: TaskPipeline) -> tuple[str, ...]:
    """The names of the delivered tables: records of destinations are found by them where there is no other way (T9),
    so a source that cannot tell them is an error."""
    if not _rules(pipeline).tables:
        return ("",)
    version = pipeline.source.state(0).version
    tables = pipeline.source.tables(version) if version else ()
    return tuple(table.name for table in tables if _delivered(_rules(pipeline), table))


def check_addresses(targets: Iterable[TaskDestination], names: Iterable[str]) -> None:
    """Raises ``ConfigError`` if two tables would have one address; destinations of one form are checked once."""
    forms: dict[object, Address] = {}
    for target in targets:
        texts = [getattr(target.address, field, None) or "" for field in ("schema", "table", "path")]
        uses = tuple(word in text for text in texts for word in ("{table}", "{schema}"))
        forms.setdefault((type(target.address), uses), target.address)
    listed = [name for name in names if name]
    for address in forms.values():
        check_apart(address, listed)


def _rules(pipeline: TaskPipeline) -> Pipeline:
    assert pipeline.rules is not None, "only the driver has them"
    return pipeline.rules


def _earlier(pipeline: TaskPipeline, survey: Survey, window: Window) -> dict[str, SourceTable]:
    """The set at the beginning of a window, by name, if anything there is needed: some table left, or is read whole."""
    if not survey.left and not any(each.whole and each.table.name != ONE for each in survey.tables):
        return {}
    return {table.name: table for table in pipeline.source.tables(window.after)}


def _delivered(rules: Pipeline, table: SourceTable) -> bool:
    try:
        return _settings(rules, table) is not None
    except ConfigError:
        return True  # it was not left out


def _check_hidden(rules: Pipeline, before: SourceTable, each: SurveyedTable) -> None:
    """K4, of a table that is read whole."""
    had, has = ({column.name for column in table.columns} for table in (before, each.table))
    for column in watched_columns(rules, each.table.name):
        if column in had - has:
            raise ConfigError(
                f"{_of(each.table.name)}column {column!r}, which `mask` or `columns.exclude` hides, was removed: "
                "write its new name in the pipeline's file, or remove it, and restart the deliverer, which seeds the "
                "destination again"
            )


def _settings(rules: Pipeline, table: SourceTable) -> TableSettings | None:
    return settings_of(rules, table.name, table.columns, table.key)


def _settings_before(rules: Pipeline, each: SurveyedTable) -> TableSettings | None:
    """As they were at the beginning of the window, as far as the source can tell; ``None``: it was left out."""
    steps = each.survey.steps
    columns: Columns = each.table.columns if steps is None else steps.before
    try:
        return settings_of(rules, each.table.name, columns, each.table.key)
    except ConfigError:
        return TableSettings((), "")  # it was not left out


def _check_names(rules: Pipeline, each: SurveyedTable, before: TableSettings) -> None:
    """Columns that the configuration names must not have other names now. One that routes may be dropped, if tables
    without it are left out (K3)."""
    name, steps = each.table.name, each.survey.steps
    if steps is None:
        return
    leaves = rules.without_routing_column == "leave_out" and before.routing and steps.now(before.routing) is None
    try:
        if before.shape is None:
            check_names(steps, before.key, "" if leaves else before.routing)
        else:
            check_shape_names(before.shape, steps)
            sources = {new: old for old, new in before.shape.rename.items()}
            key = [sources.get(name, name) for name in before.key]
            check_names(steps, key, "" if leaves else sources.get(before.routing, before.routing))
    except ConfigError as error:
        raise ConfigError(f"{_of(name)}{error}") from None


def _check(pipeline: TaskPipeline, each: SurveyedTable, settings: TableSettings) -> None:
    """Raises ``ConfigError`` for columns that cannot be delivered (K2): the source's may change at any time."""
    try:
        if settings.shape is None:
            check_columns(each.survey.columns, settings.key, settings.routing or None)
        work = _table_work(each, settings)
        delivered = work.shaped.columns
        if any(target.policy(work).mode == "history" for target in pipeline.targets):
            check_history(delivered)
    except ConfigError as error:
        raise ConfigError(f"{_of(each.table.name)}{error}") from None


def _table_work(
    each: SurveyedTable, settings: TableSettings, *, joins: bool = False, late: bool = False, altered: bool = False
) -> TableWork:
    return TableWork(
        name=each.table.name,
        columns=each.survey.columns,
        key=settings.key,
        routing=settings.routing,
        identity=each.survey.identity,
        mode=settings.mode,
        duplicates=settings.duplicates,
        shape=settings.shape,
        whole=each.whole or joins,
        joins=joins,
        late=late,
        steps=None if each.whole or joins else each.survey.steps,
        altered=altered,
        mark=each.survey.mark,
        size_bytes=each.survey.backlog.size_bytes,
    )


def _of(name: str) -> str:
    return f"table {name}: " if name else ""
