"""``trunkline read``, ``tail``, ``subscribe``, ``peek`` and ``fill``."""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline.cli import INTERRUPTED, WrongInput
from trunkline.cli.connection import cluster_command, cluster_options, count, interruptible, position
from trunkline.cli.tables import print_json
from trunkline.client.cluster import Cluster
from trunkline.client.entries import Batch, Entry
from trunkline.client.log import Log
from trunkline.errors import NotWritten, Trimmed

if TYPE_CHECKING:
    from trunkline.cli.read_changes import Seen

TAIL = 10
READ = """\
Print entries, one per line. If there are none, a line on standard error explains why. A read that starts at the tail
succeeds (exit code 0): there are no new entries. A range beyond the tail or below the trim point fails (exit code 1).
With --changes, the entries of a capture are printed as transactions: a block for each, a line for each change.
"""

Show = Callable[[Batch], bytes]
Work = Callable[[argparse.Namespace, Cluster], Awaitable[int | None]]


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    read = _of_log(commands, "read", "print entries, one per line")
    read.description = READ
    read.add_argument("--from", dest="start", type=position, metavar="A", help="first position (default: the oldest)")
    read.add_argument("--to", dest="until", type=position, metavar="B", help="last position (default: the newest)")
    _add_forms(read)
    read.set_defaults(run=cluster_command(_read))
    tail = _of_log(commands, "tail", "print the last entries")
    tail.add_argument("-n", dest="number", type=count, default=TAIL, metavar="N", help=f"how many (default: {TAIL})")
    tail.add_argument("--follow", "-f", action="store_true", help="then print new entries as they arrive")
    _add_forms(tail)
    tail.set_defaults(run=_until_interrupted(_tail))
    subscribe = _of_log(commands, "subscribe", "print entries as they arrive, until Ctrl-C")
    subscribe.add_argument("--from", dest="start", type=position, metavar="A", help="from here (default: the oldest)")
    _add_forms(subscribe)
    subscribe.set_defaults(run=_until_interrupted(_subscribe))
    peek = _of_log(commands, "peek", "print the next position to be assigned, and the tail")
    peek.set_defaults(run=cluster_command(_peek))
    fill = _of_log(commands, "fill", "fill a position that its writer did not complete")
    fill.add_argument("glsn", type=position, metavar="GLSN", help="the position")
    fill.set_defaults(run=cluster_command(_fill))


def _of_log(commands: argparse._SubParsersAction[Any], name: str, text: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, parents=[cluster_options()])
    parser.add_argument("log", metavar="LOG", help="the name of the log")
    assert isinstance(parser, argparse.ArgumentParser)
    return parser


def _add_forms(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--raw", action="store_true", help="print only the bytes, without separators")
    parser.add_argument("--changes", action="store_true", help="print the transactions that a capture wrote")
    parser.add_argument(
        "--table",
        dest="tables",
        action="append",
        metavar="[SCHEMA.]NAME",
        help="of --changes: only this table; * and ? match any letters; may be repeated",
    )


def _until_interrupted(work: Work) -> Callable[[argparse.Namespace], int]:
    """Ctrl-C ends such a command, without a message."""
    run = cluster_command(work)

    def quietly(options: argparse.Namespace) -> int:
        try:
            return run(options)
        except KeyboardInterrupt:
            return INTERRUPTED

    return quietly


async def _read(options: argparse.Namespace, cluster: Cluster) -> None:
    start, until = options.start, options.until
    if until is not None and start is not None and until < start:
        raise WrongInput(f"--to {until} is before --from {start}; both ends are inclusive")
    log = await cluster.log(options.log)
    if options.changes:
        await _read_changes(options, cluster, log)
        return
    batches = log.batches(start, until, to_tail=True)
    show = _show(options)
    found = 0
    async for batch in batches:
        _write(show(batch))
        found += len(batch)
    _flush()
    if not found or (until is not None and batches.next_glsn <= until):
        await _explain_missing(options, cluster, log, found)


async def _read_changes(options: argparse.Namespace, cluster: Cluster, log: Log) -> None:
    seen = await _show_changes(options, cluster, log, options.start, options.until)
    if not seen.entries or (options.until is not None and seen.following <= options.until):
        await _explain_missing(options, cluster, log, seen.entries)


async def _show_changes(
    options: argparse.Namespace,
    cluster: Cluster,
    log: Log,
    start: int | None,
    until: int | None = None,
    *,
    follow: bool = False,
) -> Seen:
    from trunkline.cli.change_lines import Lines  # needs Arrow
    from trunkline.cli.read_changes import ChangesView, Wanted

    if options.raw:
        raise WrongInput("--changes and --raw exclude each other")
    oldest = (await cluster.describe(options.log)).trim + 1
    wanted = Wanted(start or oldest, oldest, until, follow, options.tables or ())

    def write(text: str) -> None:
        _write(text.encode())
        if follow:
            _flush()

    lines = Lines(as_json=options.json)
    seen = await ChangesView(log, wanted, lines, write=write, note=lambda text: _note(options, text)).show()
    _flush()
    return seen


async def _explain_missing(options: argparse.Namespace, cluster: Cluster, log: Log, found: int) -> None:
    """A position that does not exist is an error; the absence of new entries is not."""
    name, start, until = options.log, options.start, options.until
    tail, trim = await log.tail(), (await cluster.describe(name)).trim
    if until is not None and until <= trim:
        raise Trimmed(trim)
    beyond = until if until is not None and until >= tail else start if start is not None and start > tail else None
    if beyond is not None:
        raise NotWritten(f"{_end(name, tail)}, before {beyond}; `trunkline subscribe {name}` waits for more")
    if not found:
        _note(options, _why_nothing(name, trim, tail, start, until))


def _end(name: str, tail: int) -> str:
    return f"log {name} ends at {tail - 1}" if tail > 1 else f"log {name} is empty"


def _why_nothing(name: str, trim: int, tail: int, start: int | None, until: int | None) -> str:
    """Why a valid read found no entry."""
    first, last = max(start or 1, trim + 1), min(until or tail - 1, tail - 1)
    if first <= last:
        where = f"{first} is a hole" if first == last else f"{first} to {last} are holes"
        return f"{where}: {name} will never have an entry there"
    if trim and trim + 1 == tail:
        return f"{name} is trimmed up to {trim}, and has no newer entries"
    return _end(name, tail) + (f"; position {tail} is not written yet" if tail > 1 else "")


def _note(options: argparse.Namespace, text: str) -> None:
    """Print a note on standard error."""
    print(json.dumps({"note": text}) if options.json else f"trunkline: {text}", file=sys.stderr)


async def _tail(options: argparse.Namespace, cluster: Cluster) -> None:
    log = await cluster.log(options.log)
    oldest = (await cluster.describe(options.log)).trim + 1
    tail = await log.tail()
    start = await _start_of_last(log, oldest, tail, options.number)
    if options.changes and (options.follow or start < tail):
        until = None if options.follow else tail - 1
        await _show_changes(options, cluster, log, start, until, follow=options.follow)
    elif options.follow:
        await _follow(log, start, options)
    elif start < tail:
        show = _show(options)
        async for batch in log.batches(start, tail - 1, to_tail=True):
            _write(show(batch))
        _flush()
    elif options.number:
        _note(options, _why_nothing(options.log, oldest - 1, tail, None, None))


async def _start_of_last(log: Log, oldest: int, tail: int, number: int) -> int:
    """The position of the first of the last ``number`` entries. Holes do not count, so this may read twice or more."""
    reach = number
    while True:
        start = max(oldest, tail - reach)
        found: list[int] = []
        if start < tail and number > 0:
            async for batch in log.batches(start, tail - 1, to_tail=True):
                found = [*found, *range(batch.first, batch.last + 1)][-number:]
        if len(found) >= number or start == oldest:
            return found[0] if found else tail
        reach *= 2


async def _subscribe(options: argparse.Namespace, cluster: Cluster) -> None:
    log = await cluster.log(options.log)
    if options.start is not None and options.start > (tail := await log.tail()):
        _note(options, f"{_end(options.log, tail)}; waiting for {options.start}")
    if options.changes:
        await _show_changes(options, cluster, log, options.start, follow=True)
    else:
        await _follow(log, options.start, options)


async def _follow(log: Log, start: int | None, options: argparse.Namespace) -> None:
    show = _show(options)
    async for batch in log.batches(start):
        _write(show(batch))
        _flush()


async def _peek(options: argparse.Namespace, cluster: Cluster) -> None:
    log = await cluster.log(options.log)
    tail, peek = await log.tail(), await log.peek()
    if options.json:
        print_json({"log": options.log, "peek": peek, "tail": tail})
    else:
        print(f"next {peek}, tail {tail}")


async def _fill(options: argparse.Namespace, cluster: Cluster) -> None:
    hole = await (await cluster.log(options.log)).fill(options.glsn)
    if options.json:
        print_json({"log": options.log, "glsn": options.glsn, "hole": hole})
    else:
        print(f"position {options.glsn} {'is now a hole' if hole else 'has an entry'}")


# ------------------------------------------------------------------------------------------------------ on the screen


def _show(options: argparse.Namespace) -> Show:
    if options.tables:
        raise WrongInput("--table chooses among the tables of --changes: give that, too")
    if options.json and options.raw:
        raise WrongInput("--json and --raw exclude each other")
    if options.json:
        return _json_lines
    return _raw if options.raw else _lines


def _lines(batch: Batch) -> bytes:
    return b"\n".join(batch.payloads()) + b"\n"


def _raw(batch: Batch) -> bytes:
    return b"".join(batch.payloads())


def _json_lines(batch: Batch) -> bytes:
    return b"".join(_json_line(entry) for entry in batch)


def _json_line(entry: Entry) -> bytes:
    payload, encoding = _text(entry.payload)
    facts: dict[str, object] = {
        "glsn": entry.glsn,
        "payload": payload,
        "encoding": encoding,
        "headers": {name: _header(value) for name, value in entry.headers.items()},
        "writer": entry.writer,
        "seq": entry.seq,
        "time_ms": entry.time_ms,
    }
    if entry.unreadable_headers:
        facts["unreadable_headers"] = base64.b64encode(entry.unreadable_headers).decode()
    return msgspec.json.encode(facts) + b"\n"


def _header(value: bytes) -> str | dict[str, str]:
    """As in the proxy: text, or an object that names the encoding."""
    shown, encoding = _text(value)
    return shown if encoding == "utf-8" else {encoding: shown}


def _text(payload: bytes) -> tuple[str, str]:
    """UTF-8 if possible, else base64."""
    try:
        return payload.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(payload).decode(), "base64"


def _write(data: bytes) -> None:
    with interruptible():
        sys.stdout.buffer.write(data)


def _flush() -> None:
    with interruptible():
        sys.stdout.buffer.flush()
