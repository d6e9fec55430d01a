"""What a coordinator waits for: timers of their own, so that looks are free to come soon or late.

    timer            begins                                        ends
    widen            a look shows a new, narrow open segment       it has been so for ``widen_ms``, or another is open
    absent NODE      a look shows the node away                    it was so for ``absent_ms``, or is back
    silent NODE      a duty was over before the node said a word   after a time that doubles, or it says one
    full NODE        the node had no space for a copy              after ``full_ms``

The sets that ``next_duty`` looks at are in ``DutyMemory``.
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
        self.given_up: set[str] = set()  # nodes that are away and were awaited for long enough
        self.silences: dict[str, int] = {}  # how often in a row a node was silent

    def on_look(self, view: Projection | None, nodes: tuple[NodeInfo, ...]) -> Effects:
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
        away = [info.node for info in nodes if not info.live and info.state in PRESENT]
        gone = [node for node in away if node not in done.awaited and node not in self.given_up]
        begun = [node for node in gone if names_node(view, node)]
        self.given_up.update(node for node in gone if node not in begun)
        over = sorted(done.awaited.difference(away))
        done.awaited = {*done.awaited, *begun}.intersection(away)
        self.given_up.intersection_update(away)
        timers: Effects = [SetTimer(f"absent {node}", self.config.absent_ms) for node in begun]
        return [*timers, *(CancelTimer(f"absent {node}") for node in over)]

    def on_timer(self, key: str) -> Effects:
        """The time is over. What it was for is decided by the next look."""
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

    def on_word(self, node: str) -> Effects:
        """The node has said something, however late."""
        if node not in self.silences:
            return []
        del self.silences[node]
        if node not in self.done.silent:
            return []
        self.done.silent.discard(node)
        return [CancelTimer(f"silent {node}")]

    def on_restart(self, node: str) -> Effects:
        """What was true of the process before is not known of this one."""
        self.done.full.discard(node)
        return [CancelTimer(f"full {node}"), *self.on_word(node)]
