"""Where a control store is, for the contract suite, and other processes that use the same one."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final

from trunkline.delivery.control.contract import Holdings
from trunkline.delivery.control.store import ControlStore, open_control_store

LONG_MS: Final = 600_000  # a lease that outlives every test
PATIENCE_S: Final = 60.0
_fork = multiprocessing.get_context("forkserver")

Taken = list[tuple[str, int]]  # names and tokens


@dataclass(frozen=True)
class Place:
    """It pickles, so that a child process opens the same store."""

    address: str

    def open(self) -> ControlStore:
        return open_control_store(self.address)


def take_and_give(place: Place, processes: int, rounds: int) -> Taken:
    """Processes that take what is free of pipeline ``p`` and give it back; returns every grant that one of them got."""
    pipes = [_fork.Pipe() for _ in range(processes)]
    children = [
        _fork.Process(target=_take_and_give, args=(place, f"child{n}", rounds, theirs), daemon=True)
        for n, (_, theirs) in enumerate(pipes)
    ]
    for child in children:
        child.start()
    for _, theirs in pipes:
        theirs.close()
    taken: Taken = []
    for child, (ours, _) in zip(children, pipes, strict=True):
        with ours:
            assert ours.poll(PATIENCE_S), "the child does not answer"
            taken += ours.recv()
        child.join(PATIENCE_S)
        assert child.exitcode == 0
        child.close()
    return taken


def _take_and_give(place: Place, me: str, rounds: int, answer: Connection) -> None:
    store = place.open()
    taken: Taken = []
    for _ in range(rounds):
        grants = store.ownerships.acquire("p", me, "d1", LONG_MS).ownerships
        taken += [(grant.name, grant.token) for grant in grants]
        store.ownerships.release("p", me, [grant.name for grant in grants])
    store.close()
    answer.send(taken)


def configured(store: ControlStore, count: int, digest: str = "d1") -> None:
    store.configurations.configure("p", digest, {f"t{n}": "x" for n in range(count)})


def acquire(store: ControlStore, deliverer: str, lease_ms: int = LONG_MS) -> Holdings:
    return store.ownerships.acquire("p", deliverer, "d1", lease_ms)


def names(held: Holdings) -> list[str]:
    return [grant.name for grant in held.ownerships]


def tokens(held: Holdings) -> dict[str, int]:
    return {grant.name: grant.token for grant in held.ownerships}
