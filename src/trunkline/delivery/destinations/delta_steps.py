"""Rows of a Delta table's files under columns that its source renamed, dropped or added since they were written (T6).

Without column mapping, which delta-rs does not write, the names in a file are those of the table: so a flush that
follows steps rewrites every file, in the one commit that also has its rows and its position.
"""

from __future__ import annotations

import pyarrow as pa
from msgspec.structs import replace

from trunkline.delivery.changes.column_steps import ColumnSteps
from trunkline.delivery.destinations.delta_files import DeltaDataFile
from trunkline.plural import plural


class FileSteps:
    """Between the columns of files and those of the flush; without steps they are the same."""

    def __init__(self, steps: ColumnSteps | None) -> None:
        self._now = None if steps is None else {old.name: new.name for old, new in steps.kept}
        self._held = {new: old for old, new in (self._now or {}).items()}
        self._defaults: dict[str, pa.Scalar] = {}
        if steps is not None:
            row = steps.default_row()
            self._defaults = {name: row.column(name)[0] for name in row.schema.names if row.column(name)[0].is_valid}

    def held_name(self, name: str) -> str:
        """The name in a file; that of a new column is in none."""
        return name if self._now is None else self._held.get(name, "")

    def file(self, file: DeltaDataFile) -> DeltaDataFile:
        """With bounds by present names."""
        if self._now is None:
            return file
        return replace(file, bounds={self._now[name]: each for name, each in file.bounds.items() if name in self._now})

    def rows(self, rows: pa.Table) -> pa.Table:
        """Rows of a file under present names, with the defaults of new columns that are not NULL."""
        if self._now is None:
            return rows
        kept = [name for name in rows.column_names if name in self._now]
        found = rows.select(kept).rename_columns([self._now[name] for name in kept])
        for name, default in self._defaults.items():
            found = found.append_column(name, pa.repeat(default, len(rows)))
        return found


def rewritten(steps: ColumnSteps, files: tuple[DeltaDataFile, ...]) -> str:
    """What was done, and its cost, for the operator."""
    rows, size = sum(file.live_rows or 0 for file in files), sum(file.size_bytes for file in files)
    return f"{steps.spelled()}; rewrote {plural(rows, 'row')} in {plural(len(files), 'file')}, {plural(size, 'byte')}"
