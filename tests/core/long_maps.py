"""Logs of thousands of segments, and a coordinator that checks them."""

from __future__ import annotations

from core.driver import seen
from trunkline.core.coordinator import Coordinator, DutiesConfig
from trunkline.core.effects import Address, Effects
from trunkline.core.messages import NodeInfo
from trunkline.core.projection import Member, Owner, Policy, Projection, Segment, Settings

ME = Address("coordinator", "coordinator")
NODES = tuple(NodeInfo(f"n{number}", 1, 1) for number in range(5))


def long_map(count: int) -> Projection:
    """Repaired segments of three entries on three of five nodes; the last one is open."""
    return Projection("cluster", "log", 4 * count, 0, tuple(_segment(i, count) for i in range(count)), Settings())


def _segment(index: int, count: int) -> Segment:
    group = tuple(Member(f"n{(index + at) % 5}", 1, f"{index + 1}.0.{at}") for at in range(3))
    base, is_open = 1 + 3 * index, index == count - 1
    end = None if is_open else base + 3
    return Segment(index, index + 1, base, end, not is_open, Policy.CHAIN, 1024, (group,), Owner("n0", 1))


def acquainted(view: Projection) -> Coordinator:
    """A coordinator that has seen everything done."""
    role = Coordinator(DutiesConfig("log"))
    role.done.finalized |= set(view.streams())
    role.done.tidied |= {info.node for info in NODES}
    role.on_message(ME, seen(view, NODES))
    return role


def check(role: Coordinator, view: Projection, nodes: tuple[NodeInfo, ...] = NODES) -> Effects:
    return role.on_message(ME, seen(view, nodes))
