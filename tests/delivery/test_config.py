"""The file of a pipeline: what becomes of it, and that a wrong one is never more than a ``ConfigError``."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delivery.pipeline_files import HEAD, ONE, load, problems
from trunkline.delivery.changes.columns import Column
from trunkline.delivery.config import (
    ColumnsConfig,
    ControlConfig,
    DestinationConfig,
    DiscoverConfig,
    FlushConfig,
    Pipeline,
    ReadingConfig,
    RetryConfig,
    RoutingConfig,
    SparkConfig,
    TableConfig,
    discovered,
    example,
    load_pipeline,
    reference,
)
from trunkline.delivery.config.address_rules import KINDS
from trunkline.delivery.config.addresses import DeltaAddress, LakeAddress, PostgresAddress
from trunkline.delivery.config.digests import digest_of, pipeline_digest
from trunkline.delivery.config.table_rules import settings_of
from trunkline.errors import ConfigError

# The example and the reference


def test_the_example_is_valid_as_written_and_has_twenty_tenants(tmp_path: Path) -> None:
    pipeline = load(tmp_path, example())
    assert len(pipeline.destinations) == 20
    assert pipeline.source == LakeAddress(
        catalog=f"{tmp_path}/lake/catalog.ducklake", table="orders", data_path=f"{tmp_path}/lake/data"
    )
    assert pipeline.destinations[6] == DestinationConfig(
        name="tenant-07",
        address=LakeAddress(
            catalog=f"{tmp_path}/tenants/tenant-07.ducklake", table="orders", data_path=f"{tmp_path}/tenants/tenant-07"
        ),
        values=("tenant-07",),
        mode="mirror",
        duplicates="halt",
        seed="scan",
    )


def test_the_example_spells_out_the_defaults(tmp_path: Path) -> None:
    written, silent = load(tmp_path, example()), load(tmp_path, HEAD + ONE)
    for section in (
        "flush",
        "retry",
        "reading",
        "control",
        "spark",
        "mode",
        "duplicates",
        "seed",
        "listen",
        "listen_names",
    ):
        assert getattr(written, section) == getattr(silent, section), section


def test_every_optional_part_of_the_example_is_valid_too(tmp_path: Path) -> None:
    text = re.sub(r"(?m)^# (- \{name: large)", r"  \1", example())
    text = re.sub(r"(?m)^# (discover:|  limit:|  pattern:)", r"\1", text)
    pipeline = load(tmp_path, text, {"LARGE_PASSWORD": "x"})
    large = pipeline.destinations[-1]
    assert large.values == ("acme", "4711")
    assert large.address == PostgresAddress(
        dsn="host=db dbname=large user=deliver", table="orders", password_env="LARGE_PASSWORD"
    )
    assert pipeline.discover is not None
    assert pipeline.discover.pattern == "[a-z0-9-]+"


SECTIONS: dict[str, type[msgspec.Struct]] = {
    "": Pipeline,
    "routing.": RoutingConfig,
    "tables[].": TableConfig,
    "columns.": ColumnsConfig,
    "destinations[].": DestinationConfig,
    "discover.": DiscoverConfig,
    "flush.": FlushConfig,
    "retry.": RetryConfig,
    "reading.": ReadingConfig,
    "control.": ControlConfig,
    "spark.": SparkConfig,
}


def test_the_reference_has_every_key_with_its_text() -> None:
    rows = [[cell.strip() for cell in line.split(" | ")] for line in reference().splitlines() if "`" in line]
    assert all(len(row) == 4 and all(cell.strip("| ") for cell in row) for row in rows)
    named = {row[0].removeprefix("| ") for row in rows}
    for prefix, struct in SECTIONS.items():
        for name in struct.__struct_encode_fields__:
            unwritten = name in ("address", "destinations", "tables", "seed_from", "line")
            group = (not prefix and f"{name}." in SECTIONS) or unwritten
            assert group or f"`{prefix}{name}`" in named, prefix + name
    for kind, address in KINDS.items():
        for name in address.__struct_fields__:
            assert f"`{name}` ({kind})" in named
    assert "`defaults`" in named


# What a file may say


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: Any) -> None:
    text = HEAD + (
        "control: {store: 'sqlite:state/control.db'}\n"
        "destinations:\n"
        "- {name: a, type: ducklake, catalog: sqlite:a.db, data_path: './s3:a', table: t}\n"
        "- {name: b, type: ducklake, catalog: 'postgres:dbname=b', table: t}\n"
        "- {name: c, type: delta, path: /abs/c}\n"
    )
    (tmp_path / "orders.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    pipeline = load_pipeline("orders.yaml", {})
    assert pipeline.source == DeltaAddress(path=f"{tmp_path}/source")
    assert pipeline.control.store == f"sqlite:{tmp_path}/state/control.db"
    assert [each.address for each in pipeline.destinations] == [
        LakeAddress(catalog=f"sqlite:{tmp_path}/a.db", data_path=f"{tmp_path}/s3:a", table="t"),
        LakeAddress(catalog="postgres:dbname=b", table="t"),
        DeltaAddress(path="/abs/c"),
    ]


def test_routing_values_are_what_they_look_like(tmp_path: Path) -> None:
    text = (
        "destinations: [{name: a, type: delta, path: a, values: [no, 007, 12:30, 2026-01-01, 1.50, 42, true, 'x y']}]"
    )
    (destination,) = load(tmp_path, HEAD + text).destinations
    assert destination.values == ("no", "007", "12:30", "2026-01-01", "1.50", "42", "true", "x y")


def test_a_destination_inherits_from_the_defaults_and_the_pipeline(tmp_path: Path) -> None:
    text = HEAD + (
        "mode: append\nseed: now\n"
        "defaults: {type: ducklake, catalog: 'lakes/{name}', table: 'orders_{value}', seed: history, dsn: dbname=all}\n"
        "destinations:\n"
        "- {name: a, values: [17]}\n"
        "- {name: b, type: postgres, table: mine, mode: mirror}\n"
    )
    a, b = load(tmp_path, text).destinations
    assert a.address == LakeAddress(catalog=f"{tmp_path}/lakes/a", table="orders_17")
    assert (a.mode, a.seed, a.values) == ("append", "history", ("17",))
    assert b.address == PostgresAddress(dsn="dbname=all", table="mine")
    assert (b.mode, b.seed, b.values) == ("mirror", "history", ("b",))


def test_listen_may_be_switched_off(tmp_path: Path) -> None:
    assert load(tmp_path, HEAD + ONE + "listen: none\n").listen is None
    assert load(tmp_path, HEAD + ONE + "listen:\n").listen is None
    assert load(tmp_path, HEAD + ONE + "listen: '[::1]:9000'\n").listen == "[::1]:9000"


def test_append_needs_no_key(tmp_path: Path) -> None:
    head = HEAD.replace("key: [id]\n", "")
    assert load(tmp_path, head + "mode: append\n" + ONE).key == ()
    assert problems(tmp_path, head + ONE) == [
        "orders.yaml:1: key: missing; mode mirror needs the columns that identify a row, such as [id]"
    ]


def test_settings_of_spark_are_texts(tmp_path: Path) -> None:
    text = HEAD + ONE + "spark: {master: 'local[2]', conf: {spark.a: 4g, spark.b: 2, spark.c: true, spark.d: 0.5}}"
    assert load(tmp_path, text).spark.conf == {"spark.a": "4g", "spark.b": "2", "spark.c": "true", "spark.d": "0.5"}


def test_a_pipeline_can_be_sent_to_another_process(tmp_path: Path) -> None:
    pipeline = load(tmp_path, example() + "discover: {}\n")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(pipeline), type=Pipeline) == pipeline


# Nothing but a ConfigError

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.sampled_from(
        ["{value}", "{name}", "{", "postgres:", "sqlite:", "..", "/", "postgres:password=x", "[[a]", "none"]
    ),
    st.lists(st.integers() | st.text(), max_size=3),
    st.dictionaries(st.sampled_from(["type", "name", "path", "", "x"]), st.text(), max_size=3),
)


def spots(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a tree: what holds it, and its key."""
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
        yield tree, key
        if isinstance(tree[key], dict | list):
            yield from spots(tree[key])


TABLES: dict[str, Any] = {
    "tables": [
        "public.*",
        "!public.tmp",
        {"table": "a.b", "key": ["id"], "routing": "x", "mode": "history", "mask": {"c": {"constant": 1}}},
    ],
    "columns": {"exclude": ["x"], "rename": {"a": "b"}},
    "filter": "a > 1",
    "mask": {"d": "hash", "e": None},
    "computed": {"f": "a + 1"},
    "mask_secret_env": "KEY",
    "dropped_tables": "drop",
    "defaults": {"type": "ducklake", "catalog": "{name}", "table": "{table}", "schema": "{schema}"},
}


def survives(folder: Path, content: bytes) -> None:
    file = folder / "mutant.yaml"
    file.write_bytes(content)
    try:
        pipeline = load_pipeline(file, {"KEY": "x"})
        discovered(pipeline, ["a", "b/c"])
        settings_of(pipeline, "public.a" if pipeline.tables else "", [Column("id", "BIGINT")], ["id"])
    except ConfigError:
        return


MARKS = [b":", b"{", b"}", b"[", b"- ", b"\n", b"\n  ", b"*a", b"&a ", b"!x ", b"'"]
SETTINGS = settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])


@SETTINGS
@given(data=st.data())
def test_a_wrong_value_anywhere_makes_a_config_error_or_a_pipeline(tmp_path: Path, data: st.DataObject) -> None:
    tree = yaml.load(example(), Loader=yaml.CSafeLoader)
    tree["discover"] = {"template": {"type": "delta", "path": "{value}"}, "limit": 5, "pattern": "a+"}
    tree["destinations"] = [
        *tree["destinations"][:2],
        {"name": "p", "type": "postgres", "dsn": "dbname=d", "table": "t"},
    ]
    if data.draw(st.booleans()):
        tree |= copy.deepcopy(TABLES)
        del tree["source"]["table"]
    for _ in range(data.draw(st.integers(1, 3))):
        holder, key = data.draw(st.sampled_from(list(spots(tree))))
        match data.draw(st.sampled_from(["replace", "remove", "add"])):
            case "replace":
                holder[key] = data.draw(JUNK)
            case "remove":
                del holder[key]
            case "add" if isinstance(holder, dict):
                holder[data.draw(st.text())] = data.draw(JUNK)
            case _:
                holder.append(data.draw(JUNK))
        if not tree:
            break
    survives(tmp_path, yaml.dump(tree, Dumper=yaml.CSafeDumper).encode())


@SETTINGS
@given(data=st.data())
def test_wrong_characters_anywhere_make_a_config_error_or_a_pipeline(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(example().encode())
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(content)))
        length = data.draw(st.sampled_from([0, 1, 1, 5, 100]))
        content[at : at + length] = data.draw(st.binary(max_size=4) | st.sampled_from(MARKS))
    survives(tmp_path, bytes(content))


def test_a_log_of_one_table_has_the_digests_of_earlier_versions(tmp_path: Path) -> None:
    """With another digest a destination is seeded again."""
    text = HEAD.replace("{type: delta, path: source}", "{type: log, log: orders%s}")
    rest = "destinations: [{name: acme, type: delta, path: /tables/acme}]"
    one, other = (load(tmp_path, text % table + rest) for table in ("", ", table: public.orders"))
    digests = [(digest_of(each, each.destinations[0]), pipeline_digest(each)) for each in (one, other)]
    assert digests[0] == ("aac97aa433d6e28c", "f180984986d0236e")
    assert digests[1] != digests[0]
