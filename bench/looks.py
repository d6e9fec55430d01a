"""How long the checks of a coordinator take for a log of many segments: the role only, without metadata and network.

    ./run bench looks [SEGMENTS]        20,000 by default

Each line is the best of five, in milliseconds of CPU. A check is one step on the loop that also renews leases.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from trunkline.core.coordinator import Coordinator, DutiesConfig
from trunkline.core.effects import Address
from trunkline.core.messages import NodeInfo
from trunkline.core.projection import (
    EndSegment,
    Member,
    Opening,
    Owner,
    Policy,
    Projection,
    Seat,
    Segment,
    Settings,
    apply,
)
from trunkline.core.siblings import ViewChanged

ME = Address("coordinator", "reconfigurer")
NODES = tuple(NodeInfo(f"n{number}", 1, 1) for number in range(5))
NEXT = Opening((tuple(Seat(f"n{number}", 1) for number in range(3)),), Owner("n0", 1))


def segment(index: int, count: int) -> Segment:
    group = tuple(Member(f"n{(index + at) % 5}", 1, f"{index + 1}.0.{at}") for at in range(3))
    base, is_open = 1 + 3 * index, index == count - 1
    end = None if is_open else base + 3
    return Segment(index, index + 1, base, end, not is_open, Policy.CHAIN, 1024, (group,), Owner("n0", 1))


def long_map(count: int) -> Projection:
    return Projection("cluster", "log", 4 * count, 0, tuple(segment(i, count) for i in range(count)), Settings())


def read_again(view: Projection) -> Projection:
    """As a store returns it: equal, but another object."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(view), type=Projection)


def acquainted(view: Projection) -> Coordinator:
    """A coordinator without pending duties."""
    role = Coordinator(DutiesConfig("log"))
    role.done.finalized |= set(view.streams())
    role.done.tidied |= {info.node for info in NODES}
    role.on_message(ME, ViewChanged("log", view, NODES))
    return role


def best_of_five(
    make: Callable[[], Coordinator], view: Projection, nodes: tuple[NodeInfo, ...] = NODES
) -> tuple[float, str]:
    figures: list[float] = []
    duty = ""
    for _ in range(5):
        role, read = make(), read_again(view)
        gc.collect()
        begin = time.process_time()
        role.on_message(ME, ViewChanged("log", read, nodes))
        figures.append(time.process_time() - begin)
        duty = role.phase
    return min(figures) * 1000, duty


def main(count: int) -> None:
    view = long_map(count)
    ended = apply(view, EndSegment(view.last.index, view.last.base + 3, view.last.groups, NEXT))
    outside = next(info for info in NODES if all(info.node != member.node for member in view.last.members()))
    restarted = tuple(replace(info, start=2) if info is outside else info for info in NODES)
    away = tuple(replace(info, live=False) if info is outside else info for info in NODES)
    looks = {
        "the first after a start": best_of_five(lambda: Coordinator(DutiesConfig("log")), view),
        "a steady one": best_of_five(lambda: acquainted(view), view),
        "after a node has restarted": best_of_five(lambda: acquainted(view), view, restarted),
        "after a node went away": best_of_five(lambda: acquainted(view), view, away),
        "after one segment ended": best_of_five(lambda: acquainted(view), ended),
    }
    print(f"checks of a map of {count:,} segments")
    for what, (milliseconds, duty) in looks.items():
        print(f"  {what:30} {milliseconds:7.1f} ms   then: {duty}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
