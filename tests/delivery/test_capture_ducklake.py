"""A DuckLake table captured into a real log: every version can be reconstructed from it."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import trunkline.sync
from delivery.captured_log import CapturedLog, same
from delivery.direct_delivery import Direct
from delivery.lake_backup import Backup
from delivery.pipe_sources import LakeSource
from delivery.task_pipelines import opened_rows
from local_cluster import PROGRAM, RunningCluster, local_cluster, wait_until
from trunkline.cli.main import main
from trunkline.delivery.capture.one_table.ducklake import LakeCapture
from trunkline.delivery.capture.one_table.runner import Capture
from trunkline.delivery.changes.captured import EntryPlace, encoded, truncation
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.config.addresses import DeltaAddress
from trunkline.delivery.job.work import TaskDestination
from trunkline.delivery.sources.contract import ALL_ROUTES
from trunkline.errors import ConfigError, DestinationHalted, OwnedByAnother, ProtocolError, SourceExpired
from trunkline.observing.thread import ObservingThread

STEPS = (
    "INSERT INTO lake.orders SELECT n, 'acme', 'item ' || n, n FROM range({a}, {a} + {b}) r(n)",
    "UPDATE lake.orders SET mark = mark + {a} WHERE id % {b} = 0",
    "UPDATE lake.orders SET id = id + 1000 WHERE id % {b} = 1 AND id < 1000",
    "UPDATE lake.orders SET tenant = CASE tenant WHEN 'acme' THEN 'bolt' ELSE 'acme' END WHERE id % {b} = 0",
    "DELETE FROM lake.orders WHERE id % {b} = {a}",
    "BEGIN; DELETE FROM lake.orders WHERE id = {a}; INSERT INTO lake.orders VALUES ({a}, 'bolt', 'x', {b}); COMMIT",
    "CREATE TABLE IF NOT EXISTS lake.other (x INTEGER); INSERT INTO lake.other VALUES ({a})",
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with local_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def captured(cluster: RunningCluster, request: pytest.FixtureRequest) -> CapturedLog:
    return CapturedLog(cluster.connect, f"log-{abs(hash(request.node.name)) % 10**9}")


def lake(folder: Path) -> LakeSource:
    return LakeSource(folder, catalog=f"sqlite:{folder / 'source.sqlite'}", inlining=3)


@pytest.mark.parametrize("seed", range(3))
def test_every_version_of_the_table_can_be_reconstructed_from_the_log(
    tmp_path: Path, captured: CapturedLog, seed: int
) -> None:
    chance, table = random.Random(seed), lake(tmp_path)
    table.write(table.insert("acme", *range(1, 30)))
    for _ in range(6):
        for _ in range(chance.randrange(1, 4)):
            table.write(chance.choice(STEPS).format(a=chance.randrange(200), b=chance.randrange(2, 9)))
        captured.capture(LakeCapture(table.address))
    found = captured.positions()
    assert len(found) > 5
    for glsn, position in found.items():
        assert same(captured.rows(glsn)) == same(table.rows(json.loads(position)["version"])), position


def test_t2_a_capture_whose_metrics_failed_stops_with_an_error(
    cluster: RunningCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = lake(tmp_path)
    table.write(table.insert("acme", 1))

    async def broken(self: ObservingThread) -> None:
        self._started.set_result("nowhere:1")
        raise KeyError("planted")

    monkeypatch.setattr(ObservingThread, "_serve", broken)
    source = ["--ducklake", table.address.catalog, "--table", "orders", "--connect", cluster.connect]
    assert main(["capture", "observed", *source, "--observe", "0"]) != 0
    assert "the thread observing died, which is a bug: KeyError('planted')" in capsys.readouterr().err


def test_a_capture_that_restarts_continues_from_the_position_in_the_log(tmp_path: Path, captured: CapturedLog) -> None:
    table = lake(tmp_path)
    table.write(table.insert("acme", 1, 2, 3))
    assert captured.capture(LakeCapture(table.address)) == 1
    assert captured.capture(LakeCapture(table.address)) == 0
    table.write("DELETE FROM lake.orders WHERE id = 2")
    table.write("CREATE TABLE lake.other (x INTEGER)")
    assert captured.capture(LakeCapture(table.address)) == 1
    assert [row["id"] for row in captured.rows()] == [1, 3]


def test_what_an_append_lost_is_captured_again(
    tmp_path: Path, captured: CapturedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake(tmp_path)
    table.write(table.insert("acme", 1, 2))
    assert captured.capture_with_a_lost_append(LakeCapture(table.address), monkeypatch) == 1
    assert [row["id"] for row in captured.rows()] == [1, 2]
    table.write("DELETE FROM lake.orders WHERE id = 1")
    table.write(table.insert("acme", 3))
    assert captured.capture_with_a_lost_append(LakeCapture(table.address), monkeypatch) == 2
    assert [row["id"] for row in captured.rows()] == [2, 3]


def test_a_transaction_that_was_broken_off_does_not_count(tmp_path: Path, captured: CapturedLog) -> None:
    table = lake(tmp_path)
    table.write(table.insert("acme", 1, 2))
    captured.capture(LakeCapture(table.address))
    before = captured.version()
    columns = captured.source.columns(before)
    with trunkline.sync.connect(captured.connect) as cluster:
        log = cluster.log(captured.log)
        place = EntryPlace(0, last=False, position='{"kind": "ducklake", "table": "t", "version": 99}')
        log.append(encoded(columns, truncation(columns)), headers=place.headers(), takeover=True)
        assert captured.version() == before
    table.write(table.insert("acme", 3))
    assert captured.capture(LakeCapture(table.address)) == 1
    assert sorted(row["id"] for row in captured.rows()) == [1, 2, 3]


def test_a_capture_that_lost_its_log_stops_with_an_error(tmp_path: Path, captured: CapturedLog) -> None:
    table = lake(tmp_path)
    table.write(table.insert("acme", 1))
    first = Capture(LakeCapture(table.address), [captured.connect], captured.log, poll_ms=10)
    ended: list[type] = []

    def run() -> None:
        with pytest.raises(OwnedByAnother) as error:
            first.run()
        ended.append(type(error.value))

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: first.captured.transactions == 1)
    table.write(table.insert("acme", 2))
    captured.capture(LakeCapture(table.address))
    table.write(table.insert("acme", 3))
    thread.join(20)
    assert ended == [OwnedByAnother]
    captured.capture(LakeCapture(table.address))
    assert sorted(row["id"] for row in captured.rows()) == [1, 2, 3]


def test_a_column_is_added_and_one_with_a_default_captures_all_rows_again(
    tmp_path: Path, captured: CapturedLog, caplog: pytest.LogCaptureFixture
) -> None:
    table = lake(tmp_path)
    table.write(table.insert("acme", 1, 2))
    captured.capture(LakeCapture(table.address))
    table.write("ALTER TABLE lake.orders ADD COLUMN note VARCHAR")
    captured.capture(LakeCapture(table.address))
    assert {row["note"] for row in captured.rows()} == {None}
    assert "captured again" not in caplog.text
    table.write("ALTER TABLE lake.orders ADD COLUMN kind VARCHAR DEFAULT 'plain'")
    captured.capture(LakeCapture(table.address))
    assert {row["kind"] for row in captured.rows()} == {"plain"}
    assert "captured again" in caplog.text


def test_a_table_that_was_replaced_is_captured_again(tmp_path: Path, captured: CapturedLog) -> None:
    table = lake(tmp_path)
    table.write(table.insert("acme", 1, 2))
    captured.capture(LakeCapture(table.address))
    table.write("DROP TABLE lake.orders")
    table.write("CREATE TABLE lake.orders (id BIGINT, tenant VARCHAR, item INTEGER, mark INTEGER)")  # another type, too
    table.write("INSERT INTO lake.orders VALUES (7, 'acme', 7, 7)")
    captured.capture(LakeCapture(table.address))
    assert captured.rows() == [{"id": 7, "tenant": "acme", "item": 7, "mark": 7}]


def test_a_lake_that_was_restored_from_a_backup_is_captured_again(tmp_path: Path, captured: CapturedLog) -> None:
    table = lake(tmp_path)
    table.write(table.insert("acme", 1, 2))
    captured.capture(LakeCapture(table.address))
    backup = Backup(tmp_path)
    table.write(table.insert("acme", 3))
    assert captured.capture(LakeCapture(table.address)) == 1
    backup.restore()
    assert captured.capture(LakeCapture(table.address)) == 1  # the log is ahead of it
    assert [row["id"] for row in captured.rows()] == [1, 2]
    table.write(table.insert("acme", 4))
    assert captured.capture(LakeCapture(table.address)) == 1
    backup.restore()
    table.write(table.insert("acme", 5))
    table.write(table.insert("acme", 6))  # it has grown past the log
    assert captured.capture(LakeCapture(table.address)) == 1
    assert [row["id"] for row in captured.rows()] == [1, 2, 5, 6]
    assert captured.capture(LakeCapture(table.address)) == 0


def test_a_destination_at_the_trim_point_goes_on(tmp_path: Path, captured: CapturedLog) -> None:
    table = lake(tmp_path)
    table.write(table.insert("acme", 1, 2))
    captured.capture(LakeCapture(table.address))
    at = captured.version()
    table.write(table.insert("acme", 3))
    captured.capture(LakeCapture(table.address))
    with trunkline.sync.connect(captured.connect) as cluster:
        cluster.log(captured.log).trim(at)
    window = Window(at, captured.version())
    assert captured.source.survey(window).altered
    net = captured.source.net_changes(window, captured.asked(window.through), ALL_ROUTES)
    assert net.arrived.column("id").to_pylist() == [3]


def test_a_log_of_something_else_or_with_several_writers_is_refused(tmp_path: Path, captured: CapturedLog) -> None:
    table = lake(tmp_path)
    with trunkline.sync.connect(captured.connect) as cluster:
        cluster.log(f"{captured.log}-chain", create=True)
        with pytest.raises(ConfigError, match="single writer"):
            CapturedLog(captured.connect, f"{captured.log}-chain").capture(LakeCapture(table.address))
        log = cluster.log(captured.log, create=True, policy="broadcast")
        log.append(b"hello", headers=EntryPlace(position='{"kind": "postgres"}').headers(), takeover=True)
    with pytest.raises(ProtocolError, match="another source"):
        captured.capture(LakeCapture(table.address))


# --------------------------------------------------------------------------------------------------- as a source


def test_a_log_delivers_what_its_table_holds_and_follows_truncation(tmp_path: Path, captured: CapturedLog) -> None:
    table = lake(tmp_path)
    table.write(table.insert("acme", *range(1, 20)))
    table.write(table.insert("bolt", *range(20, 30)))
    captured.capture(LakeCapture(table.address))
    targets = [
        TaskDestination(name, DeltaAddress(str(tmp_path / name)), (name,), "mirror", "halt", replace_existing=False)
        for name in ("acme", "bolt")
    ]
    direct = Direct(captured.source, *targets)
    direct.seed()
    table.write("UPDATE lake.orders SET tenant = 'bolt' WHERE id < 5")
    table.write("DELETE FROM lake.orders WHERE id = 21")
    table.write("UPDATE lake.orders SET mark = 7 WHERE id = 22")
    captured.capture(LakeCapture(table.address))
    direct.flush()

    def held(name: str) -> list[dict[str, object]]:
        with opened_rows(targets[["acme", "bolt"].index(name)].address) as (_, batches):
            return [row for batch in batches for row in batch.to_pylist()]

    rows = captured.rows()
    for name in ("acme", "bolt"):
        assert same(held(name)) == same([row for row in rows if row["tenant"] == name])
    table.write("ALTER TABLE lake.orders ADD COLUMN kind VARCHAR DEFAULT 'plain'")  # all rows come again
    captured.capture(LakeCapture(table.address))
    direct.flush()
    assert {row["kind"] for row in held("acme")} == {"plain"}


def test_after_a_trim_a_seed_needs_a_snapshot_and_a_window_is_expired(tmp_path: Path, captured: CapturedLog) -> None:
    table = lake(tmp_path)
    table.write(table.insert("acme", 1, 2))
    captured.capture(LakeCapture(table.address))
    first = captured.version()
    table.write(table.insert("acme", 3))
    captured.capture(LakeCapture(table.address))
    with trunkline.sync.connect(captured.connect) as cluster:
        cluster.log(captured.log).trim(first)
    asked = captured.asked(captured.version())
    with pytest.raises(DestinationHalted, match="capture a new snapshot"):
        captured.rows()
    with pytest.raises(SourceExpired):
        captured.source.net_changes(Window(1, captured.version()), asked, ALL_ROUTES)


def test_a_killed_capture_loses_nothing_and_repeats_nothing(tmp_path: Path, captured: CapturedLog) -> None:
    """The command, killed again and again while the table changes."""
    table = lake(tmp_path)
    table.write(table.insert("acme", *range(1, 50)))
    command = [*PROGRAM, "capture", captured.log, "--connect", captured.connect, "--table", "orders"]
    command += ["--ducklake", table.address.catalog]
    captured.capture(LakeCapture(table.address))
    step = 0
    for _ in range(2):
        running = subprocess.Popen(
            [*command, "--table", "orders"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        try:
            until = captured.tail() + 4
            while captured.tail() < until:  # it is killed while it works
                assert running.poll() is None
                step += 1
                table.write(f"UPDATE lake.orders SET mark = mark + 1 WHERE id % {step % 7 + 2} = 0")
                table.write(table.insert("bolt", 100 + step))
        finally:
            running.send_signal(signal.SIGKILL)
            running.wait()
    done = subprocess.run([*command, "--once"], capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    found = captured.positions()
    versions = [json.loads(position)["version"] for position in found.values()]
    assert versions == sorted(set(versions))
    for glsn, position in list(found.items())[-8:]:
        assert same(captured.rows(glsn)) == same(table.rows(json.loads(position)["version"]))
