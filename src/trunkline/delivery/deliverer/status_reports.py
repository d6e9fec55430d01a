"""Reports the status of destinations to the control store.

Rules
 V3  A destination is reported when something about it changed: at most once a second, and not before the last report is
     stored.
 V4  While the store is unreachable nothing is sent; afterwards everything is sent again, because reports may be lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from trunkline.core.planner_tracks import Track, TrackStage
from trunkline.delivery.control.contract import ERROR_CHARACTERS_MAX, Reported, Status
from trunkline.delivery.deliverer.leases import DelivererLeases
from trunkline.delivery.deliverer.statistics import DestinationStats, VersionTimes
from trunkline.delivery.deliverer.views import DestinationView

LATE_S: Final = 5.0  # a shorter lag is normal, and is not a reason to report
LAG_EVERY_S: Final = 30.0  # how often a lasting lag is reported
REPORTS_MAX: Final = 1_000  # in one call; the rest follows a second later
PASSING: Final = {
    TrackStage.READING,
    TrackStage.READY,
    TrackStage.FLUSHING,
}  # a healthy destination goes through them all the time


class _LastReport(NamedTuple):
    facts: tuple[object, ...] = ()
    lag: int = 0
    at: float = 0.0


class StatusReports:
    """Called in the host's thread, unless a method says otherwise."""

    def __init__(self, times: VersionTimes) -> None:
        self._times = times
        self._leases: DelivererLeases | None = None
        self._last: dict[str, _LastReport] = {}
        self._due: dict[str, None] = {}  # destinations to report
        self._sending = False
        self.failures = 0  # of calls to the store
        self._failures_handled = 0  # everything was sent again after so many

    def began(self, leases: DelivererLeases) -> None:
        self._leases = leases

    def store_failed(self) -> None:
        """Any thread."""
        self.failures += 1

    @property
    def is_incomplete(self) -> bool:
        """Reports may be lost (V4)."""
        return self.failures != self._failures_handled

    def resend(self, failures: int) -> None:
        """The store can be reached again, after so many failures (V4)."""
        self._failures_handled = failures
        self._last.clear()

    def collect(self, stats: Mapping[str, DestinationStats], version: int, now: float) -> None:
        """Find the destinations that are due (V3)."""
        late = self._times.newest_before(now - LATE_S)
        self._last = {name: last for name, last in self._last.items() if name in stats}
        for name, each in stats.items():
            if each.view is not None and each.view.owned and self._is_due(name, each, version, late, now):
                self._due[name] = None

    def _is_due(self, name: str, stats: DestinationStats, version: int, late: int, now: float) -> bool:
        last = self._last.get(name, _LastReport())
        if _facts(stats, late) != last.facts:
            return True
        lag = 0 if stats.effective is None else version - stats.effective
        if lag <= 0:
            return last.lag > 0
        is_late = stats.effective is not None and stats.effective < late
        return is_late and lag != last.lag and now - last.at >= LAG_EVERY_S

    def send_due(
        self, stats: Mapping[str, DestinationStats], tracks: Mapping[str, Track], version: int, now: float
    ) -> None:
        if self._sending:
            return
        reports = []
        for name in list(self._due)[:REPORTS_MAX]:
            del self._due[name]
            track = tracks.get(name)
            if name in stats and track is not None and track.token:
                reports.append(self._reported(stats[name], track.token, version, now))
        if reports:
            self._send(reports)

    def send_released(
        self, released: Mapping[str, int], stats: Mapping[str, DestinationStats], version: int, now: float
    ) -> None:
        """Report destinations (with their tokens) right before they are released: later the store ignores it."""
        reports = [self._reported(stats[name], token, version, now) for name, token in released.items()]
        for at in range(0, len(reports), REPORTS_MAX):
            self._send(reports[at : at + REPORTS_MAX])

    def _reported(self, stats: DestinationStats, token: int, version: int, now: float) -> Reported:
        assert stats.view is not None
        view = self._times.with_lag(stats.view, version, now)
        facts = _facts(stats, self._times.newest_before(now - LATE_S))
        self._last[view.name] = _LastReport(facts, view.lag_versions or 0, now)
        return Reported(view.name, token, _status(view, str(facts[0])))

    def _send(self, reports: list[Reported]) -> None:
        assert self._leases is not None
        self._sending = True
        self._leases.report(reports)
        self._leases.submit(self._sent)

    def _sent(self) -> None:
        """In the thread of the store, after the report."""
        self._sending = False


def _facts(stats: DestinationStats, late: int) -> tuple[object, ...]:
    """What a report says, without the lag: the state first."""
    stage, _, _, position, effective, _, error, written = stats.facts
    assert isinstance(stage, TrackStage)
    is_late = stats.effective is not None and stats.effective < late
    passing = stage in PASSING and effective is not None and not is_late
    return (TrackStage.READY.value if passing else stage.value, position, error, written)


def _status(view: DestinationView, state: str) -> Status:
    return Status(
        state=state,
        position=view.position,
        lag_versions=view.lag_versions,
        lag_ms=view.lag_ms,
        flushed_at_ms=view.flushed_at_ms,
        rows=view.rows_last,
        rows_total=view.removed + view.written,
        error=view.error[:ERROR_CHARACTERS_MAX],
    )
