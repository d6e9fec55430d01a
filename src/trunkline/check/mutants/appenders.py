"""Mutants of clients that append to a chain log, and of its sequencer."""

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


def _accept_other_frame(self: Appender, attempt: Attempt) -> Effects:
    """Another frame at the position counts as its own."""
    return self._on_stored(attempt)


def _commit_past_end(self: Appender, attempt: Attempt, view: Projection) -> Effects:
    """An entry on the head counts as committed, even past the end of the segment."""
    segment = view.segment(attempt.segment.index) if attempt.segment is not None else None
    ended = segment is not None and segment.end is not None and attempt.first is not None
    if ended and attempt.at > 0 and segment is not None and segment.end is not None:
        assert attempt.first is not None
        if attempt.first >= segment.end:
            return self._committed(attempt)
    return _reconsider(self, attempt, view)


def _refuse_before_settled(self: Appender, attempt: Attempt, reason: Reason) -> Effects:
    if reason is Reason.NO_SPACE:
        return self._complete(attempt, AppendRefused("no space"))
    return _rejected(self, attempt, reason)


def _wait_for_sealer(self: Appender, attempt: Attempt, done: FillDone) -> Effects:
    return [self._suspect_later(attempt)] if done.why is Reason.SEALED else _on_settled(self, attempt, done)


def _serve_older_segment(self: Sequencer, log: str, segment: Segment) -> Reason | None:
    """A segment is served from its base again when a client asks for an older one."""
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
        patch((Appender, "_on_taken", _accept_other_frame)),
        ("CommitDurability", "TotalOrder"),
        "breadth",
        20_000,
        ("appender A2",),
    ),
    Mutant(
        "past-the-end-counts",
        "an entry on the head alone counts as committed although the segment ended before it",
        "two-reconfigurers",
        patch((Appender, "_reconsider", _commit_past_end)),
        ("CommitDurability", "NoLostAck", "TotalOrder"),
        "breadth",
        60_000,
        ("appender A4",),
    ),
    Mutant(
        "refused-unsettled",
        "an append for which there is no space is refused before its position is settled",
        "space-returns",
        patch((Appender, "_on_rejected", _refuse_before_settled)),
        "NoLostAck",
        "breadth",
        20_000,
        ("appender A9",),
    ),
    Mutant(
        "sealer-awaited-for-ever",
        "a client that meets a seal while it settles a position never ends the segment itself",
        "seal-comes-late",
        patch((Appender, "_on_settled", _wait_for_sealer)),
        "Progress",
        "breadth",
        5_000,
        ("appender A10",),
    ),
    Mutant(
        "segment-begun-again",
        "a sequencer returns to a segment that it has left",
        "stale-client",
        patch((Sequencer, "_refusal", _serve_older_segment)),
        ("SingleOwner", "NoLostAck"),
        "breadth",
        60_000,
        ("sequencer Q2",),
    ),
)

UNSEEN = {
    "appender A7": "positions that are not filled at once are filled later by the readers that reach them",
    "appender A8": "the bound limits resources: without it no promise breaks, but a dead client leaves more holes",
    "appender A11": "how long readers wait is a matter of time, which the checker does not model",
    "sequencer Q4": "a sequencer has no disk here, and one that recovered its position would break no promise",
    "sequencer Q5": "how long readers wait is a matter of time, which the checker does not model",
}
