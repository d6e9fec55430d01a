"""What a node has answered is found again after a restart."""

from __future__ import annotations

from trunkline.check.scenario import ObservedEvent, Violation
from trunkline.core.events import StreamDropped, StreamFinalized, StreamRecovered

Ends = tuple[tuple[tuple[str, str], int], ...]  # by log and stream, sorted


class EndsKept:
    """A stream that has told its end has that end for as long as it is there."""

    name = "EndsKept"

    def initial(self) -> Ends:
        return ()

    def observe(self, state: Ends, observed: ObservedEvent) -> Ends:
        ends = dict(state)
        match observed.event:
            case StreamFinalized(log=log, stream=stream, end=end):
                if ends.get((log, stream), end) != end:
                    raise Violation(f"{stream} of {log} ended at {ends[log, stream]}, and now at {end}")
                ends[log, stream] = end
            case StreamRecovered(log=log, stream=stream, end=end):
                if (log, stream) in ends and ends[log, stream] != end:
                    raise Violation(f"{stream} of {log} ended at {ends[log, stream]}, and recovered with {end}")
            case StreamDropped(log=log, stream=stream):
                ends.pop((log, stream), None)
            case _:
                return state
        return tuple(sorted(ends.items()))

    def hot(self, state: Ends) -> str:
        return ""
