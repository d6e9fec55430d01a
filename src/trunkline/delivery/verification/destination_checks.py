"""Probes the destinations of a pipeline before it runs; creates nothing.

Rules
 E1  Destinations are probed concurrently. One that does not answer delays no other, and the check by ``ANSWER_S``.
 E2  What does not exist yet is not created: it is enough that it could be.
 E3  Columns are compared with those that a destination has, unless the file seeds it again: then they are replaced. (A
     history is not: a seed compares its rows.) Columns that its kind cannot hold are problems before it exists.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from trunkline.delivery.backends.ducklake_attachment import NEEDS_DATA_PATH, catalog_location, needs_data_path
from trunkline.delivery.changes.columns import Columns, evolution
from trunkline.delivery.changes.history import HISTORY_COLUMNS
from trunkline.delivery.config import DestinationConfig, Pipeline
from trunkline.delivery.config.address_rules import address_of, has_table, home_of
from trunkline.delivery.config.addresses import Address, DeltaAddress, LakeAddress, PostgresAddress
from trunkline.delivery.config.object_urls import is_url, store_url
from trunkline.delivery.config.table_rules import TableSettings
from trunkline.delivery.destinations.contract import MemberTables, Place, Standing
from trunkline.delivery.destinations.ducklake import DuckLakePlace
from trunkline.delivery.destinations.ducklake_attachments import AttachedLakes
from trunkline.delivery.destinations.factory import open_place
from trunkline.delivery.destinations.postgres_types import stored_type
from trunkline.delivery.verification.problems import PipelineProblem, capped
from trunkline.delivery.verification.source_checks import DeliveredTable, SourceFacts
from trunkline.errors import TrunklineError

ANSWER_S: Final = 15.0  # shorter: a slow server seems unreachable; longer: an unreachable one delays the check
PROBES_MAX: Final = 16  # destinations that are probed at a time
TABLES_SHOWN_MAX: Final = 5  # problems of the tables of one destination; fewer: more runs of the check


def check_destinations(
    pipeline: Pipeline, source: SourceFacts | None, reseeded: frozenset[str] = frozenset()
) -> list[PipelineProblem]:
    """Probe every destination of the file, with a limit of ``ANSWER_S`` for the next answer (E1). ``reseeded``: those
    that the file seeds again."""
    waiting: queue.SimpleQueue[DestinationConfig] = queue.SimpleQueue()
    answers: queue.SimpleQueue[tuple[str, list[PipelineProblem]]] = queue.SimpleQueue()
    probed: set[str] = set()
    for destination in pipeline.destinations:
        waiting.put(destination)

    def probe() -> None:
        with closing(AttachedLakes()) as lakes:  # its own: a catalog that hangs must not block the others
            while True:
                try:
                    destination = waiting.get_nowait()
                except queue.Empty:
                    return
                probed.add(destination.name)
                try:
                    problems = list(_unfit_columns(destination, source))
                    keeps = destination.name not in reseeded
                    problems += _destination_problems(pipeline, destination, source, lakes, keeps=keeps)
                except Exception as error:  # of a library: it is this destination's problem, and stops no other
                    problems = [PipelineProblem(destination.name, f"cannot be probed: {error!r}")]
                answers.put((destination.name, problems))

    for _ in range(min(PROBES_MAX, len(pipeline.destinations))):
        threading.Thread(target=probe, name="probe", daemon=True).start()  # one that hangs does not outlive the process
    found: dict[str, list[PipelineProblem]] = {}
    while len(found) < len(pipeline.destinations):
        try:
            name, problems = answers.get(timeout=ANSWER_S)
        except queue.Empty:
            break
        found[name] = problems
    for each in pipeline.destinations:
        silent = (
            f"does not answer within {ANSWER_S:.0f} s"
            if each.name in probed
            else "was not probed: others do not answer"
        )
        found.setdefault(each.name, [PipelineProblem(each.name, f"{silent}; check its address and the network")])
    return [problem for each in pipeline.destinations for problem in found[each.name]]


def _destination_problems(
    pipeline: Pipeline, destination: DestinationConfig, source: SourceFacts | None, lakes: AttachedLakes, *, keeps: bool
) -> Iterator[PipelineProblem]:
    """``keeps``: it is not seeded again."""
    name, address = destination.name, destination.address
    if why := unreachable_store(address):
        yield PipelineProblem(name, why)
        return
    if (folder := _future_directory(address)) is not None:
        yield from (PipelineProblem(name, why) for why in unwritable(folder))
        if isinstance(address, LakeAddress) and address.data_path is None and needs_data_path(address.catalog):
            yield PipelineProblem(name, f"there is no lake at {address.catalog} yet; {NEEDS_DATA_PATH}")
        return
    tables = _tables(pipeline, source)
    places = tuple(address_of(address, table.name) for table in tables)
    member = MemberTables(f"{pipeline.name}/{name}", home_of(address), places, pipeline.living)
    try:
        with closing(_opened(address, lakes)) as place:
            standing = place.standings([member])[member.member]
            held = [place.columns(each) for each in places]
    except TrunklineError as error:
        standing, held = error, []
    if isinstance(standing, TrunklineError):
        yield PipelineProblem(name, str(standing))
    elif standing is not None and source is not None and standing.source != source.identity:
        why = f"its rows are of another source table ({standing.source}, not {source.identity}); choose another table"
        yield PipelineProblem(name, f"{why}, or reseed it to replace them")
    else:
        known = [(table, columns) for table, columns in zip(tables, held, strict=True) if columns is not None]
        found = [
            why
            for table, columns in known
            for why in _table_problems(destination, standing, table, columns, keeps=keeps)
        ]
        yield from capped([PipelineProblem(name, why) for why in found], TABLES_SHOWN_MAX, f"destination {name}")


def _tables(pipeline: Pipeline, source: SourceFacts | None) -> tuple[DeliveredTable, ...]:
    """The only table of a pipeline is probed also if the source has problems."""
    if source is not None and source.tables:
        return source.tables
    return () if pipeline.tables else (DeliveredTable("", (), TableSettings((), "")),)


def _table_problems(
    destination: DestinationConfig, standing: Standing | None, table: DeliveredTable, held: Columns, *, keeps: bool
) -> Iterator[str]:
    named = f"table {table.name}: " if table.name else ""
    if standing is None:
        if not destination.replace_existing:
            why = "exists and was not delivered; choose another, or set replace_existing: true to replace it"
            yield f"the table {table.name} {why}" if table.name else f"the table {why}"
    elif table.columns and (keeps or (table.settings.mode or destination.mode) == "history"):
        mode = table.settings.mode or destination.mode
        wanted = (*table.columns, *HISTORY_COLUMNS) if mode == "history" else table.columns
        problems = evolution(wanted, held).problems
        yield from (f"{named}{why}; fix it, or reseed the destination" for why in problems)


def _unfit_columns(destination: DestinationConfig, source: SourceFacts | None) -> Iterator[PipelineProblem]:
    """Columns that a kind cannot hold (E3): names and types of PostgreSQL."""
    if not isinstance(destination.address, PostgresAddress) or source is None:
        return
    found: list[PipelineProblem] = []
    for table in source.tables:
        for column in table.columns:
            try:
                stored_type(column)
            except TrunklineError as error:
                named = f"table {table.name}: " if table.name else ""
                found.append(PipelineProblem(destination.name, named + str(error)))
    yield from capped(found, TABLES_SHOWN_MAX, f"destination {destination.name}")


def _opened(address: Address, lakes: AttachedLakes) -> Place:
    return DuckLakePlace(address, lakes) if isinstance(address, LakeAddress) else open_place(address)


def _future_directory(address: Address) -> Path | None:
    """The directory in which a destination of files will be created, if it does not exist yet (E2)."""
    match address:
        case DeltaAddress(path=path) if not is_url(path):
            there = Path(path.partition("{")[0] if has_table(address) else path)  # tables of a set are below it
            folder = there if has_table(address) else there.parent
            return folder if not there.exists() else None
        case LakeAddress(catalog=catalog):
            kind, place = catalog_location(catalog)
            if kind != "postgres" and not Path(place).exists():
                return Path(place).parent
    return None


def unreachable_store(address: Address) -> str:
    """Why the object store of an address does not serve it. The bucket of tables of a set is that of their prefix."""
    if not isinstance(address, LakeAddress | DeltaAddress) or store_url(address) is None:
        return ""
    from trunkline.delivery.backends.object_folder import store_problem

    return store_problem(address)


def unwritable(folder: Path, *, must_exist: bool = False) -> Iterator[str]:
    """Why nothing can be created in a directory, which may not exist yet."""
    if must_exist and not folder.is_dir():
        yield f"there is no directory {folder}; create it"
        return
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if not there.is_dir():
        yield f"{there} is not a directory; choose another path"
    elif not os.access(there, os.W_OK | os.X_OK):
        yield f"{there} is not writable; change its permissions, or choose another path"
