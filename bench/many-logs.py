"""Many logs in one cluster: the cost of creation, first appends, idling, the status and a restart.

    ./run bench many-logs [--logs 5000] [--appended 2000] [--quick] [--json] [--dir DIR]

A local cluster of one coordinator and three nodes; the client shares the machine. Goals: one append to each of 2,000
logs within 10 s, less than 3 % of a core while the cluster is idle, a status within 1 s, and no log that is blocked
after a restart of everything. Exit code 0: every goal is met; 1: one is missed; 2: the measurement failed.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop
from bench_command import measured, parser_of, say
from log_processes import Failed
from log_trunkline import REPLICAS, TrunklineCluster, trunkline_cluster

import trunkline

AT_ONCE = 64  # logs in use by the client at a time
SETTLED_WITHIN_S = 600.0  # after appends or a restart: that work does not count as idle
LOOK_S = 1.0
QUIET_POLLS = 12  # in a row: the coordinator adds replicas after 10 s
IDLE_S = 20.0
STATUS_REPEATS = 3

APPENDS_S_MAX = 10.0  # for 2,000 logs
APPENDS_LOGS = 2000
IDLE_PERCENT_MAX = 3.0
STATUS_S_MAX = 1.0


@dataclasses.dataclass(frozen=True)
class Plan:
    logs: int = 5000
    appended: int = 2000  # of these logs, one append each
    idle_s: float = IDLE_S


QUICK = Plan(200, 100, 3.0)


@dataclasses.dataclass(frozen=True)
class Results:
    logs: int
    appended: int
    create_s: float
    first_append_s: float
    idle_percent: float  # of a core: coordinator, nodes and their supervisor
    status_s: float  # the command, from start to end
    status_bytes: int
    restart_blocked: int
    restart_idle_percent: float
    restart_settle_s: float  # until no log has pending work
    restart_append_s: float  # one append to each of the same logs

    @property
    def goals(self) -> dict[str, bool]:
        return {
            "first appends": self.first_append_s / self.appended <= APPENDS_S_MAX / APPENDS_LOGS,
            "idle": max(self.idle_percent, self.restart_idle_percent) < IDLE_PERCENT_MAX,
            "status": self.status_s < STATUS_S_MAX,
            "blocked": self.restart_blocked == 0,
        }


def measure_all(plan: Plan, directory: Path) -> Results:
    with trunkline_cluster(directory) as cluster:
        say(f"creating {plan.logs:,} logs")
        create_s = uvloop.run(_create(cluster.address, plan.logs))
        say(f"one append to each of {plan.appended:,}: creating took {create_s:.1f} s")
        first_append_s = uvloop.run(_append(cluster.address, plan.appended))
        say(f"at rest: appending took {first_append_s:.1f} s")
        _settle(cluster)
        idle_percent = cluster.idle_percent(plan.idle_s)
        status_s, output = _status(cluster)
        say(f"restarting everything: {idle_percent:.1f} % of a core at rest, the status took {status_s:.2f} s")
    with trunkline_cluster(directory, again=True) as cluster:
        settle_s = _settle(cluster)
        say(f"at rest: settled after {settle_s:.0f} s")
        _, again = _status(cluster)
        restart_idle = cluster.idle_percent(plan.idle_s)
        restart_append_s = uvloop.run(_append(cluster.address, plan.appended))
    blocked = sum(log["blocked"] for log in json.loads(again)["logs"])
    return Results(
        plan.logs, plan.appended, create_s, first_append_s, idle_percent, status_s, len(output), blocked, restart_idle,
        settle_s, restart_append_s,
    )  # fmt: skip


def _settle(cluster: TrunklineCluster) -> float:
    """Wait until the coordinator has no pending work, and return the seconds."""

    async def wait() -> float:
        began = time.perf_counter()
        async with trunkline.connect(cluster.address) as client:
            quiet = 0
            while quiet < QUIET_POLLS:
                if time.perf_counter() - began > SETTLED_WITHIN_S:
                    raise Failed(f"the logs were not settled within {SETTLED_WITHIN_S:.0f} s")
                await asyncio.sleep(LOOK_S)
                duties = {log.duty for log in (await client.status()).logs}
                quiet = quiet + 1 if duties == {"idle"} else 0
        return time.perf_counter() - began

    return uvloop.run(wait())


def _status(cluster: TrunklineCluster) -> tuple[float, bytes]:
    """The time of the command, the fastest of several; and its output as JSON."""
    command = [Path(sys.executable).parent / "trunkline", "status", "--connect", cluster.address]
    seconds = []
    for _ in range(STATUS_REPEATS):
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        seconds.append(time.perf_counter() - began)
    output = subprocess.run([*command, "--json"], check=True, capture_output=True).stdout
    return min(seconds), output


async def _create(address: str, logs: int) -> float:
    async with trunkline.connect(address) as cluster:
        settings = trunkline.client.cluster.log_settings(replicas=REPLICAS)
        return await _for_each(logs, lambda number: cluster.create_log(_name(number), settings))


async def _append(address: str, logs: int) -> float:
    async with trunkline.connect(address) as cluster:

        async def append(number: int) -> None:
            await (await cluster.log(_name(number))).append(b"an entry")

        return await _for_each(logs, append)


async def _for_each(logs: int, work: Callable[[int], Awaitable[object]]) -> float:
    numbers = iter(range(logs))

    async def one_after_another() -> None:
        for number in numbers:
            await work(number)

    began = time.perf_counter()
    await asyncio.gather(*(one_after_another() for _ in range(AT_ONCE)))
    return time.perf_counter() - began


def _name(number: int) -> str:
    return f"log-{number:05}"


def report_lines(found: Results) -> list[str]:
    met = {name: "met" if is_met else "MISSED" for name, is_met in found.goals.items()}
    rates = (found.logs / found.create_s, found.appended / found.first_append_s)
    appends = f"{found.appended:,} logs in {found.first_append_s:.1f} s, later in {found.restart_append_s:.1f} s"
    return [
        f"{found.logs:,} logs, {REPLICAS} nodes, one machine",
        f"create          {rates[0]:8.0f} logs/s",
        f"first append    {rates[1]:8.0f} logs/s: {appends} ({met['first appends']})",
        f"idle            {found.idle_percent:8.1f} % of a core ({met['idle']})",
        f"  after restart {found.restart_idle_percent:8.1f} %, settled after {found.restart_settle_s:.0f} s",
        f"status          {found.status_s:8.2f} s, {found.status_bytes:,} bytes as JSON ({met['status']})",
        f"blocked         {found.restart_blocked:8} logs after a restart ({met['blocked']})",
    ]


def report_values(found: Results) -> dict[str, Any]:
    return {**dataclasses.asdict(found), "goals": found.goals}


def plan_of(options: argparse.Namespace) -> Plan:
    given = {name: value for name in ("logs", "appended") if (value := getattr(options, name)) is not None}
    plan = dataclasses.replace(QUICK if options.quick else Plan(), **given)
    return dataclasses.replace(plan, appended=min(plan.appended, plan.logs))


def main(arguments: list[str] | None = None) -> int:
    parser = parser_of("many-logs", __doc__, quick="200 logs", needs="1 GB")
    parser.add_argument("--logs", type=int, help="number of logs (default: 5,000)")
    parser.add_argument("--appended", type=int, help="number of logs with one append each (default: 2,000)")
    options = parser.parse_args(arguments)

    def measure(directory: Path) -> Results:
        return measure_all(plan_of(options), directory)

    def met(found: Results) -> bool:
        return all(found.goals.values())

    return measured("many-logs", options, measure, lines=report_lines, values=report_values, met=met)


if __name__ == "__main__":
    sys.exit(main())
