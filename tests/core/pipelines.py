"""A planner of a delivery pipeline, driven by hand: what it receives, and what it requests."""

from __future__ import annotations

from msgspec.structs import replace

from core.driver import messages, sent
from trunkline.core.delivery_messages import (
    NO_SPAN,
    Configured,
    FlushGroup,
    Grant,
    JobDone,
    JobMember,
    LeasesGranted,
    Outcome,
    Planned,
    ReadStandings,
    Result,
    SeedGroup,
    Span,
)
from trunkline.core.effects import Address, Effects, Message
from trunkline.core.planner import Planner
from trunkline.core.planner_tracks import PlannerConfig, TrackStage

HOST = Address("deliverer", "host")
NAMES = ("d1", "d2", "d3")


class Pipeline:
    """A planner, and the last thing that it asked of its worker."""

    def __init__(self, *names: str, **settings: int) -> None:
        self.planner = Planner(replace(PlannerConfig(interval_ms=0, record_ms=0), **settings))
        self.names = names or NAMES
        self.asked: list[Message] = []
        self.effects: Effects = []
        self.deliver(Configured(tuple(Planned(name) for name in self.names)))

    def deliver(self, message: Message) -> list[Message]:
        """What the planner sends for this message."""
        return self._carry_out(self.planner.on_message(HOST, message))

    def fire(self, key: str) -> list[Message]:
        return self._carry_out(self.planner.on_timer(key))

    def _carry_out(self, effects: Effects) -> list[Message]:
        self.effects = effects
        self.asked += [message for to, message in sent(effects) if to == "self.worker"]
        return messages(effects)

    def done(self, *results: Result, rest: Outcome | None = Outcome.UNKNOWN, job: int | None = None) -> list[Message]:
        """The last job (or another one) has ended."""
        last = self.asked[-1]
        assert isinstance(last, FlushGroup | SeedGroup | ReadStandings)
        return self.deliver(JobDone(last.job if job is None else job, results, rest))

    def own(self, *positions: int, token: int = 1, settled: bool = True, empty: Span = NO_SPAN) -> list[Message]:
        """Every destination is granted, and stands at its position."""
        self.deliver(LeasesGranted(tuple(Grant(name, token, empty, settled=settled) for name in self.names)))
        stands = [Result(name, Outcome.STANDS, at, 0) for name, at in zip(self.names, positions, strict=True)]
        return self.done(*stands)

    def stages(self) -> list[TrackStage]:
        return [self.planner.tracks[name].stage for name in self.names]

    def positions(self) -> list[int]:
        return [self.planner.tracks[name].effective for name in self.names]


def applied(name: str, position: int) -> Result:
    return Result(name, Outcome.APPLIED, position, 1)


def all_applied(names: tuple[str, ...], position: int) -> list[Result]:
    return [applied(name, position) for name in names]


def failed(name: str, outcome: Outcome = Outcome.TRANSIENT) -> Result:
    return Result(name, outcome, error="unreachable")


def flush(job: int, after: int, through: int, *names: str, expected: int | None = None, stamp: bool = False) -> Message:
    at = after if expected is None else expected
    return FlushGroup(job, after, through, tuple(JobMember(name, at, 1) for name in names), stamp)
