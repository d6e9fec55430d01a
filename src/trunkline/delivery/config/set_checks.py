"""Checks of a file that has, or lacks, ``tables`` and ``routing``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from trunkline.delivery.config.address_rules import (
    TABLE_PLACEHOLDERS,
    has_table,
    kind_of,
    lacks,
    placeholders,
    store_identity,
    table_fields,
)
from trunkline.delivery.config.addresses import Address, DeltaAddress, LakeAddress, LogAddress
from trunkline.delivery.config.cross_checks import Placed
from trunkline.delivery.config.table_patterns import LEFT_OUT, Selection, exact_name
from trunkline.delivery.config.tree import DiscoverConfig, TableConfig
from trunkline.delivery.config.yaml_file import Problems, YamlNode

OF_SETS: Final = ("without_routing_column", "dropped_tables")
NO_SECRET: Final = "hash needs mask_secret_env, the name of the environment variable that holds its key; add it"


def check_sets(
    root: YamlNode,
    found: Mapping[str, Any],
    source: Address | None,
    placed: Sequence[Placed],
    discover: DiscoverConfig | None,
    problems: Problems,
) -> None:
    """``found``: the keys of the pipeline that could be read."""
    tables: tuple[TableConfig, ...] = found["tables"]
    if "tables" in root.items():
        _check_source(root, source, problems)
    else:
        for name in (name for name in OF_SETS if name in root.items()):
            problems.add(root.at(name), "is about sets of tables; remove it, or list `tables`")
    template = root.at("discover").at("template")
    everywhere = [*placed, *([(template, discover.template)] if discover is not None else [])]
    if tables:
        _check_addresses(source, tables, everywhere, problems)
    _check_histories(tables, everywhere, problems)
    if root.at("routing").value is None:
        _check_unrouted(root, problems)
    for node, why in _without_secret(root, found):
        problems.add(node, why)


def _check_source(root: YamlNode, source: Address | None, problems: Problems) -> None:
    node = root.at("source")
    if isinstance(source, DeltaAddress):
        problems.add(root.at("tables"), "a Delta source is one table; remove this key, or use a lake or a log")
    elif isinstance(source, LogAddress) and source.format == "debezium":
        problems.add(root.at("tables"), "is for logs that `trunkline capture` writes; remove it, or `format`")
    elif source is not None and node.at("table").value is not None:
        problems.add(node.at("table"), "`tables` lists the tables of the source; remove this key")


def _check_addresses(
    source: Address | None, tables: Sequence[TableConfig], everywhere: Sequence[Placed], problems: Problems
) -> None:
    wanted = [each.table for each in tables if not each.table.startswith(LEFT_OUT)]
    schema = source.schema if isinstance(source, LakeAddress) else "public"
    selection = Selection(tuple(each.table for each in tables), schema)
    many = len(wanted) != 1 or exact_name(wanted[0]) is None
    for node, destination in everywhere:
        address = destination.address
        if many and not has_table(address):
            where = table_fields(type(address))[0]
            problems.add(node.at(where), "gives every table of the source the same table; use {table} in it")
        elif _in_source(source, address, selection):
            why = (
                f"destination {destination.name} is in the source's catalog, where entries of `tables` match its tables"
            )
            problems.add(node, f"{why}, too; give it a schema that none matches, or another catalog")


def _check_histories(tables: Sequence[TableConfig], everywhere: Sequence[Placed], problems: Problems) -> None:
    """Mode history is one that the kind has. A key has one open version, so no two rows may share one."""
    for node, destination in everywhere:
        for entry in [each for each in tables if not each.table.startswith(LEFT_OUT)] or [TableConfig(table="")]:
            mode, policy = entry.mode or destination.mode, entry.duplicates or destination.duplicates
            of = f" of {entry.table}" if entry.table else ""
            if mode == "history" and lacks(destination.address, "history"):
                kind = kind_of(destination.address)
                problems.add(node.at("mode"), f"type {kind} has no mode history{of}; use mode mirror or append")
                break
            if (mode, policy) == ("history", "warn"):
                why = f"mode history{of} keeps one open version of a key; use duplicates: halt, or mode mirror"
                problems.add(node.at("duplicates"), why)
                break


def _in_source(source: Address | None, address: Address, selection: Selection) -> bool:
    """Whether tables of a destination could be taken for tables of the source."""
    if not isinstance(source, LakeAddress) or not isinstance(address, LakeAddress):
        return False
    if store_identity(source.catalog) != store_identity(address.catalog):
        return False
    filled_in = not placeholders(address.schema).isdisjoint({"value", "name", *TABLE_PLACEHOLDERS})
    return filled_in or selection.reaches(address.schema)


def _check_unrouted(root: YamlNode, problems: Problems) -> None:
    if root.at("discover").value is not None:
        problems.add(root.at("discover"), "needs `routing`, which names the column with the values; add it")
    entries = root.at("tables").value
    for each in entries if isinstance(entries, list) else []:
        if each.at("routing").value is not None:
            why = "needs `routing` of the pipeline, which names the column of the other tables; add it, or remove this"
            problems.add(each.at("routing"), why)


def _without_secret(root: YamlNode, found: Mapping[str, Any]) -> Iterator[tuple[YamlNode, str]]:
    """Masks that are hashes without a key."""
    if root.at("mask_secret_env").value is not None:
        return
    entries = root.at("tables").value
    for owner in [root, *(entries if isinstance(entries, list) else [])]:
        if owner.at("mask_secret_env").value is None:
            masks = owner.at("mask").items().values()
            yield from ((mask, NO_SECRET) for mask in masks if mask.value == "hash")
