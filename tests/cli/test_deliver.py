"""``trunkline deliver ...`` on the example that it writes itself: a real lake, real tables, and a real Spark."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from msgspec.structs import replace

from local_cluster import Command
from postgres_server import PostgresServer
from trunkline.cli.deliver_init import make_sample
from trunkline.cli.main import main
from trunkline.delivery.backends.duckdb_pool import new_duckdb
from trunkline.delivery.backends.ducklake_attachment import attach_lake
from trunkline.delivery.config import example as example_text
from trunkline.delivery.config import load_pipeline
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.destinations.contract import MemberStep, MemberWrite, TableStep
from trunkline.delivery.destinations.factory import open_place
from trunkline.delivery.verification.preflight import preflight
from trunkline.errors import Unreachable

PATIENCE_S = 240.0  # for Spark on a machine that does other things, too; usually ten seconds
LOOK_AGAIN_S = 0.1
PROGRAM = (sys.executable, "-m", "trunkline.cli.main", "deliver")
FOREIGN = "  - {name: foreign, values: [tenant-99], type: delta, path: foreign}\n"
LOST = "  - {name: lost, type: postgres, dsn: host=127.0.0.1 port=1 dbname=x connect_timeout=2, table: orders}\n"


def wait_until(holds: Callable[[], bool], what: Callable[[], str]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until, f"not within {PATIENCE_S:.0f} s: {what()}"
        time.sleep(LOOK_AGAIN_S)


@pytest.fixture(scope="module")
def delivered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the example ran once. Lakes know where they are, so it is not copied: leave it as it was."""
    folder = tmp_path_factory.mktemp("deliver") / "example"
    folder.mkdir()
    assert main(["deliver", "init", str(folder / "orders.yaml"), "--sample"]) == 0
    done = subprocess.run(
        [*PROGRAM, "run", "orders.yaml", "--once"], cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"pipeline orders: 20 destinations at version 5, 1,960 rows .* in [\d.]+ s", done.stdout)
    assert "event=seed_ended" in done.stderr
    return folder


@pytest.fixture
def example(delivered: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands run in it."""
    monkeypatch.chdir(delivered)
    return delivered


def change_source(folder: Path, *statements: str) -> int:
    """Returns the newest version. Another process may have the catalog open."""
    address = load_pipeline(folder / "orders.yaml", None).source
    assert isinstance(address, LakeAddress)
    versions: list[int] = []

    def changed() -> bool:
        connection = new_duckdb("ducklake")
        try:
            attach_lake(connection, address, "lake", read_only=False)
            for statement in statements:
                connection.execute(statement)
            versions.extend(connection.execute("SELECT max(snapshot_id) FROM ducklake_snapshots('lake')").fetchall()[0])
        except Unreachable:
            return False
        finally:
            connection.close()
        return True

    wait_until(changed, lambda: "the source can be written")
    return versions[0]


def change_lake(catalog: str, *statements: str) -> list[list[tuple[Any, ...]]]:
    """Returns what each one does."""
    connection = new_duckdb("ducklake")
    connection.execute(f"ATTACH 'ducklake:{catalog}' AS lake")
    found = [connection.execute(statement).fetchall() for statement in statements]
    connection.close()
    return found


def damaged(catalog: str) -> bool:
    """Whether a row could be removed: another process may have the catalog open."""
    try:
        change_lake(catalog, "DELETE FROM lake.orders WHERE id = (SELECT max(id) FROM lake.orders)")
    except duckdb.Error:
        return False
    return True


def literals(row: tuple[Any, ...]) -> str:
    return "(" + ", ".join(f"'{value}'" for value in row) + ")"


# ------------------------------------------------------------------------------------------------- the example, once


def test_the_example_runs_with_one_command_and_every_destination_is_equal(command: Command, example: Path) -> None:
    done = command("deliver", "verify", "orders.yaml")
    assert done.code == 0
    assert done.text.splitlines()[2].split() == ["tenant-01", "5", "119", "equal"]
    assert done.text.endswith("20 destinations: all equal to the source\n")
    found = command("deliver", "verify", "orders.yaml", "tenant-02", "--json").json
    assert [(each["destination"], each["outcome"], each["rows"]) for each in found["destinations"]] == [
        ("tenant-02", "equal", 99)
    ]


def test_a_difference_is_named_and_is_the_exit_code(command: Command, example: Path) -> None:
    lost = change_lake(
        "tenants/tenant-03.ducklake",
        "SELECT * FROM lake.orders WHERE id IN (23, 43)",
        "UPDATE lake.orders SET item = 'other' WHERE id = 23",
        "DELETE FROM lake.orders WHERE id = 43",
    )[0]
    done = command("deliver", "verify", "orders.yaml", "tenant-03", "tenant-04")
    mend = f"INSERT INTO lake.orders VALUES {', '.join(map(literals, lost))}"
    change_lake("tenants/tenant-03.ducklake", "DELETE FROM lake.orders WHERE id = 23", mend)
    assert done.code == 1
    assert "DIFFERS: 1 missing, 1 different" in done.text
    assert "different  id=23: item\n  missing    id=43" in done.text
    assert done.text.endswith("2 destinations: 1 equal, 1 DIFFERENT\n")
    assert command("deliver", "verify", "orders.yaml", "tenant-03").code == 0


DAMAGE = (
    "UPDATE lake.orders SET item = 'other' WHERE id = 23",
    "DELETE FROM lake.orders WHERE id = 43",
    "INSERT INTO lake.orders SELECT * REPLACE (900003 AS id) FROM lake.orders LIMIT 1",
)


def test_a_repair_rewrites_what_differs_and_nothing_else(command: Command, example: Path) -> None:
    change_lake("tenants/tenant-03.ducklake", *DAMAGE)
    look = "SELECT max(snapshot_id) FROM ducklake_snapshots('lake')"
    ((before,),) = change_lake("tenants/tenant-03.ducklake", look)
    planned = command("deliver", "repair", "orders.yaml", "tenant-03", "--dry-run")
    assert (planned.code, "3 keys would be rewritten" in planned.text) == (1, True)
    assert change_lake("tenants/tenant-03.ducklake", look) == [[before]]
    done = command("deliver", "repair", "orders.yaml", "tenant-03", "tenant-04")
    assert done.code == 0, done.text
    assert "repaired: 1 missing, 1 extra, 1 different" in done.text
    assert "  different  id=23: item\n  missing    id=43\n  extra      id=900003" in done.text
    assert done.text.endswith("2 destinations: 1 equal, 1 repaired\n")
    assert command("deliver", "verify", "orders.yaml", "tenant-03").code == 0
    again = command("deliver", "repair", "orders.yaml", "tenant-03", "--json").json
    assert [(each["outcome"], each["position"], each["written"]) for each in again["destinations"]] == [("equal", 5, 0)]
    facts = command("deliver", "status", "orders.yaml", "--json").json
    assert {each["owner"] for each in facts["destinations"]} == {None}, "it is released"
    assert facts["deliverers"] == []


def test_destinations_that_cannot_be_compared_have_their_own_exit_code(command: Command, example: Path) -> None:
    catalog = Path("tenants/tenant-03.ducklake").rename("elsewhere")
    done = command("deliver", "verify", "orders.yaml", "tenant-03")
    catalog.rename("tenants/tenant-03.ducklake")
    assert done.code == 3
    assert "not verified: nothing was delivered to it yet" in done.text
    unknown = command("deliver", "verify", "orders.yaml", "no-such")
    assert (unknown.code, "has no destination no-such" in unknown.err) == (2, True)


def test_status_shows_every_destination(command: Command, example: Path) -> None:
    shown = command("deliver", "status", "orders.yaml")
    assert shown.code == 0
    assert "pipeline orders, source at version 5, delivered by no deliverer" in shown.text
    assert "tenant-20" in shown.text
    facts = command("deliver", "status", "orders.yaml", "--json").json
    assert len(facts["destinations"]) == 20
    assert facts["source"] == {"version": 5, "error": ""}


def test_status_is_shown_again_and_again_until_interrupted(example: Path) -> None:
    watching = subprocess.Popen(
        [*PROGRAM, "status", "orders.yaml", "--watch", "--json"], cwd=example, stdout=subprocess.PIPE, text=True
    )
    assert watching.stdout is not None
    shown = [json.loads(watching.stdout.readline()) for _ in range(2)]
    watching.send_signal(signal.SIGINT)
    assert watching.wait(PATIENCE_S) == 0
    watching.stdout.close()
    assert [each["pipeline"] for each in shown] == ["orders", "orders"]


def test_a_desired_state_is_kept_for_the_next_deliverer(command: Command, example: Path) -> None:
    paused = command("deliver", "pause", "orders.yaml", "tenant-01", "tenant-02")
    assert paused.text.startswith("paused: tenant-01, tenant-02\nno deliverer runs now")
    assert "to be paused" in command("deliver", "status", "orders.yaml").text
    again = command("deliver", "pause", "orders.yaml", "tenant-01")
    assert again.text == "nothing to do: 1 destination already paused\n"
    resumed = command("deliver", "resume", "orders.yaml", "--all", "--json").json
    assert resumed["changed"] == ["tenant-01", "tenant-02"]
    assert len(resumed["unchanged"]) == 18
    assert command("deliver", "drain", "orders.yaml", "tenant-05").code == 0
    assert command("deliver", "retire", "orders.yaml", "tenant-06").code == 0
    assert command("deliver", "reseed", "orders.yaml", "tenant-07").text.startswith("to be seeded again: tenant-07")
    records = {
        each["name"]: each for each in command("deliver", "status", "orders.yaml", "--json").json["destinations"]
    }
    assert (records["tenant-05"]["desired_state"], records["tenant-06"]["desired_state"]) == ("draining", "retired")
    assert records["tenant-07"]["reseed"] == 1
    assert command("deliver", "resume", "orders.yaml", "tenant-05", "tenant-06").code == 0


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["pause", "orders.yaml"], "name destinations, or use --all"),
        (["pause", "orders.yaml", "tenant-01", "--all"], "not both"),
        (["retire", "orders.yaml", "--all"], "confirm with --yes"),
        (["pause", "orders.yaml", "no-such"], "has no destination 'no-such'"),
    ],
)
def test_a_command_for_no_destination_or_for_all_by_mistake_is_rejected(
    command: Command, example: Path, words: list[str], complaint: str
) -> None:
    refused = command("deliver", *words)
    assert refused.code == 2
    assert complaint in refused.err


# ------------------------------------------------------------------------------------------------ a running deliverer


class Terminal:
    """A deliverer whose standard error is a terminal."""

    def __init__(self, folder: Path) -> None:
        self._master, slave = pty.openpty()
        self.text = ""
        self.process = subprocess.Popen(
            [*PROGRAM, "run", "orders.yaml"], cwd=folder, stdout=subprocess.PIPE, stderr=slave, text=True
        )
        os.close(slave)

    def read(self) -> bool:
        """Read its output; returns whether more may follow."""
        while select.select([self._master], [], [], 0)[0]:
            try:
                said = os.read(self._master, 65_536)
            except OSError:  # the other end is closed
                return False
            self.text += said.decode()
        return True

    def wait_for(self, words: str) -> None:
        def said() -> bool:
            self.read()
            assert self.process.poll() is None, self.text
            return words in self.text

        wait_until(said, lambda: f"{words!r} in {self.text!r}")

    def end(self) -> tuple[int, str]:
        output, _ = self.process.communicate(timeout=PATIENCE_S)
        self.read()
        os.close(self._master)
        return self.process.returncode, output


@pytest.fixture
def running(example: Path) -> Iterator[Terminal]:
    """The example with a destination whose table belongs to another pipeline."""
    write_deltalake(example / "foreign", pa.table({"mine": [1]}))
    text = Path("orders.yaml").read_text(encoding="utf-8")
    Path("orders.yaml").write_text(text.replace("# - {name: large", FOREIGN + "# - {name: large"), encoding="utf-8")
    terminal = Terminal(example)
    yield terminal
    if terminal.process.poll() is None:
        terminal.process.kill()
        terminal.end()
    Path("orders.yaml").write_text(text, encoding="utf-8")


def test_a_deliverer_shows_its_progress_follows_desired_states_and_drains_on_a_signal(
    command: Command, example: Path, running: Terminal
) -> None:
    def states() -> dict[str, str]:
        found = command("deliver", "status", "orders.yaml", "--json").json["destinations"]
        return {each["name"]: (each["status"] or {}).get("state", "") for each in found}

    running.wait_for("up to date with version 5: 20 destinations, 1 halted")
    assert "starting Spark on local[*]" in running.text
    assert "event=halted" in running.text
    assert "replace_existing" in running.text
    wait_until(lambda: states()["foreign"] == "halted", lambda: "the halt is reported")

    shutil.rmtree("foreign")
    assert command("deliver", "resume", "orders.yaml", "foreign").text == "active: foreign\n"
    running.wait_for("up to date with version 5: 21 destinations")

    assert command("deliver", "pause", "orders.yaml", "tenant-01").text == "paused: tenant-01\n"
    wait_until(lambda: states()["tenant-01"] == "paused", lambda: "the pause is followed")
    changes = ("UPDATE lake.orders SET quantity = 99 WHERE id % 2 = 0", "DELETE FROM lake.orders WHERE id = 3")
    version = change_source(example, *changes)
    running.wait_for(f"up to date with version {version}: 20 destinations")

    wait_until(lambda: damaged("tenants/tenant-02.ducklake"), lambda: "a tenant's table can be damaged")
    mended = command("deliver", "repair", "orders.yaml", "tenant-02", "tenant-01")
    assert (mended.code, "2 destinations: 1 equal, 1 repaired" in mended.text) == (0, True), mended.text
    version = change_source(example, "UPDATE lake.orders SET quantity = 98 WHERE id % 2 = 0")
    running.wait_for(f"up to date with version {version}: 20 destinations")

    running.process.send_signal(signal.SIGTERM)
    code, output = running.end()
    assert "draining to the present version of the source" in running.text
    assert (code, f"20 destinations at version {version}" in output) == (0, True), running.text
    assert "behind: tenant-01, at version 5: paused" in running.text
    done = command("deliver", "verify", "orders.yaml")
    assert done.text.endswith("21 destinations: all equal to the source\n")


# ------------------------------------------------------------------------------------------------------------ refusals


def test_init_writes_an_example_and_never_overwrites(command: Command, tmp_path: Path) -> None:
    first = command("deliver", "init")
    assert (
        first.text == "wrote orders.yaml\nnext: adapt it to your tables, then trunkline deliver validate orders.yaml\n"
    )
    Path("orders.yaml").write_text("mine")
    again = command("deliver", "init", "--sample")
    assert (again.code, "orders.yaml already exists" in again.err) == (1, True)
    assert Path("orders.yaml").read_text() == "mine"
    assert not Path("lake").exists()
    Path("lake/data").mkdir(parents=True)
    other = command("deliver", "init", "other.yaml", "--sample")
    assert (other.code, "lake/data already exists" in other.err) == (1, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lake", "orders.yaml", "stdin"]


def pipeline_file(folder: Path, text: str = "", **changes: str) -> Path:
    """The example with its source, and some of its lines replaced."""
    file = folder / "orders.yaml"
    found = example_text()
    file.write_text(found, encoding="utf-8")
    make_sample(load_pipeline(file))
    for before, after in changes.items():
        line = re.compile(rf"^( *){before}:.*$", re.MULTILINE)
        assert line.search(found), before
        found = line.sub(rf"\g<1>{before}: {after}", found, count=1)
    file.write_text(found.replace("# - {name: large", text + "# - {name: large"), encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("changes", "code", "complaint"),
    [
        ({"mode": "sideways"}, 2, "mode: must be append, history or mirror, it is 'sideways'"),
        ({"table": "order"}, 2, "source: the lake"),
        ({"catalog": "nowhere/catalog.ducklake"}, 3, "nowhere/catalog.ducklake cannot be opened"),
        ({"column": "tenants"}, 2, "the source's table has no routing column 'tenants'"),
        ({"column": "price"}, 2, "routing.column: 'price' is DECIMAL(10,2)"),
        ({"key": "[order]"}, 2, "the source's table has no key column 'order'"),
        ({"store": "sqlite:nowhere/control.db"}, 2, "does not exist; create it"),
        ({"store": "sqlite:orders.yaml"}, 2, "orders.yaml"),
    ],
)
def test_problems_of_a_pipeline_are_reported_before_anything_is_written(
    command: Command, tmp_path: Path, changes: dict[str, str], code: int, complaint: str
) -> None:
    pipeline_file(tmp_path, **changes)
    before = sorted(tmp_path.rglob("*"))
    refused = command("deliver", "run", "orders.yaml", "--once")
    assert refused.code == code, refused.err
    assert complaint in refused.err
    assert sorted(path for path in tmp_path.rglob("*") if path.name != "stdin") == before
    validated = command("deliver", "validate", "orders.yaml")
    assert validated.code == 1
    assert sorted(path for path in tmp_path.rglob("*") if path.name != "stdin") == before


def test_validate_names_every_problem_and_where_it_is(command: Command, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "foreign", pa.table({"mine": [1]}))
    pipeline_file(tmp_path, FOREIGN + LOST, column="price", key="[order, item]", catalog="lake/catalog.ducklake")
    found = command("deliver", "validate", "orders.yaml", "--json").json
    assert not found["valid"]
    assert sorted((each["where"], each["what"].split(" ")[0]) for each in found["problems"]) == [
        ("foreign", "the"),
        ("key", "key"),
        ("lost", "dbname=x"),
        ("routing.column", "'price'"),
    ]
    validated = command("deliver", "validate", "orders.yaml")
    assert validated.code == 1
    assert "routing.column: 'price' is DECIMAL(10,2); rows can be routed by text" in validated.text
    assert validated.text.endswith("4 problems in orders.yaml\n")


def test_validate_compares_the_columns_of_existing_destinations(command: Command, tmp_path: Path) -> None:
    file = pipeline_file(tmp_path)
    pipeline, source = load_pipeline(file), preflight(file).source
    assert source is not None
    assert command("deliver", "validate", "orders.yaml").text == (
        "orders.yaml: pipeline orders, 20 destinations: valid\n"
    )
    renamed = tuple(replace(each, name="payed") if each.name == "paid" else each for each in source.tables[0].columns)
    for destination, identity in zip(pipeline.destinations, (source.identity, "another"), strict=False):
        table = TableStep("", destination.address, renamed, ("id",), replaces=True)
        step = MemberStep(f"orders/{destination.name}", "main", 0, 5, 1, identity, (table,), seeds=True)
        with closing(open_place(destination.address)) as place:
            place.apply([MemberWrite(step, {})])
    another = f"its rows are of another source table (another, not {source.identity})"
    lines = {each: number for number, each in enumerate(file.read_text().splitlines(), 1)}
    one, two = (next(lines[each] for each in lines if f"name: tenant-0{number}" in each) for number in (1, 2))
    assert command("deliver", "validate", "orders.yaml").text.splitlines() == [
        f"orders.yaml:{one}: tenant-01: column 'payed' is not in the source; fix it, or reseed the destination",
        f"orders.yaml:{two}: tenant-02: {another}; choose another table, or reseed it to replace them",
        "2 problems in orders.yaml",
    ]


def test_a_bad_credential_names_the_destination_and_is_not_shown(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PostgresServer() as server:
        with psycopg.connect(server.create_database("orders"), autocommit=True) as connection:
            connection.execute("CREATE ROLE deliver LOGIN PASSWORD 'right'")
        dsn = server.dsn("orders", user="deliver")
        line = f"  - {{name: wrong, type: postgres, dsn: {dsn}, table: orders, password_env: ORDERS_PASSWORD}}\n"
        pipeline_file(tmp_path, line)
        unset = command("deliver", "validate", "orders.yaml").text
        assert "the environment variable ORDERS_PASSWORD is not set or is empty" in unset
        monkeypatch.setenv("ORDERS_PASSWORD", "a-guess")
        refused = command("deliver", "validate", "orders.yaml")
        assert (refused.code, bool(re.match(r"orders\.yaml:\d+: wrong: ", refused.text))) == (1, True)
        assert "password authentication failed" in refused.text
        assert "a-guess" not in refused.text
        monkeypatch.setenv("ORDERS_PASSWORD", "right")
        assert command("deliver", "validate", "orders.yaml").code == 0


def test_validate_asks_a_control_store_in_postgresql_and_makes_nothing_there(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PostgresServer() as server:
        with psycopg.connect(server.create_database("control"), autocommit=True) as connection:
            connection.execute("CREATE ROLE deliver LOGIN PASSWORD 'right'")
        dsn = server.dsn("control", user="deliver")
        pipeline_file(tmp_path, store=f'"postgres:{dsn}"\n  password_env: ORDERS_PASSWORD')
        monkeypatch.setenv("ORDERS_PASSWORD", "a-guess")
        refused = command("deliver", "validate", "orders.yaml").text
        assert re.match(r"orders\.yaml:\d+: control\.store: ", refused)
        assert "password authentication failed" in refused
        monkeypatch.setenv("ORDERS_PASSWORD", "right")
        assert "may not create tables" in command("deliver", "validate", "orders.yaml").text
        with psycopg.connect(server.dsn("control"), autocommit=True) as connection:
            connection.execute("GRANT CREATE ON SCHEMA public TO deliver")
            assert command("deliver", "validate", "orders.yaml").code == 0
            tables = connection.execute("SELECT count(*) FROM pg_tables WHERE tablename LIKE '%trunkline%'").fetchone()
    assert tables == (0,)


def test_a_destination_that_never_answers_delays_no_other(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trunkline.delivery.verification.destination_checks.ANSWER_S", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        dsn = f"host=127.0.0.1 port={port} dbname=x connect_timeout=60"
        pipeline_file(tmp_path, f"  - {{name: silent, type: postgres, dsn: {dsn}, table: orders}}\n{LOST}")
        problems = command("deliver", "validate", "orders.yaml").text.splitlines()
    line = (tmp_path / "orders.yaml").read_text().splitlines().index(LOST.rstrip()) + 1
    silent_line = f"orders.yaml:{line - 1}: silent"
    assert problems[0] == f"{silent_line}: does not answer within 2 s; check its address and the network"
    assert problems[1].startswith(f"orders.yaml:{line}: lost: ")
    assert len(problems) == 3


@pytest.mark.parametrize("action", ["init", "run", "status", "verify", "repair", "validate"])
def test_without_the_packages_of_delivery_the_error_says_what_to_install(tmp_path: Path, action: str) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import sys\nfor name in ('duckdb', 'pyspark', 'pyarrow', 'yaml'):\n    sys.modules[name] = None\n"
    )
    done = subprocess.run(
        [*PROGRAM, action, "orders.yaml", *(["a"] if action == "repair" else [])],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(hidden)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "pip install 'trunkline[delivery]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
