"""Deliveries of many histories to a site, here or in a process that is killed at a statement."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from delivery.direct_delivery import Direct, all_well
from delivery.many_histories import TARGETS, ManyHistories, delivery_of
from delivery.task_pipelines import flush_work, member_of, seed_work, standing_of
from trunkline.client.entries import Entry
from trunkline.core.delivery_messages import Outcome
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.config.address_rules import place_of
from trunkline.delivery.destinations import factory
from trunkline.delivery.job.small import flush_portion, seed_portion
from trunkline.delivery.job.work import Portion
from trunkline.destination_suite.place import Site, Watch
from trunkline.destination_suite.processes import PATIENCE_S, forking


def delivery_to(site: Site, entries: Sequence[Entry]) -> Direct:
    return delivery_of(entries, {name: site.address(f"{name}_{{table}}") for name in TARGETS})


def seed(delivery: Direct, through: int) -> None:
    for name in TARGETS:
        standing = standing_of(delivery.work, name)
        if standing is None or standing.position == 0:  # a seed that was killed left a lead without rows
            portion = Portion(0, (member_of(delivery.work, name),), True)
            all_well(seed_portion(delivery.work, seed_work(delivery.work, through), portion))


def flush(delivery: Direct, name: str, ends: Sequence[int], *, again: bool = False) -> None:
    """One destination to the end; ``again``: each flush is repeated as it was planned."""
    while True:
        member = member_of(delivery.work, name)
        later = [member.ahead] if member.ahead else [end for end in ends if end > member.expected]
        if not later:
            return
        work = flush_work(delivery.work, Window(member.expected, later[0]), stamp=True)
        all_well(flush_portion(delivery.work, work, Portion(0, (member,), True)))
        if again:
            report = all_well(flush_portion(delivery.work, work, Portion(0, (member,), True)))
            assert [each.outcome for each in report.results] == [Outcome.ALREADY]


def delivered_until(site: Site, many: ManyHistories, ends: list[int], at: int | None) -> bool:
    """In a child: deliver everything, killed before statement number ``at``. Returns whether it lived."""
    given = (site, list(many.entries), many.ends[0], ends, at)
    child = forking().Process(target=_deliver, args=given, daemon=True)
    child.start()
    child.join(PATIENCE_S)
    assert child.exitcode in (0, -signal.SIGKILL), f"the child ended with {child.exitcode}"
    return child.exitcode == 0


def _deliver(site: Site, entries: list[Entry], first: int, ends: list[int], at: int | None) -> None:
    seen = 0

    def watch(_: str) -> None:
        nonlocal seen
        if seen == at:
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1

    delivery = delivery_to(site, entries)
    _watch_places(site, delivery, watch)
    seed(delivery, first)
    for name in TARGETS:
        flush(delivery, name, ends)
    for place in factory._open_places().values():
        place.close()


def _watch_places(site: Site, delivery: Direct, watch: Watch) -> None:
    for target in delivery.work.targets:
        name = place_of(target.address)
        if name not in factory._open_places():
            factory._open_places()[name] = site.open(watch)
