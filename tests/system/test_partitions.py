"""Partitions between three hosts; each has an etcd member, a coordinator, a node and a client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from etcd_server import Etcd
from system.judging import appends_of, judge
from system.network import Network
from system.processes import Processes

HOSTS = ("a", "b", "c")
PROGRESS = 20  # appends that show that a client continues
PROGRESS_S_MAX = 40.0


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(*HOSTS) as network:
        yield network


@pytest.mark.parametrize("policy", ["chain", "broadcast"])
def test_partitions_fork_nothing_and_the_side_with_a_majority_continues(
    tmp_path: Path, network: Network, policy: str
) -> None:
    prefixes = [network.prefix(host) for host in HOSTS]
    addresses = [network.address(host) for host in HOSTS]
    with (
        Etcd(tmp_path / "etcd", hosts=addresses, prefixes=prefixes) as etcd,
        Processes(tmp_path / "run") as processes,
    ):
        _start(processes, network, etcd, policy)
        clients = ("wa", "wb", "wc") if policy == "chain" else ("wb",)
        _wait_for_progress(processes, *clients)

        network.cut_both("c", "ab")  # c is alone
        _wait_for_progress(processes, *clients[:2])
        network.heal()
        _wait_for_progress(processes, *clients)

        network.cut("c", "a")  # a does not receive from c, but reaches the majority and intact members
        _wait_for_progress(processes, *clients[:2])
        network.heal()
        _wait_for_progress(processes, *clients)

        network.cut("a", "c")
        network.cut("b", "c")  # c receives from none, but all receive from c
        _wait_for_progress(processes, *clients[:2])
        network.heal()
        _wait_for_progress(processes, *clients)

        _judge(processes, network, policy)


def _start(processes: Processes, network: Network, etcd: Etcd, policy: str) -> None:
    for host in HOSTS:
        processes.add_coordinator(f"c{host}", place=network.place(host), etcd=etcd.endpoints)
    for host in HOSTS:
        processes.add_node(f"n{host}", place=network.place(host))
    processes.start("ca", "cb", "cc", "na", "nb", "nc")
    processes.wait_live("na", "nb", "nc")
    for number, host in enumerate(HOSTS):
        nearest_first = processes.coordinators[number:] + processes.coordinators[:number]
        writes = policy == "chain" or host == "b"
        processes.add_client(
            f"w{host}",
            network.place(host),
            connect=nearest_first,
            policy=policy,
            appenders=4 if writes else 0,
            batches_per_s=40,
            timeout_s=8.0,
            seed=number,
        )
        processes.start(f"w{host}")


def _wait_for_progress(processes: Processes, *clients: str) -> None:
    """Each of them appends again. A process that ended on its own is a failure."""
    known = {client: appends_of(processes.histories, client) for client in clients}

    def gone_on() -> bool:
        for client in clients:
            assert processes.ended(client) is None, f"{client} ended by itself"
        return all(appends_of(processes.histories, client) >= known[client] + PROGRESS for client in clients)

    processes.wait(gone_on, f"appends of {', '.join(clients)} from {known} on", PROGRESS_S_MAX)


def _judge(processes: Processes, network: Network, policy: str) -> None:
    assert processes.stop("wa", "wb", "wc") == {"wa": 0, "wb": 0, "wc": 0}
    processes.add_client("reader", network.place("a"), policy=policy, final=True)
    processes.start("reader")
    assert processes.wait_end("reader") == 0
    processes.stop_servers()
    judgement = judge(processes.histories, processes.recordings)
    print(judgement.text())
    assert not judgement.broken
    assert judgement.complete
