"""A random history of a captured database, for seconds here and for as long as you like with ``fuzz_capture``."""

from __future__ import annotations

from pathlib import Path

from delivery.fuzz_capture import SETTINGS, History
from local_cluster import local_cluster
from postgres_server import PostgresServer

SECONDS = 3.0
FAULTS = "kill terminate resnapshot rival"


def test_a_log_has_what_the_database_had_whatever_fails(tmp_path: Path) -> None:
    with PostgresServer(settings=SETTINGS) as server, local_cluster(tmp_path / "cluster", nodes=1) as cluster:
        history = History(cluster, server, 1, tmp_path, tiny=True, alters=True)
        found = history.run(SECONDS, FAULTS)
    assert history.problems == []
    assert found.compared
    assert found.tables > 10
