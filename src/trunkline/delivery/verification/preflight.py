"""What can be found out about a pipeline before it runs: nothing is run, and nothing is written.

Rules
 W1  Every problem is told, not only the first, each on one line: where it is (a key of the file, or a destination) and
     what to do about it.
 W2  Destinations are asked many at a time. One that does not answer delays no other, and the check by ``ANSWER_S``.
 W3  What does not exist yet is not made: it is enough that it could be.
"""

from __future__ import annotations

import importlib.util
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from msgspec import Struct

from trunkline.delivery.backends.ducklake_attachment import catalog_location
from trunkline.delivery.backends.postgres_session import PostgresSession
from trunkline.delivery.changes.columns import Columns, check_columns, check_routing, evolution
from trunkline.delivery.config import DestinationConfig, Pipeline, load_pipeline
from trunkline.delivery.config.addresses import Address, DeltaAddress, LakeAddress
from trunkline.delivery.control.store import open_control_store
from trunkline.delivery.destinations.contract import Destination
from trunkline.delivery.destinations.ducklake import DuckLakeDestination
from trunkline.delivery.destinations.ducklake_attachments import AttachedLakes
from trunkline.delivery.destinations.factory import open_destination
from trunkline.delivery.engine.java import find_java
from trunkline.delivery.engine.master import check_master
from trunkline.delivery.sources.factory import source_of
from trunkline.errors import ConfigError, TrunklineError, Unreachable

ANSWER_S: Final = 15.0  # too small: a slow server counts as lost; too big: a lost one is waited for as long
PROBES_MAX: Final = 16  # destinations asked at a time


class PipelineProblem(Struct, frozen=True):
    """One thing that is wrong."""

    where: str  # a key of the file, a destination, or the file with its line
    what: str  # and what to do

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what


class SourceFacts(Struct, frozen=True):
    """What was found of the source."""

    identity: str
    columns: Columns


def preflight(
    file: Path, environment: Mapping[str, str] = os.environ
) -> tuple[Pipeline | None, tuple[PipelineProblem, ...]]:
    """The pipeline, if its file is right, and all that is wrong with it or around it."""
    try:
        pipeline = load_pipeline(file, environment)
    except ConfigError as error:
        return None, tuple(_located(line) for line in str(error).splitlines())
    problems = [*_check_engine(pipeline.spark.master)]
    source: SourceFacts | None = None
    try:
        source = source_facts(pipeline)
    except TrunklineError as error:
        problems.append(PipelineProblem("source", str(error).removeprefix("source: ")))
    if source is not None:
        problems += _check_source(pipeline, source.columns)
    problems += _check_control(pipeline, environment)
    problems += check_destinations(pipeline, source)
    return pipeline, tuple(problems)


def _located(line: str) -> PipelineProblem:
    """A line of a loader's error: ``FILE:LINE: KEY: what``."""
    where, colon, what = line.partition(": ")
    return PipelineProblem(where, what) if colon else PipelineProblem("", line)


# ------------------------------------------------------------------------------------------ the source, and around it


def source_facts(pipeline: Pipeline) -> SourceFacts:
    """Raises what the source does: it is out of reach, has no such table, or is of a form that is not understood."""
    source = source_of(pipeline.source)
    state = source.state(0)
    return SourceFacts(state.identity, source.columns(state.version))


def _check_source(pipeline: Pipeline, columns: Columns) -> Iterator[PipelineProblem]:
    sound = []
    for column in columns:
        found = list(_refusals("source", lambda each=column: check_columns([each], (), None)))  # type: ignore[misc]
        yield from found
        sound += [] if found else [column]
    if together := list(_refusals("source", lambda: check_columns(sound, (), None))):
        yield from together
        return
    broken = {column.name for column in columns} - {column.name for column in sound}
    for name in pipeline.key:
        if name not in broken:
            yield from _refusals("key", lambda each=name: check_columns(sound, (each,), None))  # type: ignore[misc]
    routing = pipeline.routing.column
    if routing in broken:
        return
    yield from _refusals("routing.column", lambda: check_columns(sound, (), routing))
    yield from _refusals("routing.column", lambda: check_routing(sound, routing))


def _refusals(where: str, check: Callable[[], object]) -> Iterator[PipelineProblem]:
    try:
        check()
    except (ConfigError, Unreachable) as error:
        yield PipelineProblem(where, str(error).removeprefix(f"{where}: "))


def _check_engine(master: str) -> Iterator[PipelineProblem]:
    if importlib.util.find_spec("pyspark") is None:
        yield PipelineProblem("spark", "PySpark is not installed; install trunkline[delivery]")
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # otherwise spark-submit brings Java along
        yield from _refusals("spark", find_java)
    yield from _refusals("spark.master", lambda: check_master(master))


def _check_control(pipeline: Pipeline, environment: Mapping[str, str]) -> Iterator[PipelineProblem]:
    control = pipeline.control
    kind, _, place = control.store.partition(":")
    if kind == "sqlite" and not Path(place).exists():
        yield from (PipelineProblem("control.store", why) for why in _unwritable(Path(place).parent, must_exist=True))
        return
    try:
        if kind == "postgres":
            yield from _check_control_server(place, environment.get(control.password_env or ""))
        else:
            with closing(open_control_store(control.store)) as store:
                store.configurations.record(pipeline.name)
    except TrunklineError as error:
        yield PipelineProblem("control.store", str(error))


def _check_control_server(dsn: str, password: str | None) -> Iterator[PipelineProblem]:
    """Without the store's own class, which would make its tables."""
    made, allowed = "to_regclass('_trunkline_format') IS NOT NULL", "has_schema_privilege(current_schema(), 'CREATE')"
    with (
        closing(PostgresSession(dsn, password, permanent=ConfigError)) as session,
        session.transaction("control store", reading=True),
    ):
        ((able,),) = session.run(f"SELECT {made} OR {allowed}").fetchall()
    if not able:
        yield PipelineProblem(
            "control.store", "its user may not make tables in the database; grant CREATE on the schema"
        )


def _unwritable(folder: Path, *, must_exist: bool = False) -> Iterator[str]:
    """Why nothing can be made in a folder, which may not exist itself yet."""
    if must_exist and not folder.is_dir():
        yield f"there is no folder {folder}; make it"
        return
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if not there.is_dir():
        yield f"{there} is no folder; choose another place"
    elif not os.access(there, os.W_OK | os.X_OK):
        yield f"nothing can be written in {there}; grant the right to, or choose another place"


# ---------------------------------------------------------------------------------------------------- destinations


def check_destinations(pipeline: Pipeline, source: SourceFacts | None) -> list[PipelineProblem]:
    """Ask every destination of the file, and wait for each at most ``ANSWER_S`` (W2)."""
    waiting: queue.SimpleQueue[DestinationConfig] = queue.SimpleQueue()
    answers: queue.SimpleQueue[tuple[str, list[PipelineProblem]]] = queue.SimpleQueue()
    asked: set[str] = set()
    for destination in pipeline.destinations:
        waiting.put(destination)

    def probe() -> None:
        with closing(AttachedLakes()) as lakes:  # its own: one that hangs in a catalog would hold up the others
            while True:
                try:
                    destination = waiting.get_nowait()
                except queue.Empty:
                    return
                asked.add(destination.name)
                try:
                    problems = list(_destination_problems(destination, source, lakes))
                except Exception as error:  # of a library: it is this destination's problem, and stops no other
                    problems = [PipelineProblem(destination.name, f"cannot be looked at: {error!r}")]
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
            f"does not answer within {ANSWER_S:.0f} s" if each.name in asked else "was not asked: others do not answer"
        )
        found.setdefault(each.name, [PipelineProblem(each.name, f"{silent}; check its address and the network")])
    return [problem for each in pipeline.destinations for problem in found[each.name]]


def _destination_problems(
    destination: DestinationConfig, source: SourceFacts | None, lakes: AttachedLakes
) -> Iterator[PipelineProblem]:
    name, address = destination.name, destination.address
    if (place := _not_made_yet(address)) is not None:
        yield from (PipelineProblem(name, why) for why in _unwritable(place))
        return
    try:
        with closing(_opened(address, lakes)) as opened:
            standing, columns = opened.standing(), opened.columns()
    except TrunklineError as error:
        yield PipelineProblem(name, str(error))
        return
    if columns is None:
        return
    if standing is None:
        if not destination.replace_existing:
            why = "there is a table that no delivery made; choose another, or say replace_existing: true to replace it"
            yield PipelineProblem(name, why)
    elif source is not None and standing.source != source.identity:
        why = f"its rows are of another source table ({standing.source}, not {source.identity}); choose another table"
        yield PipelineProblem(name, f"{why}, or reseed it to have them replaced")
    elif source is not None:
        difference = evolution(source.columns, columns)
        yield from (PipelineProblem(name, f"{why}; mend it, or reseed the destination") for why in difference.problems)


def _opened(address: Address, lakes: AttachedLakes) -> Destination:
    return DuckLakeDestination(address, lakes) if isinstance(address, LakeAddress) else open_destination(address)


def _not_made_yet(address: Address) -> Path | None:
    """The folder in which a destination of files will be made, if it does not exist yet (W3)."""
    match address:
        case DeltaAddress(path=path) if not Path(path).exists():
            return Path(path).parent
        case LakeAddress(catalog=catalog):
            kind, place = catalog_location(catalog)
            if kind != "postgres" and not Path(place).exists():
                return Path(place).parent
    return None
