"""Mode mirror and mode history beside Spark's own Auto CDC (SCD types 1 and 2), on the same random changes.

Where their semantics agree they give the same rows. Where they do not:

- Auto CDC orders the events of a key by a column. Ours are ordered by the log: none comes late, and a transaction is
  one step. So each transaction gives at most one event for a key here; its sequence is the position and number.
- Auto CDC has no truncation, and no routing: here it gets a removal of each row.
- An update that changes nothing goes on with the version. So it does in mode history if the source states removed rows
  whole; else (table2) each write of a row is a version, and equal neighbours are put together to compare.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pyspark
import pytest

import outside
from delivery.direct_delivery import Direct
from delivery.many_histories import TABLES, ManyHistories, everything_of, forget_logs
from delivery.random_histories import Row
from delivery.task_pipelines import opened_rows
from trunkline.delivery.changes.rows import Mode
from trunkline.delivery.config.address_rules import address_of
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.engine.java import find_java, write_java_home

HISTORIES: Final = 60
STEPS: Final = 8
ORDINALS: Final = 10  # more than transactions share a position
PROGRAM: Final = Path(__file__).with_name("auto_cdc.py")
CATALOG: Final = Path(__file__).with_name("memory_catalog.scala")
PATIENCE_S: Final = 600


@pytest.fixture(autouse=True)
def _no_logs_are_left() -> Iterator[None]:
    yield
    forget_logs()


def auto_cdc(folder: Path, batches: Iterable[list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """The rows that Spark's Auto CDC makes of some batches of events."""
    outside.program("java")
    java = find_java()
    jars = f"{Path(pyspark.__file__).parent}/jars/*"
    compiled = folder / "classes"
    compiled.mkdir()
    compiler = ["-cp", jars, "scala.tools.nsc.Main", "-usejavacp", "-nowarn", "-d", str(compiled), str(CATALOG)]
    subprocess.run([str(java), *compiler], check=True, timeout=PATIENCE_S)
    for number, events in enumerate(batches):
        (folder / f"batch{number}.json").write_text("\n".join(map(json.dumps, events)))
    environment = os.environ | {"JAVA_HOME": str(write_java_home(folder, java)), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder), str(compiled)],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    found: dict[str, list[dict[str, Any]]] = json.loads((folder / "result.json").read_text())
    return found


def events(many: ManyHistories) -> list[dict[str, Any]]:
    """One for each key and transaction that wrote it: its row afterwards, or that there is none."""
    found: list[dict[str, Any]] = []

    def event(table: str, number: int, row: Row | None, seq: int) -> None:
        values = row or (number, None, None, None)
        names = ("id", "tenant", "note", "size")
        found.append({"source": table, **dict(zip(names, values, strict=True)), "seq": seq, "gone": row is None})

    for table, history in many.by_table():
        for number, row in history.seeded.items():
            event(table, number, row, many.ends[0] * ORDINALS)
        for end, time_us, made in history.versions:
            seq = end * ORDINALS + many.ordinal(end, time_us)
            for number in made.written:
                event(table, number, made.after.get(number), seq)
    return found


def test_mirror_and_history_equal_spark_auto_cdc_of_both_types(tmp_path: Path) -> None:
    many = ManyHistories(3, HISTORIES, STEPS)
    given = events(many)
    many.chance.shuffle(given)
    half = many.ends[len(many.ends) // 2] * ORDINALS
    folder = tmp_path / "spark"
    folder.mkdir()
    theirs = auto_cdc(folder, [[each for each in given if (each["seq"] < half) is first] for first in (True, False)])
    modes: tuple[Mode, ...] = ("mirror", "history")
    lakes = {
        mode: LakeAddress(f"sqlite:{tmp_path}/lake.db", f"{mode}_{{table}}", data_path=str(tmp_path / "lake"))
        for mode in modes
    }
    delivery = everything_of(many.entries, lakes)
    delivery.seed(through=many.ends[0])
    for end in many.windows():
        delivery.flush(through=end)
    rows = {mode: _held(delivery, address) for mode, address in lakes.items()}
    assert rows["mirror"] == sorted((_row(each) for each in theirs["scd1"]), key=repr)
    versions = [
        (*_row(each), each["__START_AT"] // ORDINALS, None if (end := each["__END_AT"]) is None else end // ORDINALS)
        for each in theirs["scd2"]
    ]
    assert len(versions) > 2 * len(rows["mirror"]) > 0
    apart = [each for each in rows["history"] if each[0] != "table2"]
    assert apart == sorted((each for each in versions if each[0] != "table2"), key=repr)
    together = _put_together([each for each in rows["history"] if each[0] == "table2"])
    assert len(together) < len(rows["history"]) - len(apart)
    assert together == _put_together([each for each in versions if each[0] == "table2"])


def _row(each: dict[str, Any]) -> Row:
    return tuple(each[name] for name in ("source", "id", "tenant", "note", "size"))


def _held(delivery: Direct, address: LakeAddress) -> list[Row]:
    """The rows of all tables of a destination; those of a history with their spans."""
    found: list[Row] = []
    for table in TABLES:
        with opened_rows(address_of(address, f"public.{table}")) as (_, batches):
            for row in (row for batch in batches for row in batch.to_pylist()):
                span = (row["_valid_from"], row["_valid_to"]) if "_current" in row else ()
                found.append((*_row({"source": table, **row}), *span))
    return sorted(found, key=repr)


def _put_together(versions: list[Row]) -> list[Row]:
    """Without cuts between equal neighbours; versions that ended where they began say nothing."""
    found: list[Row] = []
    for each in sorted(versions, key=lambda row: (row[1], row[5], row[6] is None, row[6])):
        if found and found[-1][:5] == each[:5] and found[-1][6] == each[5]:
            found[-1] = (*found[-1][:6], each[6])
        elif each[5] != each[6]:
            found.append(each)
    return sorted(found, key=repr)
