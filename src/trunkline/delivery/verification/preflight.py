"""Checks a pipeline before it runs; writes nothing.

Rules
 W1  Every problem is reported, not only the first, each on one line: where it is (the file's line, and a key or a
     destination) and what to do about it. Tables are compared with the source also if the file has other problems.
 W2  What is valid, but costs a lot, is reported, too: a change of the file after which destinations are seeded again.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from trunkline.config import ENVIRONMENT
from trunkline.delivery.backends.postgres_session import PostgresSession
from trunkline.delivery.config import DestinationConfig, Pipeline, load_pipeline
from trunkline.delivery.config.digests import address_digest, digest_of
from trunkline.delivery.config.discovery import from_template
from trunkline.delivery.config.readable_part import InvalidFile
from trunkline.delivery.config.table_rules import selection_of
from trunkline.delivery.control.contract import NoControlStore
from trunkline.delivery.control.store import open_control_store
from trunkline.delivery.engine.java import find_java
from trunkline.delivery.engine.master import check_master
from trunkline.delivery.sources.contract import Source
from trunkline.delivery.sources.factory import source_of
from trunkline.delivery.verification.destination_checks import check_destinations, unreachable_store, unwritable
from trunkline.delivery.verification.file_lines import FileLines
from trunkline.delivery.verification.problems import PipelineProblem, raised_problems
from trunkline.delivery.verification.source_checks import SourceFacts, check_source
from trunkline.errors import ConfigError, TrunklineError

SHOWN_MAX: Final = 5  # names in a note


class Preflight(NamedTuple):
    """What a check found."""

    pipeline: Pipeline | None  # None: its file is not valid
    problems: tuple[PipelineProblem, ...]
    source: SourceFacts | None = None  # None: it cannot be read
    notes: tuple[str, ...] = ()  # what will happen (W2)


def preflight(file: Path, environment: Mapping[str, str] = ENVIRONMENT) -> Preflight:
    try:
        pipeline = load_pipeline(file, environment)
    except InvalidFile as error:
        problems = [_located(line) for line in str(error).splitlines()]
        if error.part is not None:
            problems += _check_source(file, error.part, error.unread)[1]
        return Preflight(None, tuple(problems))
    except ConfigError as error:
        return Preflight(None, tuple(_located(line) for line in str(error).splitlines()))
    lines = FileLines(file)
    source, found = _check_source(file, pipeline)
    unreachable = list(_check_control(pipeline, environment))
    reseeded = [] if unreachable else _reseeded(pipeline, environment)
    problems = [lines.of_key(each) for each in _check_engine(pipeline.spark.master)]
    problems += [*found, *(lines.of_key(each) for each in unreachable)]
    problems += [lines.of_destination(each) for each in check_destinations(pipeline, source, frozenset(reseeded))]
    return Preflight(pipeline, tuple(problems), source, tuple(_notes(reseeded)))


def _check_source(
    file: Path, pipeline: Pipeline, unread: frozenset[int] = frozenset()
) -> tuple[SourceFacts | None, list[PipelineProblem]]:
    """``unread``: entries of ``tables`` that have problems of their own."""
    lines, source = FileLines(file), None
    if why := unreachable_store(pipeline.source):
        return None, [lines.of_key(PipelineProblem("source", why))]
    try:
        source, found = check_source(pipeline, opened_source(pipeline), unread)
    except TrunklineError as error:
        found = [PipelineProblem("source", str(error).removeprefix("source: "))]
    return source, [lines.of_key(each) for each in found]


def _located(line: str) -> PipelineProblem:
    """A line of a loader's error: ``FILE:LINE: KEY: what``; some have no key."""
    spot, colon, rest = line.partition(": ")
    where, _, what = rest.partition(": ")
    if not colon:
        return PipelineProblem("", line)
    return PipelineProblem(where, what, spot) if what and " " not in where else PipelineProblem("", rest, spot)


def opened_source(pipeline: Pipeline) -> Source:
    """Connects to nothing."""
    return source_of(pipeline.source, selection_of(pipeline))


def _check_engine(master: str) -> Iterator[PipelineProblem]:
    if importlib.util.find_spec("pyspark") is None:
        yield PipelineProblem("spark", "PySpark is not installed; install trunkline[delivery]")
    if "PYSPARK_GATEWAY_PORT" not in ENVIRONMENT:  # otherwise spark-submit brings Java along
        yield from raised_problems("spark", find_java)
    yield from raised_problems("spark.master", lambda: check_master(master))


def _check_control(pipeline: Pipeline, environment: Mapping[str, str]) -> Iterator[PipelineProblem]:
    control = pipeline.control
    kind, _, place = control.store.partition(":")
    if kind == "sqlite" and not Path(place).exists():
        yield from (PipelineProblem("control.store", why) for why in unwritable(Path(place).parent, must_exist=True))
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


def _reseeded(pipeline: Pipeline, environment: Mapping[str, str]) -> list[str]:
    """Destinations whose rows the file decides otherwise than the one that runs (W2)."""
    control = pipeline.control
    password = environment.get(control.password_env or "")
    try:
        with closing(open_control_store(control.store, password, create=False)) as store:
            record = store.configurations.record(pipeline.name)
            known = store.configurations.digests(pipeline.name)
            held = store.configurations.address_digests(pipeline.name)
    except NoControlStore:
        return []
    present = list(pipeline.destinations)
    if pipeline.discover is not None and record is not None:
        present += [from_template(pipeline.discover, value) for value in record.discovered.values()]

    def changes(each: DestinationConfig) -> bool:
        before = {known.get(each.name, ""), held.get(address_digest(each), "")}
        return not before <= {"", digest_of(pipeline, each)}

    return [each.name for each in present if changes(each)]


def _notes(reseeded: Sequence[str]) -> Iterator[str]:
    if reseeded:
        more = f" and {len(reseeded) - SHOWN_MAX} more" if reseeded[SHOWN_MAX:] else ""
        what = "1 destination" if len(reseeded) == 1 else f"{len(reseeded):,} destinations"
        yield f"this change reseeds {what}: {', '.join(reseeded[:SHOWN_MAX])}{more}"
