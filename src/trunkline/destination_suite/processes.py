"""Other processes that use the same place: one that is killed at a statement, and one that does as it is asked."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cache
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from trunkline.config import changed_environment
from trunkline.delivery.destinations.contract import Applied, MemberResult, MemberTables, Place, Standing
from trunkline.destination_suite.place import Change, Doing, OneTable, Plan, Row, Site, Table, content, plain, staged
from trunkline.errors import Refused, TrunklineError, Unreachable

PATIENCE_S: Final = 180.0  # of a child on a loaded machine; longer: one that hangs is found later
TRIES: Final = 400  # of a call that another process keeps from the place

OneStep = tuple[Plan, list[Change]] | tuple[Plan, list[Row]]


class Group(Struct, frozen=True):
    """Steps of several members of one site. ``replans``: from what they have stored, as a planner does."""

    site: Site
    doings: tuple[Doing, ...]
    replans: bool = False


Step = OneStep | Group


def apply(table: OneTable, step: OneStep) -> Applied:
    """Do one flush or seed, and once more for as long as the table is only busy."""
    plan, rows = step
    for tries in range(TRIES):
        try:
            if plan.seeds or plan.replaces:
                return table.seed(plan, plain(plan.columns, rows))  # type: ignore[arg-type]
            return table.flush(plan, staged(plan.columns, plan.key, rows))  # type: ignore[arg-type]
        except Unreachable:
            if tries == TRIES - 1:
                raise
    raise AssertionError("unreachable")


def apply_group(place: Place, group: Group) -> dict[str, MemberResult]:
    """Do the steps, and once more those that were only busy."""
    results: dict[str, MemberResult] = {}
    waiting = list(group.doings)
    for _ in range(TRIES):
        try:
            found = place.apply([doing.write() for doing in (replanned(place, waiting) if group.replans else waiting)])
        except Unreachable as error:
            results |= {doing.step.member: error for doing in waiting}
            continue
        assert sorted(found) == sorted(doing.step.member for doing in waiting)
        results |= found
        waiting = [doing for doing in waiting if isinstance(found[doing.step.member], Unreachable)]
        if not waiting:
            break
    return results


def replanned(place: Place, doings: Sequence[Doing]) -> list[Doing]:
    """Planned from what the members have stored, unless they are done."""
    found = place.standings([tables_of(doing) for doing in doings])
    planned = []
    for doing in doings:
        held = found[doing.step.member]
        assert not isinstance(held, TrunklineError), held
        if held is not None and held.position != doing.step.through:
            step = replace(doing.step, expected=held.position, mark=held.mark, ahead=held.ahead)
            doing = doing._replace(step=step)
        planned.append(doing)
    return planned


def tables_of(doing: Doing) -> MemberTables:
    step = doing.step
    addresses = (*(table.address for table in step.tables), *(table.address for table in step.leaving))
    return MemberTables(step.member, step.home, addresses)


def standings(site: Site, doings: Sequence[Doing]) -> dict[str, Standing | TrunklineError | None]:
    with closing(site.open()) as place:
        return place.standings([tables_of(doing) for doing in doings])


def states(site: Site, doings: Sequence[Doing]) -> list[tuple[Standing | TrunklineError | None, dict[str, object]]]:
    """Standing and rows of each member, of one moment: a server may still be at work for a process that is dead."""
    names = [
        sorted({*(each.table for each in one.step.tables), *(each.table for each in one.step.leaving)})
        for one in doings
    ]
    members = [tables_of(one) for one in doings]
    with closing(site.open()) as place:
        before = place.standings(members)
        while True:
            held = site.held_together([name for each in names for name in each])
            after = place.standings(members)
            if before == after:
                break
            before = after
    rows: list[dict[str, object]] = [{name: content(held[name]) for name in each} for each in names]
    return [(before[one.step.member], each) for one, each in zip(doings, rows, strict=True)]


PRELOADED: Final = ["trunkline.destination_suite.crashes"]  # what children need, and what loads slowly


@cache
def forking() -> ForkServerContext:
    """Makes children of a process that has loaded all that they need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with changed_environment({"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}):
        forkserver.ensure_running()
    return context


def run_until(table: Table, step: Step, at: int) -> bool:
    """In a child: do the step, killed with SIGKILL before statement number ``at`` (from 0); the last is "done".

    Returns whether it lived: ``at`` was past the last.
    """
    child = forking().Process(target=_killed_at, args=(table, step, at), daemon=True)
    child.start()
    child.join(PATIENCE_S)
    assert child.exitcode in (0, -signal.SIGKILL), f"the child ended with {child.exitcode}"
    return child.exitcode == 0


def _killed_at(table: Table, step: Step, at: int) -> None:
    seen = 0

    def watch(_: str) -> None:
        nonlocal seen
        if seen == at:
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1

    driver = table.open(watch)
    if isinstance(step, Group):
        for result in apply_group(driver.place, step).values():
            assert isinstance(result, Applied), result
    else:
        apply(driver, step)
    watch("done")
    driver.close()


@contextmanager
def worker(table: Table) -> Iterator[Connection]:
    """A process with the place open, which does each step it is sent and answers with ``Applied`` or the error, or,
    for a group, with those of each member."""
    ours, theirs = forking().Pipe()
    child = forking().Process(target=_work, args=(table, theirs), daemon=True)
    child.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        child.join(PATIENCE_S)
        child.kill()
        child.join()
        child.close()


def _work(table: Table, steps: Connection) -> None:
    driver = table.open()
    while True:
        try:
            step: Step = steps.recv()
        except EOFError:
            return driver.close()
        try:
            if isinstance(step, Group):
                steps.send(_sendable(apply_group(driver.place, step)))
            else:
                steps.send(apply(driver, step))
        except TrunklineError as error:
            steps.send(_spelled(error))


def _sendable(results: Mapping[str, MemberResult]) -> dict[str, Applied | str]:
    return {name: each if isinstance(each, Applied) else _spelled(each) for name, each in results.items()}


def _spelled(error: TrunklineError) -> str:
    return type(error).__name__ if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
