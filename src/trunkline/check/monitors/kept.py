"""A node recovers after a restart what it has acknowledged."""

from __future__ import annotations

from trunkline.check.scenario import ObservedEvent, SafetyMonitor, Violation
from trunkline.core.events import StreamDropped, StreamFinalized, StreamRecovered

Ends = tuple[tuple[tuple[str, str], int], ...]  # by log and stream, sorted


class EndsKept(SafetyMonitor):
    """A finalized stream keeps its end until it is dropped."""

    name = "EndsKept"

    def initial(self) -> Ends:
        return ()

    def observe(self, state: Ends, observed: ObservedEvent) -> Ends:
        ends = dict(state)
        match observed.event:
            case StreamFinalized(log=log, stream=stream, end=end):
                if ends.get((log, stream), end) != end:
                    raise Violation(f"{stream} of {log} ended at {ends[log, stream]}, but now at {end}")
                ends[log, stream] = end
            case StreamRecovered(log=log, stream=stream, end=end):
                if (log, stream) in ends and ends[log, stream] != end:
                    raise Violation(f"{stream} of {log} ended at {ends[log, stream]}, but recovered with {end}")
            case StreamDropped(log=log, stream=stream):
                ends.pop((log, stream), None)
            case _:
                return state
        return tuple(sorted(ends.items()))
