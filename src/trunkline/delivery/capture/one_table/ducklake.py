"""Captures a DuckLake table: the net changes of each version are a transaction of the log.

Rules
 U1  A version's changes are read like delivery reads them: rows that were live before and not after it, and vice versa.
     Deletes come first. A deleted row has all its columns, so that a pipeline can route it by any of them.
 U2  The first transaction is a snapshot: a truncation, then every row as of one version.
 U3  If the changes cannot be read (expired versions, a column that gives old rows new values, another table with the
     same name, a lake restored from a backup), a new snapshot is captured, with a warning.
 U4  Versions that do not touch the table are skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

import msgspec
import pyarrow as pa
from msgspec import Struct

from trunkline.delivery.capture.one_table.capture_log import Transaction
from trunkline.delivery.changes.captured import change_rows, truncation
from trunkline.delivery.changes.columns import Columns
from trunkline.delivery.changes.rows import ROUTE_COLUMN, ChangeKind
from trunkline.delivery.changes.versions import BEFORE_ALL, Window
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.sources.contract import ALL_ROUTES, ReadRequest, SourceState, TableSurvey
from trunkline.delivery.sources.ducklake import DuckLakeSource
from trunkline.errors import ProtocolError, SourceExpired

logger = logging.getLogger(__name__)

REPLACED: Final = "another table has its name now"


class LakePosition(Struct, frozen=True, tag="ducklake", tag_field="kind"):
    table: str  # the identity of the table itself
    version: int
    mark: str = ""  # of that version (see ``lineage``); older releases did not store it


class LakeCapture:
    """The changes of one table after a position."""

    def __init__(self, address: LakeAddress) -> None:
        self._source = DuckLakeSource(address)
        self._position: LakePosition | None = None
        self._hint: object = None

    def reach(self) -> None:
        self._source.state(0)

    def begin(self, position: str | None) -> None:
        """Continue after a position that was read from a log; ``None``: with a snapshot."""
        self._position = self._hint = None
        if position is None:
            return
        try:
            self._position = msgspec.json.decode(position, type=LakePosition)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ProtocolError(
                f"the log holds the capture of another source ({position:.100}); use another log"
            ) from error

    def close(self) -> None:
        """Nothing stays open between two polls."""

    def transactions(self) -> Iterator[Transaction]:
        """All new transactions."""
        hint = self._source.change_hint()
        if hint is not None and hint == self._hint:
            return
        state = self._source.state(0 if self._position is None else self._position.version)
        if why := self._replaced(state):
            yield self._again(state, why)
        while self._position is None or self._position.version < state.version:
            transaction = self._following(state)
            if transaction is not None:
                yield transaction
        self._hint = hint

    def _replaced(self, state: SourceState) -> str:
        """Why the captured position is not in the table's present history; empty if it is."""
        held = self._position
        if held is None:
            return ""
        if held.table != state.identity:
            return REPLACED
        if state.version < held.version:
            return f"the lake was restored from a backup: it was at version {held.version} and is at {state.version}"
        return _restored(held, state.known_mark)

    def _following(self, state: SourceState) -> Transaction | None:
        held = self._position
        if held is None:
            return self._snapshot(state.version)
        window = Window(held.version, held.version + 1)
        try:
            survey = self._source.survey(window)
        except SourceExpired as error:
            return self._again(state, str(error))
        replaced = REPLACED if survey.identity != held.table else _restored(held, survey.after_mark)
        if why := survey.restated or replaced:
            return self._again(state, why)
        self._position = LakePosition(survey.identity, window.through, survey.mark)
        if survey.backlog.quiet and not survey.altered:
            return None
        return self._transaction(survey.columns, self._changes(window, _all_of(survey)))

    def _again(self, state: SourceState, why: str) -> Transaction:
        logger.warning("changes cannot be read (%s): all rows are captured again", why)
        return self._snapshot(state.version)

    def _snapshot(self, version: int) -> Transaction:
        survey = self._source.survey(Window(BEFORE_ALL, version))
        self._position = LakePosition(survey.identity, version, survey.mark)
        return self._transaction(survey.columns, self._rows(version, _all_of(survey)))

    def _transaction(self, columns: Columns, changes: Iterator[pa.Table]) -> Transaction:
        return Transaction(msgspec.json.encode(self._position).decode(), columns, changes)

    def _rows(self, version: int, request: ReadRequest) -> Iterator[pa.Table]:
        yield truncation(request.columns)
        for batch in self._source.scan(version, request, ALL_ROUTES):
            yield change_rows(ChangeKind.INSERT, pa.Table.from_batches([batch]).drop_columns([ROUTE_COLUMN]))

    def _changes(self, window: Window, request: ReadRequest) -> Iterator[pa.Table]:
        net = self._source.net_changes(window, request, ALL_ROUTES)
        for kind, rows in ((ChangeKind.DELETE, net.removed), (ChangeKind.INSERT, net.arrived)):
            if rows.num_rows:
                yield change_rows(kind, rows.drop_columns([ROUTE_COLUMN]))


def _restored(held: LakePosition, mark: str) -> str:
    """Why this is not the mark of the captured version; an unknown mark is accepted."""
    differs = held.mark and mark and held.mark != mark
    return f"the lake was restored from a backup: its version {held.version} has changed" if differs else ""


def _all_of(survey: TableSurvey) -> ReadRequest:
    columns = survey.columns
    return ReadRequest(columns, tuple(column.name for column in columns), columns[0].name, survey.mark)
