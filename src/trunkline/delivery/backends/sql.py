"""SQL texts, and what is worth showing of a database's error."""

from __future__ import annotations

from collections.abc import Iterable


def literal(value: str | bool | int) -> str:
    """A SQL literal: prepared parameters made some queries many times slower."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value).lower()


def identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def identifiers(names: Iterable[str]) -> str:
    return ", ".join(identifier(name) for name in names)


def spark_identifier(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def same_key(names: Iterable[str], left: str, right: str) -> str:
    """The condition that two rows have the same key, NULL equal to NULL."""
    return " AND ".join(f"{left}.{identifier(name)} IS NOT DISTINCT FROM {right}.{identifier(name)}" for name in names)


def first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]
