"""Two logs in one world: each is judged by its own monitors, which do not observe the other."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from check.histories import FIRST, announced, by, data, watched
from trunkline.check.monitors import OfLog, Progress, RealTimeOrder, TotalOrder, of_each
from trunkline.check.scenario import Completed, Invoked, Monitor, ProcessEnded, Violation
from trunkline.check.scenarios.cluster import CHAIN2, appends, chain_log
from trunkline.core.calls import AppendRequested
from trunkline.core.events import Appended, EntriesRead, Projected

ONE, OTHER = (chain_log(CHAIN2, "n1 n2", sequencer="n3", log=log) for log in ("one", "other"))


def read(log: str, value: int) -> EntriesRead:
    return EntriesRead(log, 1, data(1, value))


def append(operation: int, log: str) -> Invoked:
    return Invoked(operation, AppendRequested(operation, log, 1, operation))


def test_the_same_position_of_two_logs_may_hold_two_values() -> None:
    history = announced(read("one", 7), read("other", 8))
    watched(OfLog("one", TotalOrder()), history)
    with pytest.raises(Violation, match="one: position 1 is DATA"):
        watched(OfLog("one", TotalOrder()), [*history, *announced(read("one", 9))])


def test_a_result_belongs_to_the_log_of_its_operation() -> None:
    """Position 1 of one log comes after position 5 of the other: positions of two logs have no order."""
    history = by("x", append(1, "other"), Completed(1, Appended(5)), append(2, "one"), Completed(2, Appended(1)))
    watched(OfLog("one", RealTimeOrder()), history)
    watched(OfLog("other", RealTimeOrder()), history)
    with pytest.raises(Violation, match="other: x appended at 4"):
        watched(OfLog("other", RealTimeOrder()), [*history, *by("x", append(3, "other"), Completed(3, Appended(4)))])


def test_an_operation_number_shared_by_two_logs_is_a_violation() -> None:
    with pytest.raises(Violation, match="number operations across logs"):
        watched(OfLog("one", RealTimeOrder()), by("x", append(1, "one"), append(1, "other")))


def test_monitors_of_all_logs_observe_the_end_of_a_process() -> None:
    monitor: Monitor = OfLog("one", Progress())
    history = by("x", append(1, "one"))
    assert monitor.hot(watched(monitor, history)) == "one: not complete: operation 1 of x"
    assert monitor.hot(watched(monitor, [*history, *by("x", ProcessEnded("crash"))])) == ""


def test_projections_of_another_log_are_not_observed() -> None:
    for monitor in of_each((ONE, OTHER)):
        assert (
            monitor.observe(monitor.initial(), *announced(Projected(replace(FIRST, log="third")))) == monitor.initial()
        )


def test_each_log_has_every_monitor() -> None:
    names = [monitor.name for monitor in of_each((ONE, OTHER), Progress())]
    assert len(names) % 2 == 0
    assert names[: len(names) // 2] == names[len(names) // 2 :]
    assert appends(1, log="other")[0].log == "other"
