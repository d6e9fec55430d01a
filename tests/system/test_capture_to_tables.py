"""PostgreSQL -> capture -> log -> Spark -> DuckLake, Delta and PostgreSQL tables, while each process is killed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from local_cluster import wait_until
from system import log_source_soak
from system.captured_tables import PATIENCE_S, equal, started


def test_every_table_is_equal_to_the_server_after_each_process_was_killed(tmp_path: Path) -> None:
    with started(tmp_path) as (business, running, cluster, server, pipeline):
        wait_until(lambda: equal(business, pipeline), PATIENCE_S)

        def kill_node() -> None:
            cluster.signal("node1", signal.SIGKILL)

        def kill_server() -> None:
            server.kill()
            server.restart()

        faults: list[Callable[[], object]] = [
            lambda: running.restart("capture"),
            kill_node,
            lambda: running.restart("deliver"),
            business.truncate,
            kill_server,
            lambda: running.restart("capture"),
        ]
        for fault in faults:
            for _ in range(10):
                business.change()
                time.sleep(0.05)  # so that they come in several windows
            fault()
        for _ in range(10):
            business.change()
        wait_until(lambda: equal(business, pipeline), PATIENCE_S)
        running.assert_well()


def test_every_table_is_equal_to_the_server_while_nodes_pause_and_segments_end(tmp_path: Path) -> None:
    done = log_source_soak.run(tmp_path, log_source_soak.Plan(seconds=10.0, seed=3))
    assert done["epochs"] > 2
