"""What the commands of ``trunkline deliver`` share: the pipeline of a file, its control store and its destinations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from trunkline.config import secret
from trunkline.delivery.config import DestinationConfig, Pipeline, load_pipeline
from trunkline.delivery.config.discovery import from_template
from trunkline.delivery.control.contract import NoControlStore
from trunkline.delivery.control.store import ControlStore, open_control_store
from trunkline.errors import Refused


class NeverRan(Refused):
    """The pipeline has no record in its control store."""


def pipeline_of(file: Path) -> Pipeline:
    """For commands that need only the control store: the passwords of tables may be missing."""
    return load_pipeline(file, environment=None)


@contextmanager
def control_store(pipeline: Pipeline) -> Iterator[ControlStore]:
    """The pipeline's store; it is created if it does not exist."""
    with closing(open_control_store(pipeline.control.store, _password(pipeline))) as store:
        yield store


@contextmanager
def store_of_a_pipeline_that_ran(pipeline: Pipeline, file: Path) -> Iterator[ControlStore]:
    """Creates nothing; raises ``NeverRan``."""
    with closing(open_control_store(pipeline.control.store, _password(pipeline), create=False)) as store:
        try:
            record = store.configurations.record(pipeline.name)
        except NoControlStore:
            record = None
        if record is None:
            raise NeverRan(f"pipeline {pipeline.name} has not run yet; start it with `trunkline deliver run {file}`")
        yield store


def _password(pipeline: Pipeline) -> str | None:
    variable = pipeline.control.password_env
    if variable is None:
        return None
    return secret(variable, "the password of the control store")


def known_destinations(pipeline: Pipeline, file: Path) -> dict[str, DestinationConfig]:
    """Those of the file and those that were discovered."""
    found = {each.name: each for each in pipeline.destinations}
    if pipeline.discover is not None:
        try:
            with store_of_a_pipeline_that_ran(pipeline, file) as store:
                record = store.configurations.record(pipeline.name)
        except NeverRan:
            record = None
        for value in record.discovered.values() if record is not None else ():
            destination = from_template(pipeline.discover, value)
            found.setdefault(destination.name, destination)
    return found
