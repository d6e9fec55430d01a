"""Routing values with a meaning in SQL, in a path or in JSON lines. None of them affects another."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from delivery.running_pipeline import Business
from delivery.task_pipelines import opened_rows
from postgres_server import PostgresServer
from trunkline.delivery.config import DestinationConfig, DiscoverConfig, Pipeline
from trunkline.delivery.config.addresses import Address, DeltaAddress, LakeAddress, PostgresAddress
from trunkline.delivery.config.discovery import from_template
from trunkline.destination_suite.place import content

ODD: Final = (
    "plain", "x'y", "x''y", 'q"r', "back\\slash", "\\", "new\nline", "carriage\r", "tab\t", "%s %(a)s", ":name", "$1",
    "{value}", "; DROP TABLE orders; --", "/* x */", "../up", "a/b", " ", "", "é", "e\u0301", "\ufffe", "😀",
    "y" * 5000,
)  # fmt: skip
WITH_NUL: Final = ("nul\0x", "\0")


@pytest.fixture
def odd(spark: SparkSession, postgres: PostgresServer, tmp_path: Path) -> Business:
    """Two rows of every tenant; a key that is as odd as its tenant."""
    made = Business(spark, tmp_path, postgres)
    with made.source.opened() as lake:
        for number, tenant in enumerate((*ODD, *WITH_NUL, None)):
            rows = [(number, tenant, tenant, 1), (number + 1000, tenant, f"second of {tenant}", 2)]
            lake.executemany("INSERT INTO lake.orders VALUES (?, ?, ?, ?)", rows)
    return made


def template(kind: str, folder: Path, server: PostgresServer) -> Address:
    match kind:
        case "ducklake":
            place = f"{folder}/lakes/{{value}}"
            return LakeAddress(f"sqlite:{place}.sqlite", "orders", data_path=place)
        case "delta":
            return DeltaAddress(f"{folder}/deltas/{{value}}")
    dsn = server.create_database(f"odd_{folder.name[-8:]}".lower().replace("-", "_"))
    return PostgresAddress(dsn, "of_{value}"[:60])


def discovering(business: Business, address: Address, key: tuple[str, ...], store: str) -> Pipeline:
    like = DestinationConfig(name="sample", address=address, values=(), mode="mirror", duplicates="halt", seed="scan")
    pipeline = replace(business.pipeline(()), key=key, discover=DiscoverConfig(template=like))
    return replace(pipeline, control=replace(pipeline.control, store=store))


def held(pipeline: Pipeline, tenant: str) -> list[dict[str, Any]]:
    assert pipeline.discover is not None
    with opened_rows(from_template(pipeline.discover, tenant).address) as (_, batches):
        return [row for batch in batches for row in batch.to_pylist()]


def assert_delivered(business: Business, pipeline: Pipeline, tenants: tuple[str, ...]) -> None:
    rows = business.source.rows(business.source.source.state(0).version)
    for tenant in tenants:
        assert content(held(pipeline, tenant)) == content([row for row in rows if row["tenant"] == tenant]), tenant


@pytest.mark.parametrize("kind", ["ducklake", "delta", "postgres"])
def test_a_routing_value_may_be_anything_and_stops_no_other_tenant(
    kind: str, odd: Business, tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = f"sqlite:{tmp_path / 'odd.db'}"
    if kind == "delta":  # PostgreSQL's text holds no NUL, and a control store notes the values that it found
        store = f"postgres:{postgres.create_database(f'control_{tmp_path.name[-8:]}'.lower().replace('-', '_'))}"
    pipeline = discovering(odd, template(kind, tmp_path, postgres), ("item", "id"), store)
    stopped = odd.run_once(pipeline)
    well = ODD if kind == "postgres" else ODD + WITH_NUL
    assert_delivered(odd, pipeline, well)
    assert len(stopped.behind) == (len(WITH_NUL) if kind == "postgres" else 0)
    odd.source.write("UPDATE lake.orders SET mark = mark + 1, item = item || '!' WHERE id < 1000")
    odd.source.write("DELETE FROM lake.orders WHERE id >= 1000")
    if kind == "ducklake":  # the other way to read a window
        monkeypatch.setattr("delivery.running_pipeline.SMALL_BYTES", -1)
    odd.run_once(pipeline)
    assert_delivered(odd, pipeline, well)
