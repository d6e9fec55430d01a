"""Tables on a real S3 server: what happens when it dies, refuses or lies; and that no key comes to light."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import msgspec
import obstore
import pytest
from deltalake import DeltaTable
from msgspec.structs import replace

from contract.s3_destination import Bucket, S3DeltaSite, S3LakeSite
from delivery.cut_proxy import CutProxy
from object_server import object_server
from postgres_server import PostgresServer
from trunkline.delivery.backends.object_folder import DROPPED, object_store, store_problem
from trunkline.delivery.backends.object_store import store_options
from trunkline.delivery.backends.table_folder import table_folder
from trunkline.delivery.config.addresses import DeltaAddress, LakeAddress
from trunkline.delivery.destinations.contract import Applied
from trunkline.delivery.destinations.delta_vectors import PROPERTY
from trunkline.delivery.destinations.ducklake import DuckLakePlace
from trunkline.delivery.destinations.ducklake_attachments import AttachedLakes
from trunkline.demo.object_server import ObjectServer
from trunkline.destination_suite.place import Table, content, plain, staged
from trunkline.destination_suite.steps import CHANGES, FLUSH, FLUSHED, ORDERS, SEED, SEEDED
from trunkline.errors import DestinationHalted, OutcomeUnknown, PositionMoved, TrunklineError, Unreachable

SILENT: Final = "http://127.0.0.1:1"
Site = S3LakeSite | S3DeltaSite


@pytest.fixture(scope="module")
def objects() -> Iterator[ObjectServer]:
    """A server of this module's own: it is killed."""
    with object_server() as server:
        yield server


def lake_site(objects: ObjectServer, catalog: str, prefix: str = "") -> S3LakeSite:
    return S3LakeSite(catalog, f"s3://lake/{prefix or uuid.uuid4()}", bucket=Bucket.of(objects))


@pytest.fixture(params=["ducklake-sqlite", "ducklake-postgres", "delta"])
def site(request: pytest.FixtureRequest, objects: ObjectServer, tmp_path: Path) -> Site:
    if request.param == "delta":
        return S3DeltaSite(str(uuid.uuid4()), Bucket.of(objects))
    if request.param == "ducklake-sqlite":
        return lake_site(objects, f"sqlite:{tmp_path / 'catalog.sqlite'}")
    server: PostgresServer = request.getfixturevalue("postgres")
    return lake_site(objects, f"postgres:{server.create_database(f'lake_{uuid.uuid4().hex}')}")


def reached(site: Site, bucket: Bucket) -> Site:
    """The same place in another way."""
    if isinstance(site, S3DeltaSite):
        return replace(site, bucket=bucket)
    return S3LakeSite(site.catalog, site.data_path, site.home, directly=False, bucket=bucket)


def object_names(site: Site) -> set[str]:
    found = obstore.list(object_store(site.address("any"))).collect()
    return {each["path"] for each in found}


# ------------------------------------------------------------------------------------------------- the server dies


def test_a_server_killed_at_any_step_of_a_flush_loses_nothing(site: Site, objects: ObjectServer) -> None:
    """Before each statement in turn; the error is one that is retried, and the retry completes the flush."""
    count, errors = 0, list[str]()
    while True:
        table, left = Table(site, f"t{count}", f"shop/{count}"), [count]

        def watch(statement: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == -1 and statement != "done":
                objects.kill()

        table.open().seed(SEED, plain(ORDERS, SEEDED))
        destination = table.open(watch)
        left[0] = count
        try:
            destination.flush(FLUSH, staged(ORDERS, ("id",), CHANGES))
        except (Unreachable, OutcomeUnknown) as error:
            errors.append(str(error))
        finally:
            if left[0] < 0:
                objects.restart()
        assert content(table.held() or ()) in (content(SEEDED), content(FLUSHED))
        assert table.open().flush(FLUSH, staged(ORDERS, ("id",), CHANGES)).position == 20
        assert content(table.held() or ()) == content(FLUSHED)
        if left[0] >= 0:
            break  # there was no such statement
        count += 3
    assert errors
    assert all("does not answer" in each for each in errors), errors


def test_s2_objects_of_a_commit_whose_answer_was_lost_stay(objects: ObjectServer, postgres: PostgresServer) -> None:
    """DuckLake would remove them: it takes such a commit for failed."""
    database = f"cut_{uuid.uuid4().hex}"
    postgres.create_database(database)
    with CutProxy(postgres.port) as proxy:
        site = lake_site(objects, f"postgres:host=127.0.0.1 port={proxy.port} dbname={database} user=postgres")
        table, cuts = Table(site), False

        def watch(statement: str) -> None:
            nonlocal cuts
            if cuts and statement == "COMMIT":
                proxy.armed, cuts = True, False

        destination = table.open(watch)
        destination.seed(SEED, plain(ORDERS, SEEDED))
        cuts = True
        with pytest.raises(OutcomeUnknown, match="position is read again"):
            destination.flush(FLUSH, staged(ORDERS, ("id",), CHANGES))
        assert proxy.cuts == 1
        found = destination.standing()
        assert found is not None
        assert found.position == 20
        assert content(table.held() or ()) == content(FLUSHED)
        assert destination.flush(FLUSH, staged(ORDERS, ("id",), CHANGES)) == Applied(20, already=True)


def test_s3_objects_of_a_failed_commit_are_orphans_that_cleaning_removes(
    objects: ObjectServer, postgres: PostgresServer
) -> None:
    site = lake_site(objects, f"postgres:{postgres.create_database(f'lake_{uuid.uuid4().hex}')}")
    table, others = Table(site), iter(range(2))

    def watch(statement: str) -> None:
        if statement == "COMMIT" and (number := next(others, None)) is not None:
            site.make_foreign(f"other{number}")

    table.open(watch).seed(SEED, plain(ORDERS, SEEDED))
    before = object_names(site)
    place = site.open()
    place._lakes = AttachedLakes()
    assert place.clean_orphans(age_s=0) >= 2
    assert len(object_names(site)) < len(before)
    assert content(table.held() or ()) == content(SEEDED)


# ---------------------------------------------------------------------------------------------- the server refuses


WRONG: Final[dict[str, tuple[Callable[[Bucket], Bucket], type[TrunklineError], str]]] = {
    "endpoint": (lambda b: replace(b, endpoint=SILENT), Unreachable, f"{SILENT} does not answer; check the endpoint"),
    "access key": (lambda b: replace(b, access_key="unknown-key"), DestinationHalted, "does not know the access key"),
    "secret key": (lambda b: replace(b, secret_key="it-is-wrong"), DestinationHalted, "refuses the secret key"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_access_is_named_without_keys(site: Site, objects: ObjectServer, wrong: str) -> None:
    Table(site).open().seed(SEED, plain(ORDERS, SEEDED))
    change, kind, text = WRONG[wrong]
    bucket = change(Bucket.of(objects))
    destination = Table(reached(site, bucket)).open()
    if isinstance(destination.place, DuckLakePlace):
        destination.place._lakes = AttachedLakes()  # as in another process, which never had the right keys
    with pytest.raises(TrunklineError, match=text) as caught:
        destination.flush(FLUSH, staged(ORDERS, ("id",), CHANGES))
    assert type(caught.value) is kind
    problem = store_problem(reached(site, bucket).address("orders"))
    assert text in problem or "refuses access" in problem
    for message in (str(caught.value), problem):
        assert "\n" not in message
        assert not any(key in message for key in (bucket.secret_key, objects.secret_key))
    assert Table(site).open().flush(FLUSH, staged(ORDERS, ("id",), CHANGES)).position == 20


@pytest.mark.parametrize("kind", ["delta", "ducklake"])
def test_a_bucket_that_does_not_exist_is_named(objects: ObjectServer, tmp_path: Path, kind: str) -> None:
    keys: dict[str, Any] = Bucket.of(objects).keys()
    address: DeltaAddress | LakeAddress = DeltaAddress("s3://nowhere/a", **keys)
    if kind == "ducklake":
        address = LakeAddress(f"sqlite:{tmp_path / 'c.db'}", "t", data_path="s3://nowhere/a", **keys)
    assert store_problem(address) == (
        f"s3://nowhere/a cannot be reached: {objects.endpoint} answers NoSuchBucket: the bucket nowhere does not exist "
        "there; create it, or correct the address"
    )


def test_f2_a_server_that_ignores_conditions_is_refused() -> None:
    class Careless(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(200)

        def do_DELETE(self) -> None:
            self._answer(204)

        def do_GET(self) -> None:
            self._answer(200, b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")

        def do_POST(self) -> None:
            [key] = re.findall(rb"<Key>.*?</Key>", self.rfile.read(int(self.headers["Content-Length"])))
            self._answer(200, b"<DeleteResult><Deleted>" + key + b"</Deleted></DeleteResult>")

        def _answer(self, status: int, body: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("ETag", '"1"')
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Not to the output of the tests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Careless)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        site = S3DeltaSite("any", Bucket(f"http://127.0.0.1:{server.server_port}", "a key", "a secret"))
        with pytest.raises(DestinationHalted, match="whatever If-None-Match says: two deliverers could commit one"):
            Table(site).open().seed(SEED, plain(ORDERS, SEEDED))
    finally:
        server.shutdown()
        server.server_close()


def test_o3_two_lakes_of_one_process_do_not_use_each_others_access(objects: ObjectServer, tmp_path: Path) -> None:
    site = lake_site(objects, f"sqlite:{tmp_path / 'catalog.sqlite'}")
    table = Table(site)
    table.open().seed(SEED, plain(ORDERS, SEEDED))
    other = Table(reached(site, replace(site.bucket, endpoint=SILENT)))
    with pytest.raises(Unreachable, match=f"{SILENT} does not answer"):
        other.open().flush(FLUSH, staged(ORDERS, ("id",), CHANGES))
    assert table.open().flush(FLUSH, staged(ORDERS, ("id",), CHANGES)).position == 20
    assert content(table.held() or ()) == content(FLUSHED)


# -------------------------------------------------------------------------------------------------- a table is dropped


def test_f3_a_drop_that_a_crash_interrupted_is_completed_by_the_next_reader(objects: ObjectServer) -> None:
    site = S3DeltaSite(str(uuid.uuid4()), Bucket.of(objects))
    table = Table(site)
    table.open().seed(SEED, plain(ORDERS, SEEDED))
    folder = table_folder(site.address(table.name))
    next(folder.drop())  # and no more
    assert any(name.endswith(DROPPED) for name in object_names(site))
    assert table.open().standing() is None
    assert not any(site.prefix in name for name in object_names(site))
    assert table.open().seed(SEED, plain(ORDERS, SEEDED)).position == 10
    late = table_folder(site.address(table.name)).drop()
    next(late)
    assert table.open().standing() is None  # another process completes it, and the table is made again
    table.open().seed(SEED, plain(ORDERS, SEEDED))
    with pytest.raises(FileNotFoundError):
        next(late)  # the first one continues at last
    assert content(table.held() or ()) == content(SEEDED)


# -------------------------------------------------------------------------------------------- Delta logs in a bucket


def test_l6_a_process_that_slept_while_a_log_in_a_bucket_was_cut_finds_that_it_did_not_commit(
    objects: ObjectServer,
) -> None:
    site, slept = S3DeltaSite(str(uuid.uuid4()), Bucket.of(objects)), list[str]()
    table = Table(site)
    table.open().seed(SEED, plain(ORDERS, SEEDED))
    address = site.address(table.name)

    def sleep(step: str) -> None:
        """Others go on; then the log is cleaned up, all but the version that this process holds."""
        if step != "commit" or slept:
            return
        slept.append(step)
        other = table.open()
        other.flush(FLUSH, staged(ORDERS, ("id",), CHANGES))
        other.flush(replace(FLUSH, expected=20, through=21), staged(ORDERS, ("id",), []))
        newest = DeltaTable(address.path, storage_options=store_options(address))
        newest.create_checkpoint()
        obstore.delete(
            object_store(address),
            [f"{site.prefix}/{table.name}/_delta_log/{each:020}.json" for each in range(1, newest.version())],
        )

    sleeper = table.open(sleep)
    with pytest.raises(PositionMoved) as moved:
        sleeper.flush(replace(FLUSH, through=30), staged(ORDERS, ("id",), CHANGES))
    assert slept
    assert moved.value.position == 21
    assert content(table.held() or ()) == content(FLUSHED)
    assert sleeper.flush(replace(FLUSH, expected=21, through=30), staged(ORDERS, ("id",), [])).position == 30
    assert table.open().standing() == sleeper.standing()


def test_deletion_vectors_in_a_bucket_are_refused(objects: ObjectServer) -> None:
    site = S3DeltaSite(str(uuid.uuid4()), Bucket.of(objects))
    table = Table(site)
    table.open().seed(SEED, plain(ORDERS, SEEDED))
    address = site.address(table.name)
    made = DeltaTable(address.path, storage_options=store_options(address))
    made.alter.set_table_properties({PROPERTY: "true"})
    with pytest.raises(DestinationHalted, match="deletionVectors"):
        table.open().flush(FLUSH, staged(ORDERS, ("id",), CHANGES))
    assert content(table.held() or ()) == content(SEEDED)


def test_addresses_that_travel_to_tasks_have_no_keys(site: Site, objects: ObjectServer) -> None:
    sent = msgspec.json.encode(site.address("orders")).decode()
    assert objects.secret_key not in sent
    assert objects.access_key not in sent
