"""Counts of entries that nodes appended and sent since they started, in ``trunkline status --json``."""

from __future__ import annotations

from local_cluster import Command

COUNTS = ("entries_appended", "bytes_appended", "entries_read", "bytes_read")


def totals(on_cluster: Command) -> dict[str, int]:
    nodes = [node["self"] for node in on_cluster("status", "--json").json["nodes"]]
    assert all(node["start"] > 0 and node["uptime_s"] > 0 for node in nodes)
    return {count: sum(node[count] for node in nodes) for count in COUNTS}


def test_nodes_report_what_they_appended_and_sent(on_cluster: Command) -> None:
    assert on_cluster("log", "create", "counted").code == 0
    before = totals(on_cluster)
    assert on_cluster("append", "counted", stdin=b"12345\n" * 10).code == 0
    assert on_cluster("read", "counted").out.count(b"12345") == 10
    after = totals(on_cluster)
    grown = {count: after[count] - before[count] for count in COUNTS}
    assert grown["entries_appended"] >= 3 * 10  # one on each of three nodes; more if the cluster repairs something
    assert grown["bytes_appended"] >= 3 * 50
    assert grown["entries_read"] >= 10
    assert grown["bytes_read"] >= 50
