"""What the contract suite needs of a kind of destination, and other processes that use the same table.

A module ``contract/<kind>_destination.py`` has ``KINDS: tuple[Kind, ...]``. A ``Table`` is the place of a table that
does not exist yet; it pickles, so that a child process opens the same one.
"""

from __future__ import annotations

import datetime
import multiprocessing
import os
import signal
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa

from trunkline.delivery.changes.columns import Column, Columns, arrow_schema
from trunkline.delivery.changes.rows import OP_COLUMN, Op
from trunkline.delivery.destinations.contract import Applied, Destination, Flush, Seed
from trunkline.errors import Refused, TrunklineError, Unreachable

Row = Mapping[str, Any]
Change = tuple[Op, Row]
Watch = Callable[[str], None]  # called with each statement just before it runs, and with "done" after the last one
PATIENCE_S: Final = 30.0
TRIES: Final = 400  # of a call that another process keeps from the table


class Table(Protocol):
    """Where one table of one kind of destination is, or will be."""

    def open(self, watch: Watch | None = None) -> Destination:
        """A new destination object; ``watch`` is called before every statement that it sends."""
        ...

    def held(self) -> list[dict[str, Any]] | None:
        """The table's rows, read without the destination's class; ``None`` if there is no table."""
        ...

    def trace(self) -> object:
        """A value that changes with everything that is written here (snapshots, versions, log positions)."""
        ...

    def make_foreign(self) -> None:
        """Create a foreign table of this name: one column ``id`` BIGINT and one row, 99."""
        ...

    def forget_marks(self) -> None:
        """Make the record of the position what an older release would have left."""
        ...

    def lost(self) -> Table:
        """The same kind of table where no server answers."""
        ...


class Kind(Protocol):
    """A kind of destination."""

    @property
    def name(self) -> str: ...

    @property
    def widens(self) -> bool:
        """Whether a column's type can be widened within a flush."""
        ...

    def make(self, folder: Path, postgres: Callable[[], Any]) -> Table:
        """A new one; ``postgres()`` gives the running server (``postgres_server.PostgresServer``)."""
        ...


def kinds() -> tuple[Kind, ...]:
    """Every kind of every module of kinds that exists."""
    modules = [f"contract.{name}_destination" for name in ("ducklake", "delta", "postgres")]
    return tuple(kind for name in modules if find_spec(name) for kind in import_module(name).KINDS)


# -------------------------------------------------------------------------------------------------------------- rows


def staged(columns: Columns, key: Sequence[str], changes: Iterable[Change]) -> Iterator[pa.RecordBatch]:
    """Settled rows as they travel: of a removed row only the key columns are filled."""
    schema = arrow_schema(columns)
    listed = list(changes)
    rows = [{n: v for n, v in row.items() if op is not Op.REMOVE or n in key} for op, row in listed]
    arrays = [pa.array([int(op) for op, _ in listed], pa.int8())]
    arrays += [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
    whole = pa.RecordBatch.from_arrays(arrays, [OP_COLUMN, *schema.names])
    half = len(listed) // 2
    return iter([whole.slice(0, half), whole.slice(half)])


def plain(columns: Columns, rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """Rows of a seed."""
    schema = arrow_schema(columns)
    yield pa.RecordBatch.from_pylist([{n: row.get(n) for n in schema.names} for row in rows], schema)


def content(rows: Iterable[Row] | None) -> list[tuple[tuple[str, str], ...]] | None:
    """Rows in a form that compares whatever their order and however a reader spells a value."""
    if rows is None:
        return None
    return sorted(tuple(sorted((name, _spelled(value)) for name, value in row.items())) for row in rows)


def _spelled(value: object) -> str:
    if isinstance(value, memoryview | bytearray):
        return repr(bytes(value))
    if isinstance(value, uuid.UUID):
        return repr(str(value))
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return repr(value.astimezone(datetime.UTC))
    return repr(value)


def column(name: str, type_name: str) -> Column:
    return Column(name, type_name)


# --------------------------------------------------------------------------------------------------------- processes

Step = tuple[Flush, list[Change]] | tuple[Seed, list[Row]]


def apply(destination: Destination, step: Step) -> Applied:
    """Do one flush or seed, and once more for as long as the table is only busy."""
    what, rows = step
    for tries in range(TRIES):
        try:
            if isinstance(what, Flush):
                return destination.flush(what, staged(what.columns, what.key, rows))  # type: ignore[arg-type]
            return destination.seed(what, plain(what.columns, rows))  # type: ignore[arg-type]
        except Unreachable:
            if tries == TRIES - 1:
                raise
    raise AssertionError("unreachable")


@cache
def forking() -> ForkServerContext:
    """Makes children of a process that has loaded all that they need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["contract.warm_process"])
    path = os.environ.get("PYTHONPATH")
    folder = str(Path(__file__).parent.parent)  # where the server finds this folder
    os.environ["PYTHONPATH"] = folder if path is None else f"{folder}{os.pathsep}{path}"
    try:
        forkserver.ensure_running()
    finally:
        os.environ.pop("PYTHONPATH")
        if path is not None:
            os.environ["PYTHONPATH"] = path
    return context


def run_until(table: Table, step: Step, at: int) -> bool:
    """In a child: do the step, killed with SIGKILL before statement number ``at`` (from 0); the last is "done".

    Returns whether it lived: ``at`` was past the last.
    """
    child = forking().Process(target=_killed_at, args=(table, step, at), daemon=True)
    child.start()
    child.join(PATIENCE_S)
    assert child.exitcode in (0, -signal.SIGKILL), f"the child ended with {child.exitcode}"
    return child.exitcode == 0


def _killed_at(table: Table, step: Step, at: int) -> None:
    seen = 0

    def watch(_: str) -> None:
        nonlocal seen
        if seen == at:
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1

    destination = table.open(watch)
    apply(destination, step)
    watch("done")
    destination.close()


@contextmanager
def worker(table: Table) -> Iterator[Connection]:
    """A process with the table open, which does each step it is sent and answers with ``Applied`` or the error."""
    ours, theirs = forking().Pipe()
    child = forking().Process(target=_work, args=(table, theirs), daemon=True)
    child.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        child.join(PATIENCE_S)
        child.kill()
        child.join()
        child.close()


def _work(table: Table, steps: Connection) -> None:
    destination = table.open()
    while True:
        try:
            step: Step = steps.recv()
        except EOFError:
            return destination.close()
        try:
            steps.send(apply(destination, step))
        except Refused as error:
            steps.send(type(error).__name__)
        except TrunklineError as error:
            steps.send(f"{type(error).__name__}: {error}")
