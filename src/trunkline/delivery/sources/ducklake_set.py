"""Several tables in a DuckLake's catalog: which there are at a version, and how far their changes can be read."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

from msgspec.structs import replace

from trunkline.delivery.changes.versions import BEFORE_ALL, Window
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.config.table_patterns import Selection
from trunkline.delivery.sources.contract import SourceState
from trunkline.delivery.sources.ducklake_catalog import LakeCatalog, LakeTable, NamedTable, alive, restatement
from trunkline.delivery.sources.ducklake_format import REWRITE, REWRITES_HISTORY
from trunkline.errors import Unreachable

Names = tuple[str, str]  # schema and table


class LakeSet:
    """Inside the catalog's transaction."""

    def __init__(self, catalog: LakeCatalog, address: LakeAddress, selection: Selection) -> None:
        self._catalog = catalog
        self._address = address
        self._selection = selection

    @cached_property
    def _every(self) -> list[NamedTable]:
        """The tables of the set at any version."""
        return [each for each in self._catalog.named_tables() if self._selection.matches(each.schema, each.name)]

    def tables(self, version: int) -> dict[Names, LakeTable]:
        here = (each for each in self._every if alive(each.begin, each.end, version))
        return {(each.schema, each.name): each.table for each in here}

    def state(self, known: int) -> SourceState:
        catalog, identity = self._catalog, self._catalog.lake()
        newest, oldest = catalog.newest(), catalog.oldest()
        first = min((each.begin for each in self._every if each.end is None), default=oldest)
        ids = {str(each.table.id) for each in self._every}
        stops: list[int] = []
        before = known
        for version, made, _ in catalog.changes_between(known, newest):
            if any(REWRITE in made[subject] for subject in made.keys() & ids):
                stops += [before, version]
            before = version
        marks = catalog.marks_of({known, newest}, identity)
        later = tuple(dict.fromkeys(stop for stop in stops if stop > known))
        first = catalog.version_at(first)
        return SourceState(newest, oldest, later, identity, first, marks[newest], marks.get(known, ""))

    def views(self, window: Window, names: Collection[str] | None = None) -> dict[str, LakeCatalog]:
        """The catalog as each table at the end of a window sees it, by name; of some tables, or of all."""
        now, before = self.tables(window.through), self.tables(window.after)
        found: dict[str, LakeCatalog] = {}
        for (schema, name), table in sorted(now.items()):
            spelled = f"{schema}.{name}"
            if names is not None and spelled not in names:
                continue
            if spelled in found:
                raise Unreachable(f"two tables of the lake are spelled {spelled}; leave one of them out of `tables`")
            view = self._catalog.of(replace(self._address, schema=schema, table=name))
            known: dict[int | None, LakeTable] = {window.through: table}
            if (earlier := before.get((schema, name))) is not None:
                known[window.after] = earlier
            view.know(known)
            found[spelled] = view
        if lacking := sorted(set(names or ()) - found.keys()):
            raise Unreachable(f"the lake has no table {', '.join(lacking)} at snapshot {window.through}; retrying")
        self._catalog.load([view.table(window.through).id for view in found.values()])
        return found

    def plannable(self, window: Window, names: Collection[str] | None = None) -> dict[str, LakeCatalog]:
        """Like ``views``, and the files of all tables with changes are read with one query, not with one for each."""
        found = self.views(window, names)
        made = self._catalog.changes_between(window.after - 1, window.through)
        changed = {subject for version, subjects, _ in made if version > window.after for subject in subjects}
        ids = {view.table(window.through).id for view in found.values()}
        self._catalog.load_files(window, {id_ for id_ in ids if str(id_) in changed or window.after == BEFORE_ALL})
        return found

    def reading(self, view: LakeCatalog, window: Window) -> Window:
        """The window in which a table is read: from before all, if it is read whole."""
        if window.after == BEFORE_ALL:
            return window
        table = view.table(window.through)
        whole = Window(BEFORE_ALL, window.through)
        earlier = view.known(window.after)
        if earlier is None or earlier.id != table.id:
            return whole
        found = view.changes_between(window.after - 1, window.through)
        kinds = (made.get(str(table.id), frozenset()) for version, made, _ in found if version > window.after)
        if any(each >= REWRITES_HISTORY for each in kinds):
            return whole
        return whole if restatement(view.columns_before(window), view.columns(window.through)) else window
