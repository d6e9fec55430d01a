"""Scenarios of reads to the tail that begin after an append was acknowledged: they must return that entry.

The log has moved on, and the member that the reader asks does not know: the reader can reach it, the writer could not,
and its lease is still valid.
"""

from __future__ import annotations

from trunkline.check.scenario import Faults, NetworkCut, OperationEnd, Scenario
from trunkline.check.scenarios.cluster import CHAIN2, appender, appends, chain_log, reader, scenario, writer
from trunkline.check.scenarios.segments import BROADCAST

# n2 is the last member and the sequencer as well.
CHAIN = chain_log(CHAIN2, "n1 n2", sequencer="n2")
SEEN = ("Committed", "Projected", "SubscriptionEnded")


def _apart(one: str, other: str) -> NetworkCut:
    return NetworkCut(f"{one}-{other}", ((one, other), (other, one)))


def _stale_end(name: str, summary: str, faults: Faults, *cuts: NetworkCut, crashable: str = "") -> Scenario:
    """The owner rolls away from n2; a reader that knows the old segment asks n2."""
    return scenario(
        name,
        summary,
        BROADCAST,
        writer("w1", BROADCAST, *appends(1)),
        reader("r", BROADCAST, to_tail=True, replica=1, after=(OperationEnd("w1", 1),)),
        faults=faults,
        cuts=cuts,
        crashable=crashable,
        sometimes=SEEN,
    )


def stale_end_broadcast() -> Scenario:
    summary = "a read to the tail asks a member that its owner rolled away from"
    return _stale_end("stale-end-broadcast", summary, Faults(cut=1), _apart("w1", "n2"))


def stale_end_returned() -> Scenario:
    """n2 restarts with its old stream, which is still open there."""
    summary = "a read to the tail asks a member that restarts and knows only the old segment"
    return _stale_end("stale-end-returned", summary, Faults(crash=1, restart=1), crashable="n2")


def stale_end_chain() -> Scenario:
    """The log continues without n2, and a reader asks n2 both as a member and as the sequencer."""
    return scenario(
        "stale-end-chain",
        "a read to the tail asks a member and sequencer that the log continued without",
        CHAIN,
        appender("c1", CHAIN, *appends(1)),
        reader("r", CHAIN, to_tail=True, after=(OperationEnd("c1", 1),)),
        faults=Faults(cut=1),
        cuts=(_apart("c1", "n2"),),
        sometimes=SEEN,
    )


FRESHNESS_SCENARIOS = (stale_end_broadcast, stale_end_chain, stale_end_returned)
