"""How soon appends continue after a process was killed for good."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import trunkline
from system.processes import Processes
from trunkline.client.arguments import PolicyName
from trunkline.client.cluster import Cluster
from trunkline.client.log import Log
from trunkline.core.projection import Projection, Segment

CONTINUE_S_MAX = 3.0  # with default settings

Victim = Callable[[Segment], str]

VICTIMS: dict[str, Victim] = {
    "head": lambda segment: segment.groups[0][0].node,
    "tail": lambda segment: segment.groups[0][-1].node,
    "sequencer": lambda segment: segment.owner.process,
}


def test_appends_to_a_chain_continue_after_head_tail_and_sequencer_are_killed_one_after_another(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        processes.start_cluster(nodes=6)
        for name, stall_s in asyncio.run(_kill_each(processes, "chain", VICTIMS)).items():
            print(f"{name} killed: appends went on after {stall_s:.2f} s")
            assert stall_s < CONTINUE_S_MAX


@pytest.mark.parametrize("which", ["head", "tail"])
def test_a_broadcast_writer_continues_after_a_member_is_killed(tmp_path: Path, which: str) -> None:
    with Processes(tmp_path) as processes:
        processes.start_cluster(nodes=3)
        stall_s = asyncio.run(_kill_each(processes, "broadcast", {which: VICTIMS[which]}))[which]
        print(f"{which} killed: appends went on after {stall_s:.2f} s")
        assert stall_s < CONTINUE_S_MAX


def test_appends_do_not_stop_while_the_coordinator_is_dead(tmp_path: Path) -> None:
    async def run() -> None:
        async with trunkline.connect(processes.coordinators) as cluster:
            log = await cluster.log("orders", create=True)
            before = await log.append(b"before")
            processes.kill("c1")
            assert await log.append(b"while it is dead") == before + 1

    with Processes(tmp_path) as processes:
        processes.start_cluster(nodes=3)
        asyncio.run(run())


async def _kill_each(processes: Processes, policy: PolicyName, victims: dict[str, Victim]) -> dict[str, float]:
    """Seconds from each kill to the next append that began after it and was committed."""
    stalls = {}
    async with trunkline.connect(processes.coordinators) as cluster:
        log = await cluster.log("orders", create=True, policy=policy)
        for name, victim in victims.items():
            await _append_some(log)
            before = await cluster.describe("orders")
            node = victim(before.last)
            processes.kill(node)
            killed_at = time.monotonic()
            glsn = await log.append(b"after the kill")
            stalls[name] = time.monotonic() - killed_at
            after = await cluster.describe("orders")
            print(f"{name} {node}: epoch {before.last.epoch} -> {after.last.epoch}, appended at {glsn}")
            _check_new_segment(before, after, node)
            assert await log.append(b"in the new segment") >= after.last.base
            await _until_known_as_dead(cluster, node)  # or it may count as a spare at the next kill
    return stalls


async def _append_some(log: Log) -> None:
    for number in range(20):
        await log.append(b"%d" % number)


async def _until_known_as_dead(cluster: Cluster, node: str) -> None:
    async with asyncio.timeout(30):
        while node in {info.node for info in await cluster.nodes() if info.live}:
            await asyncio.sleep(0.05)


def _check_new_segment(before: Projection, after: Projection, dead: str) -> None:
    assert after.last.epoch > before.last.epoch
    assert dead not in {member.node for member in after.last.members()}
    assert after.last.owner.process != dead
