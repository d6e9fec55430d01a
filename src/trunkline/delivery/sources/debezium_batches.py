"""Debezium events as tables of changes: events with the same columns become one Arrow table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from trunkline.client.entries import Entry
from trunkline.delivery.changes.net import filled
from trunkline.delivery.changes.rows import KIND_COLUMN, ORDINAL_COLUMN, ROUTE_COLUMN, VERSION_COLUMN, ChangeKind
from trunkline.delivery.config.addresses import LogAddress
from trunkline.delivery.sources.contract import ReadRequest
from trunkline.delivery.sources.dead_letters import DeadLetter
from trunkline.delivery.sources.debezium import (
    REASON_LETTERS,
    EventChange,
    EventRow,
    arrow_rows,
    changes_of,
    event_schema,
    parse_event,
)
from trunkline.delivery.sources.debezium_values import EventSchema, declared_schema
from trunkline.errors import ProtocolError

PlacedChange = tuple[int, int, ChangeKind, EventRow | None]  # the position of its entry, its number there, the change


class EventBatches:
    """The events of one window. Malformed ones are collected as dead letters."""

    def __init__(self, address: LogAddress, request: ReadRequest) -> None:
        self._request = request
        self._declared = declared_schema(address.columns) if address.columns else None
        self._schema: EventSchema | None = None  # of the events that wait
        self._waiting: list[tuple[Entry, list[EventChange]]] = []
        self._tables: list[pa.Table] = []
        self._malformed: list[DeadLetter] = []

    def add(self, entry: Entry) -> None:
        try:
            event = parse_event(entry.payload) if entry.payload else None
            schema = self._schema_of(event)
            changes = changes_of(event, schema, self._request)
        except ProtocolError as error:
            self._put_aside(entry, str(error))
            return
        except MemoryError:
            raise  # not the fault of the event
        except Exception as error:  # whatever an event holds, it does not stop others
            self._put_aside(entry, f"it cannot be read, which is a bug of Trunkline: {error!r}")
            return
        if not changes:
            return
        if schema is not None and schema != self._schema:
            self._settle()
            self._schema = schema
        self._waiting.append((entry, changes))

    def _put_aside(self, entry: Entry, reason: str) -> None:
        self._malformed.append(DeadLetter(entry.glsn, reason[:REASON_LETTERS], entry.payload))

    def _schema_of(self, event: Any) -> EventSchema | None:
        """The declared columns with the encodings of the event's schema; without declared columns, the event's schema.

        Other events do not matter: an event has the same meaning in every window.
        """
        stated = event_schema(event)
        if self._declared is None or stated is None:
            return stated if self._declared is None else self._declared
        return EventSchema(self._declared.columns, {**self._declared.encodings, **stated.encodings})

    def finished(self) -> tuple[list[pa.Table], list[DeadLetter]]:
        self._settle()
        return self._tables, sorted(self._malformed, key=lambda letter: letter.glsn)

    def _settle(self) -> None:
        """If a value does not fit, each event is tried separately to find the malformed ones."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        try:
            self._tables.append(self._table(waiting))
        except ProtocolError:
            for one in waiting:
                try:
                    self._tables.append(self._table([one]))
                except ProtocolError as error:
                    self._put_aside(one[0], str(error))

    def _table(self, events: list[tuple[Entry, list[EventChange]]]) -> pa.Table:
        columns = self._request.columns if self._schema is None else self._schema.columns  # None: truncations alone
        flat: list[PlacedChange] = [
            (entry.glsn, index, *change) for entry, changes in events for index, change in enumerate(changes)
        ]
        rows = arrow_rows([row for _, _, _, row in flat], columns)
        names = [column.name for column in self._request.columns if column.name in rows.column_names]
        if not set(self._request.routings) <= set(rows.column_names):
            raise ProtocolError(f"the routing column {self._request.routing!r} is missing")
        try:
            return self._fitted(flat, rows, names)
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise ProtocolError(f"values do not fit the newest columns: {error}"[:REASON_LETTERS]) from error

    def _fitted(self, flat: list[PlacedChange], rows: pa.Table, names: list[str]) -> pa.Table:
        routing = self._request.routing
        marked = {
            VERSION_COLUMN: pa.array(np.array([each[0] for each in flat], np.int64)),
            ORDINAL_COLUMN: pa.array(np.array([each[1] for each in flat], np.int64)),
            KIND_COLUMN: pa.array([each[2].value for each in flat], pa.string()),
            ROUTE_COLUMN: rows.column(routing).cast(pa.string()) if routing else pa.nulls(len(flat), pa.string()),
            **{name: rows.column(name) for name in names},
        }
        table = pa.table(marked)
        wanted = self._request.empty_rows().schema
        fields = [table.schema.field(name) for name in (VERSION_COLUMN, ORDINAL_COLUMN, KIND_COLUMN)]
        return filled(table, pa.schema([*fields, *wanted]))
