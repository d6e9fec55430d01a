"""One log out of several: passes to a monitor only the events of its log.

A monitor knows positions, segments and operations of one log. In a world with several logs, each log has its own
monitors, each behind this filter. A result does not name its log: its operation does. Events of no log (a process
ended, a lease was lost) go to all monitors.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from trunkline.check.scenario import Completed, Invoked, Monitor, ObservedEvent, ProcessEnded, Violation
from trunkline.core.effects import Event
from trunkline.core.events import Projected


class OfLog:
    class State(NamedTuple):
        inner: Any
        begun: frozenset[tuple[str, int]] = frozenset()  # process, operation: under way in this log

    def __init__(self, log: str, monitor: Monitor) -> None:
        self._log = log
        self._monitor = monitor

    @property
    def name(self) -> str:
        return self._monitor.name

    def initial(self) -> State:
        return self.State(self._monitor.initial())

    def observe(self, state: State, observed: ObservedEvent) -> State:
        begun = self._begun(state.begun, observed)
        if not self._concerns(state, observed):
            return state
        try:
            return self.State(self._monitor.observe(state.inner, observed), begun)
        except Violation as violation:
            raise Violation(f"{self._log}: {violation}") from None

    def hot(self, state: State) -> str:
        reason = self._monitor.hot(state.inner)
        return f"{self._log}: {reason}" if reason else ""

    def _concerns(self, state: State, observed: ObservedEvent) -> bool:
        match observed.event:
            case Invoked(_, request):
                return bool(getattr(request, "log", None) == self._log)
            case Completed(operation, _):
                return (observed.process, operation) in state.begun
        return _log_of(observed.event) in (None, self._log)

    def _begun(self, begun: frozenset[tuple[str, int]], observed: ObservedEvent) -> frozenset[tuple[str, int]]:
        process = observed.process
        match observed.event:
            case Invoked(operation, request):
                if (process, operation) in begun and getattr(request, "log", None) != self._log:
                    raise Violation(
                        f"operation {operation} of {process} belongs to two logs: number operations across logs"
                    )
                return begun | {(process, operation)}
            case Completed(operation, _):
                return begun - {(process, operation)}
            case ProcessEnded():
                return frozenset(each for each in begun if each[0] != process)
        return begun


def _log_of(event: Event) -> str | None:
    if isinstance(event, Projected):
        return event.projection.log
    log: str | None = getattr(event, "log", None)
    return log
