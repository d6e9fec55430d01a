"""A table as destinations see it: a shape applied to the rows of both ends of a window, before routing and keys.

Rules
 D1  The projection and the predicate are deterministic and applied to removed and arrived rows alike. So what a window
     removes and adds after shaping is the difference of the two shaped states.
 D2  A row for which the filter is false or NULL is not delivered. Expressions of computed columns are evaluated only on
     rows that pass it.
 D3  Removed rows have at least the source columns that key and route are made of. Without the columns of the filter
     they pass unfiltered: the state of a mirror is right all the same, but keys that it does not hold are removed
     (``exact`` is false).
 D4  A value that an update did not state stays unstated, and the destination keeps its own, also a hash of it. A
     destination has no row to keep it from if the row was filtered out before; and no expression can use it. Such rows
     must be whole before they are shaped (``needs_whole_rows``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trunkline.delivery.changes.column_steps import ColumnSteps
from trunkline.delivery.changes.columns import Columns, arrow_schema, arrow_type
from trunkline.delivery.changes.history import (
    TIME_COLUMN,
    WHOLE_COLUMN,
    VersionedChanges,
    arrived_schema,
    removed_schema,
)
from trunkline.delivery.changes.net import filled
from trunkline.delivery.changes.rows import (
    ORDINAL_COLUMN,
    ORIGIN_COLUMN,
    ROUTE_COLUMN,
    UNCHANGED_COLUMN,
    VERSION_COLUMN,
    NetChanges,
)
from trunkline.delivery.changes.shape import Shape
from trunkline.delivery.shapes.evaluation import evaluated
from trunkline.delivery.shapes.masks import hashed, mask_secret
from trunkline.delivery.shapes.plan import PlannedColumn, ShapePlan, planned
from trunkline.delivery.shapes.projected_steps import projected_steps
from trunkline.delivery.sources.contract import ReadRequest
from trunkline.errors import ConfigError

CACHED_MAX: Final = 2_000  # tables with their shapes; more: memory, fewer: expressions are bound again
MARKS: Final = (UNCHANGED_COLUMN, ORIGIN_COLUMN)


def check_shape(shape: Shape | None, columns: Columns, key: Sequence[str], routing: str) -> list[str]:
    """Every problem, with the name of the part that has it. ``routing``: empty if there is none."""
    return [] if shape is None else planned(shape, columns, key, routing)[1]


def shaped_table(shape: Shape | None, columns: Columns, key: Sequence[str], routing: str) -> ShapedTable:
    """``columns``: of the source. Raises ``ConfigError`` with every problem. Shaped tables are kept."""
    encoded = b"" if shape is None else msgspec.msgpack.encode(shape)
    return _shaped(encoded, columns, tuple(key), routing)


@lru_cache(CACHED_MAX)
def _shaped(encoded: bytes, columns: Columns, key: tuple[str, ...], routing: str) -> ShapedTable:
    if not encoded:
        return ShapedTable(None, columns, key, routing, None)
    shape = msgspec.msgpack.decode(encoded, type=Shape)
    plan, problems = planned(shape, columns, key, routing)
    if plan is None:
        raise ConfigError("; ".join(problems))
    return ShapedTable(shape, columns, key, routing, plan)


class ShapedTable:
    """Made by ``shaped_table``."""

    def __init__(
        self, shape: Shape | None, source: Columns, key: tuple[str, ...], routing: str, plan: ShapePlan | None
    ) -> None:
        self.key = key  # names in the destination's table
        self._shape = shape
        self._source = source
        self._routing = routing
        self._plan = plan
        self._of_source = {column.name: column for column in source}

    @property
    def columns(self) -> Columns:
        """Of the destination's table."""
        return self._source if self._plan is None else tuple(each.column for each in self._plan.columns)

    @property
    def computes_route(self) -> bool:
        """The source does not know the routes: read its rows under ``ALL_ROUTES``."""
        return self._plan is not None and self._plan.route is not None

    @property
    def one_to_one(self) -> bool:
        """Rows have equal keys here if, and only if, their keys and routes in the source are equal."""
        return not self.computes_route and (
            self._plan is None or all(each.expression is None for each in self._plan.key)
        )

    # ------------------------------------------------------------------------------------------------------- the source

    def request(self, mark: str = "", *, whole: bool = False) -> ReadRequest:
        """What to read of the source. ``whole``: removed rows with all values, where the source has them."""
        plan = self._plan
        if plan is None:
            also = tuple(column.name for column in self._source if column.name not in self.key) if whole else ()
            return ReadRequest(self._source, self.key, self._routing, mark, also if self.key else ())
        condition = plan.filter.inputs if plan.filter else ()
        identity = _unique([*plan.key, *([plan.route] if plan.route and plan.key else [])])
        needed = {*_unique(plan.columns), *condition, *identity, plan.routing}
        columns = tuple(column for column in self._source if column.name in needed)
        wanted = [column.name for column in columns] if whole else condition
        also = tuple(name for name in wanted if name not in identity) if plan.key else ()
        return ReadRequest(columns, identity, plan.routing, mark, also)

    def exact(self, net: NetChanges) -> bool:
        """Whether the predicate was evaluated on removed rows, too (D3); else set ``counts_missing`` to false."""
        return not net.removed.num_rows or self._filters(net.removed)

    def _filters(self, removed: pa.Table) -> bool:
        condition = None if self._plan is None else self._plan.filter
        return condition is None or set(condition.inputs) <= set(removed.column_names)

    def needs_whole_rows(self, net: NetChanges) -> bool:
        """Whether arrived rows have to be looked up before they are shaped (D4)."""
        if self._plan is None or UNCHANGED_COLUMN not in net.arrived.column_names:
            return False
        unchanged = net.arrived.column(UNCHANGED_COLUMN)
        if unchanged.null_count == len(unchanged):
            return False
        if self._plan.filter is not None or self.computes_route:
            return True
        lacking = np.flatnonzero(self._unstated(unchanged).any(axis=0))
        names = {self.request().columns[place].name for place in lacking.tolist()}
        return any(not names.isdisjoint(each.inputs) for each in self._plan.columns if each.expression is not None)

    # ------------------------------------------------------------------------------------------------------------- rows

    def net(self, net: NetChanges) -> NetChanges:
        """Net changes of ``request`` as net changes of the destination's table. Raises ``DestinationHalted``."""
        if self._plan is None:
            return net
        removed = self._projected(net.removed, self._plan.key, filtered=self._filters(net.removed))
        return NetChanges(removed, self._arrived(net.arrived), net.emptied)

    def versions(self, changes: VersionedChanges) -> VersionedChanges:
        """Versions of ``request(whole=True)`` as versions of the destination's table. Removed rows that are not whole
        pass unfiltered (D3). Raises ``DestinationHalted``."""
        plan = self._plan
        if plan is None:
            return changes
        whole = changes.removed.column(WHOLE_COLUMN)
        known, rest = changes.removed.filter(whole), changes.removed.filter(pc.invert(whole))
        schema = removed_schema(self.columns)
        parts = [self._placed(self._passed(known), plan.columns, schema), self._placed(rest, plan.key, schema)]
        arrived = self._placed(self._passed(changes.arrived), plan.columns, arrived_schema(self.columns))
        return VersionedChanges(pa.concat_tables(parts), arrived, changes.emptied)

    def _placed(self, rows: pa.Table, wanted: Sequence[PlannedColumn], schema: pa.Schema) -> pa.Table:
        """Rows of versions that passed the filter, projected."""
        found = self._projected(rows, wanted, filtered=False)
        for name in (VERSION_COLUMN, ORDINAL_COLUMN, TIME_COLUMN, WHOLE_COLUMN):
            if name in rows.column_names:
                found = found.append_column(name, rows.column(name))
        return filled(found, schema)

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows of a state, or arrived ones, with ROUTE_COLUMN. Raises ``DestinationHalted``."""
        for batch in batches:
            if self._plan is None:
                yield batch
            else:
                yield from self._arrived(pa.Table.from_batches([batch])).to_batches()

    def removals(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Removed rows, with ROUTE_COLUMN and the key. Raises ``DestinationHalted``."""
        for batch in batches:
            if self._plan is None:
                yield batch
                continue
            rows = pa.Table.from_batches([batch])
            yield from self._projected(rows, self._plan.key, filtered=self._filters(rows)).to_batches()

    def steps(self, steps: ColumnSteps | None) -> ColumnSteps | None:
        """Steps of the source's columns as steps of the destination's. Raises ``ConfigError`` if the shape names a
        column that has another name now (call ``check_shape_names`` before this table is made, for a message that has
        the name), ``SourceExpired`` if old rows would have other values now."""
        if steps is None or self._shape is None or self._plan is None:
            return steps
        return projected_steps(self._shape, self._plan, steps)

    # --------------------------------------------------------------------------------------------------- the projection

    def _arrived(self, rows: pa.Table) -> pa.Table:
        assert self._plan is not None
        rows = self._passed(rows)
        found = self._projected(rows, self._plan.columns, filtered=False)
        if UNCHANGED_COLUMN not in rows.column_names:
            return found
        marks = self._marks(rows)
        return found if marks is None else pa.table([*found.columns, *marks], names=[*found.column_names, *MARKS])

    def _passed(self, rows: pa.Table) -> pa.Table:
        """D2."""
        assert self._plan is not None
        condition = self._plan.filter
        if condition is None:
            return rows
        passes = evaluated([condition], ["BOOLEAN"], self._source, rows, self._hidden)[0]
        return rows.filter(pc.fill_null(passes, False))

    @cached_property
    def _hidden(self) -> tuple[str, ...]:
        return () if self._plan is None else tuple(self._plan.hides)

    def _projected(self, rows: pa.Table, wanted: Sequence[PlannedColumn], *, filtered: bool) -> pa.Table:
        """ROUTE_COLUMN and some columns of the destination."""
        assert self._plan is not None
        if filtered:
            rows = self._passed(rows)
        route = self._plan.route
        made = list(wanted) if route is None or route in wanted else [*wanted, route]
        computed = [each for each in made if each.expression is not None]
        values = evaluated(
            [each.expression for each in computed if each.expression is not None],
            [each.column.type for each in computed],
            self._source,
            rows,
            self._hidden,
        )
        by_name = {each.column.name: value for each, value in zip(computed, values, strict=True)}
        by_name |= {each.column.name: self._value(each, rows) for each in made if each.expression is None}
        routes = rows.column(ROUTE_COLUMN) if route is None else by_name[route.column.name].cast(pa.string())
        schema = pa.schema([pa.field(ROUTE_COLUMN, pa.string()), *arrow_schema([each.column for each in wanted])])
        return pa.table([routes, *(by_name[each.column.name] for each in wanted)], schema=schema)

    def _value(self, planned_column: PlannedColumn, rows: pa.Table) -> pa.ChunkedArray:
        """Of a column that is not computed."""
        source, mask, kind = planned_column.source, planned_column.mask, arrow_type(planned_column.column)
        assert source is not None
        assert self._plan is not None
        if mask is None:
            return rows.column(source.name).cast(kind)
        if mask.kind == "hash":
            return hashed(rows.column(source.name), source.type, mask_secret(self._plan.secret_env))
        if mask.kind == "null":
            return pa.chunked_array([pa.nulls(rows.num_rows, kind)], kind)
        return pa.chunked_array([pa.repeat(planned_column.constant, rows.num_rows)], kind)

    # -------------------------------------------------------------------------------------------------- unstated values

    def _unstated(self, unchanged: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
        """For each row and source column of ``request``, whether its value is not stated."""
        count = len(self.request().columns)
        width = -(-count // 8)
        raw = b"".join(bytes(width) if each is None else each for each in unchanged.to_pylist())
        bits = np.unpackbits(np.frombuffer(raw, np.uint8).reshape(-1, width), axis=1, bitorder="little")
        return bits[:, :count].astype(np.bool_)

    def _marks(self, rows: pa.Table) -> list[pa.Array] | None:
        """UNCHANGED_COLUMN and ORIGIN_COLUMN for the destination's columns; ``None``: all values are stated."""
        assert self._plan is not None
        places = {column.name: place for place, column in enumerate(self.request().columns)}
        lacking = self._unstated(rows.column(UNCHANGED_COLUMN))
        lacks = np.zeros((rows.num_rows, len(self._plan.columns)), np.bool_)
        for place, each in enumerate(self._plan.columns):
            for name in each.inputs:
                lacks[:, place] |= lacking[:, places[name]]
            if each.expression is not None and lacks[:, place].any():
                raise AssertionError(f"{each.expression.name} needs values that an update did not state")
        partial: npt.NDArray[np.bool_] = np.asarray(lacks.any(axis=1), np.bool_)
        if not partial.any():
            return None
        packed = np.packbits(lacks, axis=1, bitorder="little")
        unchanged = [bits.tobytes() if some else None for bits, some in zip(packed, partial, strict=True)]
        return [pa.array(unchanged, pa.binary()), self._origins(rows, partial)]

    def _origins(self, rows: pa.Table, partial: npt.NDArray[np.bool_]) -> pa.Array:
        """Routes and keys of rows that have the unstated values, as the destination knows them."""
        assert self._plan is not None
        given = rows.column(ORIGIN_COLUMN).combine_chunks().filter(pa.array(partial))
        held = pa.table(
            [given.field(place) for place in range(given.type.num_fields)], names=[field.name for field in given.type]
        )
        keys = self._projected(held, self._plan.key, filtered=False)
        at = np.full(rows.num_rows, -1, np.int64)
        at[partial] = np.arange(int(partial.sum()))
        taken = keys.take(pa.array(at, mask=~partial)).combine_chunks()
        return pa.StructArray.from_arrays(
            [column.chunk(0) if column.num_chunks else pa.nulls(0, column.type) for column in taken.columns],
            fields=list(taken.schema),
            mask=pa.array(~partial),
        )


def _unique(columns: Sequence[PlannedColumn]) -> tuple[str, ...]:
    """The source columns that these depend on."""
    return tuple(dict.fromkeys(name for each in columns for name in each.inputs))
