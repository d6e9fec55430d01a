"""``trunkline append``: lines of standard input, or whole files, as entries.

Lines keep their order, so one batch is in flight at a time: concurrent appends may commit in any order.
``--unordered`` gives up the order for speed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from trunkline.cli import WrongInput
from trunkline.cli.connection import CLOSE_S, cluster_command, cluster_options, position, positive
from trunkline.cli.tables import Bar, plural, print_json
from trunkline.client.bodies import ENTRY_BYTES_MAX
from trunkline.client.cluster import Cluster
from trunkline.client.log import Log
from trunkline.errors import TrunklineError

LINES_MAX = 5_000  # in a batch, unless --batch is set
BATCH_BYTES_MAX = 4 * 1024 * 1024
READ_BYTES = 1024 * 1024
IN_FLIGHT_MAX = 16  # batches, with --unordered


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "append",
        help="append lines of standard input, or files",
        description="Append the lines of standard input, one entry each, or whole files with --file.",
        parents=[cluster_options()],
    )
    parser.add_argument("log", metavar="LOG", help="the name of the log")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--file", nargs="+", type=Path, metavar="FILE", help="each file is one entry, byte for byte")
    source.add_argument("--delimiter", metavar="TEXT", help="what separates entries (default: a newline)")
    source.add_argument("--null", action="store_true", help="zero bytes separate entries")
    parser.add_argument(
        "--batch",
        type=positive,
        metavar="N",
        help=f"entries in a batch (default: what is available, up to {LINES_MAX:,})",
    )
    parser.add_argument("--unordered", action="store_true", help="several batches in flight: faster, but in any order")
    parser.add_argument(
        "--expect", type=position, metavar="GLSN", help="append only if the first entry gets this position"
    )
    parser.add_argument("--takeover", action="store_true", help="take over a broadcast log from its writer")
    parser.set_defaults(run=cluster_command(_append))


async def _append(options: argparse.Namespace, cluster: Cluster) -> None:
    if options.expect is not None and options.unordered:
        raise WrongInput("--expect needs an order of entries: it cannot be used with --unordered")
    log = await cluster.log(options.log)
    settings = log.settings
    limit = options.batch or (LINES_MAX if settings.groups == 1 else min(LINES_MAX, settings.stripe_unit))
    chunks = _files(options.file) if options.file else _lines(_delimiter(options))
    batches = _batches(chunks, limit, available=options.batch is None and not options.file)
    done = Done()
    try:
        with Bar(f"append to {options.log}") as bar:
            if options.unordered:
                await _unordered(log, batches, options, done, bar)
            else:
                await _in_order(log, batches, options, done, bar)
    except (TrunklineError, WrongInput) as error:
        error.args = (f"{error}; {done.before_failure()}",)
        raise
    except asyncio.CancelledError:
        if not options.json:
            print(f"trunkline: {done.text() if done.count else 'nothing was appended'}", file=sys.stderr)
        raise
    if options.json:
        print_json({"log": options.log, "count": done.count, "first": done.first, "last": done.last})
    else:
        print(done.text())


class Done:
    """What has been committed."""

    def __init__(self) -> None:
        self.count = 0
        self.first: int | None = None
        self.last: int | None = None

    def add(self, first: int, count: int) -> None:
        self.count += count
        self.first = first if self.first is None else min(first, self.first)
        self.last = max(first + count - 1, self.last or 0)

    def text(self) -> str:
        if not self.count:
            return "nothing to append"
        where = f"at {self.first}" if self.first == self.last else f"from {self.first} to {self.last}"
        return f"appended {plural(self.count, 'entry', 'entries')} {where}"

    def before_failure(self) -> str:
        return f"before the failure, {self.text()}" if self.count else "nothing was appended"


async def _in_order(
    log: Log, batches: AsyncIterator[Sequence[bytes]], options: argparse.Namespace, done: Done, bar: Bar
) -> None:
    expect = options.expect
    async for batch in batches:
        first = await _settle(log, batch, done, expect=expect, takeover=options.takeover)
        expect = None if expect is None else first + len(batch)
        bar.update(done.count)


async def _settle(log: Log, batch: Sequence[bytes], done: Done, *, expect: int | None, takeover: bool) -> int:
    """After Ctrl-C, wait briefly for the batch in flight, so that the outcome can be reported."""
    task = asyncio.create_task(log.append(batch, expect=expect, takeover=takeover))
    try:
        first = await asyncio.shield(task)
    except asyncio.CancelledError:
        with contextlib.suppress(TimeoutError, TrunklineError):
            async with asyncio.timeout(CLOSE_S):
                done.add(await task, len(batch))
        raise
    done.add(first, len(batch))
    return first


async def _unordered(
    log: Log, batches: AsyncIterator[Sequence[bytes]], options: argparse.Namespace, done: Done, bar: Bar
) -> None:
    in_flight: deque[tuple[asyncio.Task[int], int]] = deque()

    async def oldest() -> None:
        task, count = in_flight.popleft()
        done.add(await task, count)
        bar.update(done.count)

    try:
        async for batch in batches:
            in_flight.append((asyncio.create_task(log.append(batch, takeover=options.takeover)), len(batch)))
            if len(in_flight) >= IN_FLIGHT_MAX:
                await oldest()
        while in_flight:
            await oldest()
    finally:
        if in_flight:
            settled, _ = await asyncio.wait([task for task, _ in in_flight], timeout=CLOSE_S)
            for task, count in in_flight:
                if task in settled and task.exception() is None:
                    done.add(task.result(), count)
                task.cancel()


# -------------------------------------------------------------------------------------------------------- the entries


def _delimiter(options: argparse.Namespace) -> bytes:
    if options.null:
        return b"\0"
    if options.delimiter is None:
        return b"\n"
    delimiter: bytes = options.delimiter.encode().decode("unicode_escape").encode("latin-1")
    if not delimiter:
        raise WrongInput("--delimiter must not be empty")
    return delimiter


async def _batches(
    chunks: AsyncIterator[Sequence[bytes]], limit: int, *, available: bool
) -> AsyncIterator[list[bytes]]:
    """Batches of ``limit`` entries; fewer if they are large, at the end, and with ``available`` before a wait."""
    batch: list[bytes] = []
    size = 0
    async for chunk in chunks:
        for entry in chunk:
            if batch and size + len(entry) > BATCH_BYTES_MAX:
                yield batch
                batch, size = [], 0
            batch.append(entry)
            size += len(entry)
            if len(batch) >= limit:
                yield batch
                batch, size = [], 0
        if available and batch:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


async def _files(paths: Sequence[Path]) -> AsyncIterator[list[bytes]]:
    for path in paths:
        try:
            if path.stat().st_size > ENTRY_BYTES_MAX:
                raise WrongInput(f"{path} is larger than {ENTRY_BYTES_MAX:,} bytes, the limit of an entry: split it")
            content = path.read_bytes()
        except OSError as error:
            raise WrongInput(f"cannot read {path}: {error.strerror}") from None
        yield [content]


async def _lines(delimiter: bytes) -> AsyncIterator[list[bytes]]:
    """Complete entries, as many as are available without waiting, and at the end an unterminated one."""
    rest = bytearray()  # the start of an incomplete entry
    seen = 0
    async for chunk in _standard_input():
        searched = max(len(rest) - len(delimiter) + 1, 0)
        rest += chunk
        if rest.find(delimiter, searched) >= 0:
            *entries, last = bytes(rest).split(delimiter)
            rest = bytearray(last)
            seen += len(entries)
            _check_sizes(entries, seen - len(entries))
            yield entries
        if len(rest) > ENTRY_BYTES_MAX:
            raise WrongInput(f"entry {seen + 1} is longer than {ENTRY_BYTES_MAX:,} bytes; check the --delimiter")
    if rest:
        yield [bytes(rest)]


def _check_sizes(entries: Sequence[bytes], before: int) -> None:
    if max(map(len, entries)) > ENTRY_BYTES_MAX:
        number = next(at for at, entry in enumerate(entries, before + 1) if len(entry) > ENTRY_BYTES_MAX)
        raise WrongInput(f"entry {number} is longer than {ENTRY_BYTES_MAX:,} bytes; check the --delimiter")


async def _standard_input() -> AsyncIterator[bytes]:
    """Chunks as they arrive, without blocking the event loop, so that Ctrl-C works."""
    descriptor = sys.stdin.fileno()
    while True:
        await _readable(descriptor)
        chunk = os.read(descriptor, READ_BYTES)
        if not chunk:
            return
        yield chunk


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except PermissionError:  # a regular file is always readable
        return
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)
