"""Which files of a DuckLake's tables a window is about, by its catalog: of one table, or of many with one query."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from trunkline.delivery.changes.versions import Window

Rows = list[tuple[Any, ...]]
DATA: Final = """SELECT table_id, data_file_id, path, path_is_relative, begin_snapshot, end_snapshot, record_count,
    file_size_bytes, partial_max, encryption_key, mapping_id FROM {ducklake_data_file} WHERE """
DELETES: Final = """SELECT table_id, data_file_id, path, path_is_relative, begin_snapshot, end_snapshot, partial_max,
    delete_file_id, delete_count, format FROM {ducklake_delete_file} WHERE """


class WindowFiles:
    """``rows`` runs a query in which ``{name}`` stands for a catalog table, always in the same transaction."""

    def __init__(self, rows: Callable[[str], Rows]) -> None:
        self._rows = rows
        self._data: dict[tuple[Window, int], Rows] = {}  # of a table
        self._deletes: dict[tuple[Window, int], Rows] = {}

    def load(self, window: Window, tables: Collection[int], new_files: int) -> None:
        """Read the files of many tables at once."""
        if not tables:
            return
        here = f"table_id IN ({_listed(tables)}) AND {_alive_in(window)}"
        touching = f"(begin_snapshot > {window.after} OR delete_file_id >= {new_files})"
        touched = f"SELECT data_file_id FROM {{ducklake_delete_file}} WHERE {here} AND {touching}"
        for known, query in (
            (self._data, f"{DATA}{here} AND {_changed(window, new_files, touched)} ORDER BY data_file_id"),
            (self._deletes, f"{DELETES}{here} ORDER BY delete_file_id"),
        ):
            known |= {(window, table): [] for table in tables}
            for table, *row in self._rows(query):
                known[window, table].append(tuple(row))

    def data(self, table: int, window: Window, new_files: int, touched: Sequence[int]) -> Rows:
        """The data files at either end of a window that began, ended or were written in it, and those ``touched``."""
        if (window, table) not in self._data:
            return self._read(DATA, table, window, f" AND {_changed(window, new_files, _listed(touched))}")
        found = self._data[window, table]
        if missing := set(touched) - {row[0] for row in found}:  # by deletes that are inlined in the catalog
            more = self._read(DATA, table, window, f" AND data_file_id IN ({_listed(missing)})")
            found = sorted([*found, *more], key=lambda row: int(row[0]))
        return found

    def deletes(self, table: int, window: Window) -> Rows:
        if (window, table) not in self._deletes:
            return self._read(DELETES, table, window, " ORDER BY delete_file_id")
        return self._deletes[window, table]

    def _read(self, kind: str, table: int, window: Window, rest: str) -> Rows:
        order = " ORDER BY data_file_id" if kind is DATA else ""
        return [row[1:] for row in self._rows(f"{kind}table_id = {table} AND {_alive_in(window)}{rest}{order}")]


def _changed(window: Window, new_files: int, touched: str) -> str:
    also = f" OR data_file_id IN ({touched})" if touched else ""
    return f"(begin_snapshot > {window.after} OR end_snapshot <= {window.through} OR data_file_id >= {new_files}{also})"


def _alive_in(window: Window) -> str:
    return f"begin_snapshot <= {window.through} AND (end_snapshot IS NULL OR end_snapshot > {window.after})"


def _listed(numbers: Collection[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))
