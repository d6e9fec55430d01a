"""Checks a pipeline before it runs; writes nothing.

Rules
 W1  Every problem is reported, not only the first, each on one line: where it is (a key of the file, or a destination)
     and what to do about it.
 W2  Destinations are probed concurrently. One that does not answer delays no other, and the check by ``ANSWER_S``.
 W3  What does not exist yet is not created: it is enough that it could be.
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

from trunkline.config import ENVIRONMENT
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

ANSWER_S: Final = 15.0  # shorter: a slow server seems unreachable; longer: an unreachable one delays the check
PROBES_MAX: Final = 16  # destinations that are probed at a time


class PipelineProblem(Struct, frozen=True):
    """A problem, and what to do about it."""

    where: str  # a key of the file, a destination, or the file with its line
    what: str  # and what to do

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what


class SourceFacts(Struct, frozen=True):
    """The source as the check found it."""

    identity: str
    columns: Columns
    problem: str = ""  # why rows cannot be found by the pipeline's key and routing column


def preflight(
    file: Path, environment: Mapping[str, str] = ENVIRONMENT
) -> tuple[Pipeline | None, tuple[PipelineProblem, ...]]:
    """The pipeline, if its file is valid, and all problems."""
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
        problems += [PipelineProblem("source", source.problem)] if source.problem else []
    problems += _check_control(pipeline, environment)
    problems += check_destinations(pipeline, source)
    return pipeline, tuple(problems)


def _located(line: str) -> PipelineProblem:
    """A line of a loader's error: ``FILE:LINE: KEY: what``."""
    where, colon, what = line.partition(": ")
    return PipelineProblem(where, what) if colon else PipelineProblem("", line)


# -------------------------------------------------------------------------------------- source, Spark, control store


def source_facts(pipeline: Pipeline) -> SourceFacts:
    """Raises if the source is unreachable, has no such table, or has an unsupported format."""
    source = source_of(pipeline.source)
    state = source.state(0)
    columns, problem = source.columns(state.version), ""
    if {pipeline.routing.column, *pipeline.key} <= {column.name for column in columns}:
        try:
            source.check_keys(pipeline.key, pipeline.routing.column)
        except ConfigError as error:
            problem = str(error)
    return SourceFacts(state.identity, columns, problem)


def _check_source(pipeline: Pipeline, columns: Columns) -> Iterator[PipelineProblem]:
    sound = []
    for column in columns:
        found = list(_raised_problems("source", lambda each=column: check_columns([each], (), None)))  # type: ignore[misc]
        yield from found
        sound += [] if found else [column]
    if together := list(_raised_problems("source", lambda: check_columns(sound, (), None))):
        yield from together
        return
    broken = {column.name for column in columns} - {column.name for column in sound}
    for name in pipeline.key:
        if name not in broken:
            yield from _raised_problems("key", lambda each=name: check_columns(sound, (each,), None))  # type: ignore[misc]
    routing = pipeline.routing.column
    if routing in broken:
        return
    yield from _raised_problems("routing.column", lambda: check_columns(sound, (), routing))
    yield from _raised_problems("routing.column", lambda: check_routing(sound, routing))


def _raised_problems(where: str, check: Callable[[], object]) -> Iterator[PipelineProblem]:
    try:
        check()
    except (ConfigError, Unreachable) as error:
        yield PipelineProblem(where, str(error).removeprefix(f"{where}: "))


def _check_engine(master: str) -> Iterator[PipelineProblem]:
    if importlib.util.find_spec("pyspark") is None:
        yield PipelineProblem("spark", "PySpark is not installed; install trunkline[delivery]")
    if "PYSPARK_GATEWAY_PORT" not in ENVIRONMENT:  # otherwise spark-submit brings Java along
        yield from _raised_problems("spark", find_java)
    yield from _raised_problems("spark.master", lambda: check_master(master))


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
    """Without the store's own class, which would create its tables."""
    made, allowed = "to_regclass('_trunkline_format') IS NOT NULL", "has_schema_privilege(current_schema(), 'CREATE')"
    with (
        closing(PostgresSession(dsn, password, permanent=ConfigError)) as session,
        session.transaction("control store", reading=True),
    ):
        ((able,),) = session.run(f"SELECT {made} OR {allowed}").fetchall()
    if not able:
        yield PipelineProblem(
            "control.store", "its user may not create tables in the database; grant CREATE on the schema"
        )


def _unwritable(folder: Path, *, must_exist: bool = False) -> Iterator[str]:
    """Why nothing can be created in a directory, which may not exist yet."""
    if must_exist and not folder.is_dir():
        yield f"there is no directory {folder}; create it"
        return
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if not there.is_dir():
        yield f"{there} is not a directory; choose another path"
    elif not os.access(there, os.W_OK | os.X_OK):
        yield f"{there} is not writable; change its permissions, or choose another path"


# ---------------------------------------------------------------------------------------------------- destinations


def check_destinations(pipeline: Pipeline, source: SourceFacts | None) -> list[PipelineProblem]:
    """Probe every destination of the file, with a limit of ``ANSWER_S`` for the next answer (W2)."""
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
                    problems = list(_destination_problems(destination, source, lakes))
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
    destination: DestinationConfig, source: SourceFacts | None, lakes: AttachedLakes
) -> Iterator[PipelineProblem]:
    name, address = destination.name, destination.address
    if (place := _future_directory(address)) is not None:
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
            why = "the table exists and was not delivered; choose another, or set replace_existing: true to replace it"
            yield PipelineProblem(name, why)
    elif source is not None and standing.source != source.identity:
        why = f"its rows are of another source table ({standing.source}, not {source.identity}); choose another table"
        yield PipelineProblem(name, f"{why}, or reseed it to replace them")
    elif source is not None:
        difference = evolution(source.columns, columns)
        yield from (PipelineProblem(name, f"{why}; fix it, or reseed the destination") for why in difference.problems)


def _opened(address: Address, lakes: AttachedLakes) -> Destination:
    return DuckLakeDestination(address, lakes) if isinstance(address, LakeAddress) else open_destination(address)


def _future_directory(address: Address) -> Path | None:
    """The directory in which a destination of files will be created, if it does not exist yet (W3)."""
    match address:
        case DeltaAddress(path=path) if not Path(path).exists():
            return Path(path).parent
        case LakeAddress(catalog=catalog):
            kind, place = catalog_location(catalog)
            if kind != "postgres" and not Path(place).exists():
                return Path(place).parent
    return None
