"""``trunkline bench``: measures a running cluster with a temporary log."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import time
from collections.abc import Sequence
from typing import Any

from trunkline.cli.connection import cluster_command, cluster_options, positive
from trunkline.cli.serve import POLICIES
from trunkline.cli.tables import Bar, print_json, size
from trunkline.client.cluster import Cluster
from trunkline.client.log import Log


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser("bench", help="measure appends and reads of a cluster", parents=[cluster_options()])
    parser.add_argument("--records", type=positive, default=100_000, metavar="N", help="in total (default: 100,000)")
    parser.add_argument("--size", type=positive, default=1024, metavar="BYTES", help="of a record (default: 1024)")
    parser.add_argument("--batch", type=positive, default=100, metavar="N", help="records in an append (default: 100)")
    parser.add_argument("--clients", type=positive, default=8, metavar="N", help="concurrent appends (default: 8)")
    parser.add_argument("--policy", choices=POLICIES, default="chain", help="of the log (default: chain)")
    parser.set_defaults(run=cluster_command(_bench))


async def _bench(options: argparse.Namespace, cluster: Cluster) -> None:
    log = await cluster.log(f"bench-{secrets.token_hex(4)}", create=True, policy=options.policy)
    try:
        seconds, latencies = await _append(log, options)
        read_seconds, count = await _read(log, options.records)
    finally:
        await log.delete()
    result = {
        "records": options.records,
        "size_bytes": options.size,
        "batch": options.batch,
        "clients": options.clients,
        "policy": options.policy,
        "append_records_per_s": round(options.records / seconds),
        "append_bytes_per_s": round(options.records * options.size / seconds),
        "append_ms_p50": round(_percentile(latencies, 0.5) * 1000, 2),
        "append_ms_p99": round(_percentile(latencies, 0.99) * 1000, 2),
        "read_records_per_s": round(count / read_seconds),
        "read_bytes_per_s": round(count * options.size / read_seconds),
    }
    if options.json:
        print_json(result)
        return
    print(
        f"append  {result['append_records_per_s']:>10,} records/s  {size(result['append_bytes_per_s'])}/s  "
        f"p50 {result['append_ms_p50']} ms  p99 {result['append_ms_p99']} ms\n"
        f"read    {result['read_records_per_s']:>10,} records/s  {size(result['read_bytes_per_s'])}/s"
    )


async def _append(log: Log, options: argparse.Namespace) -> tuple[float, list[float]]:
    payload = os.urandom(options.size)
    latencies: list[float] = []
    left = options.records

    async def client() -> None:
        nonlocal left
        while left > 0:
            count = min(options.batch, left)
            left -= count
            began = time.perf_counter()
            await log.append([payload] * count)
            latencies.append(time.perf_counter() - began)
            bar.update(options.records - left)

    began = time.perf_counter()
    with Bar("append", options.records) as bar:
        async with asyncio.TaskGroup() as clients:
            for _ in range(options.clients):
                clients.create_task(client())
    return time.perf_counter() - began, latencies


async def _read(log: Log, records: int) -> tuple[float, int]:
    began, count = time.perf_counter(), 0
    with Bar("read", records) as bar:
        async for batch in log.batches(1, to_tail=True):
            count += len(batch)
            bar.update(count)
    return time.perf_counter() - began, count


def _percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
