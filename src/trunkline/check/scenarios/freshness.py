"""Walk-throughs of reads to the tail that begin after an append was acknowledged: they must get that far.

The log went on elsewhere, and whom the reader asks does not know: a member that is reachable for it and was not for the
writer, with a lease that still holds.
"""

from __future__ import annotations

from trunkline.check.scenario import Faults, NetworkCut, OperationEnd, Scenario
from trunkline.check.scenarios.cluster import (
    BROADCAST2,
    CHAIN2,
    appender,
    appends,
    broadcast_log,
    chain_log,
    reader,
    scenario,
    writer,
)

BROADCAST = broadcast_log(BROADCAST2, "n1 n2", owner="w1")
CHAIN = chain_log(CHAIN2, "n1 n2", sequencer="n2")


def _apart(one: str, other: str) -> NetworkCut:
    return NetworkCut(f"{one}-{other}", ((one, other), (other, one)))


def stale_end_broadcast() -> Scenario:
    """The owner cannot reach a member and rolls without it; a reader that knows the old segment asks that member."""
    clients = (
        writer("w1", BROADCAST, *appends(1)),
        reader("r", BROADCAST, to_tail=True, replica=1, after=(OperationEnd("w1", 1),)),
    )
    return scenario(
        "stale-end-broadcast",
        "a read to the tail asks a member that its owner rolled away from",
        BROADCAST,
        *clients,
        faults=Faults(cut=1),
        cuts=(_apart("w1", "n2"),),
        sometimes=("Committed", "Projected", "SubscriptionEnded"),
    )


def stale_end_chain() -> Scenario:
    """The last member is the sequencer as well; the log goes on without it, and a reader asks it for both."""
    clients = (
        appender("c1", CHAIN, *appends(1)),
        reader("r", CHAIN, to_tail=True, after=(OperationEnd("c1", 1),)),
    )
    return scenario(
        "stale-end-chain",
        "a read to the tail asks the member and the sequencer that the log went on without",
        CHAIN,
        *clients,
        faults=Faults(cut=1),
        cuts=(_apart("c1", "n2"),),
        sometimes=("Committed", "Projected", "SubscriptionEnded"),
    )


def stale_end_returned() -> Scenario:
    """The member that the owner rolled away from comes back with its old stream, which is still open there."""
    clients = (
        writer("w1", BROADCAST, *appends(1)),
        reader("r", BROADCAST, to_tail=True, replica=1, after=(OperationEnd("w1", 1),)),
    )
    return scenario(
        "stale-end-returned",
        "a read to the tail asks a member that comes back and knows only the old segment",
        BROADCAST,
        *clients,
        faults=Faults(crash=1, restart=1),
        crashable="n2",
        sometimes=("Committed", "Projected", "SubscriptionEnded"),
    )


FRESHNESS_SCENARIOS = (stale_end_broadcast, stale_end_chain, stale_end_returned)
