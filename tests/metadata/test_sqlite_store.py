"""What only the store in a SQLite file promises: one coordinator, a readable file, a disk that may fail."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from metadata import swapping_process
from metadata.long_maps import long_map
from metadata.places import PATIENCE_S, SqlitePlace, opened, until
from metadata.projections import creation, first_of, node, rolled, trim, trimmed
from trunkline.core.effects import Event
from trunkline.core.events import Projected
from trunkline.core.messages import Get, Got, Register, Registered, Swap, Swapped
from trunkline.core.register import MetadataRegister
from trunkline.errors import StorageError
from trunkline.metadata import sqlite_store
from trunkline.metadata.leases import LeaseClock
from trunkline.metadata.sqlite_store import SqliteStore
from trunkline.metadata.store import StoreUnavailable


async def start(path: Path) -> None:
    store = SqliteStore(path)
    await store.start()
    await store.close()


def test_the_role_is_the_one_that_the_checker_explores() -> None:
    assert sqlite_store.MetadataRegister is MetadataRegister  # type: ignore[attr-defined]


def test_a_file_in_use_by_another_process_is_refused(tmp_path: Path) -> None:
    place = SqlitePlace(tmp_path)
    command = [sys.executable, swapping_process.__file__, *place.arguments()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it runs
        with pytest.raises(StorageError, match="another coordinator uses it; stop that one"):
            asyncio.run(start(tmp_path / "metadata.sqlite"))
        process.kill()
    asyncio.run(start(tmp_path / "metadata.sqlite"))  # the lock ended with its holder


def test_a_file_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
    connection.close()
    with pytest.raises(StorageError, match="not a metadata file of Trunkline"):
        asyncio.run(start(path))


def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    asyncio.run(start(path))
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StorageError, match="format 99"):
        asyncio.run(start(path))


@pytest.mark.parametrize("damage", [b"not a database " * 300, b""], ids=["overwritten", "emptied"])
def test_a_damaged_file_is_refused_and_an_empty_one_is_a_new_one(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "metadata.sqlite"
    path.write_bytes(damage)
    if damage:
        with pytest.raises(StorageError, match="cannot be opened"):
            asyncio.run(start(path))
    else:
        asyncio.run(start(path))


def test_a_path_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be opened"):
        asyncio.run(start(tmp_path / "file" / "metadata.sqlite"))


def test_an_operator_can_read_the_file_while_it_is_in_use(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(SqlitePlace(tmp_path)) as store:
            await store.handle(creation())
            await store.handle(Register(node()))
            reader = sqlite3.connect(f"file:{tmp_path / 'metadata.sqlite'}?mode=ro", uri=True)
            [(epoch, projection)] = reader.execute("SELECT epoch, projection FROM logs").fetchall()
            [(segment,)] = reader.execute("SELECT segment FROM segments WHERE log = 'orders'").fetchall()
            [(info,)] = reader.execute("SELECT info FROM nodes").fetchall()
            reader.close()
            assert epoch == 1
            assert json.loads(projection)["settings"]["replicas"] == 2
            assert json.loads(segment)["owner"] == {"process": "a", "start": 1}
            assert json.loads(info)["address"] == "a:7400"

    asyncio.run(scenario())


# ------------------------------------------------------------------------------------------------------- failing disk


@contextmanager
def no_space() -> Iterator[None]:
    """Files of this process cannot grow: SQLite sees what a full disk shows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_q3_a_swap_that_failed_on_a_full_disk_never_happened(tmp_path: Path) -> None:
    async def scenario() -> None:
        announced: list[Event] = []
        first = first_of()
        async with opened(SqlitePlace(tmp_path), listener=announced.append) as store:
            await store.handle(creation())
            with no_space():
                waiting = [store.handle(trim(first)), store.handle(Get("orders")), store.handle(creation("other"))]
                failures = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(failure) for failure in failures] == [StoreUnavailable] * 3  # Q1: no reader saw the swap
            assert announced == [Projected(first)]
            assert await store.handle(Get("orders")) == Got("orders", 0, first, ())
            assert await store.handle(trim(first)) == Swapped("orders", 2)
            assert announced == [Projected(first), Projected(first), Projected(trimmed(first))]

    asyncio.run(scenario())


def test_q3_a_log_that_another_program_changed_is_read_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        first = first_of()
        async with opened(SqlitePlace(tmp_path)) as store:
            await store.handle(creation())
            with sqlite3.connect(tmp_path / "metadata.sqlite") as intruder:
                intruder.execute("DELETE FROM logs")
            intruder.close()
            with pytest.raises(StoreUnavailable, match="changed by another program"):
                await store.handle(trim(first))
            assert await store.handle(creation()) == Swapped("orders", 1)

    asyncio.run(scenario())


def test_a_stored_value_with_a_field_of_a_newer_version_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    asyncio.run(start(path))
    with sqlite3.connect(path) as connection:
        connection.execute("""INSERT INTO nodes VALUES ('a', '{"node": "a", "hat": "red"}')""")
    connection.close()
    with pytest.raises(StorageError, match="NodeInfo has no field hat: a newer version wrote it"):
        asyncio.run(start(path))


# -------------------------------------------------------------------------------------------------------------- order


def test_q2_swaps_that_come_together_share_a_transaction(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(SqlitePlace(tmp_path)) as store:
            before = transactions(tmp_path)
            await asyncio.gather(*(store.handle(creation(f"log{n}")) for n in range(200)))
            assert 1 <= transactions(tmp_path) - before <= 3
            assert len(await store.logs()) == 200

    asyncio.run(scenario())


def transactions(directory: Path) -> int:
    """How many the journal holds: the last frame of each has the size of the file."""
    journal = (directory / "metadata.sqlite-wal").read_bytes()
    frames = range(32, len(journal), 24 + 4096)  # header of the journal; header of a frame and its page
    return sum(journal[at + 4 : at + 8] != bytes(4) for at in frames)


def test_a_cancelled_caller_disturbs_no_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(SqlitePlace(tmp_path)) as store:
            impatient = asyncio.create_task(store.handle(creation()))
            await asyncio.sleep(0)  # it has asked
            impatient.cancel()
            assert await store.handle(trim(first_of())) == Swapped("orders", 2)

    asyncio.run(scenario())


def test_what_waits_for_the_disk_when_the_store_closes_is_still_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = SqliteStore(tmp_path / "metadata.sqlite")
        await store.start()
        last = asyncio.create_task(store.handle(creation()))
        await asyncio.sleep(0)  # it has asked
        await store.close()
        assert await last == Swapped("orders", 1)

    asyncio.run(scenario())


# ------------------------------------------------------------------------------------------------------------- leases


def test_m3_a_restart_gives_every_node_a_new_period(tmp_path: Path) -> None:
    place = SqlitePlace(tmp_path)

    async def scenario() -> None:
        async with opened(place, place.lease_ms) as store:
            for name in ("a", "b"):
                await store.handle(Register(node(name)))

            async def only_a_lives() -> bool:
                assert await store.handle(Register(node("a"))) == Registered("a", 1)
                await asyncio.sleep(0.05)  # as a node does between its renewals
                return replace(node("b"), live=False) in await store.nodes()

            async with asyncio.timeout(PATIENCE_S):
                while not await only_a_lives():
                    pass
        async with opened(place, place.lease_ms) as store:
            assert await store.nodes() == (node("a"), node("b"))

            async def none_live() -> bool:
                return not any(info.live for info in await store.nodes())

            await until(store, none_live)

    asyncio.run(scenario())


def test_a_clock_that_was_stopped_for_long_expires_no_lease() -> None:
    async def scenario() -> None:
        expired: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        clock = LeaseClock(200, lambda name, start: expired.put_nowait((name, start)))
        clock.renewed("a", 1)
        await asyncio.sleep(0)
        time.sleep(0.5)  # the whole process is stopped, as after SIGSTOP
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert expired.empty()
        async with asyncio.timeout(PATIENCE_S):
            assert await expired.get() == ("a", 1)  # its new period is over
        clock.stop()

    asyncio.run(scenario())


def test_the_files_are_for_their_user_alone_also_those_of_an_older_version(tmp_path: Path) -> None:
    path = tmp_path / "new" / "metadata.sqlite"

    async def scenario() -> None:
        for _ in range(2):
            store = SqliteStore(path)
            await store.start()
            await store.handle(creation())
            found = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
            await store.close()
            assert len(found) == 4
            assert set(found.values()) == {0o600}
            for each in path.parent.iterdir():
                each.chmod(0o644)
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700

    before = os.umask(0)
    try:
        asyncio.run(scenario())
    finally:
        os.umask(before)


# -------------------------------------------------------------------------------------------------------- many segments


def test_a_change_of_one_segment_writes_little_however_many_there_are(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(SqlitePlace(tmp_path)) as store:
            view = long_map("orders", 5000)
            await store.handle(Swap("orders", 0, view))
            checkpointed(tmp_path)
            await store.handle(Swap("orders", 1, rolled(view)))
            assert (tmp_path / "metadata.sqlite-wal").stat().st_size < 64 << 10

    def checkpointed(directory: Path) -> None:
        with sqlite3.connect(directory / "metadata.sqlite") as other:
            assert other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
        other.close()

    asyncio.run(scenario())


FORMAT_1 = """
CREATE TABLE cluster (one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL);
CREATE TABLE nodes (node TEXT PRIMARY KEY, info TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE logs (log TEXT PRIMARY KEY, epoch INTEGER NOT NULL, projection TEXT NOT NULL);
PRAGMA application_id = 1414679372;
PRAGMA user_version = 1;
INSERT INTO cluster VALUES (1, 'c1');
INSERT INTO logs VALUES ('orders', 2, '{"cluster":"cluster","log":"orders","epoch":2,"trim":0,"segments":[
{"index":0,"epoch":1,"base":1,"end":1,"repaired":true,"policy":"chain","stripe_unit":1024,"groups":[[
{"node":"a","incarnation":1,"stream":"1.0.0","joining":false},
{"node":"b","incarnation":1,"stream":"1.0.1","joining":false}]],"owner":{"process":"a","start":1}},
{"index":1,"epoch":2,"base":1,"end":null,"repaired":false,"policy":"chain","stripe_unit":1024,"groups":[[
{"node":"a","incarnation":1,"stream":"2.0.0","joining":false},
{"node":"b","incarnation":1,"stream":"2.0.1","joining":false}]],"owner":{"process":"a","start":1}}],
"settings":{"policy":"chain","replicas":2,"min_replicas":1,"groups":1,"stripe_unit":1024},"gaps":[],"deleted":false}');
"""


def test_a_file_of_format_1_is_upgraded_when_it_is_opened(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "metadata.sqlite") as connection:
        connection.executescript(FORMAT_1)
    connection.close()
    view = rolled(first_of())

    async def scenario() -> None:
        for _ in range(2):
            async with opened(SqlitePlace(tmp_path)) as store:
                assert await store.cluster() == "c1"
                assert await store.projections() == (view,)
        async with opened(SqlitePlace(tmp_path)) as store:
            assert await store.handle(Swap("orders", 2, rolled(view))) == Swapped("orders", 3)
        async with opened(SqlitePlace(tmp_path)) as store:
            assert await store.projections() == (rolled(view),)

    asyncio.run(scenario())
