"""What `validate` finds in a set of tables: each problem with the line of its entry, and nothing hidden by others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from delivery.pipeline_files import ALL, SET, TO_POSTGRES
from trunkline.delivery.changes.columns import Column, Columns
from trunkline.delivery.changes.history import HISTORY_COLUMNS
from trunkline.delivery.config import load_pipeline
from trunkline.delivery.config.addresses import Address, PostgresAddress
from trunkline.delivery.config.digests import digest_of, pipeline_digest
from trunkline.delivery.control.store import open_control_store
from trunkline.delivery.deliverer.assembly import addresses_of
from trunkline.delivery.destinations.contract import MemberTables, Standing
from trunkline.delivery.sources.contract import SourceState, SourceTable
from trunkline.delivery.verification import destination_checks
from trunkline.delivery.verification import preflight as checks
from trunkline.errors import ConfigError, TrunklineError, Unreachable

pytestmark = pytest.mark.fast


def columns(*names: str) -> Columns:
    return tuple(Column(name.partition(" ")[0], name.partition(" ")[2] or "VARCHAR") for name in names)


def table(name: str, *names: str, key: tuple[str, ...] = ("id",)) -> SourceTable:
    return SourceTable(name, columns(*(names or ("id", "tenant"))), key, name)


class ScriptedTables:
    """A source of these tables. ``unkeyed``: whose removed rows lack columns."""

    def __init__(self, *tables: SourceTable, unkeyed: Sequence[str] = ()) -> None:
        self._tables, self._unkeyed = tables, unkeyed
        self.asked: list[tuple[str, tuple[str, ...], str]] = []

    def state(self, known: int) -> SourceState:
        return SourceState(5, 1, identity="shop")

    def tables(self, version: int) -> tuple[SourceTable, ...]:
        return self._tables

    def check_keys(self, table: str, key: tuple[str, ...], routing: str) -> None:
        self.asked.append((table, key, routing))
        if table in self._unkeyed:
            raise ConfigError(f"ALTER TABLE {table} REPLICA IDENTITY FULL")


class ScriptedPlace:
    """Tables by schema and name, and the records of members."""

    def __init__(
        self,
        tables: Mapping[tuple[str, str], Columns] | None = None,
        records: Mapping[str, Standing | TrunklineError] | None = None,
    ) -> None:
        self._tables, self._records = tables or {}, records or {}

    def standings(self, members: Sequence[MemberTables]) -> dict[str, Standing | TrunklineError | None]:
        return {each.member: self._records.get(each.member) for each in members}

    def columns(self, address: Address) -> Columns | None:
        assert isinstance(address, PostgresAddress)
        return self._tables.get((address.schema, address.table))

    def close(self) -> None: ...


class Site:
    """A file, its scripted source and its scripted place."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.file = folder / "shop.yaml"
        self.place = ScriptedPlace()
        self._source = ScriptedTables()
        patch.setattr(checks, "opened_source", lambda pipeline: self._source)
        patch.setattr(checks, "_check_engine", lambda master: iter(()))
        patch.setattr(destination_checks, "open_place", lambda address: self.place)

    def check(self, text: str, source: ScriptedTables) -> checks.Preflight:
        self.file.write_text(text)
        self._source = source
        return checks.preflight(self.file, {})

    def problems(self, text: str, source: ScriptedTables) -> list[str]:
        return [str(each).replace(f"{self.file}", "shop.yaml") for each in self.check(text, source).problems]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


def test_a_set_without_problems_is_valid_and_its_tables_are_known(site: Site) -> None:
    source = ScriptedTables(table("public.a"), table("public.b", "id", "tenant", "x"))
    found = site.check(ALL + TO_POSTGRES, source)
    assert found.problems == ()
    assert found.source is not None
    assert [each.name for each in found.source.tables] == ["public.a", "public.b"]
    assert source.asked == [("public.a", ("id",), "tenant"), ("public.b", ("id",), "tenant")]


def test_every_table_with_a_problem_is_named_with_the_line_of_its_entry(site: Site) -> None:
    text = (
        SET
        + "tables:\n- {table: public.k, key: [no]}\n- {table: public.m, mask: {x: null}}\n- public.*\n"
        + TO_POSTGRES
    )
    source = ScriptedTables(
        table("public.k"),
        table("public.m"),
        table("public.keyless", key=()),
        table("public.float", "id DOUBLE", "tenant"),
        table("public.routed", "id", "tenant DECIMAL(3,1)"),
        table("public.unrouted", "id"),
        table("public.removed"),
        table("public.odd", "id", "tenant", "geo GEOMETRY"),
        unkeyed=["public.removed"],
    )
    assert site.problems(text, source) == [
        "shop.yaml:5: tables[0]: table public.k has no key column 'no' in the destinations; it has id, tenant",
        "shop.yaml:6: tables[1]: table public.m has no column 'x', which the entry names; it has id, tenant",
        (
            "shop.yaml:7: tables[2]: table public.keyless has no primary key that the source records, and mode mirror "
            "needs one; list the columns that identify a row as its `key`, or give it mode: append"
        ),
        (
            "shop.yaml:7: tables[2]: table public.float: key column 'id' is DOUBLE, which cannot be compared exactly; "
            "choose another key"
        ),
        (
            "shop.yaml:7: tables[2]: table public.routed: 'tenant' is DECIMAL(3,1); rows can be routed by text, "
            "integers, BOOLEAN, UUID or DATE: name such a column"
        ),
        (
            "shop.yaml:7: tables[2]: table public.unrouted has no routing column 'tenant'; name its own with `routing`"
            ', leave it out with "!", or set without_routing_column: leave_out'
        ),
        "shop.yaml:7: tables[2]: table public.removed: ALTER TABLE public.removed REPLICA IDENTITY FULL",
        (
            "shop.yaml:7: tables[2]: table public.odd: column 'geo' has the type GEOMETRY, which cannot be delivered; "
            "drop it from the source or cast it"
        ),
    ]


def test_tables_without_their_routing_column_are_left_out_and_said(site: Site) -> None:
    found = site.check(
        ALL + "without_routing_column: leave_out\n" + TO_POSTGRES,
        ScriptedTables(table("public.a"), table("public.b", "id")),
    )
    assert found.problems == ()
    assert found.source is not None
    assert found.source.left_out == ("public.b",)


def test_an_entry_that_counts_for_no_table_is_a_problem(site: Site) -> None:
    text = SET + "tables: [public.*, {table: public.b, mode: append}, sales.*, '!public.tmp']\n" + TO_POSTGRES
    assert site.problems(text, ScriptedTables(table("public.a"), table("public.b"))) == [
        (
            "shop.yaml:4: tables[1]: public.b has no effect: an earlier entry matches public.b, too; move this one up, "
            "or remove it"
        ),
        "shop.yaml:4: tables[2]: sales.* matches no table of the source; correct it, or remove it",
    ]


def test_a_column_that_no_table_has_is_a_problem(site: Site) -> None:
    text = ALL + "mask: {emial: null, phone: null}\ncolumns: {exclude: [nots]}\n" + TO_POSTGRES
    assert site.problems(text, ScriptedTables(table("public.a", "id", "tenant", "phone"), table("public.b"))) == [
        "shop.yaml:6: columns.exclude: no table has a column 'nots'; correct it, or remove it",
        "shop.yaml:5: mask.emial: no table has a column 'emial'; correct it, or remove it",
    ]


def test_a_shape_is_checked_with_the_columns_of_each_table(site: Site) -> None:
    found = site.problems(ALL + "filter: amount > 0\n" + TO_POSTGRES, ScriptedTables(table("public.a")))
    assert len(found) == 1
    assert found[0].startswith("shop.yaml:4: tables[0]: table public.a: filter: ")
    assert "amount" in found[0]


def test_two_tables_of_one_destination_table_are_named_once(site: Site) -> None:
    destinations = (
        "destinations: [{name: a, type: postgres, dsn: dbname=a}, {name: b, type: postgres, dsn: dbname=b}]\n"
    )
    source = ScriptedTables(table("public.a"), table("sales.A"))
    text = SET + "tables: ['*.*']\n" + destinations
    assert site.problems(text, source) == [
        (
            "shop.yaml:4: tables[0]: public.a and sales.A would have the same table in the destinations; use {schema} "
            'in its address, such as schema: "{schema}", or leave one of them out'
        )
    ]
    assert site.problems(text.replace("dsn: dbname", "schema: '{schema}', dsn: dbname"), source) == []


def test_destinations_that_meet_in_one_table_are_named(site: Site) -> None:
    destinations = (
        "destinations: [{name: a, type: postgres, dsn: dbname=x}, "
        "{name: b, type: postgres, dsn: dbname=x, table: '{table}_b'}]\n"
    )
    source = ScriptedTables(table("public.t"), table("public.t_b"))
    assert site.problems(ALL + destinations, source) == [
        "shop.yaml:5: b: its table for public.t is that of destination a for public.t_b; give each its own"
    ]


def test_a_thousand_tables_with_a_problem_do_not_flood_the_screen(site: Site) -> None:
    found = site.problems(ALL + TO_POSTGRES, ScriptedTables(*(table(f"public.t{at}", "id") for at in range(1000))))
    assert len(found) == 21
    assert found[-1] == "and 980 more problems of tables"


# Destinations


def test_tables_that_were_not_delivered_and_columns_that_differ_are_named(site: Site) -> None:
    source = ScriptedTables(table("public.a"), table("public.b"))
    held = {("public", "a"): columns("id", "tenant", "mine"), ("public", "b"): columns("id", "tenant")}
    site.place = ScriptedPlace(held)
    why = "exists and was not delivered; choose another, or set replace_existing: true to replace it"
    assert site.problems(ALL + TO_POSTGRES, source) == [
        f"shop.yaml:5: acme: the table public.a {why}",
        f"shop.yaml:5: acme: the table public.b {why}",
    ]
    site.place = ScriptedPlace(held, {"shop/acme": Standing(3, 1, "shop")})
    assert site.problems(ALL + TO_POSTGRES, source) == [
        "shop.yaml:5: acme: table public.a: column 'mine' is not in the source; fix it, or reseed the destination"
    ]
    site.place = ScriptedPlace(held, {"shop/acme": Standing(3, 1, "other")})
    [another] = site.problems(ALL + TO_POSTGRES, source)
    assert another.startswith("shop.yaml:5: acme: its rows are of another source table (other, not shop)")
    site.place = ScriptedPlace(held, {"shop/acme": Unreachable("down")})
    assert site.problems(ALL + TO_POSTGRES, source) == ["shop.yaml:5: acme: down"]


def test_a_history_has_columns_that_the_source_lacks(site: Site) -> None:
    held = {("public", "a"): (*columns("id", "tenant"), *HISTORY_COLUMNS)}
    site.place = ScriptedPlace(held, {"shop/acme": Standing(3, 1, "shop")})
    assert site.problems(ALL + "mode: history\n" + TO_POSTGRES, ScriptedTables(table("public.a"))) == []


# What a change costs


def test_a_change_that_seeds_destinations_again_is_said(site: Site) -> None:
    text = ALL + TO_POSTGRES + "control: {store: 'sqlite:control.db'}\n"
    source = ScriptedTables(table("public.a", "id", "tenant", "x"))
    assert site.check(text, source).notes == ()
    pipeline = load_pipeline(site.file, {})
    with closing(open_control_store(pipeline.control.store)) as store:
        digests = {each.name: digest_of(pipeline, each) for each in pipeline.destinations}
        addresses = addresses_of(pipeline.destinations)
        store.configurations.configure("shop", pipeline_digest(pipeline), digests, None, addresses)
    assert site.check(text, source).notes == ()
    changed = site.check(text + "columns: {exclude: [x]}\n", source)
    assert (changed.problems, changed.notes) == ((), ("this change reseeds 1 destination: acme",))
    renamed = text.replace("name: acme", "name: other")
    note = ("this change reseeds 1 destination: other",)
    assert site.check(renamed, source).notes == note, "its routing values are its name"
    assert site.check(renamed.replace("name: other", "name: other, values: [acme]"), source).notes == ()


def test_validate_prints_the_tables_in_a_line(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    from trunkline.cli.deliver_check import validate

    site.check(ALL + TO_POSTGRES, ScriptedTables(*(table(f"public.t{at}") for at in range(12))))
    options: Any = type("Options", (), {"config": site.file, "json": False})
    assert validate(options) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"12 tables: {', '.join(f'public.t{at}' for at in range(10))} and 2 more",
        f"{site.file}: pipeline shop, 1 destination: valid",
    ]


def test_names_that_mode_history_uses_are_refused_also_of_renamed_and_computed_columns(site: Site) -> None:
    text = (
        SET
        + "tables:\n- {table: public.r, mode: history, columns: {rename: {x: _valid_to}}}\n"
        + '- {table: public.c, mode: history, computed: {_current: "true"}}\n'
        + "- {table: public.m, mode: mirror}\n- {table: public.*, mode: history}\n"
        + TO_POSTGRES
    )
    odd = ("id", "tenant", "_valid_from")
    tables = (
        table("public.r", "id", "tenant", "x"),
        table("public.c"),
        table("public.m", *odd),
        table("public.o", *odd),
    )
    why = "has a name that mode history uses; rename it with `columns.rename`, or in the source"
    assert site.problems(text, ScriptedTables(*tables)) == [
        f"shop.yaml:5: tables[0]: table public.r: column '_valid_to' {why}",
        f"shop.yaml:6: tables[1]: table public.c: column '_current' {why}",
        f"shop.yaml:8: tables[3]: table public.o: column '_valid_from' {why}",
    ]


def test_a_change_that_seeds_a_mirror_again_may_change_its_columns_and_a_history_keeps_them(site: Site) -> None:
    text = ALL + TO_POSTGRES + "control: {store: 'sqlite:control.db'}\n"
    source = ScriptedTables(table("public.a", "id", "tenant", "x"))
    site.check(text, source)
    pipeline = load_pipeline(site.file, {})
    with closing(open_control_store(pipeline.control.store)) as store:
        digests = {each.name: digest_of(pipeline, each) for each in pipeline.destinations}
        store.configurations.configure("shop", pipeline_digest(pipeline), digests, None, None)
    held = {("public", "a"): columns("id", "tenant", "x")}
    site.place = ScriptedPlace(held, {"shop/acme": Standing(3, 1, "shop")})
    changed = site.check(text + "columns: {exclude: [x]}\n", source)
    assert (changed.problems, changed.notes) == ((), ("this change reseeds 1 destination: acme",))
    history = ALL + "mode: history\n" + TO_POSTGRES + "control: {store: 'sqlite:control.db'}\n"
    assert "column 'x' is not in the source" in site.problems(history + "columns: {exclude: [x]}\n", source)[0]


def test_columns_that_postgres_cannot_hold_are_named_before_anything_runs(site: Site) -> None:
    long = "n" * 64
    source = ScriptedTables(table("public.a", "id", "tenant", long, "list DECIMAL(9,2)[]"))
    name, kind = site.problems(ALL + TO_POSTGRES, source)
    assert name.startswith(f"shop.yaml:5: acme: table public.a: column '{long}': PostgreSQL allows names of up to 63")
    assert kind.startswith("shop.yaml:5: acme: table public.a: column 'list' is DECIMAL(9,2)[], which a PostgreSQL")
    assert site.problems(ALL + f"columns: {{rename: {{{long}: n}}, exclude: [list]}}\n" + TO_POSTGRES, source) == []


def test_a_hash_of_a_type_that_cannot_be_delivered_is_named(site: Site) -> None:
    source = ScriptedTables(table("public.a", "id", "tenant", "size INT128", "list VARCHAR[]"))
    text = ALL + "mask: {size: hash, list: hash}\nmask_secret_env: HOME\n" + TO_POSTGRES
    site.file.write_text(text)
    site._source = source
    found = [str(each) for each in checks.preflight(site.file, {"HOME": "x"}).problems]
    assert ["INT128 values cannot be hashed" in found[0], "VARCHAR[] values cannot be hashed" in found[1]] == [True] * 2


def test_an_empty_pattern_hides_no_other_problem(site: Site) -> None:
    found = site.problems(SET + 'tables: ["", {table: ""}, {tabel: a}, public.b]\n' + TO_POSTGRES, ScriptedTables())
    assert [each.partition(": ")[2].partition(":")[0] for each in found] == [
        "tables[0]",
        "tables[1].table",
        "tables[2].tabel",
        "tables[2].table",
        "tables[3]",
    ]


@pytest.mark.parametrize(
    "part", ["mask: {email: ~}", "columns: {exclude: [email]}", "columns: {rename: {email: mail}}"]
)
def test_a_column_that_differs_in_case_from_one_that_the_pipeline_names_is_not_passed_over(
    site: Site, part: str
) -> None:
    source = ScriptedTables(table("public.a", "id", "tenant", "email"), table("public.b", "id", "tenant", "Email"))
    [found] = site.problems(ALL + part + "\n" + TO_POSTGRES, source)
    assert "table public.b has the column 'Email'" in found
    assert "is about 'email', which differs in case only; name 'Email' in" in found
    answered = SET + "tables: [{table: public.b, columns: {include: [id, tenant, Email]}}, public.*]\n"
    answered += part + "\n" + TO_POSTGRES
    assert site.problems(answered, source) == []
