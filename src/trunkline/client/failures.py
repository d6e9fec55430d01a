"""The error that a caller gets for the result of a role: the reason decides the class, its text is for people."""

from __future__ import annotations

from trunkline.core.effects import Event
from trunkline.core.events import AppendRefused, OutcomeUnknown, RequestRefused
from trunkline.core.messages import Reason
from trunkline.errors import ConditionFailed, LogSealed, NoSuchLog, OwnedByAnother, Refused, TrunklineError
from trunkline.errors import OutcomeUnknown as OutcomeUnknownError


def append_failure(result: Event | None) -> TrunklineError:
    """For an append that was not committed, or may not have been. None: its result is lost."""
    match result:
        case OutcomeUnknown(glsn):
            return OutcomeUnknownError(f"the append at {glsn} may have been committed: its position is trimmed or lost")
        case AppendRefused(why, Reason.SEALED):
            return LogSealed(why)
        case AppendRefused(why, Reason.NO_SUCH_LOG):
            return NoSuchLog(why)
        case AppendRefused(why, Reason.OWNED, owner=owner):
            return OwnedByAnother(f"{why}; append with takeover=True to take it over", owner)
        case AppendRefused(why, Reason.CONDITION, following):
            return ConditionFailed(why, following or None)
        case AppendRefused(why):
            return Refused(why)
    return OutcomeUnknownError("the client was closed before the append was settled")


def request_failure(refused: RequestRefused) -> Refused:
    return NoSuchLog(refused.why) if refused.cause is Reason.NO_SUCH_LOG else Refused(refused.why)
