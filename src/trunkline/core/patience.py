"""The waits of a coordinator. Each has a timer of its own, so that checks may come early or late.

    timer            starts                                        ends
    widen            a check shows a new, narrow open segment      after ``widen_ms``, or another segment is open
    absent NODE      a check shows the node absent                 after ``absent_ms``, or the node is back
    silent NODE      a duty timed out before the node answered     after a time that doubles, or the node answers
    full NODE        the node had no space for a copy              after ``full_ms``

The sets that ``next_duty`` reads are in ``DutyMemory``.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from trunkline.core.duties import PRESENT, DutyMemory, names_node
from trunkline.core.effects import Announce, CancelTimer, Effects, SetTimer
from trunkline.core.events import NodeGivenUp
from trunkline.core.messages import NodeInfo
from trunkline.core.projection import Projection


class PatienceConfig(Struct, frozen=True):
    log: str
    widen_ms: int
    absent_ms: int
    silent_ms: int
    silences_max: int
    full_ms: int


class Patience:
    def __init__(self, config: PatienceConfig, done: DutyMemory) -> None:
        self.config = config
        self.done = done
        self.narrow = -1  # the open segment, if it is narrow
        self.given_up: set[str] = set()  # nodes that were absent for longer than ``absent_ms``
        self.silences: dict[str, int] = {}  # time-outs in a row, by node

    def on_view(self, view: Projection | None, nodes: tuple[NodeInfo, ...]) -> Effects:
        return [*self._await_steadiness(view), *self._await_the_absent(view, nodes)]

    def _await_steadiness(self, view: Projection | None) -> Effects:
        narrow = view is not None and view.last.is_open and min(map(len, view.last.groups)) < view.settings.replicas
        index = view.last.index if view is not None and narrow else -1
        if index == self.narrow:
            return []
        self.narrow = index
        self.done.may_widen = self.config.widen_ms == 0
        wait = narrow and not self.done.may_widen
        return [SetTimer("widen", self.config.widen_ms) if wait else CancelTimer("widen")]

    def _await_the_absent(self, view: Projection | None, nodes: tuple[NodeInfo, ...]) -> Effects:
        if not self.config.absent_ms or view is None:
            return []
        done = self.done
        absent = [info.node for info in nodes if not info.live and info.state in PRESENT]
        new = [node for node in absent if node not in done.awaited and node not in self.given_up]
        begun = [node for node in new if names_node(view, node)]
        self.given_up.update(node for node in new if node not in begun)
        back = sorted(done.awaited.difference(absent))
        done.awaited = {*done.awaited, *begun}.intersection(absent)
        self.given_up.intersection_update(absent)
        timers: Effects = [SetTimer(f"absent {node}", self.config.absent_ms) for node in begun]
        return [*timers, *(CancelTimer(f"absent {node}") for node in back)]

    def on_timer(self, key: str) -> Effects:
        """The wait is over. The next check decides what follows."""
        what, _, node = key.partition(" ")
        if what == "widen":
            self.done.may_widen = True
        elif what == "absent":
            self.done.awaited.discard(node)
            self.given_up.add(node)
            return [Announce(NodeGivenUp(self.config.log, node))]
        elif what == "silent":
            self.done.silent.discard(node)
        else:
            self.done.full.discard(node)
        return []

    def pass_over_silent(self, nodes: Iterable[str]) -> Effects:
        timers: Effects = []
        for node in nodes:
            times = self.silences[node] = min(self.silences.pop(node, 0) + 1, self.config.silences_max)
            self.done.silent.add(node)
            timers.append(SetTimer(f"silent {node}", self.config.silent_ms * 2**times))
        return timers

    def pass_over_full(self, node: str) -> Effects:
        self.done.full.add(node)
        return [SetTimer(f"full {node}", self.config.full_ms)]

    def on_answer(self, node: str) -> Effects:
        """The node has answered, however late."""
        if node not in self.silences:
            return []
        del self.silences[node]
        if node not in self.done.silent:
            return []
        self.done.silent.discard(node)
        return [CancelTimer(f"silent {node}")]

    def on_restart(self, node: str) -> Effects:
        """What was known about the earlier process does not hold for this one."""
        self.done.full.discard(node)
        return [CancelTimer(f"full {node}"), *self.on_answer(node)]
