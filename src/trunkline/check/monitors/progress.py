"""Progress: after faults stop, every operation ends, every reader reaches the tail, every ended segment is finished."""

from __future__ import annotations

from typing import NamedTuple

from trunkline.check.scenario import Completed, Invoked, ObservedEvent, ProcessEnded
from trunkline.core.calls import SubscribeRequested
from trunkline.core.events import (
    Committed,
    EntriesRead,
    FrameStored,
    PositionsSkipped,
    Projected,
    StreamDamaged,
    StreamDropped,
    StreamFinalized,
    StreamRecovered,
    StreamSealed,
)
from trunkline.core.projection import Projection


class Progress:
    """Hot until all operations, reads and duties are complete."""

    name = "Progress"

    class State(NamedTuple):
        pending: frozenset[tuple[str, int]] = frozenset()  # process, operation
        readers: frozenset[tuple[str, int]] = frozenset()  # process, next position
        tail: int = 1  # after the last acknowledged entry
        unfinished: tuple[str, ...] = ()  # streams of ended segments that were not finalized, segments not repaired
        named: tuple[str, ...] = ()  # streams of the log
        left: tuple[str, ...] = ()  # streams that left the log and were not dropped
        held: tuple[str, ...] = ()  # streams that exist on a node: only these must be dropped

    def __init__(self, *, finishing: bool = False, drained: tuple[str, ...] = (), tidy: bool = False) -> None:
        """``finishing``: a coordinator runs, so ended segments must be repaired and their streams finalized.
        ``drained``: nodes that must hold nothing of the log; ``tidy``: streams that left the log must be dropped.
        """
        self._finishing = finishing
        self._drained = drained
        self._tidy = tidy

    def initial(self) -> State:
        return self.State()

    def observe(self, state: State, observed: ObservedEvent) -> State:
        process = observed.process
        if self._tidy and isinstance(observed.event, FrameStored | StreamSealed | StreamFinalized | StreamRecovered):
            state = state._replace(held=tuple(sorted({*state.held, observed.event.stream})))
        match observed.event:
            case Invoked(_, SubscribeRequested(_, _, start, None, False)):
                readers = {**dict(state.readers), process: start}
                return state._replace(readers=frozenset(readers.items()))
            case Invoked(operation, _):
                return state._replace(pending=state.pending | {(process, operation)})
            case Completed(operation, _):
                return state._replace(pending=state.pending - {(process, operation)})
            case Committed(frame=frame):
                return state._replace(tail=max(state.tail, frame.next))
            case EntriesRead(_, _, frame):
                return self._at(state, process, frame.next)
            case PositionsSkipped(_, _, end):
                return self._at(state, process, end)
            case Projected(projection):
                return self._projected(state, projection)
            case StreamDropped(stream=stream) if self._tidy:
                left, held = ({*streams} - {stream} for streams in (state.left, state.held))
                return state._replace(left=tuple(sorted(left)), held=tuple(sorted(held)))
            case StreamDamaged(stream=stream) if self._finishing:
                return state._replace(unfinished=tuple(sorted({*state.unfinished, f"damaged {stream}"})))
            case StreamFinalized(stream=stream) if self._finishing:
                return state._replace(unfinished=_without(state.unfinished, stream))
            case StreamRecovered(stream=stream, end=end) if self._finishing and end is not None:
                return state._replace(unfinished=_without(state.unfinished, stream))
            case ProcessEnded():
                return self._ended(state, process)
        return state

    def hot(self, state: State) -> str:
        if state.pending:
            return "not complete: " + ", ".join(f"operation {o} of {p}" for p, o in sorted(state.pending))
        behind = [f"{p} at {n} of {state.tail}" for p, n in sorted(state.readers) if n < state.tail]
        if behind:
            return "readers behind: " + ", ".join(behind)
        waiting = [each for each in state.unfinished if not each.startswith("done ")]
        waiting += [f"drop of {stream}" for stream in state.left if stream in state.held]
        return "not finished: " + ", ".join(waiting) if waiting else ""

    def _projected(self, state: State, projection: Projection) -> State:
        if projection.deleted:  # it cannot be read to its tail, and needs no finishing
            state = state._replace(readers=frozenset(), unfinished=())
        elif self._finishing:
            state = state._replace(unfinished=_unfinished(state.unfinished, projection, self._drained))
        if not self._tidy:
            return state
        named = projection.streams()
        left = {*state.left, *(stream for stream in state.named if stream not in named)}
        return state._replace(named=named, left=tuple(sorted(left)))

    def _at(self, state: State, process: str, position: int) -> State:
        readers = frozenset((p, position if p == process else n) for p, n in state.readers)
        return state._replace(readers=readers)

    def _ended(self, state: State, process: str) -> State:
        return state._replace(
            pending=frozenset(p for p in state.pending if p[0] != process),
            readers=frozenset(r for r in state.readers if r[0] != process),
        )


def _unfinished(before: tuple[str, ...], projection: Projection, drained: tuple[str, ...]) -> tuple[str, ...]:
    """What is left to do: ``stream X`` until it is finalized (then ``done X``), ``segment N`` until it is repaired,
    ``damaged X`` until that stream is replaced, ``node N`` until it holds nothing of the log.
    """
    nodes = {f"node {m.node}" for segment in projection.segments for m in segment.members() if m.node in drained}
    named = {f"damaged {member.stream}" for segment in projection.segments for member in segment.members()}
    damaged = [each for each in before if each in named]
    done = {each for each in before if each.startswith("done ")}
    ended = [segment for segment in projection.segments if segment.end is not None]
    streams = [m.stream for s in ended for m in s.members() if f"done {m.stream}" not in done]
    segments = [f"segment {s.index}" for s in ended if not s.repaired]
    return tuple(sorted([*done, *damaged, *nodes, *(f"stream {stream}" for stream in streams), *segments]))


def _without(before: tuple[str, ...], stream: str) -> tuple[str, ...]:
    kept = {each for each in before if each != f"stream {stream}"}
    return tuple(sorted({*kept, f"done {stream}"}))
