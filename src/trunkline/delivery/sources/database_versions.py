"""Every version of rows in a window of the log of a database, for mode history.

The changes of the window are enough, unless a truncation removes rows that were there before it, or an update did not
state a value that is older than the window. Then the states before the window are read, too: the tables' whole history
in the log. If the log was trimmed, a truncated table is compared at the end of the window (E6 of ``history``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trunkline.delivery.changes.history import VersionedChanges
from trunkline.delivery.changes.row_versions import versions_of_net
from trunkline.delivery.changes.rows import NetChanges
from trunkline.delivery.changes.table_changes import TableHistory
from trunkline.delivery.changes.table_versions import versions_of_table
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.sources.contract import ReadRequest
from trunkline.delivery.sources.database_cursor import DatabaseCursor
from trunkline.delivery.sources.database_rows import TablesRead, read_window, read_window_after_states
from trunkline.errors import DestinationHalted

Fitting = Callable[[TableHistory, ReadRequest], TableHistory]  # raises if the columns are not those of the request


def read_versions(
    cursor: DatabaseCursor, window: Window, requests: Mapping[str, ReadRequest], fitting: Fitting
) -> dict[str, VersionedChanges]:
    found = read_window(cursor, window, requests, versions=True)
    made: dict[str, VersionedChanges] = {}
    lacking: list[str] = []
    for name, request in requests.items():
        if name not in found.histories:
            nothing = request.empty_rows()
            made[name] = versions_of_net(NetChanges(nothing, nothing), request.columns, window.through, None)
            continue
        fitting(found.histories[name], request)
        if name not in found.spans:
            made[name] = _replaced(found, name, request, window)
        elif (versions := _versions(found, name, request, known=False)) is not None:
            made[name] = versions
        else:
            lacking.append(name)
    again = read_window_after_states(cursor, window, lacking) if lacking else None
    for name in lacking:
        if again is not None:
            versions = _versions(again, name, requests[name], known=True)
            assert versions is not None, "the state before a window has all values"
            made[name] = versions
        elif name in found.emptied:
            made[name] = _replaced(found, name, requests[name], window)
        else:
            raise DestinationHalted(
                f"an update of {name} did not state all values of its row, and the log was trimmed, so that it no "
                "longer has them; give the table REPLICA IDENTITY FULL, then run `trunkline capture resnapshot`"
            )
    return made


def _versions(found: TablesRead, name: str, request: ReadRequest, *, known: bool) -> VersionedChanges | None:
    given = (request.columns, request.key, request.routing)
    return versions_of_table(found.spans[name], found.commits, *given, known=known)


def _replaced(found: TablesRead, name: str, request: ReadRequest, window: Window) -> VersionedChanges:
    """The whole table, to be compared."""
    net = found.histories[name].whole(request.columns, request.key, request.routing)
    return versions_of_net(net, request.columns, window.through, found.commits.last_us)
