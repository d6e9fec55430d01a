"""Batches of equal content are different batches: a role identifies them by writer and sequence number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

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


@pytest.mark.parametrize("make", [two_clients, one_client])
def test_equal_batches_in_flight_violate_nothing(make: Callable[[int, int], Scenario]) -> None:
    report = check_exhaustively(make(1, 1), SearchBounds(), lambda _: None)
    assert report.violations == ()
    assert report.complete


@pytest.mark.parametrize("make", [two_clients, one_client])
def test_roles_distinguish_equal_batches_like_different_ones(make: Callable[[int, int], Scenario]) -> None:
    """Every step differs until both appends are done. Final states merge: only the order of equal content differed."""
    equal, different = (replace(make(1, second), monitors=()) for second in (1, 2))
    sizes = [
        (report.complete, report.transitions, report.depth)
        for report in (check_exhaustively(each, SearchBounds(), lambda _: None) for each in (equal, different))
    ]
    assert sizes[0] == sizes[1]
