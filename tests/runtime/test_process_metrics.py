"""Metrics and readiness of nodes and coordinators."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from observing.series import series_of
from trunkline.core.messages import NodeInfo, NodeState
from trunkline.core.projection import Gap, Member, Owner, Policy, Projection, Segment, Settings
from trunkline.metadata.service import ServiceCounts
from trunkline.observing.readiness import Readiness
from trunkline.runtime.coordinator_metrics import (
    LOGS_NAMED_MAX,
    CoordinatorView,
    LogView,
    coordinator_readiness,
    coordinator_values,
)
from trunkline.runtime.coordinator_metrics import TABLE as COORDINATOR_TABLE
from trunkline.runtime.node_counts import NodeCounts
from trunkline.runtime.node_metrics import TABLE as NODE_TABLE
from trunkline.runtime.node_metrics import NodeView, node_readiness, node_values
from trunkline.runtime.summaries import summary_of
from trunkline.storage.engine import EngineStatus
from trunkline.storage.options import SyncPolicy

DISK = EngineStatus(SyncPolicy.ALWAYS, 2, 3, 4000, 0, 10**9, 64, False)
NODE = NodeView(DISK, NodeCounts(), True, False, 5, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (None, "starting"),
        (replace(NODE, registered=False), "coordinator"),
        (replace(NODE, engine=replace(DISK, full=True)), "disk is full"),
        (replace(NODE, disk_silent=True), "not answered a sync"),
    ],
)
def test_a_node_that_is_not_ready_says_why(view: NodeView | None, words: str) -> None:
    (why,) = node_readiness(view).why
    assert words in why
    assert series_of(NODE_TABLE, node_values("n1", 1.5, view))["trunkline_node_ready", ()] == 0
    assert series_of(NODE_TABLE, node_values("n1", 1.5, NODE))["trunkline_node_ready", ()] == 1


def log_view(name: str, members: int, *, gaps: tuple[Gap, ...] = (), blocked: bool = False) -> LogView:
    group = tuple(Member(f"n{number}", 1, f"1.0.{number}") for number in range(members))
    segment = Segment(0, 1, 1, None, False, Policy.CHAIN, 1024, (group,), Owner("n0", 1))
    projection = Projection("c", name, 1, 0, (segment,), Settings(), gaps)
    return LogView(summary_of(projection), "RepairSegment" if members < 3 else "idle", blocked, False)


COORDINATOR = CoordinatorView(True, "c1", (), "", (), ServiceCounts(), {}, 0, 0, 0)


def test_logs_in_trouble_are_counted_and_the_first_of_them_are_named() -> None:
    logs = [log_view("a", 3), log_view("b", 2), log_view("c", 1, blocked=True), log_view("d", 3, gaps=(Gap(1, 5),))]
    found = series_of(COORDINATOR_TABLE, coordinator_values("c1", 1.0, replace(COORDINATOR, logs=tuple(logs))))
    sums = {labels[0]: value for (name, labels), value in found.items() if name.endswith("logs_in_trouble")}
    assert sums == {"fewer_copies": 1, "no_redundancy": 1, "blocked": 1, "lost": 1, "broken": 0}
    named = {labels for name, labels in found if name.endswith("_log_trouble")}
    assert named == {("b", "fewer_copies"), ("c", "no_redundancy"), ("c", "blocked"), ("d", "lost")}
    assert (found["trunkline_coordinator_logs", ()], found["trunkline_coordinator_repairs", ()]) == (4, 2)

    many = tuple(log_view(f"log{number:04}", 2) for number in range(LOGS_NAMED_MAX + 50))
    found = series_of(COORDINATOR_TABLE, coordinator_values("c1", 1.0, replace(COORDINATOR, logs=many)))
    assert found["trunkline_coordinator_logs_in_trouble", ("fewer_copies",)] == LOGS_NAMED_MAX + 50
    assert sum(name.endswith("_log_trouble") for name, _ in found) == LOGS_NAMED_MAX


def test_a_standby_is_ready_reports_no_logs_and_is_not_ready_without_its_store() -> None:
    nodes = (NodeInfo("n1", 1, 1), NodeInfo("n2", 1, 1, NodeState.DRAINING, live=False))
    clients = (NodeInfo("w", 1, 1, NodeState.CLIENT),)
    standby = replace(COORDINATOR, active=False, nodes=nodes + clients, logs=(log_view("a", 2),))
    found = series_of(COORDINATOR_TABLE, coordinator_values("c2", 1.0, standby))
    assert not [name for name, _ in found if "log" in name]
    assert found["trunkline_coordinator_live_nodes", ()] == 1
    assert found["trunkline_coordinator_nodes", ("draining",)] == 1
    assert coordinator_readiness(standby) == Readiness((), {"state": "standby", "active_coordinator": "c1"})

    cut = replace(standby, nodes=None, store_error="etcd is unreachable")
    (why,) = coordinator_readiness(cut).why
    assert "etcd is unreachable" in why
    found = series_of(COORDINATOR_TABLE, coordinator_values("c2", 1.0, cut))
    assert (found["trunkline_coordinator_store_up", ()], found["trunkline_coordinator_ready", ()]) == (0, 0)
    assert ("trunkline_coordinator_live_nodes", ()) not in found
    assert not coordinator_readiness(None).ready
