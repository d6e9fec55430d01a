"""What the commands of ``trunkline deliver`` share: the pipeline of a file, its control store and its destinations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from trunkline.config import secret
from trunkline.delivery.config import DestinationConfig, Pipeline, load_pipeline
from trunkline.delivery.config.discovery import from_template
from trunkline.delivery.control.contract import ControlStore
from trunkline.delivery.control.factory import open_control_store
from trunkline.errors import Refused


def pipeline_of(file: Path) -> Pipeline:
    """For commands that need the control store only: the passwords of tables need not be there."""
    return load_pipeline(file, environment=None)


@contextmanager
def control_store(pipeline: Pipeline) -> Iterator[ControlStore]:
    """The pipeline's store; it is made if it does not exist."""
    with closing(open_control_store(pipeline.control.store, _password(pipeline))) as store:
        yield store


@contextmanager
def store_of_a_pipeline_that_ran(pipeline: Pipeline, file: Path) -> Iterator[ControlStore]:
    """Nothing is made. Raises ``Refused`` where the pipeline never ran."""
    kind, _, place = pipeline.control.store.partition(":")
    hint = f"pipeline {pipeline.name} has not run yet; start it with `trunkline deliver run {file}`"
    if kind == "sqlite" and not Path(place).exists():
        raise Refused(hint)
    with control_store(pipeline) as store:
        if store.pipeline(pipeline.name) is None:
            raise Refused(hint)
        yield store


def _password(pipeline: Pipeline) -> str | None:
    variable = pipeline.control.password_env
    if variable is None:
        return None
    return secret(variable, "the password of the control store")


def known_destinations(pipeline: Pipeline, file: Path) -> dict[str, DestinationConfig]:
    """Those of the file and those that were discovered; a store that never was has discovered none."""
    found = {each.name: each for each in pipeline.destinations}
    if pipeline.discover is not None:
        try:
            with store_of_a_pipeline_that_ran(pipeline, file) as store:
                record = store.pipeline(pipeline.name)
        except Refused:
            record = None
        for value in record.discovered.values() if record is not None else ():
            destination = from_template(pipeline.discover, value)
            found.setdefault(destination.name, destination)
    return found
