"""The steps of the demo: changes of a shop, captured into a replicated log, delivered by Spark to 20 tenants.

    shop (DuckLake) -> capture -> log on three nodes -> deliverer (Spark) -> customers and orders of each tenant

While orders arrive, a storage node and then the deliverer are killed, and readers look at tenants: their two tables are
of one version at every look. At the end every table is compared with the shop. With ``s3`` the tables of tenants are in
a bucket of an S3 server, which is killed, too.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from importlib import resources
from pathlib import Path
from typing import Final

import duckdb
from msgspec import Struct, field

import trunkline.sync
from trunkline.config import changed_environment
from trunkline.delivery.config import Pipeline, load_pipeline
from trunkline.delivery.config.address_rules import address_of
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.config.table_rules import selection_of
from trunkline.delivery.control.contract import DestinationRecord
from trunkline.delivery.control.store import ControlStore, open_control_store
from trunkline.delivery.sources.factory import source_of
from trunkline.demo.comparison import Compared, TenantReader, compare
from trunkline.demo.object_server import ObjectServer
from trunkline.demo.processes import Process
from trunkline.demo.shop import TENANTS, Shop
from trunkline.errors import Refused, TrunklineError
from trunkline.runtime.local_files import LocalFiles

LOG: Final = "shop"
PIPELINE: Final = "shop"
WAIT_S: Final = 120.0  # for one step, also on a loaded machine
POLL_S: Final = 0.05
LAG_EVERY_S: Final = 0.5
PAGE: Final = re.compile(r"http://\S+")
DELTA_FROM: Final = 11  # tenants from this number on have Delta tables
BUCKET: Final = "shop"
ACCESS_KEY_ENV: Final = "DEMO_ACCESS_KEY"
SECRET_KEY_ENV: Final = "DEMO_SECRET_KEY"
LOOK_S: Final = 0.05  # between two looks at a tenant


class DemoFailed(Exception):
    """A step did not succeed."""


class Result(Struct):
    """What the summary shows."""

    changes: int = 0
    transactions: int = 0
    entries: int = 0
    seconds: float = 0.0
    failover_s: float = 0.0
    epochs: tuple[int, int] = (0, 0)
    resumed_s: float = 0.0
    store_s: float = 0.0  # until delivery went on after the S3 server was killed
    lags_ms: list[int] = field(default_factory=list)
    rows: int = 0
    looks: int = 0  # at both tables of a tenant, in one transaction
    torn: int = 0  # of these: looks at tables of two versions
    compared: list[Compared] = field(default_factory=list)
    verified: str = ""


class Demo:
    """One run in a directory. ``say`` is called with each line; ``step_s`` is the pause after a step."""

    def __init__(
        self, folder: Path, say: Callable[[str], None], *, step_s: float, keep: bool = False, s3: bool = False
    ) -> None:
        self.folder = folder
        self.result = Result()
        self.page = ""
        self._say = say
        self._step_s = step_s
        self._keep = keep
        self._objects = ObjectServer((BUCKET,), directory=folder / "objects") if s3 else None
        self._stack = ExitStack()
        self._ending = threading.Event()
        self._opened: trunkline.sync.Log | None = None

    def __enter__(self) -> Demo:
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._stack.close()

    # --- steps ---

    def run(self) -> Result:
        if self._objects is not None:
            self._start_store(self._objects)
        self._start_cluster()
        self._open_shop()
        self._start_capture()
        self._start_deliverer()
        self._kill_a_node()
        self._kill_the_deliverer()
        if self._objects is not None:
            self._kill_the_store(self._objects)
        self._close_shop()
        self._verify()
        return self.result

    def stay(self) -> None:
        """Keep everything running until a signal. Needs ``keep``."""
        self._shop.open()
        signal.pause()

    def _start_store(self, objects: ObjectServer) -> None:
        self._stack.enter_context(objects)
        keys = {ACCESS_KEY_ENV: objects.access_key, SECRET_KEY_ENV: objects.secret_key}
        self._stack.enter_context(changed_environment(keys))
        self._say(f"an S3 server is up, at {objects.endpoint}, with the bucket {BUCKET}")

    def _start_cluster(self) -> None:
        directory = self.folder / "cluster"
        up = self._begin("up", "--dir", str(directory), "--nodes", "3", "--port", "0", "--parent", str(os.getpid()))
        files = LocalFiles(directory)
        self._until(lambda: (record := files.record()) is not None and record.up, "the cluster starts", up)
        self._files = files
        record = files.record()
        assert record is not None
        self._connect = record.connect
        self._cluster = self._stack.enter_context(trunkline.sync.connect(self._connect))
        self._say(f"three nodes and a coordinator are up, at {self._connect}")
        if self._keep:
            self._show_page()

    def _show_page(self) -> None:
        store = f"sqlite:{self.folder / 'control.db'}"
        page = self._begin("dashboard", "--connect", self._connect, "--listen", "127.0.0.1:0", "--deliver", store)
        self._until(lambda: PAGE.search(page.output) is not None, "the page is served", page)
        self.page = PAGE.findall(page.output)[0]
        self._say(f"dashboard: {self.page}")

    def _open_shop(self) -> None:
        self._shop = Shop(self.folder)
        self._stack.callback(self._shop.disconnect)
        self._stack.callback(self._shop.close)
        self._shop.open()
        self._began = time.monotonic()
        self._say(f"the shop is open: customers and orders of {len(TENANTS)} tenants, in a DuckLake")

    def _start_capture(self) -> None:
        self._capture = self._begin(*self._captured())
        self._until(lambda: self._tail() > 2, "the capture starts", self._capture)
        self._say("its changes are captured into a replicated log, transaction by transaction")

    def _captured(self, *more: str) -> list[str]:
        what = ["--ducklake", self._shop.address.catalog, "--tables", "main.*", "--poll-ms", "50"]
        return ["capture", LOG, "--connect", self._connect, *what, *more]

    def _start_deliverer(self) -> None:
        self._file = self.folder / "pipeline.yaml"
        self._file.write_text(_pipeline_text(self._connect, self._objects))
        self._pipeline: Pipeline = load_pipeline(self._file)
        self._store: ControlStore = self._stack.enter_context(
            closing(open_control_store(f"sqlite:{self.folder / 'control.db'}"))
        )
        self._deliverer = self._begin("deliver", "run", str(self._file))
        self._until(self._all_seeded, "20 tenants are seeded", self._deliverer)
        where = f", all in s3://{BUCKET}" if self._objects else ""
        self._say(f"Spark delivers two tables to each of {len(TENANTS)} tenants: ten in DuckLake, ten in Delta{where}")
        threading.Thread(target=self._watch_lag, name="lag", daemon=True).start()
        threading.Thread(target=self._watch_tenants, name="readers", daemon=True).start()
        self._wait()

    def _kill_a_node(self) -> None:
        victim = self._cluster.describe(LOG).segments[-1].groups[0][0].node
        record = self._files.record()
        process = record.process(victim) if record is not None else None
        if process is None:
            raise DemoFailed(f"the node {victim} has no process")
        tail, epoch = self._tail(), self._cluster.describe(LOG).epoch
        began = time.monotonic()
        os.kill(process.pid, signal.SIGKILL)
        self._until(lambda: self._tail() > tail + 1, "appends continue", None)
        self.result.failover_s = time.monotonic() - began
        self.result.epochs = (epoch, self._cluster.describe(LOG).epoch)
        self._say(f"storage node {victim} killed: appends continued after {self.result.failover_s:.1f} s")
        self._wait()

    def _kill_the_deliverer(self) -> None:
        self._deliverer.kill()
        before = self._least_complete()
        began = time.monotonic()
        self._deliverer = self._begin("deliver", "run", str(self._file))
        self._until(lambda: self._least_complete() > before, "delivery continues", self._deliverer)
        self.result.resumed_s = time.monotonic() - began
        self._say(f"deliverer killed and restarted: delivery continued after {self.result.resumed_s:.1f} s")
        self._wait()

    def _kill_the_store(self, objects: ObjectServer) -> None:
        objects.kill()
        began = time.monotonic()
        self._wait()
        before = self._least_complete()
        objects.restart()
        self._until(lambda: self._least_complete() > before, "delivery continues", self._deliverer)
        self.result.store_s = time.monotonic() - began
        self._say(f"S3 server killed and restarted: delivery continued after {self.result.store_s:.1f} s")
        self._wait()

    def _close_shop(self) -> None:
        self._shop.close()
        self.result.seconds = time.monotonic() - self._began
        self.result.changes, self.result.transactions = self._shop.operations, self._shop.transactions
        self._capture.stop()
        rest = self._begin(*self._captured("--once"))
        self._until(lambda: not rest.runs, "the capture is complete", None)
        version = self._log_version()
        self._until(lambda: self._least_complete() >= version, "every table is complete", self._deliverer)
        self.result.entries = self._tail() - 1
        self._ending.set()
        if not self._keep:
            code = self._deliverer.stop()
            if code:
                raise DemoFailed(f"the deliverer ended with exit code {code}:\n{self._deliverer.output}")
        self._say("the shop is closed; all of its changes are delivered")

    def _verify(self) -> None:
        verify = Process("deliver", "verify", str(self._file), "--json")
        self._stack.callback(verify.end)
        self._until(lambda: not verify.runs, "every table is verified", None)
        verify.stop()
        self.result.verified = verify.output
        self.result.compared = compare(self._shop.address, self._pipeline.destinations)
        self.result.rows = self._shop.rows()

    # --- observation ---

    def _begin(self, *arguments: str) -> Process:
        process = Process(*arguments)
        self._stack.callback(process.end)
        return process

    def _until(self, condition: Callable[[], bool], what: str, process: Process | None) -> None:
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                if condition():
                    return
            except Refused:
                pass  # such as while a node is down
            if process is not None and not process.runs:
                raise DemoFailed(f"`trunkline {process.what}` ended:\n{process.output}")
            if time.monotonic() > deadline:
                raise DemoFailed(f"timed out after {WAIT_S:.0f} s: {what}")
            time.sleep(POLL_S)

    def _wait(self) -> None:
        time.sleep(self._step_s)

    def _tail(self) -> int:
        return self._log().tail()

    def _log(self) -> trunkline.sync.Log:
        if self._opened is None:
            self._opened = self._cluster.log(LOG)
        return self._opened

    def _log_version(self) -> int:
        return source_of(self._pipeline.source, selection_of(self._pipeline)).state(0).version

    def _records(self) -> list[DestinationRecord]:
        return list(self._store.destinations(PIPELINE))

    def _all_seeded(self) -> bool:
        records = self._records()
        return len(records) == len(TENANTS) and all(each.status and each.status.position for each in records)

    def _least_complete(self) -> int:
        found = [max(each.status.position or 0, each.empty.through) for each in self._records() if each.status]
        return min(found, default=0)

    def _watch_lag(self) -> None:
        with closing(open_control_store(f"sqlite:{self.folder / 'control.db'}")) as store:
            while not self._ending.wait(LAG_EVERY_S):
                try:
                    records = store.destinations(PIPELINE)
                except TrunklineError:
                    continue  # the next poll succeeds
                lags = [each.status.lag_ms for each in records if each.status and each.status.lag_ms is not None]
                if lags:
                    self.result.lags_ms.append(max(lags))

    def _watch_tenants(self) -> None:
        """Look at the tenants in DuckLake in turn: both tables, in one transaction."""
        addresses = [address_of(each.address, "main.orders") for each in self._pipeline.destinations]
        readers = [TenantReader(each) for each in addresses if isinstance(each, LakeAddress)]
        while not self._ending.wait(LOOK_S):
            reader = readers[self.result.looks % len(readers)]
            try:
                agrees = reader.agrees()
            except duckdb.Error:
                continue  # a commit has the catalog for a moment
            self.result.looks += 1
            self.result.torn += not agrees
        for reader in readers:
            reader.close()


def _pipeline_text(connect: str, objects: ObjectServer | None) -> str:
    lines = []
    root = "" if objects is None else f"s3://{BUCKET}/"
    for number, tenant in enumerate(TENANTS, start=1):
        delta = f', type: delta, path: "{root}tenants/{tenant}/{{table}}"' if number >= DELTA_FROM else ""
        lines.append(f"  - {{name: {tenant}{delta}}}")
    text = resources.files("trunkline.demo").joinpath("pipeline.yaml").read_text()
    access = f'endpoint: "{objects.endpoint}", access_key_env: {ACCESS_KEY_ENV}, secret_key_env: ' if objects else ""
    words = {
        "@connect@": connect,
        "@destinations@": "\n".join(lines),
        "@root@": root,
        "@access@": f", {access}{SECRET_KEY_ENV}" if objects else "",
    }
    for word, filling in words.items():
        text = text.replace(word, filling)
    return text
