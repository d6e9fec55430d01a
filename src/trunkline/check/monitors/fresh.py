"""Freshness: a read to the tail returns every entry that was acknowledged before it began."""

from __future__ import annotations

from typing import NamedTuple

from trunkline.check.scenario import Completed, Invoked, ObservedEvent, ProcessEnded, SafetyMonitor, Violation
from trunkline.core.calls import AppendRequested, SubscribeRequested
from trunkline.core.effects import Message
from trunkline.core.events import Appended, SubscriptionEnded


class FreshTail(SafetyMonitor):
    """A read to the tail ends after every entry whose append was acknowledged before the read began.

    With ``until`` it may end there.
    """

    name = "FreshTail"

    class State(NamedTuple):
        acknowledged: int = 0  # the highest position
        batches: frozenset[tuple[str, int, int]] = frozenset()  # process, operation, entries: appends of several
        reads: frozenset[tuple[str, int, int]] = frozenset()  # process, operation, position that it must reach

    def initial(self) -> State:
        return self.State()

    def observe(self, state: State, observed: ObservedEvent) -> State:
        process = observed.process
        match observed.event:
            case Invoked(operation, request):
                return self._began(state, process, operation, request)
            case Completed(operation, Appended(glsn)):
                batch = _under_way(state.batches, process, operation)
                last = glsn + batch[2] - 1 if batch is not None else glsn
                return state._replace(acknowledged=max(state.acknowledged, last), batches=state.batches - {batch})
            case Completed(operation, SubscriptionEnded(after)):
                read = _under_way(state.reads, process, operation)
                if read is not None and after <= read[2]:
                    raise Violation(
                        f"{process} read up to {after} as the tail, but {read[2]} was acknowledged before it began"
                    )
                return state._replace(reads=state.reads - {read})
            case Completed(operation, _):
                return self._without(state, process, operation)
            case ProcessEnded():
                return self._without(state, process)
        return state

    def _began(self, state: State, process: str, operation: int, request: Message) -> State:
        match request:
            case AppendRequested(count=count) if count > 1:
                return state._replace(batches=state.batches | {(process, operation, count)})
            case SubscribeRequested(to_tail=True, until=until) if state.acknowledged:
                behind = state.acknowledged if until is None else min(until, state.acknowledged)
                return state._replace(reads=state.reads | {(process, operation, behind)})
        return state

    def _without(self, state: State, process: str, operation: int | None = None) -> State:
        def kept(each: tuple[str, int, int]) -> bool:
            return each[0] != process or operation not in (None, each[1])

        return state._replace(
            batches=frozenset(filter(kept, state.batches)), reads=frozenset(filter(kept, state.reads))
        )


def _under_way(begun: frozenset[tuple[str, int, int]], process: str, operation: int) -> tuple[str, int, int] | None:
    return next((each for each in begun if each[:2] == (process, operation)), None)
