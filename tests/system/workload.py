"""A client under test, as a process of its own: ``python -m system.workload SPEC.json``.

It appends small batches of payloads that exist once, subscribes, and now and then reads, asks for the tail and trims.
Its history has all calls and answers; a kill loses none. SIGTERM ends it cleanly.
With ``final`` it reads everything once instead, and ends.

Exit codes: 0 success, 3 the library broke (stderr has the error).
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections.abc import Awaitable
from pathlib import Path

import msgspec
import uvloop
from msgspec import Struct

import trunkline
from system.parent import die_with
from trunkline.check.history_file import JUNK, LOST, TRIMMED, UNWRITTEN, HistoryWriter
from trunkline.client.arguments import PolicyName
from trunkline.client.cluster import ClientOptions, Cluster
from trunkline.client.entries import Batch
from trunkline.client.log import Log
from trunkline.errors import (
    EntriesLost,
    Hole,
    NotWritten,
    OutcomeUnknown,
    OwnedByAnother,
    Refused,
    Trimmed,
)

LIBRARY_BROKE = 3
BATCH_ENTRIES_MAX = 4
BACK_POSITIONS = 300  # a subscription begins so far before the tail
KEEP_POSITIONS = 3_000  # what a trim leaves
AFTER_REFUSAL_S = 0.2
LOOK_AROUND_S = 0.25
FINAL_S_MAX = 120.0


class Spec(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    parent: int
    connect: list[str]
    histories: str
    recordings: str
    log: str = "orders"
    policy: PolicyName = "chain"
    replicas: int = 3
    appenders: int = 8
    batches_per_s: float = 100.0
    payload_bytes: int = 64
    timeout_s: float = 20.0
    takeover: bool = False  # of a broadcast log
    trims: bool = False
    final: bool = False
    seed: int = 0


def main(path: Path) -> int:
    spec = msgspec.json.decode(path.read_bytes(), type=Spec)
    die_with(spec.parent)
    return uvloop.run(run(spec))


async def run(spec: Spec) -> int:
    options = ClientOptions(timeout=spec.timeout_s, connect_timeout=60.0, record=Path(spec.recordings), name=spec.name)
    async with trunkline.connect(spec.connect, options=options) as cluster:
        log = await cluster.log(spec.log, create=True, policy=spec.policy, replicas=spec.replicas)
        with HistoryWriter(Path(spec.histories), spec.name, spec.log) as history:
            client = Client(spec, cluster, log, history)
            return await (client.read_everything() if spec.final else client.work())


class Client:
    def __init__(self, spec: Spec, cluster: Cluster, log: Log, history: HistoryWriter) -> None:
        self._spec = spec
        self._cluster = cluster
        self._log = log
        self._history = history
        self._drawn = random.Random(spec.seed)
        self._appended = 0
        self._highest = 0  # position that is known to be written
        self._takeover = spec.takeover
        self._stopping = asyncio.Event()

    async def work(self) -> int:
        """Until SIGTERM: then appends in flight are settled, and the rest is given up."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._stopping.set)
        appending = [asyncio.create_task(self._append_again_and_again()) for _ in range(self._spec.appenders)]
        looking = [asyncio.create_task(self._subscribe()), asyncio.create_task(self._look_around())]
        for task in (*appending, *looking):  # one that breaks ends all: the others must not hide it
            task.add_done_callback(lambda _: self._stopping.set())
        await self._stopping.wait()
        for task in looking:
            task.cancel()
        await asyncio.wait((*appending, *looking))
        broken = [task.exception() for task in (*appending, *looking) if not task.cancelled() and task.exception()]
        for error in broken:
            print(f"{self._spec.name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return LIBRARY_BROKE if broken else 0

    # ------------------------------------------------------------------------------------------------------- appending

    async def _append_again_and_again(self) -> None:
        rest_s = self._spec.appenders / self._spec.batches_per_s
        while not self._stopping.is_set():
            was_refused = not await self._append()
            await self._rest(rest_s * self._drawn.uniform(0.5, 1.5) + AFTER_REFUSAL_S * was_refused)

    async def _append(self) -> bool:
        ids = [self._new_id() for _ in range(self._drawn.randint(1, BATCH_ENTRIES_MAX))]
        takeover, self._takeover = self._takeover, False
        number = self._history.append(ids)
        try:
            glsn = await self._log.append([self._payload(each) for each in ids], takeover=takeover)
        except OutcomeUnknown as error:
            self._history.end(number, unknown=str(error))
        except Refused as error:
            self._history.end(number, refused=f"{type(error).__name__}: {error}")
            self._takeover = takeover and not isinstance(error, OwnedByAnother)
            return False
        else:
            self._history.end(number, glsn=glsn)
            self._highest = max(self._highest, glsn + len(ids) - 1)
        return True

    def _new_id(self) -> str:
        self._appended += 1
        return f"{self._spec.name}/{self._appended}"

    def _payload(self, name: str) -> bytes:
        return f"{name} ".encode().ljust(self._spec.payload_bytes, b".")

    # --------------------------------------------------------------------------------------------------------- reading

    async def _subscribe(self) -> None:
        start = max(1, await self._log.tail(timeout=None) - BACK_POSITIONS)
        while True:
            number = self._history.subscribe(start)
            try:
                async for batch in self._log.batches(start):
                    self._history.got(number, batch.first, _ids(batch))
                    self._highest = max(self._highest, batch.last)
            except Trimmed as trimmed:
                self._history.end(number)
                start = trimmed.point + 1

    async def _look_around(self) -> None:
        while not self._stopping.is_set():
            await self._rest(LOOK_AROUND_S * self._drawn.uniform(0.5, 1.5))
            chance = self._drawn.random()
            if chance < 0.45:
                await self._tail()
            elif chance < 0.95 or not self._spec.trims:
                await self._read(self._drawn.randint(max(1, self._highest - BACK_POSITIONS), self._highest + 3))
            elif self._highest > KEEP_POSITIONS:
                await self._trim(self._highest - KEEP_POSITIONS)

    async def _tail(self) -> None:
        number = self._history.tail()
        try:
            self._history.end(number, glsn=await self._log.tail())
        except Refused as error:
            self._history.end(number, unknown=str(error))

    async def _read(self, glsn: int) -> None:
        number = self._history.read(glsn)
        try:
            self._history.end(number, value=await self._value(glsn))
        except Refused as error:
            self._history.end(number, unknown=str(error))

    async def _value(self, glsn: int) -> str:
        try:
            return _id((await self._log.read(glsn)).payload)
        except Hole:
            return JUNK
        except NotWritten:
            return UNWRITTEN
        except Trimmed:
            return TRIMMED
        except EntriesLost:
            return LOST

    async def _trim(self, point: int) -> None:
        number = self._history.trim(point)
        try:
            await self._log.trim(point)
        except (Refused, OutcomeUnknown) as error:  # a refused one may have been carried out in part
            self._history.end(number, unknown=str(error))
        else:
            self._history.end(number)

    async def _rest(self, seconds: float) -> None:
        waiting: Awaitable[object] = asyncio.wait_for(self._stopping.wait(), seconds)
        try:
            await waiting
        except TimeoutError:
            return

    # ----------------------------------------------------------------------------------------------------- everything

    async def read_everything(self) -> int:
        """Every position below the tail; holes, which a subscription passes over, are read one by one."""
        async with asyncio.timeout(FINAL_S_MAX):
            number = self._history.final()
            tail = await self._log.tail()
            expected = (await self._cluster.describe(self._spec.log)).trim + 1
            async for batch in self._log.batches(expected, to_tail=True):
                for hole in range(expected, batch.first):
                    self._history.got(number, hole, [await self._value(hole)])
                self._history.got(number, batch.first, _ids(batch))
                expected = batch.last + 1
            for hole in range(expected, tail):
                self._history.got(number, hole, [await self._value(hole)])
            self._history.end(number, glsn=tail)
        return 0


def _ids(batch: Batch) -> list[str]:
    return [_id(payload) for payload in batch.payloads()]


def _id(payload: bytes) -> str:
    return payload.split(b" ", 1)[0].decode()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
