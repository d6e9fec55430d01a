"""The short soak, and proof that its judges can reject a run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import trunkline
from system.judging import Judgement, judge
from system.processes import Processes
from system.soak import LOG, SHORT_S, Plan, soak
from trunkline.client.cluster import ClientOptions


@pytest.mark.parametrize("policy", ["chain", "broadcast"])
def test_a_random_schedule_of_kills_and_stops_loses_forks_and_reorders_nothing(tmp_path: Path, policy: str) -> None:
    plan = Plan(nodes=3, policy=policy, seconds=SHORT_S, seed=3)
    judgement, run = soak(tmp_path, plan)
    print(plan, dict(run.faults), judgement.text(), sep="\n")
    assert not judgement.broken
    assert judgement.complete
    assert sum(run.faults.values()) >= 3


def test_a_node_that_acknowledges_without_writing_is_found_by_both_judges(tmp_path: Path) -> None:
    judgement = run_with_forgetful_node(tmp_path, "stores-nothing")
    print(judgement.text())
    assert any(found.startswith("H9:") for found in judgement.broken)
    assert any(found.startswith(("NoLostAck:", "CommitDurability:")) for found in judgement.broken)


def test_the_same_run_without_the_mistake_is_accepted(tmp_path: Path) -> None:
    judgement = run_with_forgetful_node(tmp_path, "")
    assert not judgement.broken
    assert judgement.complete


def run_with_forgetful_node(directory: Path, bug: str) -> Judgement:
    """Appends are acknowledged, ``n1`` starts again, and the segment ends where its members say that it does."""
    with Processes(directory) as processes:
        processes.add_coordinator("c1")
        for name in ("n1", "n2", "n3"):
            processes.add_node(name, bug=bug if name == "n1" else "")
        processes.start("c1", "n1", "n2", "n3")
        processes.wait_live("n1", "n2", "n3")
        processes.add_client("w1", trims=False)
        processes.start("w1")
        processes.wait(lambda: _acknowledged(processes) >= 20, "20 appends")
        assert processes.stop("w1") == {"w1": 0}
        processes.kill("n1")
        processes.start("n1")
        processes.wait_live("n1")
        asyncio.run(_end_the_segment(processes))
        processes.add_client("reader", final=True)
        processes.start("reader")
        assert processes.wait_end("reader") == 0
        processes.stop_servers()
        return judge(processes.histories, processes.recordings)


async def _end_the_segment(processes: Processes) -> None:
    options = ClientOptions(record=processes.recordings)
    async with trunkline.connect(processes.coordinators, options=options) as cluster:
        log = await cluster.log(LOG)
        await log.reopen()


def _acknowledged(processes: Processes) -> int:
    return sum(path.read_bytes().count(b',"glsn":') for path in processes.histories.glob("*.history"))
