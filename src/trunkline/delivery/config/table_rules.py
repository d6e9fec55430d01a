"""The settings of each table of a pipeline, as its entry of ``tables`` and the pipeline itself have them.

Rules
 R1  The entry that counts for a table wins over the pipeline. Its ``key``, ``routing``, ``mode``, ``duplicates``,
     ``columns`` and ``filter`` replace those of the pipeline; to ``mask`` and ``computed`` it adds, so that no entry
     uncovers a column that the pipeline masks, unless it names that column itself.
 R2  ``columns`` and ``mask`` of the pipeline are about every table of a set: a column that a table lacks is passed
     over. What an entry, or a pipeline of one table, names must be there. A column whose name differs from it in case
     only is refused, unless the entry names it: what a mask hides in one table must not show in another.
 R3  ``key`` and ``routing`` name columns as the destinations have them: renamed and computed ones, too. Routing may
     also be by a column of the source that is not delivered. A primary key of the source follows ``rename``.
 R4  Every error names the table, the entry with its line, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from trunkline.config import ENVIRONMENT
from trunkline.delivery.changes.columns import Column
from trunkline.delivery.changes.rows import DuplicatePolicy, Mode
from trunkline.delivery.changes.shape import Mask, Shape, secret_mark
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.config.table_patterns import Selection, exact_name
from trunkline.delivery.config.tree import ColumnsConfig, Pipeline, TableConfig
from trunkline.errors import ConfigError

NO_COLUMNS: Final = ColumnsConfig()
EVERY_ROW: Final = "true"  # as a filter


class TableSettings(Struct, frozen=True):
    """How one table is delivered."""

    key: tuple[str, ...]  # names in the destinations, after the shape
    routing: str  # a name in the destinations, or of the source; empty: none, every destination takes every row
    mode: Mode | None = None  # None: that of each destination
    duplicates: DuplicatePolicy | None = None  # None: that of each destination
    shape: Shape | None = None


def selection_of(pipeline: Pipeline) -> Selection | None:
    """Which tables of its source a pipeline delivers; ``None``: the source is one table."""
    if not pipeline.tables:
        return None
    schema = pipeline.source.schema if isinstance(pipeline.source, LakeAddress) else "public"
    return Selection(tuple(each.table for each in pipeline.tables), schema)


def settings_of(
    pipeline: Pipeline, name: str, columns: Sequence[Column], primary_key: Sequence[str]
) -> TableSettings | None:
    """``None``: the table is left out. Raises ``ConfigError`` that names it."""
    entry = None
    if (selection := selection_of(pipeline)) is not None:
        if (number := selection.entry(name)) is None:
            return None
        entry = pipeline.tables[number]
    names = [column.name for column in columns]
    _check_named(pipeline, entry, name, names)
    shape = _shape(pipeline, entry, names)
    delivered = _delivered(shape, names)
    routing = _routing(pipeline, entry)
    if routing and routing not in (*names, *delivered):
        if entry is not None and pipeline.without_routing_column == "leave_out":
            return None
        remedy = ' name its own with `routing`, leave it out with "!", or set without_routing_column: leave_out'
        raise _refusal(pipeline, name, f"has no routing column {routing!r};{remedy if entry else _has(delivered)}")
    key = (entry.key if entry is not None else ()) or pipeline.key
    if not key and primary_key:
        key = tuple(column if shape is None else shape.rename.get(column, column) for column in primary_key)
    for column in key:
        if column not in delivered:
            raise _refusal(pipeline, name, f"has no key column {column!r} in the destinations;{_has(delivered)}")
    mode = None if entry is None else entry.mode
    if not key and (keyed := next((each for each in _modes(pipeline, mode) if each != "append"), None)):
        raise _refusal(
            pipeline,
            name,
            f"has no primary key that the source records, and mode {keyed} needs one; list the columns that identify a "
            "row as its `key`, or give it mode: append",
        )
    return TableSettings(key, routing, mode, None if entry is None else entry.duplicates, shape)


def _check_named(pipeline: Pipeline, entry: TableConfig | None, name: str, names: Sequence[str]) -> None:
    """R2."""
    if missing := [each for each in _required(pipeline, entry) if each not in names]:
        what = "which the entry names" if entry is not None else "which the file names"
        raise _refusal(pipeline, name, f"has no column {missing[0]!r}, {what};{_has(names)}")
    if entry is not None:
        _check_case(pipeline, entry, name, names)
    wanted = _columns(pipeline, entry).include
    if wanted and not any(each in names for each in wanted):
        raise _refusal(pipeline, name, f"has none of the columns of columns.include;{_has(names)}")


def _check_case(pipeline: Pipeline, entry: TableConfig, name: str, names: Sequence[str]) -> None:
    """R2, of the columns that the pipeline names for every table."""
    columns = (pipeline.columns if entry.columns is None else None) or NO_COLUMNS
    listed = {"columns.include": columns.include, "columns.exclude": columns.exclude}
    listed |= {"columns.rename": tuple(columns.rename), "mask": tuple(pipeline.mask)}
    own = frozenset(_required(pipeline, entry))
    folded = {each.lower(): each for each in names if each not in own}
    for where, wanted in listed.items():
        for each in wanted:
            if each not in names and (other := folded.get(each.lower())) is not None:
                raise _refusal(
                    pipeline,
                    name,
                    f"has the column {other!r}, and {where} of the pipeline is about {each!r}, which differs in case "
                    f"only; name {other!r} in {where} of an entry of its own, or leave the table out",
                )


def _delivered(shape: Shape | None, names: Sequence[str]) -> list[str]:
    """The columns of the destinations."""
    if shape is None:
        return list(names)
    kept = [name for name in names if name not in shape.exclude and (not shape.include or name in shape.include)]
    return [*(shape.rename.get(name, name) for name in kept), *shape.computed]


def spot(pipeline: Pipeline, name: str) -> str:
    """Where the settings of a table are: the entry that counts for it, or nothing."""
    selection = selection_of(pipeline)
    number = None if selection is None else selection.entry(name)
    return "" if number is None else f"tables[{number}] (line {pipeline.tables[number].line})"


def watched_columns(pipeline: Pipeline, name: str) -> tuple[str, ...]:
    """Columns by whose names the pipeline hides values or rows. If the source renames one, R2 passes over it, and what
    it hid would show: the table has to halt instead."""
    selection = selection_of(pipeline)
    number = None if selection is None else selection.entry(name)
    entry = None if number is None else pipeline.tables[number]
    chosen = _columns(pipeline, entry)
    return tuple(dict.fromkeys([*_masks(pipeline, entry), *chosen.exclude]))


def named_columns(pipeline: Pipeline, name: str) -> tuple[str, ...]:
    """Columns of a table that the file delivers by name."""
    selection = selection_of(pipeline)
    number = None if selection is None else selection.entry(name)
    chosen = _columns(pipeline, None if number is None else pipeline.tables[number])
    return (*chosen.include, *chosen.rename)


def hides_anything(pipeline: Pipeline) -> bool:
    """Whether values, columns or rows of any table are not delivered as they are."""
    parts: list[Pipeline | TableConfig] = [pipeline, *pipeline.tables]
    chosen = [each.columns or NO_COLUMNS for each in parts]
    return any(each.mask or each.filter is not None for each in parts) or any(
        each.exclude or each.include for each in chosen
    )


def newly_shown(pipeline: Pipeline, old: str, new: str, names: Sequence[str]) -> str:
    """What the entry that counts for one name of a table hides of these columns, and that for another one does not;
    empty: nothing."""
    selection = selection_of(pipeline)
    numbers = (None, None) if selection is None else (selection.entry(old), selection.entry(new))
    if numbers[0] is None or numbers[1] is None or numbers[0] == numbers[1]:
        return ""
    before, now = (pipeline.tables[number] for number in numbers if number is not None)
    hidden = _shown(pipeline, now, names) - _shown(pipeline, before, names)
    if hidden:
        return f"column {min(hidden)!r}"
    filtered, filters = (pipeline.filter if each.filter is None else each.filter for each in (before, now))
    return "rows by its `filter`" if filtered not in (None, EVERY_ROW, filters) else ""


def names_alone(pipeline: Pipeline, name: str) -> bool:
    """Whether the entry that counts for a table can be about no other."""
    selection = selection_of(pipeline)
    number = None if selection is None else selection.entry(name)
    return selection is not None and number is not None and exact_name(selection.patterns[number]) is not None


def _shown(pipeline: Pipeline, entry: TableConfig, names: Sequence[str]) -> frozenset[str]:
    """Columns whose values are delivered as they are."""
    chosen, masks = _columns(pipeline, entry), _masks(pipeline, entry)
    wanted = (name for name in names if not chosen.include or name in chosen.include)
    return frozenset(name for name in wanted if name not in chosen.exclude and name not in masks)


def is_shaped(pipeline: Pipeline) -> bool:
    """Whether any table is delivered otherwise than it is in the source."""
    parts: list[Pipeline | TableConfig] = [pipeline, *pipeline.tables]
    return any(each.columns or each.filter is not None or each.mask or each.computed for each in parts)


def _refusal(pipeline: Pipeline, name: str, what: str) -> ConfigError:
    if not name:
        return ConfigError(f"the source's table {what}")
    return ConfigError(f"{spot(pipeline, name)}: table {name} {what}")


def _has(names: Sequence[str]) -> str:
    return f" it has {', '.join(names)}"


def _routing(pipeline: Pipeline, entry: TableConfig | None) -> str:
    if pipeline.routing is None:
        return ""
    return (entry.routing if entry is not None else None) or pipeline.routing.column


def _modes(pipeline: Pipeline, mode: Mode | None) -> Iterator[Mode]:
    """Of a table, in all destinations."""
    if mode is not None:
        yield mode
        return
    yield from (each.mode for each in pipeline.destinations)
    if pipeline.discover is not None:
        yield pipeline.discover.template.mode


def _columns(pipeline: Pipeline, entry: TableConfig | None) -> ColumnsConfig:
    return (entry.columns if entry is not None else None) or pipeline.columns or NO_COLUMNS


def _masks(pipeline: Pipeline, entry: TableConfig | None) -> Mapping[str, Mask]:
    return pipeline.mask | (entry.mask if entry is not None else {})


def _required(pipeline: Pipeline, entry: TableConfig | None) -> Iterator[str]:
    """The columns that must be there (R2)."""
    owner = entry if entry is not None else pipeline
    columns = owner.columns or NO_COLUMNS
    yield from (*columns.include, *columns.exclude, *columns.rename, *owner.mask)


def _shape(pipeline: Pipeline, entry: TableConfig | None, names: Sequence[str]) -> Shape | None:
    own = entry if entry is not None else pipeline
    columns = _columns(pipeline, entry)
    kept = [name for name in names if name not in columns.exclude and (not columns.include or name in columns.include)]
    masks = {name: mask for name, mask in _masks(pipeline, entry).items() if name in kept}
    hashes = any(mask.kind == "hash" for mask in masks.values())
    secret_env = (own.mask_secret_env or pipeline.mask_secret_env) if hashes else None
    secret = ENVIRONMENT.get(secret_env or "", "").encode("utf-8", "surrogateescape")
    shape = Shape(
        include=tuple(name for name in columns.include if name in names),
        exclude=tuple(name for name in columns.exclude if name in names),
        rename={old: new for old, new in columns.rename.items() if old in kept},
        filter=pipeline.filter if own.filter is None else own.filter,
        mask=masks,
        computed=pipeline.computed | own.computed,
        secret_env=secret_env,
        secret_mark=secret_mark(secret) if secret else "",
    )
    return None if shape == Shape() else shape
