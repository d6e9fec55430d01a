"""``trunkline up`` and ``trunkline down``: a whole cluster on this machine."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from trunkline.cli import INTERRUPTED
from trunkline.cli.connection import (
    add_security_options,
    configuration,
    connected,
    port,
    positive,
    run_loop,
)
from trunkline.cli.paths import local_path
from trunkline.cli.serve import (
    POLICIES,
    add_log_format_option,
    add_parent_option,
    add_storage_options,
    end_with,
    storage_options,
)
from trunkline.cli.tables import json_option, plural, print_json
from trunkline.client.cluster import Cluster
from trunkline.config import ENVIRONMENT, VARIABLES, ConnectionConfig
from trunkline.errors import Refused, Unreachable
from trunkline.observing.targets import TARGETS, read_targets
from trunkline.runtime.local_cluster import STOP_S, LocalCluster, LocalClusterConfig
from trunkline.runtime.local_files import (
    RELOAD,
    ClusterRecord,
    LocalFiles,
    is_running,
    running_already,
    send_signal,
)

DIRECTORY = Path("cluster")
DASHBOARD = "127.0.0.1:7480"
UP_S = 60.0  # a cluster that is not up by then is stopped
POLL_S = 0.05
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
EXAMPLES = """\
examples:
  trunkline up --dir ./cluster                   in the foreground; Ctrl-C stops it
  trunkline up --detach --dir ./cluster          in the background; `trunkline down --dir ./cluster` stops it
  trunkline up --dir ./cluster --nodes 5 --no-restart
"""


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    up = commands.add_parser(
        "up",
        help="run a cluster on this machine",
        description="Run a cluster on this machine: a coordinator and several nodes. Processes that die are restarted.",
        epilog=EXAMPLES,
        parents=[json_option()],
    )
    _add_directory(up, "directory of all data (default: ./cluster)")
    up.add_argument("--nodes", type=positive, metavar="N", help="default: the existing ones, or 3")
    up.add_argument(
        "--port", type=port, default=7400, help="port of the coordinator; nodes use the next; 0: any free port"
    )
    up.add_argument("--policy-defaults", choices=POLICIES, default="chain", help="policy of logs created without one")
    up.add_argument("--detach", action="store_true", help="return when the cluster is up; it runs in the background")
    up.add_argument("--no-restart", action="store_true", help="do not restart processes that die")
    up.add_argument("--etcd", default="", metavar="URL[,URL]", help="store the metadata in etcd")
    up.add_argument("--record", type=local_path, metavar="DIR", help="record for `trunkline check --recording DIR`")
    up.add_argument(
        "--lease-ms", type=positive, default=3000, metavar="N", help="a node that is silent for longer counts as failed"
    )
    up.add_argument(
        "--observe",
        action="store_true",
        help=f"each process serves /metrics, /healthz and /readyz on a free port; {TARGETS} in --dir lists them",
    )
    up.add_argument(
        "--dashboard",
        nargs="?",
        const=DASHBOARD,
        metavar="ADDR",
        help=f"also serve the page of `trunkline dashboard` (default of ADDR: {DASHBOARD})",
    )
    add_log_format_option(up)
    add_storage_options(up)
    add_parent_option(up)
    add_security_options(up.add_argument_group("security"))
    up.set_defaults(run=_up)
    down = commands.add_parser("down", help="stop a local cluster", parents=[json_option()])
    _add_directory(down, "directory of the cluster (default: ./cluster)")
    down.set_defaults(run=_down)


def _add_directory(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--dir", type=local_path, default=DIRECTORY, help=text)


# ----------------------------------------------------------------------------------------------------------------- up


def _up(options: argparse.Namespace) -> int:
    storage_options(options.sync, options.storage)  # report an error once, not from every node
    end_with(options.parent)
    if options.detach:
        return asyncio.run(_detach(options))
    return asyncio.run(_in_foreground(options))


def _config(options: argparse.Namespace, security: ConnectionConfig) -> LocalClusterConfig:
    both = ["--lease-ms", str(options.lease_ms), "--log-format", options.log_format]
    if options.record is not None:
        both += ["--record", str(options.record.absolute())]
    for name, value in (("ca", security.tls_ca), ("cert", security.tls_cert), ("key", security.tls_key)):
        both += [f"--tls-{name}", str(Path(value).absolute())] if value else []
    coordinator = ["--default-policy", options.policy_defaults]
    coordinator += ["--etcd", options.etcd] if options.etcd else []
    node = ["--sync", options.sync, *(part for each in options.storage for part in ("--storage", each))]
    return LocalClusterConfig(
        directory=options.dir,
        program=(sys.executable, "-m", "trunkline.cli.serve"),
        nodes=options.nodes,
        port=options.port,
        restart=not options.no_restart,
        observe=options.observe,
        node_options=(*node, *both),
        coordinator_options=(*coordinator, *both),
        environment={**ENVIRONMENT, VARIABLES["token"]: security.token},  # other users can read command lines
    )


async def _in_foreground(options: argparse.Namespace) -> int:
    security = configuration(options)
    cluster = LocalCluster(_config(options, security))
    stopped: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    _on_signals(cluster, stopped)
    await cluster.start()
    try:
        live = asyncio.create_task(wait_live(cluster, security))
        failed = asyncio.create_task(cluster.failed())
        try:
            await asyncio.wait((live, failed, stopped), timeout=UP_S, return_when=asyncio.FIRST_COMPLETED)
            if stopped.done():
                return stopped.result()
            if failed.done():
                raise Refused(failed.result())
            if not live.done():
                raise Unreachable(f"the cluster was not up within {UP_S:.0f} s; see {cluster.files.logs}")
            await live
        finally:
            live.cancel()
            failed.cancel()
        async with _page(options, replace(security, connect=(cluster.connect,))) as page:
            cluster.mark_up(page)
            _print_up(options, cluster.files)
            return await stopped
    finally:
        await cluster.stop()


@contextlib.asynccontextmanager
async def _page(options: argparse.Namespace, connection: ConnectionConfig) -> AsyncIterator[str]:
    """Serve the dashboard, if requested, and yield its address."""
    if options.dashboard is None:
        yield ""
        return
    from trunkline.cli.extras import changes_text
    from trunkline.dashboard.server import Dashboard, DashboardConfig

    config = DashboardConfig(connection, options.dashboard, changes_text=changes_text)
    page = Dashboard(config, on_failure=lambda _: None)
    try:
        yield await page.start()
    finally:
        await page.close()


def _on_signals(cluster: LocalCluster, stopped: asyncio.Future[int]) -> None:
    loop = asyncio.get_running_loop()
    looking: set[asyncio.Task[None]] = set()

    def stop(number: signal.Signals) -> None:
        if not stopped.done():
            stopped.set_result(INTERRUPTED if number == signal.SIGINT else 0)

    def reload() -> None:
        task = asyncio.create_task(cluster.reload())
        looking.add(task)
        task.add_done_callback(looking.discard)

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop, number)
    loop.add_signal_handler(RELOAD, reload)


async def wait_live(cluster: LocalCluster, security: ConnectionConfig) -> None:
    """Return when every node is registered and live."""
    wanted = {child.name for child in cluster.children.values() if child.kind == "node"}
    config = replace(security, connect=(cluster.connect,), timeout_s=UP_S)
    while True:
        with contextlib.suppress(Unreachable):
            async with connected(config) as client:
                while not wanted <= await _live_nodes(client):
                    await asyncio.sleep(POLL_S)
                return
        await asyncio.sleep(POLL_S)


async def _live_nodes(client: Cluster) -> set[str]:
    return {node.name for node in (await client.status(logs=False)).nodes if node.live}


def _print_up(options: argparse.Namespace, files: LocalFiles) -> None:
    record = files.record()
    assert record is not None
    nodes = [each for each in record.processes if each.kind == "node"]
    if options.json:
        facts: dict[str, Any] = {"connect": record.connect, "pid": record.pid, "nodes": [each.name for each in nodes]}
        facts |= {"observe": read_targets(files.root)} if options.observe else {}
        print_json({**facts, "dashboard": record.dashboard} if record.dashboard else facts)
    else:
        print(f"up: {plural(len(nodes), 'node')}, connect to {record.connect}")
        if record.connect != "127.0.0.1:7400":
            print(f"export TRUNKLINE_CONNECT={record.connect}")
        if record.dashboard:
            login = ", log in with the cluster's token" if configuration(options).token else ""
            print(f"dashboard: {record.dashboard}{login}")
        if options.observe:
            print(f"metrics: {files.root / TARGETS}")
        if options.detach:
            print(f"stop it with: trunkline down --dir {options.dir}")
    sys.stdout.flush()


# ------------------------------------------------------------------------------------------------------- in background


async def _detach(options: argparse.Namespace) -> int:
    """Run the same in a background process with its own session; return when the cluster is up."""
    files = LocalFiles(options.dir)
    running = files.running()
    if running is not None:
        raise Refused(running_already(files, running))
    files.make()
    path = files.logs / "supervisor.log"
    with path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "trunkline.cli.main", *_foreground(options.arguments)),
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        while process.returncode is None:
            record = files.record()
            if record is not None and record.up and record.pid == process.pid:
                _print_up(options, files)
                return 0
            await asyncio.sleep(POLL_S)
    except asyncio.CancelledError:
        process.terminate()
        await process.wait()
        raise
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    raise Refused(lines[-1].removeprefix("trunkline: ") if lines else f"the supervisor ended; see {path}")


def _foreground(arguments: Sequence[str]) -> list[str]:
    return [each for each in arguments if each not in ("--detach", "--json")]


# --------------------------------------------------------------------------------------------------------------- down


def _down(options: argparse.Namespace) -> int:
    files = LocalFiles(options.dir)
    running = files.running()
    if running is not None:
        run_loop(stop_recorded(files, running))
    if options.json:
        print_json({"stopped": running is not None, "dir": str(files.root)})
    elif running is None:
        print(f"no cluster runs in {files.root}")
    else:
        print(f"down: {files.root}")
    return 0


async def stop_recorded(files: LocalFiles, record: ClusterRecord) -> None:
    """Stop the supervisor, which stops its servers; if it does not end, kill every recorded process."""
    send_signal(record.pid, record.started, signal.SIGTERM)
    if not await _ended(record, STOP_S + 2):
        latest = files.record() or record
        for pid, started in [(record.pid, record.started), *((each.pid, each.started) for each in latest.processes)]:
            send_signal(pid, started, signal.SIGKILL)
        if not await _ended(record, STOP_S):
            raise Refused(f"process {record.pid} does not end; inspect it with `ps -p {record.pid}`")


async def _ended(record: ClusterRecord, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while is_running(record.pid, record.started):
                await asyncio.sleep(POLL_S)
            return True
    return False
