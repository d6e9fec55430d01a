"""Reads the positions of destinations, and compares them with the source, inside a task (J6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trunkline.core.delivery_messages import Note, Outcome, Result
from trunkline.delivery.changes.versions import Lineage
from trunkline.delivery.destinations.contract import Standing
from trunkline.delivery.destinations.factory import cached_destination, forget_destination
from trunkline.delivery.job.results import failed
from trunkline.delivery.job.work import TaskDestination, TaskPipeline
from trunkline.errors import TrunklineError


def read_standings(pipeline: TaskPipeline, names: Sequence[str], notes: Mapping[str, Note]) -> list[Result]:
    """The positions of destinations, 0 without a record. The source is read once, after all of them: so it has every
    version that another deliverer may just have written to one."""
    found = {name: _standing(pipeline.targets[pipeline.index[name]]) for name in names}
    stands = {name: each for name, each in found.items() if isinstance(each, Standing)}
    versions = {each.position for each in stands.values()} | {notes[name].through for name in stands if name in notes}
    try:
        lineage = pipeline.source.lineage(versions) if stands else None
    except TrunklineError as error:
        found |= dict.fromkeys(stands, error)
        lineage = None
    return [_result(name, each, lineage, notes.get(name)) for name, each in found.items()]


def _standing(target: TaskDestination) -> Standing | TrunklineError | None:
    try:
        return cached_destination(target.address).standing()
    except TrunklineError as error:
        forget_destination(target.address)
        return error


def _result(name: str, found: Standing | TrunklineError | None, lineage: Lineage | None, note: Note | None) -> Result:
    if isinstance(found, TrunklineError):
        return failed(name, found)
    if found is None or lineage is None:
        return Result(name, Outcome.STANDS)
    why = lineage.divergence(found.source, found.position, found.mark)
    outcome, text = (Outcome.STRAYED, f"{name}: {why}") if why else (Outcome.STANDS, "")
    holds = note is None or lineage.has(note.through, note.mark)
    return Result(name, outcome, found.position, found.token, text, found.mark, holds)
