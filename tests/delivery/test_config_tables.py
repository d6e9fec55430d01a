"""Files of pipelines with many tables, without routing, and with shapes: what becomes of them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from delivery.pipeline_files import ALL, HEAD, ONE, SET, TO_POSTGRES, load
from trunkline.delivery.changes.columns import Column, Columns
from trunkline.delivery.changes.shape import Mask, Shape
from trunkline.delivery.config import Pipeline
from trunkline.delivery.config.address_rules import address_of, check_apart, home_of, place_of
from trunkline.delivery.config.addresses import Address, DeltaAddress, LakeAddress, PostgresAddress
from trunkline.delivery.config.digests import digest_of, pipeline_digest
from trunkline.delivery.config.table_patterns import Selection
from trunkline.delivery.config.table_rules import (
    TableSettings,
    is_shaped,
    selection_of,
    settings_of,
    watched_columns,
)
from trunkline.errors import ConfigError

pytestmark = pytest.mark.fast


def columns(*names: str) -> Columns:
    return tuple(Column(name, "VARCHAR") for name in names)


def settings(pipeline: Pipeline, name: str, *names: str, key: tuple[str, ...] = ("id",)) -> TableSettings | None:
    return settings_of(pipeline, name, columns(*names), key)


def refused(pipeline: Pipeline, name: str, *names: str, key: tuple[str, ...] = ("id",)) -> str:
    with pytest.raises(ConfigError) as caught:
        settings(pipeline, name, *names, key=key)
    return str(caught.value)


# Short files


def test_one_table_to_one_table_needs_ten_lines(tmp_path: Path) -> None:
    text = """\
pipeline: orders
source:
  type: ducklake
  catalog: shop.ducklake
  table: orders
key: [id]
destinations:
  - name: copy
    type: delta
    path: copies/orders
"""
    assert len(text.splitlines()) == 10
    pipeline = load(tmp_path, text)
    assert pipeline.routing is None
    assert [each.values for each in pipeline.destinations] == [None]
    assert settings(pipeline, "", "id", "item") == TableSettings(("id",), "")


def test_thirty_tables_to_many_tenants_need_fifteen_lines(tmp_path: Path) -> None:
    text = """\
pipeline: shop
source: {type: log, log: shop}
routing: {column: tenant}
tables:
  - public.*
  - "!public.audit_*"
  - {table: public.tenants, routing: id}
  - {table: public.events, mode: append}
defaults: {type: postgres, dsn: host=db dbname=shop user=deliver, schema: "{value}"}
destinations:
  - {name: acme}
  - {name: everything, schema: all_tenants, values: "*"}
discover: {}
"""
    assert len(text.splitlines()) <= 15
    pipeline = load(tmp_path, text)
    acme, everything = pipeline.destinations
    assert acme.address == PostgresAddress(dsn="host=db dbname=shop user=deliver", schema="acme", table="{table}")
    assert (acme.values, everything.values) == (("acme",), None)
    assert selection_of(pipeline) == Selection(
        ("public.*", "!public.audit_*", "public.tenants", "public.events"), "public"
    )
    assert settings(pipeline, "public.audit_1", "id", "tenant") is None
    assert settings(pipeline, "sales.orders", "id", "tenant") is None
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(pipeline), type=Pipeline) == pipeline


# Settings of a table


def test_the_first_entry_that_matches_a_table_counts_and_those_left_out_always_are(tmp_path: Path) -> None:
    entries = (
        "tables: [{table: public.events, mode: append}, public.*, '!public.tmp_*', {table: shop.*, routing: id}]\n"
    )
    pipeline = load(tmp_path, SET + entries + TO_POSTGRES)
    assert settings(pipeline, "public.events", "x", "tenant", key=()) == TableSettings((), "tenant", "append")
    assert settings(pipeline, "public.orders", "id", "tenant") == TableSettings(("id",), "tenant")
    assert settings(pipeline, "public.tmp_1", "id", "tenant") is None
    assert settings(pipeline, "shop.tenants", "id") == TableSettings(("id",), "id")


def test_a_key_is_that_of_the_entry_then_of_the_pipeline_then_the_primary_key(tmp_path: Path) -> None:
    entries = "tables: [{table: public.a, key: [x]}, public.*]\n"
    one, other = (load(tmp_path, SET + entries + key + TO_POSTGRES) for key in ("", "key: [y]\n"))
    names = ("tenant", "id", "x", "y")
    found = [settings(each, table, *names) for each in (one, other) for table in ("public.a", "public.b")]
    assert [each.key for each in found if each is not None] == [("x",), ("id",), ("x",), ("y",)]


def test_a_table_without_a_key_is_refused_by_name_unless_every_destination_appends(tmp_path: Path) -> None:
    pipeline = load(tmp_path, ALL + TO_POSTGRES)
    assert refused(pipeline, "public.log", "tenant", key=()) == (
        "tables[0] (line 4): table public.log has no primary key that the source records, and mode mirror needs one; "
        "list the columns that identify a row as its `key`, or give it mode: append"
    )
    history = load(tmp_path, ALL + "mode: append\n" + TO_POSTGRES.replace("acme,", "acme, mode: history,"))
    assert "mode history needs one" in refused(history, "public.log", "tenant", key=())
    append = load(tmp_path, ALL + "mode: append\n" + TO_POSTGRES)
    assert settings(append, "public.log", "tenant", key=()) == TableSettings((), "tenant")
    assert "has no key column 'id' in the destinations; it has tenant" in refused(pipeline, "public.log", "tenant")


def test_a_table_without_the_routing_column_is_refused_by_name_or_left_out(tmp_path: Path) -> None:
    assert refused(load(tmp_path, ALL + TO_POSTGRES), "public.colors", "id") == (
        "tables[0] (line 4): table public.colors has no routing column 'tenant'; name its own with `routing`, leave it "
        'out with "!", or set without_routing_column: leave_out'
    )
    leaving = load(tmp_path, ALL + "without_routing_column: leave_out\n" + TO_POSTGRES)
    assert settings(leaving, "public.colors", "id") is None
    assert settings(leaving, "public.orders", "id", "tenant") is not None


# Shapes

SHAPED = """\
columns: {exclude: [note], rename: {ts: at}}
filter: status <> 'draft'
mask: {email: hash, phone: null}
computed: {year: year(ts), one: 1}
mask_secret_env: KEY
"""


def test_what_the_pipeline_says_is_for_every_table_that_has_the_column(tmp_path: Path) -> None:
    pipeline = load(tmp_path, ALL + SHAPED + TO_POSTGRES, {"KEY": "x"})
    found = settings(pipeline, "public.a", "id", "tenant", "email", "note")
    assert found is not None
    assert found.shape == Shape(
        exclude=("note",),
        filter="status <> 'draft'",
        mask={"email": Mask("hash")},
        computed={"year": "year(ts)", "one": "1"},
        secret_env="KEY",
    )
    other = settings(pipeline, "public.b", "id", "tenant", "ts", "phone")
    assert other is not None
    assert other.shape is not None
    assert (other.shape.rename, other.shape.mask, other.shape.secret_env) == (
        {"ts": "at"},
        {"phone": Mask("null")},
        None,
    )
    assert watched_columns(pipeline, "public.a") == ("email", "phone", "note")
    assert is_shaped(pipeline)


def test_an_entry_replaces_columns_and_filter_and_adds_to_masks(tmp_path: Path) -> None:
    entry = (
        "{table: public.a, columns: {include: [id, email, name, phone]}, filter: true, "
        "mask: {name: {constant: 7}, email: ~}, computed: {n: id + 1}}"
    )
    text = SET + f"tables: [{entry}, public.*]\n" + SHAPED + TO_POSTGRES
    found = settings(load(tmp_path, text, {"KEY": "x"}), "public.a", "id", "tenant", "email", "name", "phone", "ts")
    assert found is not None
    assert found.shape == Shape(
        include=("id", "email", "name", "phone"),
        filter="true",
        mask={"email": Mask("null"), "phone": Mask("null"), "name": Mask("constant", "7")},
        computed={"year": "year(ts)", "one": "1", "n": "id + 1"},
    )


def test_what_an_entry_or_a_pipeline_of_one_table_names_must_be_there(tmp_path: Path) -> None:
    entry = load(tmp_path, SET + "tables: [{table: public.a, mask: {emial: null}}]\n" + TO_POSTGRES)
    assert refused(entry, "public.a", "id", "tenant", "email") == (
        "tables[0] (line 4): table public.a has no column 'emial', which the entry names; it has id, tenant, email"
    )
    single = load(tmp_path, HEAD + "columns: {exclude: [nothing]}\n" + ONE)
    assert "the source's table has no column 'nothing'" in refused(single, "", "id", "tenant")


def test_keys_and_routes_are_named_as_the_destinations_name_them(tmp_path: Path) -> None:
    columns = "columns: {rename: {id: number}, exclude: [secret]}\ncomputed: {region: upper(tenant)}\n"
    pipeline = load(tmp_path, ALL.replace("column: tenant", "column: region") + columns + TO_POSTGRES)
    found = settings(pipeline, "public.a", "id", "tenant", "secret")
    assert found is not None
    assert (found.key, found.routing) == (("number",), "region")
    assert "has no key column 'secret' in the destinations" in refused(
        pipeline, "public.a", "id", "tenant", "secret", key=("secret",)
    )
    hidden = load(tmp_path, ALL.replace("column: tenant", "column: secret") + columns + TO_POSTGRES)
    found = settings(hidden, "public.a", "id", "tenant", "secret")
    assert found is not None
    assert found.routing == "secret"


def test_a_table_with_none_of_the_included_columns_is_refused_and_not_delivered_whole(tmp_path: Path) -> None:
    pipeline = load(tmp_path, ALL + "columns: {include: [a, b]}\n" + TO_POSTGRES)
    assert "has none of the columns of columns.include" in refused(pipeline, "public.x", "id", "tenant")


def test_a_pipeline_that_shapes_nothing_has_no_shape(tmp_path: Path) -> None:
    pipeline = load(tmp_path, ALL + TO_POSTGRES)
    assert not is_shaped(pipeline)
    assert settings(pipeline, "public.a", "id", "tenant") == TableSettings(("id",), "tenant")


# Addresses


@pytest.mark.parametrize(
    ("address", "table", "filled"),
    [
        (DeltaAddress(path="/x/{schema}/{table}"), "public.orders", DeltaAddress(path="/x/public/orders")),
        (
            LakeAddress(catalog="c", table="{table}", schema="{schema}"),
            "shop.order lines",
            LakeAddress(catalog="c", table="order_lines-a5bf4119", schema="shop"),
        ),
        (PostgresAddress(dsn="", table="t_{table}"), "a.b.c", PostgresAddress(dsn="", table="t_b.c")),
        (PostgresAddress(dsn="", table="fixed"), "", PostgresAddress(dsn="", table="fixed")),
        (
            PostgresAddress(dsn="", table="{table}"),
            "public._trunkline_x",
            PostgresAddress(dsn="", table="trunkline_x-71d1dee1"),
        ),
    ],
)
def test_a_tables_name_fills_an_address_made_safe(address: Address, table: str, filled: Address) -> None:
    assert address_of(address, table) == filled


def test_a_table_whose_name_does_not_fit_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"table public\.orders cannot be delivered: its table .* 63 bytes; shorten"):
        address_of(PostgresAddress(dsn="", table="x" * 60 + "{table}"), "public.orders")


def test_two_tables_of_one_destination_table_are_named_with_the_remedy() -> None:
    address = LakeAddress(catalog="c", table="{table}")
    with pytest.raises(ConfigError, match=r"tables a\.t and b\.T would have the same table .* use \{schema\}"):
        check_apart(address, ["a.t", "a.u", "b.T"])
    check_apart(LakeAddress(catalog="c", table="{table}", schema="{schema}"), ["a.t", "a.u", "b.T"])


def test_the_record_of_a_member_is_in_its_schema_unless_that_depends_on_the_table() -> None:
    assert home_of(LakeAddress(catalog="c", table="{table}", schema="acme")) == "acme"
    assert home_of(LakeAddress(catalog="c", table="{table}", schema="{schema}")) == "main"
    assert home_of(PostgresAddress(dsn="", table="x", schema="x_{table}")) == "public"
    assert home_of(DeltaAddress(path="/x")) == ""


def test_a_place_is_one_database_that_is_reached_in_one_way(tmp_path: Path) -> None:
    one = PostgresAddress(dsn="host=db dbname=a user=u", table="x")
    assert place_of(one) == place_of(PostgresAddress(dsn="postgresql://u@db:5432/a", table="y", schema="z"))
    others = (
        PostgresAddress(dsn="host=db dbname=A user=u", table="x"),
        PostgresAddress(dsn="host=db dbname=a user=v", table="x"),
        PostgresAddress(dsn="host=db dbname=a user=u", table="x", password_env="P"),
        LakeAddress(catalog="postgres:host=db dbname=a user=u", table="x"),
    )
    assert place_of(one) not in [place_of(each) for each in others]
    assert place_of(DeltaAddress(path="/a")) != place_of(DeltaAddress(path="/b"))
    lake = LakeAddress(catalog="sqlite:/a/b/../c.db", table="x")
    assert place_of(lake) == place_of(LakeAddress(catalog="/a/c.db", table="y"))


# Digests

SAMPLES = {
    "delta": (
        """\
pipeline: orders
source: {type: delta, path: /tables/source}
routing: {column: tenant}
key: [id]
destinations: [{name: acme, type: delta, path: /tables/acme}]
""",
        ["38f267e0d4699c3b"],
        "8f326f020a388159",
    ),
    "ducklake": (
        """\
pipeline: orders
source: {type: ducklake, catalog: 'postgres:dbname=lake', table: orders, schema: shop, data_path: /lake,
  password_env: P}
routing: {column: tenant}
key: [id, line]
mode: append
seed: now
defaults: {type: ducklake, catalog: 'postgres:dbname=tenants', table: 'orders_{value}', duplicates: warn}
destinations:
- {name: acme, values: [17]}
- {name: large, type: postgres, dsn: dbname=large, table: orders, schema: '{name}', values: [a, 007],
   mode: mirror, replace_existing: true}
discover: {template: {catalog: '/lakes/{value}.db', data_path: '/lakes/{value}'}, pattern: '[a-z]+', limit: 7}
""",
        ["75ebd454ab233220", "06955d9805c76c1c"],
        "2c4442bbc064f8bb",
    ),
    "log": (
        """\
pipeline: orders
source: {type: log, log: shop, table: public.orders, connect: 'a:1,b:2', tls_ca: /ca.pem}
routing: {column: tenant}
key: [id]
destinations: [{name: acme, type: postgres, dsn: host=db dbname=acme, table: orders, password_env: P}]
""",
        ["ec319272a5097747"],
        "f3b8b2b2ee56e39d",
    ),
}


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_file_of_an_earlier_version_has_the_digests_that_it_had(tmp_path: Path, sample: str) -> None:
    """With another digest every destination would be seeded again by an upgrade."""
    text, destinations, whole = SAMPLES[sample]
    pipeline = load(tmp_path, text, None)
    assert [digest_of(pipeline, each) for each in pipeline.destinations] == destinations
    assert pipeline_digest(pipeline) == whole


def test_what_decides_the_rows_changes_the_digest_and_nothing_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def digest(tables: str, more: str = "") -> str:
        pipeline = load(tmp_path, SET + more + f"tables: [{tables}]\n" + TO_POSTGRES, None)
        return digest_of(pipeline, pipeline.destinations[0])

    first = digest("{table: a.*, mask: {x: null, y: hash}}", "mask_secret_env: KEY\n")
    assert digest("{table: a.*, mask: {y: hash, x: null}, duplicates: warn}", "\nmask_secret_env: KEY\n") == first
    assert digest("{table: a.*, mask: {x: null, y: hash}}", "dropped_tables: halt\nmask_secret_env: KEY\n") == first
    monkeypatch.setenv("KEY", "another")
    assert digest("{table: a.*, mask: {x: null, y: hash}}", "mask_secret_env: KEY\n") != first
    others = ["a.*", "a.*, '!a.b'", "{table: a.*, key: [id]}", "{table: a.*, filter: x}", "{table: a.*, mode: append}"]
    assert len({digest(each) for each in others} | {digest("a.*", "filter: x\n"), first}) == len(others) + 2
