"""What a task or a whole job reports, and the result of one destination: an error is a result, not a failed stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from trunkline.core.delivery_messages import JobDone, JobMember, Outcome, Result
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

NOT_WRITTEN = {Outcome.TRANSIENT, Outcome.PERMANENT, Outcome.FENCED, Outcome.MOVED, Outcome.EXPIRED}
ReadPath = Literal["small", "large"]


class JobReport(Struct, frozen=True):
    """Results of a task, or of all tasks of a job. ``rest`` and ``error`` hold for destinations without a result."""

    results: tuple[Result, ...] = ()
    rest: Outcome = Outcome.EMPTY
    error: str = ""
    mark: str = ""  # of the version that was read up to
    unrouted: dict[str | None, int] | None = None  # unrouted rows that arrived, by value; None: not counted
    path: ReadPath | None = None  # None: nothing had to be read

    def done(self, job: int) -> JobDone:
        """The part that the planner receives."""
        return JobDone(job, self.results, self.rest, self.error, self.mark)

    @property
    def may_have_written(self) -> bool:
        """Then the window may not be read again for some destination, so its unrouted rows must be counted now."""
        return self.rest is not Outcome.EMPTY or any(each.outcome not in NOT_WRITTEN for each in self.results)

    def without_result(self, members: Sequence[JobMember]) -> tuple[JobMember, ...]:
        """Those for which there were no rows."""
        seen = {result.destination for result in self.results}
        return tuple(member for member in members if member.destination not in seen)


def merged(parts: Sequence[JobReport], mark: str) -> JobReport:
    """The reports of all tasks of a job as one."""
    return JobReport(
        tuple(result for part in parts for result in part.results),
        mark=mark,
        unrouted=next((part.unrouted for part in parts if part.unrouted is not None), None),
        path=parts[0].path,
    )


def joined(reports: Sequence[JobReport]) -> JobReport:
    """Reports about different members of one job; the mark is that of the first."""
    broken = next((each for each in reports if each.rest is not Outcome.EMPTY), JobReport())
    return JobReport(
        tuple(result for each in reports for result in each.results),
        broken.rest,
        broken.error,
        reports[0].mark,
        reports[0].unrouted,
        reports[0].path,
    )


def succeeded(destination: str, applied: Applied, token: int) -> Result:
    return Result(
        destination,
        Outcome.ALREADY if applied.already else Outcome.APPLIED,
        applied.position,
        token,
        removed=applied.removed,
        written=applied.written,
        duplicates=applied.duplicates,
        missing=applied.missing,
        reshaped=applied.reshaped,
    )


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


def broken_off(members: Sequence[JobMember], error: TrunklineError) -> JobReport:
    """A job ended with an error that is not of one destination. One that a retry repeats is that of all: should one of
    them have been written, its record shows it. After others the outcome is unknown."""
    if failed("", error).outcome in (Outcome.PERMANENT, Outcome.EXPIRED):
        return all_failed(members, error)
    return JobReport(rest=Outcome.UNKNOWN, error=str(error))


def all_failed(members: Sequence[JobMember], error: TrunklineError) -> JobReport:
    """Nothing was written."""
    return JobReport(tuple(failed(member.destination, error) for member in members))
