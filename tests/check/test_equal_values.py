"""Batches of equal content are different batches: a role identifies them by writer and sequence number."""

from __future__ import annotations

from trunkline.check.campaign import SearchBounds, check_exhaustively
from trunkline.check.scenario import Faults, Scenario
from trunkline.check.scenarios.chain import NODES
from trunkline.check.scenarios.cluster import appender, appends, bursting_appender, reader, scenario
from trunkline.check.scenarios.segments import CHAIN


def two_clients(first: int, second: int) -> Scenario:
    clients = (appender("c1", CHAIN, *appends(first)), appender("c2", CHAIN, *appends(second)), reader("r", CHAIN))
    return scenario("equal", "two clients append", CHAIN, *clients)


def one_client(first: int, second: int) -> Scenario:
    client = bursting_appender("c1", CHAIN, *appends(first, second))
    return scenario("equal", "two appends in flight, one crash", CHAIN, client, faults=Faults(crash=1), crashable=NODES)


def test_equal_batches_in_flight_have_as_many_interleavings_as_different_ones_and_all_are_right() -> None:
    for make in (two_clients, one_client):
        equal, different = (check_exhaustively(make(1, second), SearchBounds(), lambda _: None) for second in (1, 2))
        assert equal.violations == different.violations == ()
        assert equal.complete
        # Monitors identify a batch by its checksum: final states that differ in the order of equal batches are one.
        assert equal.states <= different.states
        assert (equal.transitions, equal.depth) == (different.transitions, different.depth)
