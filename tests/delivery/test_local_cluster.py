"""Executors that are processes of their own, one of which is killed while it delivers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
from psycopg import sql

from delivery.job_driver import Jobs, Line, started
from delivery.pipe import Site, make_sites
from delivery.pipe_sources import LakeSource
from delivery.task_pipelines import task_pipeline_of
from postgres_server import PostgresServer
from trunkline.core.delivery_messages import FlushGroup, JobMember, SeedGroup, SeedMode
from trunkline.delivery.config.addresses import PostgresAddress
from trunkline.delivery.destinations.contract import MEMBERS
from trunkline.destination_suite.place import content

MASTER = "local-cluster[2,1,1024]"
SMALL_BYTES = 10_000
PATIENCE_S = 120.0  # on a loaded machine
LOOK_AGAIN_S = 0.05


def test_a_killed_executor_costs_nothing_and_doubles_nothing(postgres: PostgresServer, tmp_path: Path) -> None:
    """Its task has written one destination and waits for a lock of another when it dies; what it ran is run again.

    A large window follows, which is read and settled by Spark itself.
    """
    source = LakeSource(tmp_path, catalog=f"sqlite:{tmp_path / 'source.sqlite'}", inlining=3)
    for tenant, first in (("acme", 1), ("bolt", 11), ("cargo", 21), ("delta", 31)):
        after = source.write(source.insert(tenant, *range(first, first + 5)))
    source.write("UPDATE lake.orders SET item = 'new' WHERE id % 10 = 1")
    source.write("DELETE FROM lake.orders WHERE id % 10 = 2")
    small = source.write("INSERT INTO lake.orders SELECT id + 1000, tenant, 'more', 0 FROM lake.orders")
    many = "SELECT id + 10000 * i, tenant, md5(id || item || i), 0 FROM lake.orders, range(1, 99) r(i)"
    source.write(f"INSERT INTO lake.orders {many}")
    large = source.write("DELETE FROM lake.orders WHERE id IN (3, 13, 23, 33)")
    source.write_trail()
    appended, locked, *others = sites = [
        *make_sites(tmp_path, postgres, tenants={"acme": ("acme",)}, kinds=["delta"], paths=["small"], mode="append"),
        *make_sites(tmp_path, postgres, tenants={"bolt": ("bolt",)}, kinds=["postgres"], paths=["small"]),
        *make_sites(tmp_path, postgres, tenants={"cargo": ("cargo",)}, kinds=["ducklake"], paths=["small"]),
        *make_sites(tmp_path, postgres, tenants={"delta": ("delta",)}, kinds=["delta"], paths=["large"]),
    ]
    in_turns = (appended, others[0], locked, others[1])  # they are dealt out to two tasks

    def members(position: int) -> tuple[JobMember, ...]:
        mark = source.source.lineage([position]).marks[position] if position else ""
        return tuple(JobMember(site.name, position, 1, mark) for site in in_turns)

    jobs = Jobs(
        MASTER,
        {},
        task_pipeline_of(source.source, [site.target for site in sites]),
        SMALL_BYTES,
        (
            SeedGroup(1, after, SeedMode.SCAN, members(0)),
            FlushGroup(2, after, small, members(after)),
            FlushGroup(3, small, large, members(small)),
        ),
    )
    with started(tmp_path, jobs) as (process, lines):
        assert next(lines) == Line(began=1)
        assert set(next(lines).outcomes.values()) == {"applied"}
        with lock_of(locked):
            assert next(lines) == Line(began=2)
            os.kill(executor_of(owner_of(waiting_port(postgres))), signal.SIGKILL)
        flushed = next(lines)
        assert next(lines) == Line(began=3)
        last = next(lines)
        assert next(lines).memory_mb
        assert process.wait() == 0
    assert set(flushed.outcomes.values()) == {"applied", "already"}
    assert flushed.outcomes[appended.name] == "already"  # the task that was killed had written it
    assert (flushed.path, last.path, set(last.outcomes.values())) == ("small", "large", {"applied"})
    rows = source.rows(large)
    for site in (locked, *others):
        wanted = [row for row in rows if row["tenant"] in (site.target.values or ())]
        assert content(site.table.held()) == content(wanted), site.name
    before = [row for row in source.rows(after) if row["tenant"] == "acme"]
    arrived = [row for row in rows if row["tenant"] == "acme" and (row["item"] == "new" or row["id"] > 1000)]
    assert content(appended.table.held()) == content([*before, *arrived])


# ------------------------------------------------------------------------------------------------------------- finding


@contextmanager
def lock_of(site: Site) -> Iterator[None]:
    """No process can move the position of this destination meanwhile."""
    address = site.target.address
    assert isinstance(address, PostgresAddress)
    record = sql.Identifier(address.schema, MEMBERS)
    with psycopg.connect(address.dsn) as connection:
        connection.execute(sql.SQL("SELECT * FROM {} FOR UPDATE").format(record))
        yield


def waiting_port(server: PostgresServer) -> int:
    """The port of the client that waits for a lock."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            found = connection.execute("SELECT client_port FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
            if row := found.fetchone():
                return int(row[0])
            time.sleep(LOOK_AGAIN_S)
    raise AssertionError("no process waits for the lock")


def owner_of(port: int) -> int:
    """The process whose end of a connection has this port. Ends of closed connections may have had it before."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            _, local, _, _, _, _, _, _, _, inode, *_ = line.split()
            if int(local.partition(":")[2], 16) == port:
                for process in processes():
                    if f"socket:[{inode}]" in open_files(process):
                        return process
        time.sleep(LOOK_AGAIN_S)
    raise AssertionError(f"no process has port {port}")


def executor_of(process: int) -> int:
    """The executor below which a process runs."""
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{process}/cmdline").read_bytes():
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        assert process > 1, "it runs below no executor"
    return process


def processes() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def open_files(process: int) -> set[str]:
    """What a process has open; nothing where it has just ended, or is not ours."""
    folder = f"/proc/{process}/fd"
    found = set()
    with suppress(OSError):
        for name in os.listdir(folder):
            with suppress(OSError):  # it was closed meanwhile
                found.add(os.readlink(f"{folder}/{name}"))
    return found
