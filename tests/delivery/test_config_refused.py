"""What is refused in a pipeline's file: one line for each problem, with line, path and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from delivery.pipeline_files import HEAD, ONE, load, problems
from trunkline.delivery.config import (
    load_pipeline,
)
from trunkline.delivery.config.yaml_file import DEPTH_MAX, PROBLEMS_SHOWN_MAX
from trunkline.errors import ConfigError

UNSET = "the environment variable {} is not set or is empty; set it to the secret"

# What is refused, and in which words

REFUSED = {
    "an unknown key": (
        ONE + "flush: {intervall_ms: 5}",
        "orders.yaml:6: flush.intervall_ms: unknown key; did you mean interval_ms?",
    ),
    "an unknown key of a destination": (
        "destinations:\n- {name: a, type: ducklake,\n   catalgo: x, catalog: c, table: t}",
        "orders.yaml:7: destinations[0].catalgo: unknown key; did you mean catalog?",
    ),
    "an unknown key that is like no other": (
        ONE + "retry: {zzz: 5}",
        "orders.yaml:6: retry.zzz: unknown key; the keys are first_ms, most_ms, breaker_after",
    ),
    "a key that is given twice": (
        ONE + "mode: mirror\nseed: scan\nmode: append",
        "orders.yaml:8: mode: the key is given twice, first in line 6; keep one",
    ),
    "a number out of range": (
        ONE + "flush: {groups: 0}",
        "orders.yaml:6: flush.groups: must be a whole number from 1 to 64, it is 0",
    ),
    "a text for a number": (
        ONE + "flush: {groups: 1_0}",
        "orders.yaml:6: flush.groups: must be a whole number from 1 to 64, it is '1_0'",
    ),
    "a boolean for a number": (
        ONE + "flush: {groups: true}",
        "orders.yaml:6: flush.groups: must be a whole number from 1 to 64, it is true",
    ),
    "a wrong choice": (ONE + "seed: snapshot", "orders.yaml:6: seed: must be history, now or scan, it is 'snapshot'"),
    "a choice that is a list": (
        ONE + "seed: [scan]",
        "orders.yaml:6: seed: must be history, now or scan, it is a list",
    ),
    "a wrong boolean": (
        "destinations: [{name: a, type: delta, path: a, replace_existing: yes}]",
        "orders.yaml:5: destinations[0].replace_existing: must be true or false, it is 'yes'",
    ),
    "a wrong name": (
        "destinations: [{name: a/b, type: delta, path: a}]",
        "orders.yaml:5: destinations[0].name: must be 1 to 128 of A-Z, a-z, 0-9, _, . and -, it is 'a/b'",
    ),
    "a name that is a directory": (
        "destinations: [{name: .., type: delta, path: a}]",
        "orders.yaml:5: destinations[0].name: must be 1 to 128 of A-Z, a-z, 0-9, _, . and -, it is '..'",
    ),
    "a missing key": (
        "destinations: [{name: a, type: delta}]",
        "orders.yaml:5: destinations[0].path: missing; it must be a text",
    ),
    "a missing type": (
        "destinations: [{name: a, path: a}]",
        "orders.yaml:5: destinations[0].type: missing; it must be ducklake, delta, iceberg or postgres",
    ),
    "a wrong type": (
        "destinations: [{name: a, type: mysql}]",
        "orders.yaml:5: destinations[0].type: must be ducklake, delta, iceberg or postgres, it is 'mysql'",
    ),
    "a list that is none": (
        "destinations: {name: a}",
        "orders.yaml:5: destinations: must be a list of destinations, it is a mapping",
    ),
    "no routing value": (
        "destinations: [{name: a, type: delta, path: a, values: []}]",
        "orders.yaml:5: destinations[0].values: is empty; list at least one routing value, or leave it out",
    ),
    "an empty routing value": (
        "destinations: [{name: a, type: delta, path: a, values: [~]}]",
        "orders.yaml:5: destinations[0].values[0]: must be a text, a whole number, true or false, it is empty",
    ),
    "no destinations": (
        "",
        "orders.yaml:1: destinations: missing; list at least one, or give `discover` a template",
    ),
    "two destinations of one name": (
        "destinations: [{name: a, type: delta, path: a}, {name: a, type: delta, path: b, values: [b]}]",
        "orders.yaml:5: destinations[1].name: a is also the name of destinations[0]; choose another",
    ),
    "two destinations of one value": (
        "destinations: [{name: a, type: delta, path: a}, {name: b, type: delta, path: b, values: [a]}]",
        "orders.yaml:5: destinations[1].values: 'a' already belongs to destinations[0]; keep one",
    ),
    "two destinations in one table": (
        "destinations: [{name: a, type: delta, path: a}, {name: b, type: delta, path: ../x/../{folder}/A/}]",
        "orders.yaml:5: destinations[1]: destination b has the same table as destinations[0]; give each its own",
    ),
    "two destinations in one table of a database": (
        (
            "defaults: {type: postgres, table: t}\n"
            "destinations: [{name: a, dsn: 'host=h dbname=d user=u'}, {name: b, dsn: 'postgresql://h:5432/d'}]"
        ),
        "orders.yaml:6: destinations[1]: destination b has the same table as destinations[0]; give each its own",
    ),
    "a destination that is the source": (
        "destinations: [{name: a, type: delta, path: ./source}]",
        "orders.yaml:5: destinations[0]: destination a is the source's own table; name another",
    ),
    "two lakes in one directory": (
        (
            "defaults: {type: ducklake, catalog: '{name}.db', data_path: data, table: t}\n"
            "destinations: [{name: a}, {name: b}]"
        ),
        (
            "orders.yaml:6: destinations[1]: its data_path is also that of another lake (destinations[0]); "
            "give each lake its own"
        ),
    ),
    "a reserved name of a table": (
        "destinations: [{name: a, type: ducklake, catalog: a, table: _trunkline_x}]",
        (
            "orders.yaml:5: destinations[0].table: '_trunkline_x' starts with the reserved prefix _trunkline; "
            "choose another name"
        ),
    ),
    "a name that PostgreSQL would cut": (
        f"destinations: [{{name: a, type: postgres, dsn: dbname=a, table: {'x' * 64}}}]",
        f"orders.yaml:5: destinations[0].table: '{'x' * 64}' is longer than PostgreSQL's 63 bytes; shorten it",
    ),
    "a catalog of an unknown kind": (
        "destinations: [{name: a, type: ducklake, catalog: 'mysql:x', table: t}]",
        (
            "orders.yaml:5: destinations[0].catalog: must be the path of a DuckDB file, sqlite:PATH or postgres:DSN; "
            "mysql: is none of them (before a path with a colon write ./)"
        ),
    ),
    "a control store without a kind": (
        ONE + "control: {store: control.db}",
        "orders.yaml:6: control.store: must be sqlite:PATH or postgres:DSN",
    ),
    "waits that shrink": (
        ONE + "retry: {first_ms: 10, most_ms: 9}",
        "orders.yaml:6: retry.first_ms: is above most_ms (9); make it smaller",
    ),
    "an unknown placeholder": (
        "destinations: [{name: a, type: delta, path: 'x/{tenant}'}]",
        "orders.yaml:5: destinations[0].path: {tenant} cannot be filled in; use {name} or {value}",
    ),
    "a placeholder for several values": (
        "destinations: [{name: a, type: delta, path: 'x/{value}', values: [p, q]}]",
        (
            "orders.yaml:5: destinations[0].path: {value} cannot be filled in for a destination with several values; "
            "use {name}"
        ),
    ),
    "a template with one table for all": (
        "discover: {template: {type: delta, path: all}}",
        (
            "orders.yaml:5: discover.template: gives every value the same table; use {value} in its catalog, "
            "path, dsn or table"
        ),
    ),
    "a template with one directory for all lakes": (
        "discover: {template: {type: ducklake, catalog: '{value}.db', data_path: all, table: t}}",
        (
            "orders.yaml:5: discover.template: its data_path is also that of another lake (discover.template); "
            "give each lake its own"
        ),
    ),
    "a wrong pattern": (
        "discover: {template: {type: delta, path: '{value}'}, pattern: '('}",
        (
            "orders.yaml:5: discover.pattern: is not a valid regular expression: missing ), unterminated subpattern at "
            "position 0; correct it"
        ),
    ),
    "a secret among the settings of Spark": (
        ONE + "spark: {conf: {spark.hadoop.fs.s3a.secret.key: 314159}}",
        (
            "orders.yaml:6: spark.conf.spark.hadoop.fs.s3a.secret.key: is a secret; put it into a variable, and the "
            "variable's name in spark.conf_env"
        ),
    ),
    "a setting that is none of Spark": (
        ONE + "spark: {conf: {memory: 4g}}",
        "orders.yaml:6: spark.conf.memory: is not a Spark setting: they start with spark.",
    ),
    "a wrong master": (
        ONE + "spark: {master: lokal}",
        "orders.yaml:6: spark.master: must be local[*], local[N], spark://HOST:PORT, k8s://URL or yarn, it is 'lokal'",
    ),
    "a wrong address to listen on": (
        ONE + "listen: localhost",
        "orders.yaml:6: listen: 'localhost' has no port; write localhost:port, or none",
    ),
    "an alias": (
        "destinations: [&a {name: a, type: delta, path: a}, *a]",
        "orders.yaml:5: the alias *a is not supported; put shared keys under `defaults`",
    ),
    "a tag": (
        ONE + "flush: !!python/object:os.system {}",
        "orders.yaml:6: the tag tag:yaml.org,2002:python/object:os.system is not supported; quote the text",
    ),
    "a second document": (
        ONE + "---\na: 1",
        "orders.yaml:6: a second document starts here; a file holds one pipeline",
    ),
    "no YAML": (ONE + "flush: [", "orders.yaml:7: not valid YAML: did not find expected node content; correct it"),
    "a deep nesting": (
        ONE + "flush: " + "[" * 100_000,
        f"orders.yaml:6: nested deeper than {DEPTH_MAX}; no key of a pipeline is",
    ),
    "a key that is not a text": (ONE + "[a]: 1", "orders.yaml:6: a key must be a text"),
    "half of a character": (
        'destinations: [{name: a, type: delta, path: a, values: ["a\\ud800"]}]',
        "orders.yaml:5: not valid YAML: found invalid Unicode character escape code; correct it",
    ),
    "a character that cannot be printed": (
        'destinations: [{name: a, type: delta, path: "a\\0b"}]',
        "orders.yaml:5: destinations[0].path: has a character that cannot be printed; remove it",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_problem_has_the_line_the_path_and_what_is_allowed(tmp_path: Path, case: str) -> None:
    text, message = REFUSED[case]
    assert problems(tmp_path, HEAD + text.replace("{folder}", tmp_path.name)) == [message]


def test_all_problems_are_reported_together_in_the_order_of_lines(tmp_path: Path) -> None:
    text = "pipeline: Orders\nsource: {type: postgres}\nroutin: {column: x}\nkey: id\nmode: miror\n" + ONE
    assert problems(tmp_path, text) == [
        "orders.yaml:1: pipeline: must be 1 to 64 of a-z, 0-9, _ and -, it is 'Orders'",
        "orders.yaml:2: source.type: must be ducklake, delta or log, it is 'postgres'",
        "orders.yaml:3: routin: unknown key; did you mean routing?",
        "orders.yaml:4: key: must be a list, such as [a, b], each the name of a column, it is 'id'",
        "orders.yaml:5: mode: must be append, history or mirror, it is 'miror'",
    ]


def test_a_problem_of_the_defaults_is_reported_once(tmp_path: Path) -> None:
    text = HEAD + "defaults: {type: delta, path: 12}\ndestinations: [{name: a}, {name: b}]\n"
    assert problems(tmp_path, text) == ["orders.yaml:5: defaults.path: must be a text, it is 12"]


def test_a_thousand_problems_do_not_flood_the_screen(tmp_path: Path) -> None:
    text = HEAD + "destinations:\n" + "- {nam: x}\n" * 1000
    found = problems(tmp_path, text)
    assert len(found) == PROBLEMS_SHOWN_MAX + 1
    assert found[-1] == "and 2950 more; correct these first"


def test_a_missing_empty_or_binary_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*gone\.yaml: No such file or directory; name the pipeline's"):
        load_pipeline(tmp_path / "gone.yaml")
    assert problems(tmp_path, "# nothing\n") == ["orders.yaml is empty; `trunkline deliver init` writes an example"]
    (tmp_path / "latin.yaml").write_bytes(b"a: \xff")
    with pytest.raises(ConfigError, match="not UTF-8 at byte 3"):
        load_pipeline(tmp_path / "latin.yaml")


# URLs: as a path one is a local folder called "s3:", where no one would look for the rows

DELTA = "destinations: [{name: a, type: delta, path: '%s'}]"
LAKE = "destinations: [{name: a, type: ducklake, catalog: '%s', data_path: '%s', table: t}]"
S3 = "must be a path in the file system: s3: is not supported (before a path with a colon write ./)"
ONLY_S3 = "gs: is not supported: of object stores, only s3://BUCKET/PREFIX is"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (DELTA % "s3:bucket", f"orders.yaml:5: destinations[0].path: {ONLY_S3.replace('gs', 's3')}"),
        (DELTA % "file:///x", "orders.yaml:5: destinations[0].path: is a URL; write the path alone, without file:"),
        (DELTA % "x/s3://bucket", f"orders.yaml:5: destinations[0].path: {S3.replace('s3: is', 'URLs are')}"),
        (DELTA % "{name}3://x", f"orders.yaml:5: destinations[0].path: {S3.replace('s3:', 'a3:')} (for a)"),
        (LAKE % ("sqlite:a.db", "gs://x"), f"orders.yaml:5: destinations[0].data_path: {ONLY_S3}"),
        (LAKE % ("sqlite:s3://a.db", "x"), f"orders.yaml:5: destinations[0].catalog: {S3}"),
        (
            "discover: {template: {type: delta, path: '{value}://x'}}",
            f"orders.yaml:5: discover.template.path: {S3.replace('s3', 'sample')} (for sample)",
        ),
        (
            (
                "defaults: {type: ducklake, data_path: 'abfs://{value}', table: t}\n"
                "discover: {template: {catalog: '{value}'}}"
            ),
            f"orders.yaml:5: defaults.data_path: {ONLY_S3.replace('gs', 'abfs')} (for sample)",
        ),
        (ONE + "control: {store: 'sqlite:s3://x/control.db'}", f"orders.yaml:6: control.store: {S3}"),
        (
            ONE + "control: {store: 's3://x/control.db'}",
            "orders.yaml:6: control.store: must be sqlite:PATH or postgres:DSN",
        ),
    ],
)
def test_a_url_where_a_path_belongs_is_refused(tmp_path: Path, text: str, message: str) -> None:
    assert problems(tmp_path, HEAD + text) == [message]


def test_a_table_of_a_log_has_a_schema_and_is_of_a_capture(tmp_path: Path) -> None:
    for log, why in {
        "{type: log, log: shop, table: orders}": "'orders' has no schema; write SCHEMA.TABLE, such as public.orders",
        "{type: log, log: shop, table: public.orders, format: debezium}": (
            "is for logs that `trunkline capture` writes; remove it, or `format`"
        ),
    }.items():
        found = problems(tmp_path, HEAD.replace("{type: delta, path: source}", log) + ONE)
        assert found == [f"orders.yaml:2: source.table: {why}"]


def test_a_url_of_a_source_is_refused(tmp_path: Path) -> None:
    assert problems(tmp_path, HEAD.replace("path: source", "path: 'gs://bucket/x'") + ONE) == [
        f"orders.yaml:2: source.path: {ONLY_S3}"
    ]
    log = "{type: log, log: 's3://a', connect: 'http://h:1', malformed: skip, dead_letters: 's3://b', tls_ca: 's3://c'}"
    assert problems(tmp_path, HEAD.replace("{type: delta, path: source}", log) + ONE) == [
        "orders.yaml:2: source.log: is a URL; write the name of a log",
        "orders.yaml:2: source.connect: 'http://h:1' is not a valid address; write host:port, or [host]:port for IPv6",
        "orders.yaml:2: source.dead_letters: is a URL; write the name of a log",
        f"orders.yaml:2: source.tls_ca: {S3}",
    ]


# Secrets


@pytest.mark.parametrize(
    "where",
    [
        "{name: a, type: postgres, table: t, dsn: 'host=h password=314159'}",
        "{name: a, type: postgres, table: t, dsn: 'postgresql://u:314159@h/d'}",
        "{name: a, type: postgres, table: t, dsn: 'postgresql://u@h/d?password=314159'}",
        "{name: a, type: postgres, table: t, dsn: 'host=h sslpassword=314159'}",
        "{name: a, type: postgres, table: t, dsn: 'host=h 314159'}",
        "{name: a, type: postgres, table: t, dsn: 'host=h', password_env: '314159!'}",
        "{name: a, type: postgres, table: t, dsn: 'host=h', password_env: 314159}",
        "{name: a, type: postgres, table: t, dsn: 'host=h', password: 314159}",
        "{name: a, type: ducklake, table: t, catalog: 'postgres:host=h password=314159'}",
        "{name: a, type: ducklake, table: t, catalog: 'postgresql://u:314159@h/d'}",
        "{name: a, type: ducklake, table: t, catalog: 'host=h password=314159'}",
    ],
)
def test_a_secret_in_the_file_is_refused_and_not_repeated(tmp_path: Path, where: str) -> None:
    (found,) = problems(tmp_path, HEAD + f"destinations: [{where}]\n")
    assert found.startswith("orders.yaml:5: destinations[0].")
    assert "314159" not in found


def test_a_secret_of_the_control_store_is_refused_and_not_repeated(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, HEAD + ONE + "control: {store: 'postgres:host=h password=314159'}\n")
    assert found.startswith("orders.yaml:6: control.store: holds a password; remove it")
    assert "314159" not in found


@pytest.mark.parametrize("setting", ["executor.extraJavaOptions", "driver.defaultJavaOptions", "jars.repositories"])
def test_a_setting_that_java_is_started_with_cannot_be_a_secret(tmp_path: Path, setting: str) -> None:
    text = HEAD + ONE + f"spark: {{conf_env: {{spark.{setting}: OPTIONS, spark.hadoop.fs.s3a.secret.key: OPTIONS}}}}"
    (found,) = problems(tmp_path, text, {"OPTIONS": "x"})
    assert found == (
        f"orders.yaml:6: spark.conf_env.spark.{setting}: is read when Java starts, and is visible in its "
        "command line; move it to spark.conf"
    )


def test_every_missing_variable_is_found_unless_it_is_not_needed(tmp_path: Path) -> None:
    text = HEAD.replace("type: delta, path: source", "type: ducklake, catalog: 'postgres:', table: t, password_env: S")
    text += (
        "defaults: {type: postgres, dsn: 'dbname={name}', table: t, password_env: '{name}_PASSWORD'}\n"
        "destinations: [{name: a}, {name: b}]\n"
        "discover: {}\n"
        "control: {store: 'postgres:', password_env: C}\n"
        "spark: {conf_env: {spark.ssl.keyPassword: K}}\n"
    )
    there = {"a_PASSWORD": "x", "C": ""}
    assert problems(tmp_path, text, there) == [
        f"orders.yaml:2: source.password_env: {UNSET.format('S')}",
        f"orders.yaml:5: defaults.password_env: {UNSET.format('b_PASSWORD')}",
        f"orders.yaml:8: control.password_env: {UNSET.format('C')}",
        f"orders.yaml:9: spark.conf_env.spark.ssl.keyPassword: {UNSET.format('K')}",
    ]
    assert load(tmp_path, text, None).control.password_env == "C"
    complete = {**there, "S": "1", "b_PASSWORD": "2", "C": "3", "K": "4"}
    assert load(tmp_path, text, complete) == load(tmp_path, text, None)
