"""What runs is what is checked: hosts and scenarios use the same class objects for every role."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from unittest.mock import create_autospec

from trunkline.check.catalogue import shipped
from trunkline.check.scenario import Boot
from trunkline.client.batcher import BatchOptions
from trunkline.client.log import Log
from trunkline.client.session import Session
from trunkline.core.projection import Opening, Owner, Policy, Projection, Seat, Settings, create
from trunkline.core.timing import DEFAULT_TIMING
from trunkline.delivery.config import Pipeline
from trunkline.delivery.config.addresses import DeltaAddress
from trunkline.delivery.config.tree import RoutingConfig
from trunkline.delivery.control.store import open_control_store
from trunkline.delivery.deliverer.host import Deliverer
from trunkline.delivery.deliverer.observer import Observer
from trunkline.delivery.job.runner import JobRunner
from trunkline.metadata.service import RegisterService
from trunkline.metadata.sqlite_store import SqliteStore
from trunkline.runtime.duties import LogDuties
from trunkline.runtime.links import Links
from trunkline.runtime.node import NodeConfig, NodeServer
from trunkline.runtime.turns import Turns
from trunkline.storage import format_directory


def checked_roles() -> set[type]:
    """The class of every role of every scenario."""

    def found() -> Iterator[type]:
        for make in shipped().scenarios.values():
            for spec in make().processes:
                boot = Boot(spec.name, 1, 2, spec.disk.load(spec.image))
                yield from (type(role) for role in spec.start(boot).values())

    return set(found())


def projection(policy: Policy) -> Projection:
    return create("c", "log", Settings(policy), Opening(((Seat("n1", 1),),), Owner("n1", 1)))


def _this(session: Session) -> Session:
    return session


async def running_roles(directory: Path) -> set[type]:
    """The class of every role that a node, a client and a coordinator run."""
    found: set[type] = set()
    format_directory(directory / "n1", "c", "n1")
    node = NodeServer(NodeConfig(directory / "n1", "n1", "127.0.0.1:0"))
    await node.start()
    found |= {type(role) for role in node.host.process.roles.values()}
    await node.close()

    links = Links("test")
    for policy in Policy:
        session = Session(f"client-{policy.value}", 1, "c", "log", links, DEFAULT_TIMING, None)
        log = Log(session, projection(policy), BatchOptions(), None, partial(_this, session))
        session.ensure_writing_role(projection(policy))
        session.ensure_administrator()
        log.batches(1)
        calls = [asyncio.ensure_future(log.tail()), asyncio.ensure_future(log.peek())]
        await asyncio.sleep(0)
        found |= {type(role) for role in session.process.roles.values()}
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        session.close()

    store = SqliteStore(directory / "metadata.sqlite")
    await store.start()
    register = RegisterService(store)
    duties = LogDuties("coordinator", 1, "c", "log", 500, Turns(1, 1.0), register, links, None, lambda _: None)
    found |= {type(role) for role in duties.process.roles.values()}
    duties.close()
    found |= {type(value) for value in vars(store).values() if inspect.isclass(type(value))}
    await register.close()
    await store.close()
    await links.peers.close()
    found.add(delivering_role(directory))
    return {each for each in found if each.__module__.startswith("trunkline.core.")}


def delivering_role(directory: Path) -> type:
    """The class of what plans a deliverer's work; no job is run, so there is no Spark."""
    pipeline = Pipeline(
        name="orders",
        source=DeltaAddress(str(directory / "orders")),
        routing=RoutingConfig(column="tenant"),
        key=("id",),
        destinations=(),
    )
    with closing(open_control_store(f"sqlite:{directory / 'control.db'}")) as store:
        deliverer = Deliverer(
            pipeline, lambda _: create_autospec(JobRunner, instance=True), store, "one", Observer("orders", "one")
        )
        return type(deliverer.planner)


def test_hosts_run_the_class_objects_that_are_checked(tmp_path: Path) -> None:
    checked = {each for each in checked_roles() if each.__module__.startswith("trunkline.core.")}
    running = asyncio.run(running_roles(tmp_path))
    assert {role.__name__ for role in running} == {role.__name__ for role in checked}
    assert running == checked
