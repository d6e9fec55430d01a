"""Rewrites the keys in which destinations differ from the source, each at its own position.

Rules
 Q1  Differences are found as ``verify`` finds them: both sides of one version. Only the keys that differ are written:
     missing and different ones as the source has them at exactly that version, extra ones are removed.
 Q2  All tables of a destination are written in one transaction, which the fence lets through only from the position and
     mark that were compared (T12). If it moved meanwhile, the destination is compared again; never are rows of another
     version written.
 Q3  The repair owns the destination (``seizure.py``): a deliverer that owned it is fenced, and gets it back afterwards.
     Whichever of them dies in between, the rows are those of the position.
 Q4  Only mirrors are repaired: in mode append, rows that the source no longer has are to stay, and a history has
     versions that the source no longer has. With policy warn, the winner of rule R3 is written; with seed: now,
     missing rows stay missing. Where the source itself has several rows of a key, nothing is written.
 Q5  If very much differs, seeding again costs less: that is only said, unless the caller insists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from trunkline.delivery.config.address_rules import home_of, kind_of, lacks
from trunkline.delivery.config.tree import SeedMode
from trunkline.delivery.destinations.contract import Applied, MemberResult, MemberStep, MemberWrite
from trunkline.delivery.destinations.factory import open_place
from trunkline.delivery.job.work import TaskPipeline
from trunkline.delivery.verification.comparison import RowDifference
from trunkline.delivery.verification.verify import HeldDestination, VerifyVerdict, spread, verification
from trunkline.errors import Fenced, OutcomeUnknown, PositionMoved, TrunklineError
from trunkline.plural import plural

if TYPE_CHECKING:
    from pyspark import SparkContext

KEYS_MAX: Final = 1_000_000  # that are rewritten unless the caller insists; more: the transaction is long
KEYS_ANYWAY: Final = 10_000  # that are rewritten even if they are most of the rows
TRIES: Final = 3  # of a destination that moves between comparison and write: another owner is at work

RepairOutcome = Literal["equal", "kept", "repaired", "differs", "unverified"]


class RepairVerdict(Struct, frozen=True):
    """The result for one destination. ``differs``: it was not repaired, and ``note`` says why."""

    destination: str
    outcome: RepairOutcome
    position: int | None = None
    rows: int | None = None  # of the destination, before
    missing: int = 0  # keys, before
    extra: int = 0
    different: int = 0
    removed: int = 0  # rows
    written: int = 0
    differences: tuple[RowDifference, ...] = ()  # the first of them
    note: str = ""
    fenced_by: int = 0  # the token that kept it from being written


def repair_all(
    pipeline: TaskPipeline,
    tokens: Mapping[str, int],
    seeds: Mapping[str, SeedMode],
    *,
    insists: bool = False,
    at_once: int = 1,
    context: SparkContext | None = None,
) -> Iterator[RepairVerdict]:
    """Repair destinations that the caller owns; ``tokens``: of these. Where ``verify_all`` would compare them."""

    def run(found: TaskPipeline, names: Sequence[str]) -> list[RepairVerdict]:
        return repair_together(found, {name: tokens[name] for name in names}, seeds, insists=insists)

    return spread(pipeline, list(tokens), run, at_once, context)


def repair_together(
    pipeline: TaskPipeline, tokens: Mapping[str, int], seeds: Mapping[str, SeedMode], *, insists: bool = False
) -> list[RepairVerdict]:
    """Repair destinations; the source is read once for those at one position. Never raises a ``TrunklineError``."""
    found: dict[str, RepairVerdict] = {}
    waiting = list(tokens)
    for _ in range(TRIES):
        with verification(pipeline, seeds, keeps=True) as work:
            for verdict, held in work.verdicts(waiting):
                name = verdict.destination
                refusal = refusal_of(verdict, held, insists=insists)
                if verdict.outcome != "differs" or held is None or refusal:
                    found[name] = unrepaired(verdict, refusal)
                else:
                    found[name] = _written(pipeline, verdict, held, tokens[name])
        waiting = [name for name in waiting if found[name].note == MOVED]
        if not waiting:
            break
    return [found[name] for name in tokens]


MOVED: Final = "its position moved during the repair; repair it again"


def unrepaired(verdict: VerifyVerdict, refusal: str = "") -> RepairVerdict:
    """Nothing was written."""
    note = "; ".join(filter(None, (verdict.note, refusal)))
    counts = (verdict.missing, verdict.extra, verdict.different)
    outcome, first = verdict.outcome, verdict.differences
    return RepairVerdict(
        verdict.destination, outcome, verdict.position, verdict.rows, *counts, differences=first, note=note
    )


def keys_of(verdict: VerifyVerdict) -> int:
    """How many keys differ."""
    return verdict.missing + verdict.extra + verdict.different


def too_many(verdict: VerifyVerdict) -> str:
    """Why seeding again costs less (Q5); empty: it does not."""
    keys, rows = keys_of(verdict), max(verdict.rows or 0, verdict.source_rows or 0)
    if keys <= KEYS_ANYWAY or (keys <= KEYS_MAX and 2 * keys <= rows):
        return ""
    return (
        f"{plural(keys, 'key')} of {plural(rows, 'row')} would be rewritten: `trunkline deliver reseed` costs less "
        "(--force repairs it all the same)"
    )


def refusal_of(verdict: VerifyVerdict, held: HeldDestination | None, *, insists: bool) -> str:
    """Why a destination that differs is not repaired; empty: it is."""
    if verdict.outcome != "differs":
        return ""
    if held is None:
        return "only `trunkline deliver reseed` helps"
    if lacks(held.target.address, "repairs"):
        kind = kind_of(held.target.address)
        return f"destinations of type {kind} are not repaired; see `trunkline deliver reseed`"
    if held.standing.ahead:
        return "its tables are not level; run the pipeline, and repair it then"
    for table in held.tables.values():
        of = f"{table.table.name}: " if table.table.name else ""
        if table.differs and table.mode != "mirror":
            return f"{of}only mirrors are repaired, and its mode is {table.mode}; see `trunkline deliver reseed`"
        if table.shared_key:
            return (
                f"{of}several rows of the source share the key {table.shared_key}; make it unique, or set "
                "duplicates: warn"
            )
    return "" if insists else too_many(verdict)


def _written(pipeline: TaskPipeline, verdict: VerifyVerdict, held: HeldDestination, token: int) -> RepairVerdict:
    before = unrepaired(verdict)
    result = _applied(pipeline, held, token)
    match result:
        case Applied():
            return replace(
                before, outcome="repaired", removed=result.removed, written=result.written, note=verdict.note
            )
        case PositionMoved() | OutcomeUnknown():
            return replace(before, note=MOVED)
        case Fenced():
            return replace(before, note=str(result), fenced_by=result.token)
    return replace(before, note=str(result))


def _applied(pipeline: TaskPipeline, held: HeldDestination, token: int) -> MemberResult:
    target, standing = held.target, held.standing
    step = MemberStep(
        member=pipeline.member(target),
        home=home_of(target.address),
        expected=standing.position,
        through=standing.position,
        token=token,
        source=standing.source,
        tables=tuple(table.step for table in held.tables.values()),
        mark=standing.mark,
        through_mark=standing.mark,
        repairs=True,
        living=pipeline.living,
    )
    rows = {name: table.rewrites for name, table in held.tables.items() if table.differs}
    try:
        with closing(open_place(target.address)) as place:
            return place.apply([MemberWrite(step, rows)])[step.member]
    except TrunklineError as error:
        return error
