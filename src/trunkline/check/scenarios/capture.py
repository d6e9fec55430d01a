"""Scenarios of the capture of a database: what becomes of transactions and snapshots when anything fails."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from trunkline.check.disks import NoDisk
from trunkline.check.monitors.capture import CaptureScript, Reshape, Transaction, capture_monitors
from trunkline.check.scenario import NO_FAULTS, Boot, Faults, Operation, ProcessSpec, Scenario
from trunkline.check.scenarios.capture_host import CaptureHost
from trunkline.check.scenarios.capture_log import LOG, OneWriterLog
from trunkline.check.scenarios.capture_world import (
    COMMITS,
    DATABASE,
    READS,
    Backend,
    Commit,
    Database,
    LoseSlot,
    Promote,
    Restart,
)
from trunkline.core.capture import CaptureConfig
from trunkline.core.capture_messages import ShapeChange, SlotState
from trunkline.core.effects import Message
from trunkline.core.role import Role

CONFIG = CaptureConfig(
    writer="",
    log=LOG,
    source=DATABASE,
    appends_max=2,
    catalog_after=1000,
    mark_after=50,  # less than a transaction, more than some watermarks
    retry_ms=1,
    retry_max_ms=1,
)
SESSIONS = 100  # of one start; messages of an earlier start may still arrive

NOISE = Transaction()
SMALL = tuple(Transaction(((1, "a", value),)) for value in (2, 3, 4))
MOVE = Transaction(((1, "a", 0), (1, "b", 5)))
LARGE = Transaction(((1, "a", 6), (1, "b", 6), (2, "a", 6)), parts=3)


def scenario(
    name: str,
    summary: str,
    *transactions: Transaction,
    rows: tuple[tuple[int, str, int], ...] = ((1, "a", 1),),
    captures: str = "a",
    tables: tuple[int, ...] = (),
    keyless: tuple[int, ...] = (),
    chunk_rows: int = 1,
    recaptures: bool = False,
    appends_max: int = 2,
    catalog_after: int = 1000,
    xids_max: int = 9,
    troubles: int = 0,
    slot: SlotState = SlotState.ABSENT,
    steps: tuple[Message, ...] | None = None,
    faults: Faults = NO_FAULTS,
    sometimes: tuple[str, ...] = ("EntryLogged", "SlotConfirmed"),
) -> Scenario:
    """``steps`` of the database; by default each transaction commits."""
    script = CaptureScript(rows, transactions, tables, keyless)
    config = replace(
        CONFIG,
        recaptures=recaptures,
        appends_max=appends_max,
        catalog_after=catalog_after,
        xids_max=xids_max,
    )
    requests = tuple(Commit(number) for number in range(1, len(transactions) + 1)) if steps is None else steps

    def capture(process: str, order: int) -> ProcessSpec:
        def start(boot: Boot) -> Mapping[str, Role]:
            role = CaptureHost(replace(config, writer=f"{process}{boot.start}"))
            role.session = role.chunks.number = (boot.start * 2 + order) * SESSIONS
            return {"capture": role}

        return ProcessSpec(process, start, NoDisk(), None)

    def database(boot: Boot) -> Mapping[str, Role]:
        return {DATABASE.role: Database(script, slot, chunk_rows=chunk_rows)}

    def log(boot: Boot) -> Mapping[str, Role]:
        return {LOG.role: OneWriterLog(troubles)}

    def backend(boot: Boot) -> Mapping[str, Role]:
        return {READS.role: Backend()}

    names, steps_taken = tuple(captures.split()), tuple(Operation(DATABASE.role, each) for each in requests)
    return Scenario(
        name,
        summary,
        (
            ProcessSpec(DATABASE.process, database, NoDisk(), None, steps_taken),
            ProcessSpec(COMMITS.process, backend, NoDisk(), None),
            ProcessSpec(READS.process, backend, NoDisk(), None),
            ProcessSpec(LOG.process, log, NoDisk(), None),
            *(capture(each, order) for order, each in enumerate(names)),
        ),
        capture_monitors(script),
        faults,
        fifo=True,
        copies=2,  # a source that is opened again in one session may say the same again
        eager_operations=False,
        crashable=names if faults.crash else (),
        sometimes=sometimes,
    )


ONE_CRASH = Faults(crash=1, restart=1)


def groups() -> Scenario:
    return scenario(
        "capture-groups",
        "three small transactions, then WAL without changes; the capture crashes",
        *SMALL,
        NOISE,
        faults=ONE_CRASH,
    )


def parts() -> Scenario:
    return scenario(
        "capture-parts",
        "a large transaction between two small ones; the capture crashes among its parts",
        SMALL[0],
        LARGE,
        SMALL[1],
        faults=ONE_CRASH,
    )


def appends() -> Scenario:
    return scenario(
        "capture-appends",
        "two appends are refused, or their outcome is unknown, with others in flight",
        SMALL[0],
        LARGE,
        SMALL[1],
        appends_max=4,
        troubles=2,
        sometimes=("EntryLogged", "SlotConfirmed", "SessionEnded"),
    )


def pair() -> Scenario:
    return scenario(
        "capture-pair",
        "two captures of one database and one log: each takes it over, one of them stops",
        SMALL[0],
        SMALL[1],
        captures="a b",
        sometimes=("EntryLogged", "CaptureFenced"),
    )


def pair_parts() -> Scenario:
    return scenario(
        "capture-pair-parts",
        "a second capture takes the log over among the parts of a large transaction",
        LARGE,
        SMALL[1],
        captures="a b",
        sometimes=("EntryLogged", "CaptureFenced"),
    )


def server_restart() -> Scenario:
    return scenario(
        "capture-server-restart",
        "the server restarts and streams again what was confirmed; the capture crashes",
        SMALL[0],
        LARGE,
        steps=(Commit(1), Commit(2), Restart(3)),
        faults=ONE_CRASH,
        sometimes=("EntryLogged", "SessionEnded"),
    )


def chunks() -> Scenario:
    return scenario(
        "capture-chunks",
        "a table is read in chunks while a key moves across the cursor; the capture crashes",
        MOVE,
        Transaction(((1, "b", 7),)),
        rows=((1, "a", 1), (1, "b", 1)),
        tables=(1,),
        appends_max=1,
        faults=ONE_CRASH,
    )


def two_tables() -> Scenario:
    return scenario(
        "capture-two-tables",
        "one table is complete while another is still read, and a transaction changes both",
        Transaction(((1, "a", 7), (2, "b", 7))),
        MOVE,
        rows=((1, "a", 1), (2, "b", 1)),
        tables=(1, 2),
    )


def large_chunks() -> Scenario:
    return scenario(
        "capture-chunks-and-parts",
        "the rows of a chunk arrive among the parts of a large transaction that changes them",
        LARGE,
        rows=((1, "a", 1), (1, "b", 1)),
        tables=(1,),
        chunk_rows=2,
    )


def truncation() -> Scenario:
    return scenario(
        "capture-truncation",
        "a table is truncated, and gets a row again, while it is read",
        Transaction(((1, "a", 0), (1, "b", 0)), truncates=1),
        Transaction(((1, "b", 8),)),
        rows=((1, "a", 1), (1, "b", 1)),
        tables=(1,),
        chunk_rows=2,
    )


def late_commit() -> Scenario:
    return scenario(
        "capture-late-commit",
        "a commit is in the WAL, and in the log, before others see it; the capture crashes",
        Transaction(((1, "a", 9),), late=True),
        tables=(1,),
        slot=SlotState.PRESENT,
        faults=ONE_CRASH,
        sometimes=("EntryLogged", "ChunkRefused"),
    )


def long_transaction() -> Scenario:
    return scenario(
        "capture-long-transaction",
        "a transaction that runs from the beginning commits while a table is read",
        SMALL[0],
        Transaction(((1, "b", 9),), begins=0, late=True),
        tables=(1,),
        sometimes=("EntryLogged", "ChunkRefused"),
    )


def many_transactions() -> Scenario:
    return scenario(
        "capture-many-transactions",
        "while a table is read, more transactions are streamed than the capture remembers",
        SMALL[0],
        Transaction(((1, "b", 9),), late=True),
        rows=((1, "a", 1), (1, "b", 1)),
        tables=(1,),
        xids_max=0,
        appends_max=1,
        slot=SlotState.PRESENT,
        sometimes=("EntryLogged", "ChunkRefused"),
    )


def catalogs() -> Scenario:
    return scenario(
        "capture-catalogs",
        "catalogs are repeated while a table is read in chunks; the capture crashes",
        SMALL[0],
        rows=((1, "a", 1), (1, "b", 1)),
        tables=(1,),
        catalog_after=1,
        appends_max=1,
        slot=SlotState.PRESENT,
        faults=ONE_CRASH,
    )


def changed_table() -> Scenario:
    return scenario(
        "capture-changed-table",
        "a table gets another shape while it is read",
        Transaction(((1, "b", 7),), shapes=(Reshape(1, ShapeChange.CHANGED),)),
        SMALL[0],
        rows=((1, "a", 1), (1, "b", 1)),
        tables=(1,),
        slot=SlotState.PRESENT,
    )


def changed_in_parts() -> Scenario:
    return scenario(
        "capture-changed-in-parts",
        "a table gets another shape in the middle of a large transaction; the capture crashes",
        Transaction(((1, "a", 6),), parts=2, shapes=(Reshape(1, ShapeChange.CHANGED, part=1),)),
        tables=(1,),
        appends_max=1,
        slot=SlotState.PRESENT,
        faults=ONE_CRASH,
    )


def again_in_parts() -> Scenario:
    return scenario(
        "capture-again-in-parts",
        "a table is captured again from the middle of a large transaction on; the capture crashes",
        Transaction(((1, "a", 6),), parts=2, shapes=(Reshape(1, ShapeChange.RECAPTURED, part=1),)),
        tables=(1,),
        appends_max=1,
        slot=SlotState.PRESENT,
        faults=ONE_CRASH,
    )


def late_table() -> Scenario:
    return scenario(
        "capture-late-table",
        "a table joins the stream while a transaction runs that changed it before; the capture crashes",
        NOISE,
        Transaction(shapes=(Reshape(2, ShapeChange.CREATED),)),
        Transaction(((2, "b", 9),), silent=((2, "a", 9),), begins=1),
        rows=((2, "a", 1), (2, "b", 1)),
        chunk_rows=2,
        appends_max=1,
        slot=SlotState.PRESENT,
        faults=ONE_CRASH,
        sometimes=("EntryLogged", "ChunkRefused"),
    )


def late_table_changed() -> Scenario:
    return scenario(
        "capture-late-table-changed",
        "a table joins the stream while a transaction runs that changed it before, and gets another shape",
        NOISE,
        Transaction(shapes=(Reshape(2, ShapeChange.CREATED),)),
        Transaction(shapes=(Reshape(2, ShapeChange.CHANGED),)),
        Transaction(((2, "b", 9),), silent=((2, "a", 9),), begins=1),
        rows=((2, "a", 1), (2, "b", 1)),
        chunk_rows=2,
        appends_max=1,
        slot=SlotState.PRESENT,
        sometimes=("EntryLogged", "ChunkRefused"),
    )


def captured_again() -> Scenario:
    return scenario(
        "capture-again",
        "a table is captured again, just after a transaction that others do not see yet",
        Transaction(((1, "a", 9),), late=True),
        Transaction(shapes=(Reshape(1, ShapeChange.RECAPTURED),)),
        tables=(1,),
        appends_max=1,
        slot=SlotState.PRESENT,
        sometimes=("EntryLogged", "ChunkRefused"),
    )


def dropped_table() -> Scenario:
    return scenario(
        "capture-dropped-table",
        "a table is dropped while it is read, or later; the capture crashes",
        Transaction(shapes=(Reshape(1, ShapeChange.DROPPED),)),
        Transaction(((2, "a", 5),)),
        tables=(1,),
        catalog_after=1,
        appends_max=1,
        slot=SlotState.PRESENT,
        faults=ONE_CRASH,
    )


def keyless() -> Scenario:
    return scenario(
        "capture-keyless",
        "a table without a key is read while it is changed; the capture crashes among its rows",
        Transaction(((1, "b", 7),), late=True),
        rows=((1, "a", 1), (1, "b", 1)),
        tables=(1,),
        keyless=(1,),
        slot=SlotState.PRESENT,
        faults=ONE_CRASH,
    )


def slot_lost() -> Scenario:
    return scenario(
        "capture-slot-lost",
        "the slot is lost: the capture halts",
        *SMALL[:2],
        steps=(Commit(1), LoseSlot(2), Commit(3)),
        faults=ONE_CRASH,
        sometimes=("EntryLogged", "CaptureHalted"),
    )


def recapture() -> Scenario:
    return scenario(
        "capture-recapture",
        "the slot is lost, and the table is read again as a new generation; the capture crashes",
        *SMALL[:2],
        tables=(1,),
        recaptures=True,
        appends_max=1,
        slot=SlotState.PRESENT,
        steps=(Commit(1), LoseSlot(2), Commit(3)),
        faults=ONE_CRASH,
        sometimes=("EntryLogged", "Recaptured"),
    )


def recapture_changed() -> Scenario:
    return scenario(
        "capture-recapture-changed",
        "the slot is lost; one table has got another shape meanwhile, and another one was begun without a key",
        Transaction(((1, "a", 3),), shapes=(Reshape(1, ShapeChange.CHANGED),)),
        rows=((1, "a", 1), (2, "a", 1), (2, "b", 1)),
        tables=(1, 2),
        keyless=(2,),
        recaptures=True,
        appends_max=1,
        slot=SlotState.PRESENT,
        steps=(LoseSlot(1), Commit(2)),
        sometimes=("EntryLogged", "Recaptured"),
    )


def slot_moved() -> Scenario:
    return scenario(
        "capture-slot-moved",
        "another program moves the slot: the capture halts where the log lacks changes",
        *SMALL[:2],
        steps=(Commit(1), LoseSlot(2, moved=True), Commit(3)),
        faults=ONE_CRASH,
        sometimes=("EntryLogged", "CaptureHalted"),
    )


def failover() -> Scenario:
    return scenario(
        "capture-failover",
        "a standby takes over that may lack the last transaction: the capture halts if the log has it",
        *SMALL[:2],
        steps=(Commit(1), Commit(2), Promote(3, 100), Commit(4)),
        sometimes=("EntryLogged", "CaptureHalted"),
    )


CAPTURE_SCENARIOS = (
    groups,
    parts,
    appends,
    pair,
    pair_parts,
    server_restart,
    chunks,
    two_tables,
    large_chunks,
    truncation,
    late_commit,
    long_transaction,
    many_transactions,
    catalogs,
    changed_table,
    changed_in_parts,
    again_in_parts,
    late_table,
    late_table_changed,
    captured_again,
    dropped_table,
    keyless,
    slot_lost,
    recapture,
    recapture_changed,
    slot_moved,
    failover,
)
