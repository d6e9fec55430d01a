"""Nodes that are slow and not silent: large appends are committed, and the log is not reconfigured again and again."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import trunkline
from system.processes import Processes
from trunkline.client.arguments import PolicyName

MIB = 1024 * 1024
RUNS_S, RESTS_S = 0.01, 0.19  # a twentieth of a core
COMMIT_S_MAX = 90.0
ENDED_MAX = 3  # none, unless the machine is so busy that nodes lose their leases
STREAM_S_MAX = 3.5  # 1.2 s on a quiet machine; 16 batches fit into flight, of which each moved the time once
CONTINUE_S_MAX = 10.0  # 2 s on a quiet machine


@pytest.mark.parametrize("policy", ["broadcast", "chain"])
def test_a_large_append_is_committed_by_nodes_that_get_a_twentieth_of_a_core(
    tmp_path: Path, policy: PolicyName
) -> None:
    async def run() -> None:
        async with trunkline.connect(processes.coordinators) as cluster:
            log = await cluster.log("large", create=True, policy=policy)
            await log.append(b"small")
            before = (await cluster.describe("large")).last.index
            with _slowed(processes.pid(name) for name in processes.node_names):
                began = time.monotonic()
                glsn = await log.append([bytes(15 * MIB), bytes(15 * MIB)], timeout=COMMIT_S_MAX)
                segments = (await cluster.describe("large")).last.index - before
            print(f"{policy}: 30 MiB at {glsn} after {time.monotonic() - began:.1f} s, {segments} segments ended")
            assert segments <= ENDED_MAX

    with Processes(tmp_path) as processes:
        processes.start_cluster(nodes=3)
        asyncio.run(run())


@pytest.mark.parametrize("policy", ["broadcast", "chain"])
def test_a_large_append_does_not_wait_long_for_a_node_that_stands_still(tmp_path: Path, policy: PolicyName) -> None:
    async def run() -> None:
        async with trunkline.connect(processes.coordinators) as cluster:
            log = await cluster.log("large", create=True, policy=policy)
            await log.append(b"small")
            processes.pause((await cluster.describe("large")).last.members()[-1].node)
            began = time.monotonic()
            await log.append([bytes(15 * MIB), bytes(15 * MIB)], timeout=COMMIT_S_MAX)
            took_s = time.monotonic() - began
            print(f"{policy}: 30 MiB after {took_s:.1f} s")
            assert took_s < CONTINUE_S_MAX

    with Processes(tmp_path) as processes:
        processes.start_cluster(nodes=3)
        asyncio.run(run())


def test_a_broadcast_writer_that_does_not_wait_for_answers_leaves_a_silent_member_as_soon_as_one_that_does(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with trunkline.connect(processes.coordinators) as cluster:
            log = await cluster.log("stream", create=True, policy="broadcast")
            await log.append(b"before")
            processes.pause((await cluster.describe("stream")).last.members()[-1].node)
            began = time.monotonic()
            first = asyncio.create_task(log.append(b"first", timeout=COMMIT_S_MAX))
            others = []
            while not first.done():
                others.append(asyncio.create_task(log.append(b"another", timeout=COMMIT_S_MAX)))
                await asyncio.wait([first], timeout=0.25)
            took_s = time.monotonic() - began
            print(f"went on after {took_s:.1f} s, with {len(others)} appends behind")
            assert took_s < STREAM_S_MAX
            await asyncio.gather(first, *others)

    with Processes(tmp_path) as processes:
        processes.start_cluster(nodes=3)
        asyncio.run(run())


@contextmanager
def _slowed(pids: Iterator[int]) -> Iterator[None]:
    """These processes run for a while and rest for a while, all at once."""
    slow, over = list(pids), threading.Event()

    def signal_all(number: signal.Signals) -> None:
        for pid in slow:
            os.kill(pid, number)

    def run_and_rest() -> None:
        while not over.wait(RUNS_S):
            signal_all(signal.SIGSTOP)
            over.wait(RESTS_S)
            signal_all(signal.SIGCONT)

    thread = threading.Thread(target=run_and_rest)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        signal_all(signal.SIGCONT)
