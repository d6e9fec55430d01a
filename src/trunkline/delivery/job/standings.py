"""Reads the positions of destinations, and compares them with the source, inside a task (J6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trunkline.core.delivery_messages import Note, Outcome, Result
from trunkline.delivery.changes.versions import Lineage
from trunkline.delivery.destinations.contract import Standing
from trunkline.delivery.destinations.factory import cached_place, forget_place
from trunkline.delivery.job.results import failed
from trunkline.delivery.job.work import TaskDestination, TaskPipeline
from trunkline.errors import TrunklineError

Found = Standing | TrunklineError | None


def read_standings(
    pipeline: TaskPipeline, names: Sequence[str], notes: Mapping[str, Note], tables: Sequence[str]
) -> list[Result]:
    """The positions of destinations, 0 without a record; ``tables``: the names of the source's tables. The source is
    read once, after all destinations: so it has every version that another deliverer may just have written to one."""
    found = stored_standings(pipeline, [pipeline.targets[pipeline.index[name]] for name in names], tables)
    stands = {name: each for name, each in found.items() if isinstance(each, Standing)}
    versions = {version for each in stands.values() for version in (each.position, each.ahead) if version}
    versions |= {notes[name].through for name in stands if name in notes}
    try:
        lineage = pipeline.source.lineage(versions) if stands else None
    except TrunklineError as error:
        found |= dict.fromkeys(stands, error)
        lineage = None
    return [_result(name, found[name], lineage, notes.get(name)) for name in names]


def stored_standings(
    pipeline: TaskPipeline, targets: Sequence[TaskDestination], tables: Sequence[str]
) -> dict[str, Found]:
    """By destination; each place is read once."""
    places: dict[int, list[TaskDestination]] = {}
    for target in targets:
        places.setdefault(pipeline.places[target.name], []).append(target)
    found: dict[str, Found] = {}
    for together in places.values():
        members = {target.name: pipeline.tables_of(target, tables) for target in together}
        address = together[0].address
        try:
            read = cached_place(address).standings(list(members.values()))
        except TrunklineError as error:
            forget_place(address)
            read = {each.member: error for each in members.values()}
        found |= {name: read.get(each.member) for name, each in members.items()}
    return found


def _result(name: str, found: Found, lineage: Lineage | None, note: Note | None) -> Result:
    if isinstance(found, TrunklineError):
        return failed(name, found)
    if found is None or lineage is None:
        return Result(name, Outcome.STANDS)
    why = lineage.divergence(found.source, found.position, found.mark)
    if not why and found.ahead > lineage.version:
        why = f"some of its tables are at version {found.ahead}, and the source is at {lineage.version}"
    outcome, text = (Outcome.STRAYED, f"{name}: {why}") if why else (Outcome.STANDS, "")
    holds = note is None or lineage.has(note.through, note.mark)
    return Result(name, outcome, found.position, found.token, text, found.mark, holds, ahead=found.ahead)
