"""How long readers wait at positions that were assigned to a killed writer and never written.

    ./run bench holes [--repeats 5] [--quick] [--json] [--dir DIR]

A separate writer gets positions for 16 batches, its writes are held back, and it is killed with SIGKILL. Then another
client appends one entry. Two readers follow the log all the time, two start after the kill; each is timed from the kill
until it has that entry. In one case every batch is lost, in the other every second one. Goals, for the slowest
reader of all repeats: 16 x 1,000 positions within 1 s, 16 x 2,000 within 2 s. Exit code 0: every goal is met; 1: one is
missed; 2: the measurement failed.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

import uvloop
from bench_command import measured, parser_of, say
from log_processes import Failed
from log_trunkline import trunkline_cluster

import trunkline
from trunkline.client.batcher import BatchOptions
from trunkline.client.cluster import ClientOptions
from trunkline.core.effects import Address, Message
from trunkline.core.messages import Write

BATCHES = 16
READERS = 4  # half of them follow the log all the time, half start after the kill
GRANTED_WITHIN_S = 30.0
PASSED_WITHIN_S = 120.0
GOALS_S = {1000: 1.0, 2000: 2.0}  # by the entries of a batch


@dataclasses.dataclass(frozen=True)
class Case:
    count: int  # of entries in a batch
    lost: int  # every so many batches one is lost

    @property
    def name(self) -> str:
        return f"{BATCHES} x {self.count:,}, {'all' if self.lost == 1 else 'every second'} lost"


CASES = [Case(count, lost) for count in GOALS_S for lost in (1, 2)]


@dataclasses.dataclass(frozen=True)
class Found:
    case: Case
    seconds: list[float]  # of each reader in each repeat

    @property
    def is_met(self) -> bool:
        return max(self.seconds) <= GOALS_S[self.case.count]


async def write_and_hang(address: str, name: str, count: int, lost: int) -> None:
    """Append 16 batches at once, hold back the writes, report that, and wait to be killed."""
    each_alone = ClientOptions(batch=BatchOptions(batch_entries=count))
    async with trunkline.connect(address, options=each_alone) as cluster:
        log = await cluster.log(name)
        session = log._session
        send = session.send
        granted: dict[int, int] = {}  # first position to the place in the order of grants

        def hold_back(role: str, to: Address, message: Message, step: Any) -> None:
            if role == "appender" and isinstance(message, Write):
                place = granted.setdefault(message.frame.first, len(granted))
                if len(granted) == BATCHES:
                    print("granted", flush=True)
                if place % lost == 0:
                    return
            send(role, to, message, step)

        session.send = hold_back  # type: ignore[method-assign]
        await asyncio.gather(*(log.append([b"never seen"] * count) for _ in range(BATCHES)))


async def kill_a_writer(address: str, name: str, case: Case) -> list[float]:
    """The seconds from the kill until each reader has the entry after the holes."""
    async with trunkline.connect(address) as cluster:
        log = await cluster.log(name, create=True)
        await log.append(b"before")
        readers = [asyncio.create_task(_first(address, name, b"after")) for _ in range(READERS // 2)]
        writer = await asyncio.create_subprocess_exec(
            sys.executable, __file__, "--writer", address, name, str(case.count), str(case.lost),
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert writer.stdout is not None
        async with asyncio.timeout(GRANTED_WITHIN_S):
            line = await writer.stdout.readline()
        if line != b"granted\n":
            raise Failed("the writer ended by itself")
        writer.kill()
        killed = time.perf_counter()
        await writer.wait()
        await log.append(b"after")
        readers += [asyncio.create_task(_first(address, name, b"after")) for _ in range(READERS - len(readers))]
        async with asyncio.timeout(PASSED_WITHIN_S):
            return [at - killed for at in await asyncio.gather(*readers)]


async def _first(address: str, name: str, payload: bytes) -> float:
    async with trunkline.connect(address) as cluster:
        async for entry in (await cluster.log(name)).subscribe(1):
            if entry.payload == payload:
                return time.perf_counter()
    raise Failed("a subscription without an end has ended")


def measure_all(repeats: int, directory: Path) -> list[Found]:
    with trunkline_cluster(directory) as cluster:
        found = []
        for at, case in enumerate(CASES):
            say(case.name)
            seconds: list[float] = []
            for repeat in range(repeats):
                seconds += uvloop.run(kill_a_writer(cluster.address, f"holes-{at}-{repeat}", case))
            found.append(Found(case, seconds))
        return found


def report_lines(found: list[Found]) -> list[str]:
    return [
        f"{one.case.name:32} slowest reader {max(one.seconds):5.2f} s, fastest {min(one.seconds):5.2f} s "
        f"({'met' if one.is_met else 'MISSED'})"
        for one in found
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = parser_of("holes", __doc__, quick="one repeat", needs="100 MB")
    parser.add_argument("--repeats", type=int, default=5, help="of each case (default: 5)")
    parser.add_argument("--writer", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.writer:
        address, name, count, lost = options.writer
        uvloop.run(write_and_hang(address, name, int(count), int(lost)))
        return 0
    return measured(
        "holes",
        options,
        lambda directory: measure_all(1 if options.quick else options.repeats, directory),
        lines=report_lines,
        values=lambda found: [{**dataclasses.asdict(one), "met": one.is_met} for one in found],
        met=lambda found: all(one.is_met for one in found),
    )


if __name__ == "__main__":
    sys.exit(main())
