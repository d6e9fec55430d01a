"""What is refused in files with many tables, without routing, and with shapes: each problem with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from delivery.pipeline_files import ALL, HEAD, ONE, SET, TO_POSTGRES, load, problems
from trunkline.delivery.config.addresses import LakeAddress

pytestmark = pytest.mark.fast

# What is refused, and in which words

MANY = "tables: [%s]\n"
REFUSED_SETS = {
    "a pattern that names no table": (
        MANY % "public." + TO_POSTGRES,
        (
            "orders.yaml:4: tables[0]: the pattern 'public.' names no table; write it like schema.table, public.* or "
            "shop.order_*"
        ),
    ),
    "a quote without its end": (
        "tables:\n- a.b\n- {table: 'public.\"x'}\n" + TO_POSTGRES,
        (
            "orders.yaml:6: tables[1].table: the pattern 'public.\"x' has a quote without its end; write it like \"Odd "
            'Name".orders'
        ),
    ),
    "an entry that is a number": (
        MANY % "7" + TO_POSTGRES,
        (
            'orders.yaml:4: tables[0]: must be a pattern, such as public.orders, shop.order_* or "!public.tmp_*", or a '
            "mapping with the key table, it is 7"
        ),
    ),
    "a list that is none": (
        "tables: public.*\n" + TO_POSTGRES,
        "orders.yaml:4: tables: must be a list of tables, such as [public.orders, shop.*], it is 'public.*'",
    ),
    "only what is left out": (
        MANY % "'!a.b'" + TO_POSTGRES,
        "orders.yaml:4: tables: selects no table; list those that are delivered, such as public.*",
    ),
    "no tables": (
        "tables: []\n" + TO_POSTGRES,
        "orders.yaml:4: tables: selects no table; list those that are delivered, such as public.*",
    ),
    "settings of what is left out": (
        MANY % "a.b, {table: '!a.c', key: [id]}" + TO_POSTGRES,
        "orders.yaml:4: tables[1].table: leaves tables out, so its other keys have no effect; remove them, or the !",
    ),
    "a table twice": (MANY % "a.b, a.b" + TO_POSTGRES, "orders.yaml:4: tables[1]: 'a.b' is also tables[0]; keep one"),
    "an unknown key of a table": (
        MANY % "{table: a.b, keys: [id]}" + TO_POSTGRES,
        "orders.yaml:4: tables[0].keys: unknown key; did you mean key?",
    ),
    "a line number": (
        MANY % "{table: a.b, line: 5}" + TO_POSTGRES,
        (
            "orders.yaml:4: tables[0].line: unknown key; the keys are mask, table, key, routing, mode, "
            "duplicates, columns, filter, computed, mask_secret_env"
        ),
    ),
    "an unknown mask": (
        MANY % "{table: a.b, mask: {x: hide}}" + TO_POSTGRES,
        "orders.yaml:4: tables[0].mask.x: must be hash, null or {constant: TEXT}, it is 'hide'",
    ),
    "a constant that is none": (
        "mask: {x: {constant: [1]}}\n" + MANY % "a.b" + TO_POSTGRES,
        "orders.yaml:4: mask.x: must be hash, null or {constant: TEXT}, it is a mapping",
    ),
    "a hash without a secret": (
        MANY % "{table: a.b, mask: {x: hash}}" + TO_POSTGRES,
        (
            "orders.yaml:4: tables[0].mask.x: hash needs mask_secret_env, the name of the environment "
            "variable that holds "
            "its key; add it"
        ),
    ),
    "a secret that is not set": (
        MANY % "{table: a.b, mask: {x: hash}, mask_secret_env: KEY}" + TO_POSTGRES,
        (
            "orders.yaml:4: tables[0].mask_secret_env: the environment variable KEY is not set or is empty; "
            "set it to the "
            "secret"
        ),
    ),
    "a rename to a reserved name": (
        MANY % "{table: a.b, columns: {rename: {x: _Trunkline_x}}}" + TO_POSTGRES,
        (
            "orders.yaml:4: tables[0].columns.rename.x: '_Trunkline_x' starts with the reserved prefix "
            "_trunkline; choose "
            "another name"
        ),
    ),
    "two renames to one name": (
        MANY % "{table: a.b, columns: {rename: {x: z, y: Z}}}" + TO_POSTGRES,
        "orders.yaml:4: tables[0].columns.rename.y: 'Z' is also the name of column 'x'; choose another",
    ),
    "a computed column with the name of another": (
        MANY % "a.b" + "columns: {rename: {x: z}}\ncomputed: {z: 1}\n" + TO_POSTGRES,
        "orders.yaml:6: computed.z: 'z' is also the name of column 'x'; choose another",
    ),
    "include and exclude at once": (
        MANY % "a.b" + "columns: {include: [x], exclude: [y]}\n" + TO_POSTGRES,
        "orders.yaml:5: columns.exclude: is of no use beside include; keep one of them",
    ),
    "a name for what is not delivered": (
        MANY % "a.b" + "columns: {exclude: [x], rename: {x: y}}\n" + TO_POSTGRES,
        "orders.yaml:5: columns.rename.x: is not delivered, so it needs no name; remove it",
    ),
    "a key that is not delivered": (
        MANY % "{table: a.b, key: [x], columns: {exclude: [x]}}" + TO_POSTGRES,
        "orders.yaml:4: tables[0].columns.exclude: names the key column 'x'; deliver it, or choose another key",
    ),
    "an empty filter": (
        MANY % "a.b" + "filter: ''\n" + TO_POSTGRES,
        "orders.yaml:5: filter: must be an SQL expression of DuckDB, it is ''",
    ),
    "a wrong choice": (
        MANY % "a.b" + "dropped_tables: forget\n" + TO_POSTGRES,
        "orders.yaml:5: dropped_tables: must be drop, halt or keep, it is 'forget'",
    ),
    "one destination table for all": (
        MANY % "a.*" + "destinations: [{name: acme, type: delta, path: /x}]\n",
        "orders.yaml:5: destinations[0].path: gives every table of the source the same table; use {table} in it",
    ),
    "a database for each table": (
        MANY % "a.*" + "destinations: [{name: acme, type: postgres, dsn: 'dbname={table}'}]\n",
        "orders.yaml:5: destinations[0].dsn: {table} cannot be filled in; use {name} or {value}",
    ),
    "two destinations of one set": (
        MANY % "a.*"
        + "destinations: [{name: a, type: postgres, dsn: dbname=x}, {name: b, type: postgres, dsn: dbname=x}]",
        "orders.yaml:5: destinations[1]: destination b has the same table as destinations[0]; give each its own",
    ),
    "a value of every value": (
        MANY % "a.*" + "destinations: [{name: a, values: '*', type: postgres, dsn: 'dbname={value}'}]\n",
        "orders.yaml:5: destinations[0].dsn: {value} cannot be filled in for a destination of every value; use {name}",
    ),
    "values that are none": (
        MANY % "a.*" + "destinations: [{name: a, values: ~, type: postgres, dsn: dbname=x}]\n",
        (
            "orders.yaml:5: destinations[0].values: must be a list, such as [a, b], each a text, a whole "
            "number, true or "
            'false; or "*", it is empty'
        ),
    ),
}


@pytest.mark.parametrize("case", REFUSED_SETS)
def test_a_problem_of_tables_has_its_line_its_path_and_what_to_do(tmp_path: Path, case: str) -> None:
    text, message = REFUSED_SETS[case]
    assert problems(tmp_path, SET + text) == [message]


def test_a_set_needs_a_source_of_many_tables(tmp_path: Path) -> None:
    sources = {
        "{type: delta, path: x}": (
            "tables",
            3,
            "a Delta source is one table; remove this key, or use a lake or a log",
        ),
        "{type: log, log: x, format: debezium}": (
            "tables",
            3,
            "is for logs that `trunkline capture` writes; remove it, or `format`",
        ),
        "{type: ducklake, catalog: x, table: y}": (
            "source.table",
            2,
            "`tables` lists the tables of the source; remove this key",
        ),
        "{type: log, log: x, table: a.y}": (
            "source.table",
            2,
            "`tables` lists the tables of the source; remove this key",
        ),
    }
    for source, (path, line, why) in sources.items():
        text = f"pipeline: shop\nsource: {source}\ntables: [a.*]\n{TO_POSTGRES}"
        assert problems(tmp_path, text) == [f"orders.yaml:{line}: {path}: {why}"]


def test_destinations_may_be_in_the_sources_catalog_only_where_no_entry_matches_them(tmp_path: Path) -> None:
    text = (
        "pipeline: shop\nsource: {type: ducklake, catalog: c}\ntables: [%s]\n"
        "destinations: [{name: a, type: ducklake, catalog: ./c, schema: %s}]\n"
    )
    assert load(tmp_path, text % ("orders", "copies")).source == LakeAddress(catalog=f"{tmp_path}/c", table="")
    for tables, schema in (("orders", "main"), ("'*.orders'", "copies"), ("orders", "'{schema}'")):
        assert problems(tmp_path, text % (tables, schema)) == [
            (
                "orders.yaml:4: destinations[0]: destination a is in the source's catalog, where entries of "
                "`tables` match "
                "its tables, too; give it a schema that none matches, or another catalog"
            )
        ]


def test_without_routing_nothing_may_speak_of_values(tmp_path: Path) -> None:
    head = "pipeline: shop\nsource: {type: log, log: shop}\n"
    text = head + (
        "tables: [{table: a.b, routing: x}]\n"
        "destinations: [{name: a, type: delta, path: '{value}/{table}'}, {name: b, type: delta, path: b, values: [c]}]"
        "\n"
        "discover: {template: {type: delta, path: '{value}'}}\n"
    )
    assert problems(tmp_path, text) == [
        (
            "orders.yaml:3: tables[0].routing: needs `routing` of the pipeline, which names the column of "
            "the other tables"
            "; add it, or remove this"
        ),
        (
            "orders.yaml:4: destinations[0].path: {value} cannot be filled in without `routing`; use "
            "{name}, {table} or "
            "{schema}"
        ),
        (
            "orders.yaml:4: destinations[1].values: needs `routing`, which names the column with these "
            "values; add it, or "
            'write values: "*"'
        ),
        "orders.yaml:5: discover: needs `routing`, which names the column with the values; add it",
    ]


def test_keys_of_sets_need_tables(tmp_path: Path) -> None:
    assert problems(tmp_path, HEAD + ONE + "dropped_tables: drop\n") == [
        "orders.yaml:6: dropped_tables: is about sets of tables; remove it, or list `tables`"
    ]


# Seeds from another destination

FROM = """\
destinations:
- {name: all, type: postgres, dsn: dbname=all, values: "*"%s}
- {name: acme, type: postgres, dsn: dbname=acme, seed: {from: %s}%s}
"""


def test_a_destination_may_begin_as_a_copy_of_a_mirror(tmp_path: Path) -> None:
    _, acme = load(tmp_path, ALL + FROM % ("", "all", "")).destinations
    assert (acme.seed, acme.seed_from) == ("scan", "all")
    discover = "discover: {template: {type: postgres, dsn: 'dbname={value}', seed: {from: all}}}\n"
    found = load(tmp_path, ALL + FROM % ("", "all", "") + discover).discover
    assert found is not None
    assert found.template.seed_from == "all"


@pytest.mark.parametrize(
    ("origin", "name", "own", "more", "why"),
    [
        ("", "acme", "", "", "destination acme begins as a copy of this one; name another"),
        (", seed: {from: acme}", "all", "", "", "destination all begins as a copy of this one; name another"),
        ("", "none", "", "", "there is no destination none under `destinations`; name one of them"),
        (
            ", mode: append",
            "all",
            "",
            "",
            "destination all has tables that are not in mode mirror; name one that has none",
        ),
        (
            ", duplicates: warn",
            "all",
            "",
            "",
            "destination all may lack rows (duplicates: warn); name one with duplicates: ",
        ),
        (", seed: now", "all", "", "", "destination all began without rows (seed: now); name one with seed: scan"),
        ("", "all", "", "filter: x\n", "the rows of destination all are not those of the source, but what `columns`, "),
        ("", "[all]", "", "", "must be history, now, scan or {from: NAME}, it is a mapping"),
    ],
)
def test_a_seed_that_would_lack_rows_is_refused(
    tmp_path: Path, origin: str, name: str, own: str, more: str, why: str
) -> None:
    found = problems(tmp_path, ALL + more + FROM % (origin, name, own))
    line = 7 + len(more.splitlines())
    assert [each for each in found if each.startswith(f"orders.yaml:{line}: destinations[1].seed: {why}")]


def test_a_seed_from_a_destination_with_fewer_values_is_refused(tmp_path: Path) -> None:
    text = ALL + (FROM % ("", "all", "")).replace('values: "*"', "values: [b]")
    why = 'destination all lacks rows of this one; name one with all its values, or with values: "*"'
    assert problems(tmp_path, text) == [f"orders.yaml:7: destinations[1].seed: {why}"]


@pytest.mark.parametrize(
    ("tables", "own", "of"),
    [
        ("", "mode: history, duplicates: warn", ""),
        ("tables: [public.*]\n", "mode: history, duplicates: warn", " of public.*"),
        ("tables: [a.*, {table: b.c, mode: history}]\n", "duplicates: warn", " of b.c"),
        ("tables: [a.*, {table: b.c, duplicates: warn}]\n", "mode: history", " of b.c"),
    ],
)
def test_a_history_of_rows_that_may_share_a_key_is_refused(tmp_path: Path, tables: str, own: str, of: str) -> None:
    source = "source: {type: log, log: shop%s}\n" % ("" if tables else ", table: public.a")
    text = f"pipeline: shop\n{source}key: [id]\n{tables}"
    text += f"destinations: [{{name: acme, type: postgres, dsn: dbname=acme, table: '{{name}}', {own}}}]\n"
    if tables:
        text = text.replace("key: [id]\n", "").replace(", table: '{name}'", "")
    why = f"mode history{of} keeps one open version of a key; use duplicates: halt, or mode mirror"
    [found] = problems(tmp_path, text)
    assert found.endswith(f"destinations[0].duplicates: {why}"), found
