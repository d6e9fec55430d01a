"""One SQLite library at a time per catalog and process (rules O1 to O4 of ``backends/catalog_owners.py``)."""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from contract.ducklake_destination import LakeKind, LakeSite
from trunkline.delivery.backends import catalog_owners as owners_module
from trunkline.delivery.backends.catalog_owners import CatalogOwners, FileId, catalog_owners
from trunkline.delivery.backends.duckdb_pool import pooled_duckdb
from trunkline.delivery.backends.ducklake_attachment import attach_catalog, attach_lake, detach
from trunkline.destination_suite.place import Table
from trunkline.destination_suite.processes import apply
from trunkline.destination_suite.steps import CHANGES, FLUSH, FLUSHED, SEED, SEEDED


@pytest.fixture
def site(tmp_path: Path) -> LakeSite:
    made = LakeKind("sqlite").make(tmp_path, lambda: pytest.fail("this test needs no server"))
    with closing(made.open()) as _:
        place = Table(made).open()
        apply(place, (SEED, list(SEEDED)))
        place.close()
    return made


def location(site: LakeSite) -> str:
    return site.catalog.removeprefix("sqlite:")


def is_free(owners: CatalogOwners, path: str) -> bool:
    with owners.direct(path) as free:
        return free


def test_o1_a_file_with_a_lease_is_not_opened_directly(tmp_path: Path) -> None:
    owners, path = CatalogOwners(), tmp_path / "file"
    path.touch()
    first, second = owners.attaching(str(path)), owners.attaching(str(path))
    first.release()
    first.release()
    assert not is_free(owners, str(path))
    second.release()
    assert is_free(owners, str(path))


def test_o1_attaching_waits_for_the_end_of_a_direct_transaction(tmp_path: Path) -> None:
    owners, path = CatalogOwners(), tmp_path / "file"
    path.touch()
    order: list[str] = []

    def attach() -> None:
        lease = owners.attaching(str(path))
        order.append("attached")
        lease.release()

    with owners.direct(str(path)) as free:
        assert free
        waiting = threading.Thread(target=attach)
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        order.append("closed")
    waiting.join()
    assert order == ["closed", "attached"]


def test_o1_two_threads_never_have_one_file_open_directly(tmp_path: Path) -> None:
    owners, path = CatalogOwners(), tmp_path / "file"
    path.touch()
    with owners.direct(str(path)) as first:
        found: list[bool] = []
        other = threading.Thread(target=lambda: found.append(is_free(owners, str(path))))
        other.start()
        other.join()
        assert first
        assert found == [False]


def test_o2_an_idle_holder_gives_the_file_up(tmp_path: Path) -> None:
    owners, path = CatalogOwners(), tmp_path / "file"
    path.touch()

    class Holder:
        def __init__(self) -> None:
            self.lease = owners.attaching(str(path))

        def detach_idle(self, file: FileId) -> None:
            assert file == self.lease.file
            self.lease.release()

    holder = Holder()
    owners.join(holder)
    assert is_free(owners, str(path))


def test_o3_two_names_of_one_file_are_one_file(tmp_path: Path) -> None:
    owners, path = CatalogOwners(), tmp_path / "file"
    lease = owners.attaching(str(path))  # it does not exist yet
    path.touch()
    (tmp_path / "soft").symlink_to(path)
    os.link(path, tmp_path / "hard")
    for name in ("file", "soft", "hard"):
        assert not is_free(owners, str(tmp_path / name))
    lease.release()
    for name in ("file", "soft", "hard"):
        assert is_free(owners, str(tmp_path / name))


def test_o4_a_handle_of_anybody_is_found(tmp_path: Path) -> None:
    owners, path = CatalogOwners(), tmp_path / "file"
    with path.open("w"):
        assert not is_free(owners, str(path))
    assert is_free(owners, str(path))


def test_every_way_to_attach_takes_a_lease(site: LakeSite) -> None:
    address = site.address("orders")
    with pooled_duckdb("ducklake", "sqlite_scanner") as connection:
        for attach in (attach_catalog, partial(attach_lake, read_only=True)):
            attach(connection, address, "held")
            assert not is_free(catalog_owners(), location(site))
            detach(connection, "held")
            assert is_free(catalog_owners(), location(site))
    place = site.open()
    place.columns(address)  # it stays attached, and gives way
    assert catalog_owners()._leases
    assert is_free(catalog_owners(), location(site))
    place.close()


def test_a_flush_beside_an_open_reader_is_written_by_the_extension(site: LakeSite) -> None:
    table = Table(site)
    destination = table.open()
    _, batches = destination.rows()
    first = next(batches)
    other = table.open()
    # the reader has a transaction: the flush waits for it at its commit, and gives up
    assert first.num_rows == 3
    destination.close()
    apply(other, (FLUSH, list(CHANGES)))
    other.close()
    assert sorted(row["id"] for row in table.held() or ()) == [row["id"] for row in FLUSHED]


def test_threads_that_flush_and_read_one_catalog_leave_it_whole(site: LakeSite) -> None:
    """Direct flushes, flushes by the extension and readers of the source's kind, all at once."""
    table, failed = Table(site), []
    position, lock = [10], threading.Lock()

    def flush(*, directly: bool) -> None:
        for _ in range(6):
            with lock:
                plan = FLUSH.__class__(
                    through=position[0] + 1,
                    token=1,
                    source=FLUSH.source,
                    columns=FLUSH.columns,
                    key=FLUSH.key,
                    expected=position[0],
                    duplicates="warn",
                )
                opened = Table(LakeSite(site.catalog, site.data_path, directly=directly)).open()
                apply(opened, (plan, list(CHANGES)))
                opened.close()
                position[0] += 1

    def read() -> None:
        for _ in range(12):
            with pooled_duckdb("ducklake", "sqlite_scanner") as connection:
                attach_catalog(connection, site.address("orders"), "held")
                connection.execute("BEGIN")
                connection.execute("SELECT count(*) FROM held.ducklake_snapshot").fetchall()
                connection.execute("ROLLBACK")
                detach(connection, "held")

    def guarded(work: object, **options: bool) -> None:
        try:
            work(**options)  # type: ignore[operator]
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(flush,), kwargs={"directly": each}) for each in (True, False)]
    threads += [threading.Thread(target=guarded, args=(read,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    with closing(sqlite3.connect(location(site))) as plain:
        assert plain.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert sorted(row["id"] for row in table.held() or ()) == [row["id"] for row in FLUSHED]
    assert owners_module.HANDLES == "/proc/self/fd"
