"""How an error of a destination becomes a result: an exception is a row of the answer, not a failed stage."""

from __future__ import annotations

from trunkline.core.delivery_messages import Outcome, Result
from trunkline.delivery.destinations.contract import Applied
from trunkline.errors import (
    ConfigError,
    DestinationHalted,
    Fenced,
    OutcomeUnknown,
    PositionMoved,
    ProtocolError,
    SourceExpired,
    TrunklineError,
)


def succeeded(destination: str, applied: Applied, token: int) -> Result:
    outcome = Outcome.ALREADY if applied.already else Outcome.APPLIED
    return Result(destination, outcome, applied.position, token)


def failed(destination: str, error: TrunklineError) -> Result:
    """What is known after an error; the text names the destination."""
    text = f"{destination}: {error}"
    match error:
        case Fenced():
            return Result(destination, Outcome.FENCED, token=error.token, error=text)
        case PositionMoved():
            return Result(destination, Outcome.MOVED, error.position, error=text)
        case SourceExpired():
            return Result(destination, Outcome.EXPIRED, error=text)
        case OutcomeUnknown():
            return Result(destination, Outcome.UNKNOWN, error=text)
        case DestinationHalted() | ConfigError() | ProtocolError():
            return Result(destination, Outcome.PERMANENT, error=text)
        case _:
            return Result(destination, Outcome.TRANSIENT, error=text)
