"""Reads what a file says about tables: the entries of ``tables``, and how rows are shaped."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from trunkline.delivery.changes.rows import RESERVED_PREFIX
from trunkline.delivery.changes.shape import Mask
from trunkline.delivery.config.table_patterns import LEFT_OUT, exact_name
from trunkline.delivery.config.tree import ColumnsConfig, RoutingConfig, TableConfig
from trunkline.delivery.config.values import keys_of, read_mapping, shown
from trunkline.delivery.config.yaml_file import Problems, YamlNode
from trunkline.errors import ConfigError

MASK_FORMS: Final = "hash, null or {constant: TEXT}"


def read_tables(node: YamlNode, problems: Problems) -> tuple[TableConfig, ...]:
    """The entries that could be read."""
    if not isinstance(node.value, list):
        problems.add(node, f"must be a list of tables, such as [public.orders, shop.*], it is {shown(node.value)}")
        return ()
    read = [(each, entry) for each in node.value if (entry := read_table(each, problems)) is not None]
    if len(read) == len(node.value) and all(entry.table.startswith(LEFT_OUT) for _, entry in read):
        problems.add(node, "selects no table; list those that are delivered, such as public.*")
    first: dict[str, YamlNode] = {}
    for each, entry in read:
        if (other := first.setdefault(entry.table, each)) is not each:
            problems.add(each, f"{shown(entry.table)} is also {other.path}; keep one")
    return tuple(entry for _, entry in read)


def read_table(node: YamlNode, problems: Problems) -> TableConfig | None:
    """One entry; ``None``: it has problems."""
    before = problems.count
    keys = {name: key for name, key in keys_of(TableConfig).items() if name not in ("line", "mask")}
    if isinstance(node.value, str):
        found: dict[str, Any] = {"table": node.value}
    elif isinstance(node.value, dict):
        found = read_mapping(node, keys, problems, elsewhere=("mask",))
        found["mask"] = read_mask(node.at("mask"), problems)
    else:
        wanted = f"{keys['table'].allowed}, or a mapping with the key table"
        problems.add(node, f"must be {wanted}, it is {shown(node.value)}")
        return None
    if "table" in found:
        _check_pattern(node, found["table"], found, problems)
    check_columns_of(node, found, problems)
    return TableConfig(**found, line=node.line) if problems.count == before else None


def _check_pattern(node: YamlNode, pattern: str, found: Mapping[str, Any], problems: Problems) -> None:
    at = node.at("table") if isinstance(node.value, dict) else node
    try:
        exact_name(pattern.removeprefix(LEFT_OUT))
    except ConfigError as error:
        problems.add(at, str(error))
    if pattern.startswith(LEFT_OUT) and any(value for name, value in found.items() if name != "table"):
        problems.add(at, f"leaves tables out, so its other keys have no effect; remove them, or the {LEFT_OUT}")


def read_mask(node: YamlNode, problems: Problems) -> dict[str, Mask]:
    """The masks that could be read."""
    if node.value is None:
        return {}
    if not isinstance(node.value, dict):
        problems.add(node, f"must be a mapping of columns to {MASK_FORMS}, it is {shown(node.value)}")
        return {}
    read = ((column, _mask(each, problems)) for column, each in node.value.items())
    return {column: mask for column, mask in read if mask is not None}


def _mask(node: YamlNode, problems: Problems) -> Mask | None:
    if node.value is None or node.value == "null":
        return Mask("null")
    if node.value == "hash":
        return Mask("hash")
    if list(node.items()) == ["constant"] and isinstance(constant := node.at("constant").value, str | int):
        return Mask("constant", str(constant).lower() if isinstance(constant, bool) else str(constant))
    problems.add(node, f"must be {MASK_FORMS}, it is {shown(node.value)}")
    return None


def check_columns_of(node: YamlNode, found: Mapping[str, Any], problems: Problems) -> None:
    """Columns of an entry, or of the pipeline: their names, and whether they contradict each other."""
    columns = found.get("columns") or ColumnsConfig()
    at = node.at("columns")
    if columns.include and columns.exclude:
        problems.add(at.at("exclude"), "is of no use beside include; keep one of them")
    for name in ("include", "exclude"):
        _check_twice(at.at(name), getattr(columns, name), problems)
    _check_key(node, found, problems)
    for column in columns.rename:
        if column in columns.exclude or (columns.include and column not in columns.include):
            problems.add(at.at("rename").at(column), "is not delivered, so it needs no name; remove it")
    computed = found.get("computed", {})
    for column in (each for each in columns.exclude if each in found.get("key", ()) and each not in computed):
        problems.add(at.at("exclude"), f"names the key column {column!r}; deliver it, or choose another key")
    _check_new_names(node, columns, computed, problems)


def _check_key(node: YamlNode, found: Mapping[str, Any], problems: Problems) -> None:
    """Also the routing column."""
    _check_twice(node.at("key"), found.get("key", ()), problems)
    named = [(node.at("key"), column) for column in found.get("key", ())]
    match found.get("routing"):
        case RoutingConfig(column=column):
            named.append((node.at("routing").at("column"), column))
        case str(column):
            named.append((node.at("routing"), column))
    for at, column in named:
        if column.lower().startswith(RESERVED_PREFIX):
            problems.add(at, f"{column!r} starts with the reserved prefix {RESERVED_PREFIX}; rename the column")


def _check_twice(node: YamlNode, names: Collection[str], problems: Problems) -> None:
    if len({name.lower() for name in names}) < len(names):
        problems.add(node, "names a column twice; keep one")


def _check_new_names(node: YamlNode, columns: ColumnsConfig, computed: Mapping[str, str], problems: Problems) -> None:
    taken: dict[str, str] = {}
    for at, name, what in _new_names(node, columns, computed):
        if name.lower().startswith(RESERVED_PREFIX):
            problems.add(at, f"{name!r} starts with the reserved prefix {RESERVED_PREFIX}; choose another name")
        holder = taken.setdefault(name.lower(), what)
        if holder != what:
            problems.add(at, f"{name!r} is also the name of {holder}; choose another")


def _new_names(
    node: YamlNode, columns: ColumnsConfig, computed: Mapping[str, str]
) -> Iterator[tuple[YamlNode, str, str]]:
    rename = node.at("columns").at("rename")
    yield from ((rename.at(old), new, f"column {old!r}") for old, new in columns.rename.items())
    yield from ((node.at("computed").at(name), name, f"the computed column {name!r}") for name in computed)
