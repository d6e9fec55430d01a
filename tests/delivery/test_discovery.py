"""New routing values become destinations like the template."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from delivery.pipeline_files import HEAD, ONE, load
from trunkline.delivery.config import (
    DestinationConfig,
    Pipeline,
    discovered,
)
from trunkline.delivery.config.address_rules import safe
from trunkline.delivery.config.addresses import DeltaAddress


def tenants(folder: Path, extra: str = "", template: str = "{type: delta, path: 'tenants/{value}'}") -> Pipeline:
    return load(folder, HEAD + ONE + f"discover: {{template: {template}{extra}}}\n")


def test_a_new_routing_value_gets_a_destination_like_the_template(tmp_path: Path) -> None:
    found = discovered(tenants(tmp_path), ["beta", "acme", "beta"])
    assert found.refused == ()
    assert found.destinations == (
        DestinationConfig(
            name="beta",
            address=DeltaAddress(path=f"{tmp_path}/tenants/beta"),
            values=("beta",),
            mode="mirror",
            duplicates="halt",
            seed="scan",
        ),
    )
    assert discovered(tenants(tmp_path), ["beta"], present=found.destinations).destinations == ()


def test_without_discover_nothing_is_discovered(tmp_path: Path) -> None:
    assert discovered(load(tmp_path, HEAD + ONE), ["beta"]).destinations == ()


def test_the_pattern_must_match_the_whole_value(tmp_path: Path) -> None:
    found = discovered(tenants(tmp_path, ", pattern: '[a-z]+'"), ["beta", "b1", "beta\n"])
    assert [each.name for each in found.destinations] == ["beta"]


def test_beyond_the_limit_values_are_refused(tmp_path: Path) -> None:
    pipeline = tenants(tmp_path, ", limit: 2")
    found = discovered(pipeline, ["a", "b", "c", "d"])
    assert [each.name for each in found.destinations] == ["a", "b"]
    assert found.refused == ("2 routing values get no destination: raise discover.limit (2)",)
    assert discovered(pipeline, ["c"], found.destinations).destinations == ()


def test_two_values_that_would_share_a_table_are_not_both_delivered(tmp_path: Path) -> None:
    found = discovered(tenants(tmp_path), ["beta", "Beta"])
    assert [each.name for each in found.destinations] == ["beta"]
    assert found.refused == (
        (
            "routing value 'Beta' gets no destination: its table is that of destination beta; "
            "give it one under `destinations`"
        ),
    )
    beside = tenants(tmp_path, template="{type: delta, path: '{value}'}")
    assert discovered(beside, ["Acme", "source"]).destinations == ()


def test_a_name_that_postgresql_would_cut_is_refused_when_it_is_found(tmp_path: Path) -> None:
    template = "{type: postgres, dsn: dbname=d, table: 'orders_of_tenant_{value}'}"
    found = discovered(tenants(tmp_path, template=template), ["x" * 48, "y"])
    assert [each.name for each in found.destinations] == ["y"]
    assert "longer than PostgreSQL's 63 bytes" in found.refused[0]


@given(st.text())
def test_a_routing_value_is_safe_in_file_and_table_names(value: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,56}", safe(value))
    assert not safe(value).startswith("_trunkline")


def test_plain_values_keep_their_name_and_others_stay_apart() -> None:
    assert safe("tenant-07.eu") == "tenant-07.eu"
    odd = ["", " ", "a b", "a_b", "a/b", "../a", ".", "..", "é", "_trunkline_x", "x" * 49, "x" * 50]
    assert len({safe(each) for each in odd}) == len(odd)
