"""SQL texts, and what is worth showing of a database's error."""

from __future__ import annotations


def literal(value: str | bool | int) -> str:
    """A SQL literal: prepared parameters made some queries many times slower."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value).lower()


def identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]
