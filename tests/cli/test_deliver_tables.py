"""``trunkline deliver ...`` with short files: one table, thirty tables, and a file in which nearly every line is wrong.

The source is a lake that is captured into a log.
"""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from local_cluster import Command, RunningCluster
from trunkline.delivery.backends.duckdb_pool import new_duckdb
from trunkline.delivery.backends.ducklake_attachment import attach_lake
from trunkline.delivery.config.addresses import LakeAddress

PATIENCE_S = 240.0  # for Spark on a machine that does other things, too
PROGRAM = (sys.executable, "-m", "trunkline.cli.main", "deliver")
TENANTS = ("acme", "bolt", "cargo")

ONE_TABLE = """\
pipeline: orders
source:
  type: log
  log: {log}
  connect: {connect}
  table: main.table_00
key: [id]
destinations:
  - {{name: copy, type: delta, path: copies/orders}}
"""
THIRTY_TABLES = """\
pipeline: shop
source: {{type: log, log: {log}, connect: '{connect}'}}
key: [id]
routing: {{column: tenant}}
tables:
  - main.table_*
  - "!main.*_tmp"
  - {{table: main.people, mask: {{phone: null}}, filter: "name <> 'draft'"}}
  - {{table: main.tenants, routing: name}}
defaults: {{type: ducklake, catalog: "sqlite:lakes/{{name}}.sqlite", data_path: "lakes/{{name}}"}}
destinations:
  - name: acme
  - name: bolt
  - name: cargo
  - {{name: everything, values: "*"}}
"""
MISTAKES = """\
pipeline: shop
source: {{type: log, log: {log}, connect: '{connect}'}}
routing: {{column: tenant}}
tables:
  - "main."
  - {{table: main.table_00, keys: [id]}}
  - {{table: main.table_01, key: [id], mask: {{item: hide}}}}
  - main.table_02
  - {{table: main.tenants, key: [name]}}
  - {{table: main.table_03, key: [id]}}
  - {{table: other.table_03, key: [id]}}
  - {{table: main.table_04, key: [id], filter: price > 5}}
  - {{table: main.table_05, key: [id], computed: {{seen: now()}}}}
  - {{table: main.table_06, key: [id], mask: {{item: hash}}, mask_secret_env: NOT_SET}}
  - main.nothing_*
  - {{table: main.table_07, key: [number]}}
  - {{table: main.table_08, key: [id], columns: {{exclude: [itme]}}}}
  - {{table: main.table_09, key: [id], mode: mirrored}}
  - {{table: main.table_10, key: [id]}}
  - {{table: main.table_10, key: [id]}}
mask: {{phnoe: null, name: secret}}
dropped_tables: forget
destinations:
  - {{name: acme, type: ducklake, catalog: "sqlite:acme.sqlite"}}
  - {{name: bolt, type: ducklake, catalog: bolt.ducklake, tabel: x}}
  - {{name: cargo, type: postgres, dsn: "dbname={{table}}"}}
"""
WRONG = {
    5: "tables[0]: the pattern 'main.' names no table",
    6: "tables[1].keys: unknown key; did you mean key?",
    7: "tables[2].mask.item: must be hash, null or {constant: TEXT}, it is 'hide'",
    8: "tables[3]: table main.table_02 has no primary key that the source records",
    9: "tables[4]: table main.tenants has no routing column 'tenant'",
    11: "tables[6]: main.table_03 and other.table_03 would have the same table",
    12: "tables[7]: table main.table_04: filter: ",
    13: "tables[8]: table main.table_05: computed.seen: ",
    14: "tables[9].mask_secret_env: the environment variable NOT_SET is not set",
    15: "tables[10]: main.nothing_* matches no table of the source",
    16: "tables[11]: table main.table_07 has no key column 'number'",
    17: "tables[12]: table main.table_08 has no column 'itme', which the entry names",
    18: "tables[13].mode: must be ",
    20: "tables[15]: 'main.table_10' is also tables[14]",
    21: "mask.",  # two in one line
    22: "dropped_tables: must be drop, halt or keep",
    25: "destinations[1].tabel: unknown key; did you mean table?",
    26: "destinations[2].dsn: {table} cannot be filled in",
}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Its catalog: thirty tables of three tenants, and some more."""
    folder = tmp_path_factory.mktemp("lake")
    catalog = f"sqlite:{folder}/shop.sqlite"
    with closing(new_duckdb("ducklake", "sqlite_scanner")) as connection:
        attach_lake(connection, LakeAddress(catalog, "", data_path=f"{folder}/data"), "lake", read_only=False)
        run = connection.execute
        run("BEGIN")
        run("CREATE SCHEMA lake.other")
        rows = (
            "SELECT n AS id, ['acme', 'bolt', 'cargo'][n % 3 + 1] AS tenant, 'item ' || n AS item FROM range(30) t(n)"
        )
        for number in range(28):
            run(f"CREATE TABLE lake.table_{number:02} AS {rows}")
        for name in ("lake.other.table_03", "lake.table_tmp"):
            run(f"CREATE TABLE {name} AS {rows}")
        people = "n AS id, ['acme', 'bolt', 'cargo'][n % 3 + 1] AS tenant, 'name ' || n AS name, '555-' || n AS phone"
        run(f"CREATE TABLE lake.people AS SELECT {people} FROM range(9) t(n)")
        run("CREATE TABLE lake.tenants AS SELECT unnest(['acme', 'bolt', 'cargo']) AS name, unnest([1, 2, 3]) AS id")
        run("COMMIT")
        run("BEGIN")
        for number in range(28):
            run(f"UPDATE lake.table_{number:02} SET item = 'changed' WHERE id < 5")
        run("COMMIT")
    return catalog


@pytest.fixture
def log(lake: str, on_cluster: Command, request: pytest.FixtureRequest) -> str:
    """The lake, captured."""
    name = re.sub(r"\W", "-", request.node.name)[:40]
    captured = on_cluster("capture", name, "--ducklake", lake, "--tables", "*.*", "--once")
    assert captured.code == 0, captured.err
    return name


def delivered(folder: Path, cluster: RunningCluster) -> str:
    done = subprocess.run(
        [*PROGRAM, "run", "pipeline.yaml", "--once"],
        cwd=folder,
        env=cluster.environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_table_is_copied_with_ten_lines(
    log: str, on_cluster: Command, cluster: RunningCluster, tmp_path: Path
) -> None:
    text = ONE_TABLE.format(log=log, connect=cluster.connect)
    assert len(text.splitlines()) <= 10
    (tmp_path / "pipeline.yaml").write_text(text)
    validated = on_cluster("deliver", "validate", "pipeline.yaml")
    assert (validated.code, validated.text) == (0, "pipeline.yaml: pipeline orders, 1 destination: valid\n")
    assert delivered(tmp_path, cluster).startswith("pipeline orders: 1 destination at version ")
    verified = on_cluster("deliver", "verify", "pipeline.yaml")
    assert verified.text.endswith("1 destination: all equal to the source\n")
    assert verified.code == 0


def test_thirty_tables_of_each_tenant_need_fifteen_lines(
    log: str, on_cluster: Command, cluster: RunningCluster, tmp_path: Path
) -> None:
    text = THIRTY_TABLES.format(log=log, connect=cluster.connect)
    assert len(text.splitlines()) == 15
    (tmp_path / "pipeline.yaml").write_text(text)
    validated = on_cluster("deliver", "validate", "pipeline.yaml")
    assert validated.code == 0, validated.text
    first, last = validated.text.splitlines()
    assert first.startswith("30 tables: main.people, main.table_00, ")
    assert last == "pipeline.yaml: pipeline shop, 4 destinations: valid"
    assert delivered(tmp_path, cluster).startswith("pipeline shop: 4 destinations at version ")
    verified = on_cluster("deliver", "verify", "pipeline.yaml", "--json")
    assert verified.code == 0
    found = {each["destination"]: each for each in verified.json["destinations"]}
    assert {name: each["outcome"] for name, each in found.items()} == dict.fromkeys([*TENANTS, "everything"], "equal")
    assert found["everything"]["rows"] == 28 * 30 + 9 + 3
    assert sum(found[name]["rows"] for name in TENANTS) == found["everything"]["rows"]


def test_validate_names_every_mistake_of_a_file_with_its_line(
    log: str, on_cluster: Command, cluster: RunningCluster, tmp_path: Path
) -> None:
    (tmp_path / "pipeline.yaml").write_text(MISTAKES.format(log=log, connect=cluster.connect))
    before, tail = files(tmp_path), on_cluster("peek", log, "--json").out
    validated = on_cluster("deliver", "validate", "pipeline.yaml")
    assert validated.code == 1
    *problems, total = validated.text.splitlines()
    named: dict[int, list[str]] = {}
    for line in problems:
        found = re.fullmatch(r"pipeline\.yaml:(\d+): (.*)", line)
        assert found, line
        named.setdefault(int(found[1]), []).append(found[2])
    assert {line: [what[: len(WRONG.get(line, ""))] for what in named[line]] for line in sorted(named)} == {
        line: [what] * (2 if line == 21 else 1) for line, what in WRONG.items()
    }
    assert total == f"{len(problems)} problems in pipeline.yaml"
    assert files(tmp_path) == before
    assert on_cluster("peek", log, "--json").out == tail


def test_validate_asks_for_the_directory_of_a_new_lake(
    log: str, on_cluster: Command, cluster: RunningCluster, tmp_path: Path
) -> None:
    text = ONE_TABLE.format(log=log, connect=cluster.connect)
    text = text.replace(
        "type: delta, path: copies/orders", "type: ducklake, catalog: 'sqlite:copy.sqlite', table: orders"
    )
    (tmp_path / "pipeline.yaml").write_text(text)
    assert on_cluster("deliver", "validate", "pipeline.yaml").text.splitlines() == [
        (
            f"pipeline.yaml:9: copy: there is no lake at sqlite:{tmp_path}/copy.sqlite yet; it needs data_path, the "
            "directory of its files; add that key"
        ),
        "1 problem in pipeline.yaml",
    ]
    (tmp_path / "pipeline.yaml").write_text(text.replace("sqlite:copy.sqlite", "copy.ducklake"))
    assert on_cluster("deliver", "validate", "pipeline.yaml").code == 0


def files(folder: Path) -> list[Path]:
    return sorted(each for each in folder.rglob("*") if each.name != "stdin")
