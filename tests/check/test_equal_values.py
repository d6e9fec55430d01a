"""Batches of equal content are different batches: a role knows them by writer and sequence number."""

from __future__ import annotations

from trunkline.check.campaign import SearchBounds, check_exhaustively
from trunkline.check.scenario import Faults, Scenario
from trunkline.check.scenarios.chain import NODES, PAIR
from trunkline.check.scenarios.cluster import appender, appends, bursting_appender, reader, scenario


def two_clients(first: int, second: int) -> Scenario:
    clients = (appender("c1", PAIR, *appends(first)), appender("c2", PAIR, *appends(second)), reader("r", PAIR))
    return scenario("equal", "two clients append", PAIR, *clients)


def one_client(first: int, second: int) -> Scenario:
    client = bursting_appender("c1", PAIR, *appends(first, second))
    return scenario("equal", "two appends in flight, one crash", PAIR, client, faults=Faults(crash=1), crashable=NODES)


def test_equal_batches_in_flight_have_as_many_interleavings_as_different_ones_and_all_are_right() -> None:
    for make in (two_clients, one_client):
        equal, different = (check_exhaustively(make(1, second), SearchBounds(), lambda _: None) for second in (1, 2))
        assert equal.violations == different.violations == ()
        assert equal.complete
        sizes = [(report.states, report.transitions, report.depth) for report in (equal, different)]
        assert sizes[0] == sizes[1]
