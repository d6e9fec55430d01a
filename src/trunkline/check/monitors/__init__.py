"""The properties of the log, one monitor each. The same monitors judge searches and recordings."""

from __future__ import annotations

from trunkline.check.monitors.durability import CommitDurability, ReadCommitted
from trunkline.check.monitors.fresh import FreshTail
from trunkline.check.monitors.history import BoundaryWrittenOnce, SingleOwner
from trunkline.check.monitors.kept import EndsKept
from trunkline.check.monitors.of_log import OfLog
from trunkline.check.monitors.order import Completeness, RealTimeOrder, TotalOrder
from trunkline.check.monitors.outcomes import NoLostAck, TrimAsked
from trunkline.check.monitors.progress import Progress
from trunkline.check.monitors.space import CopiesMade, KeepsRoom
from trunkline.check.scenario import Monitor
from trunkline.core.projection import Projection


def safety(projection: Projection | None = None, granted: int = 0) -> tuple[Monitor, ...]:
    """The safety properties of a log. ``projection``: the log's at the beginning, if it already exists;
    ``granted``: how far segment 0 was granted by then.
    """
    return (
        TotalOrder(projection),
        CommitDurability(projection),
        ReadCommitted(projection),
        Completeness(),
        RealTimeOrder(),
        FreshTail(),
        SingleOwner(projection, granted),
        BoundaryWrittenOnce(projection),
        NoLostAck(projection),
        TrimAsked(projection),
    )


def of_each(projections: tuple[Projection, ...], *more: Monitor) -> tuple[Monitor, ...]:
    """The monitors of several logs: for each log its safety properties and ``more``."""
    return tuple(OfLog(each.log, monitor) for each in projections for monitor in (*safety(each), *more))


__all__ = [
    "BoundaryWrittenOnce",
    "CommitDurability",
    "Completeness",
    "CopiesMade",
    "EndsKept",
    "FreshTail",
    "KeepsRoom",
    "NoLostAck",
    "OfLog",
    "Progress",
    "ReadCommitted",
    "RealTimeOrder",
    "SingleOwner",
    "TotalOrder",
    "TrimAsked",
    "of_each",
    "safety",
]
