"""Known bugs of whoever appends to a chain log."""

from __future__ import annotations

from trunkline.check.mutant import Mutant
from trunkline.check.mutants.patches import patch
from trunkline.core.appender import Appender, Attempt
from trunkline.core.effects import Effects
from trunkline.core.events import AppendRefused
from trunkline.core.messages import Reason
from trunkline.core.projection import Projection, Segment
from trunkline.core.sequencer import Sequencer, Serving
from trunkline.core.siblings import FillDone

_reconsider = Appender._reconsider
_rejected = Appender._on_rejected
_on_settled = Appender._on_settled
_refusal = Sequencer._refusal


def _taken_is_stored(self: Appender, attempt: Attempt) -> Effects:
    """Somebody else's frame at the position is as good as one's own."""
    return self._on_stored(attempt)


def _past_the_end_counts(self: Appender, attempt: Attempt, view: Projection) -> Effects:
    """The head has it, so it was in time, wherever the segment has ended."""
    segment = view.segment(attempt.segment.index) if attempt.segment is not None else None
    ended = segment is not None and segment.end is not None and attempt.first is not None
    if ended and attempt.at > 0 and segment is not None and segment.end is not None:
        assert attempt.first is not None
        if attempt.first >= segment.end:
            return self._committed(attempt)
    return _reconsider(self, attempt, view)


def _refused_unsettled(self: Appender, attempt: Attempt, reason: Reason) -> Effects:
    if reason is Reason.NO_SPACE:
        return self._complete(attempt, AppendRefused("no space"))
    return _rejected(self, attempt, reason)


def _awaits_the_sealer(self: Appender, attempt: Attempt, done: FillDone) -> Effects:
    return [self._suspect_later(attempt)] if done.why is Reason.SEALED else _on_settled(self, attempt, done)


def _begins_again(self: Sequencer, log: str, segment: Segment) -> Reason | None:
    """A segment is served from its base, whenever somebody asks for an older or another one."""
    serving = self.serving.get(log)
    if segment.owner == self.me and serving is not None and serving.segment != segment.index:
        self.serving[log] = Serving(segment.index, segment.base)
        return None
    return _refusal(self, log, segment)


APPENDING_MUTANTS = (
    Mutant(
        "taken-is-stored",
        "a position that holds another frame counts as stored",
        "late-writer",
        patch((Appender, "_on_taken", _taken_is_stored)),
        ("CommitDurability", "TotalOrder"),
        "breadth",
        20_000,
        ("appender A2",),
    ),
    Mutant(
        "past-the-end-counts",
        "an entry that only the head had counts as committed, although the segment ended before it",
        "two-reconfigurers",
        patch((Appender, "_reconsider", _past_the_end_counts)),
        ("CommitDurability", "NoLostAck", "TotalOrder"),
        "breadth",
        60_000,
        ("appender A4",),
    ),
    Mutant(
        "refused-unsettled",
        "an append without space is refused before its position is settled",
        "space-returns",
        patch((Appender, "_on_rejected", _refused_unsettled)),
        "NoLostAck",
        "breadth",
        20_000,
        ("appender A9",),
    ),
    Mutant(
        "sealer-awaited-for-ever",
        "a client that meets a seal as it settles a position never ends the segment itself",
        "seal-comes-late",
        patch((Appender, "_on_settled", _awaits_the_sealer)),
        "Progress",
        "breadth",
        5_000,
        ("appender A10",),
    ),
    Mutant(
        "segment-begun-again",
        "a sequencer goes back to a segment that it has left",
        "stale-client",
        patch((Sequencer, "_refusal", _begins_again)),
        ("SingleOwner", "NoLostAck"),
        "breadth",
        60_000,
        ("sequencer Q2",),
    ),
)

UNSEEN = {
    "appender A7": "positions that nobody fills at once are filled by the readers that meet them, a wait later",
    "appender A8": "the bound is one of resources: without it nothing is wrong, but a dead client leaves more holes",
    "appender A11": "how long readers wait is a matter of time, which the checker does not have",
    "sequencer Q4": "a sequencer has no disk here, and one that came back and knew where it was would break no promise",
    "sequencer Q5": "how long readers wait is a matter of time, which the checker does not have",
}
