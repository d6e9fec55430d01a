"""``trunkline deliver init``: writes an example of a pipeline, and creates its source. It overwrites nothing."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Final

from trunkline.cli.tables import plural, print_json
from trunkline.delivery.backends.duckdb_pool import new_duckdb
from trunkline.delivery.backends.ducklake_attachment import attach_lake
from trunkline.delivery.backends.sql import identifier, literal
from trunkline.delivery.config import Pipeline, example, load_pipeline
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.errors import Refused

ORDERS_EACH: Final = 100  # of a tenant
TABLE: Final = (
    "id BIGINT, tenant VARCHAR, item VARCHAR, quantity INTEGER, price DECIMAL(10,2), ordered_at TIMESTAMP, paid BOOLEAN"
)
ITEMS: Final = ("anvil", "bellows", "chisel", "drill", "easel", "file", "gimlet")


def init(options: argparse.Namespace) -> int:
    file: Path = options.file
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(example())
    except FileExistsError:
        raise Refused(f"{file} already exists; name another file, or remove it") from None
    except OSError as error:
        raise Refused(f"{file} cannot be written: {error.strerror}; name another file") from None
    rows = 0
    if options.sample:
        try:
            rows = make_sample(load_pipeline(file))
        except BaseException:
            file.unlink()
            raise
    _report(options, file, rows)
    return 0


def _report(options: argparse.Namespace, file: Path, rows: int) -> None:
    if options.json:
        print_json({"file": str(file), "sample": options.sample, "rows": rows})
        return
    print(f"wrote {file}")
    if options.sample:
        print(f"created its source, a lake with {plural(rows, 'order')} of 20 tenants")
        print(f"next: trunkline deliver run {file} --once")
    else:
        print(f"next: adapt it to your tables, then trunkline deliver validate {file}")


def make_sample(pipeline: Pipeline) -> int:
    """Create the source of a pipeline, with orders for each of its destinations and a short history."""
    address = pipeline.source
    assert isinstance(address, LakeAddress), "the example's source is a lake"
    assert address.data_path is not None
    catalog, data = Path(address.catalog), Path(address.data_path)
    for place in (catalog, data):
        if place.exists():
            raise Refused(f"{place} already exists; remove it, or omit --sample")
    made = next(each for each in (catalog.parent, *catalog.parents) if each.parent.exists())  # the topmost new one
    fresh = not made.exists()
    try:
        catalog.parent.mkdir(parents=True, exist_ok=True)
        return _fill(address, [value for each in pipeline.destinations for value in each.values or ()])
    except BaseException:
        if fresh:
            shutil.rmtree(made, ignore_errors=True)
        raise


def _fill(address: LakeAddress, tenants: list[str]) -> int:
    """Insert, update and delete, so that there are changes to deliver after the seed."""
    table = f"lake.{identifier(address.schema)}.{identifier(address.table)}"
    count = ORDERS_EACH * len(tenants)
    named = ", ".join(literal(tenant) for tenant in tenants)
    items = ", ".join(literal(item) for item in ITEMS)
    connection = new_duckdb("ducklake")
    try:
        attach_lake(connection, address, "lake", read_only=False)
        connection.execute(f"CREATE TABLE {table} ({TABLE})")
        connection.execute(
            f"""INSERT INTO {table} SELECT i + 1, [{named}][i % {len(tenants)} + 1], [{items}][i % {len(ITEMS)} + 1],
            i % 9 + 1, (i * 37 % 10000) / 100, TIMESTAMP '2026-01-01' + to_minutes(i * 7), false
            FROM range({count}) t(i)"""
        )
        connection.execute(f"UPDATE {table} SET paid = true WHERE id % 3 = 0")
        connection.execute(f"UPDATE {table} SET tenant = {literal(tenants[0])} WHERE id % 97 = 0")  # they move
        connection.execute(f"DELETE FROM {table} WHERE id % 50 = 0")
        ((rows,),) = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
        return int(rows)
    finally:
        connection.close()
