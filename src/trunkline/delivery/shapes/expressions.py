"""SQL expressions of a shape: parsed by DuckDB, and allowed node by node.

Rules
 X1  An expression is one scalar expression over the columns of its table. DuckDB's parser makes a tree of it, and each
     node must be of a kind that is listed here: no subquery, aggregate, window, parameter, lambda, star, collation.
 X2  A function must be listed in ``functions``. A name without parentheses must be a column: without one, DuckDB takes
     some names for functions (``current_date``).
 X3  Length and depth are limited, before and after the parser.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from trunkline.delivery.shapes.functions import allowed_functions
from trunkline.delivery.shapes.sealed_duckdb import sealed_duckdb
from trunkline.errors import ConfigError

CHARACTERS_MAX: Final = 10_000  # more: a parser that is given nonsense takes long; fewer: long CASE lists do not fit
DEPTH_MAX: Final = 100  # nested nodes; below that of DuckDB's parser
KINDS: Final = frozenset({"CONSTANT", "COLUMN_REF", "FUNCTION", "COMPARISON", "CONJUNCTION", "CASE", "CAST", "BETWEEN"})
OPERATORS: Final = frozenset(
    {"OPERATOR_NOT", "OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL", "OPERATOR_COALESCE", "OPERATOR_TRY", "OPERATOR_NULLIF"}
    | {"COMPARE_IN", "COMPARE_NOT_IN", "ARRAY_EXTRACT", "ARRAY_SLICE"}
)
SPELLED: Final = {
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
    "PARAMETER": "a parameter",
    "LAMBDA": "a lambda or the operator ->",
    "STAR": "a star",
    "COLLATE": "a collation",
    "POSITIONAL_REFERENCE": "a reference by position",
}
SCALAR: Final = "an expression is one scalar expression over the columns of its table"


class Expression(Struct, frozen=True):
    """An expression that is allowed."""

    name: str  # where it stands in the pipeline's file
    text: str
    inputs: tuple[str, ...]  # the columns that it uses, as the table spells them, in order of their first use


def parsed(name: str, text: str, columns: Mapping[str, str]) -> Expression:
    """``columns``: names of the table by their lower case. Raises ``ConfigError`` that begins with the name."""
    try:
        nodes = list(_nodes(_tree(text)))
        inputs = dict.fromkeys(_column(node, columns) for node in nodes if node["class"] == "COLUMN_REF")
        for node in nodes:
            _check(node)
    except _NotAllowed as error:
        raise ConfigError(f"{name}: {error}") from None
    return Expression(name, text, tuple(inputs))


class _NotAllowed(Exception):
    pass


def _tree(text: str) -> dict[str, Any]:
    """The node of the only expression."""
    if len(text) > CHARACTERS_MAX:
        raise _NotAllowed(f"it has {len(text):,} characters; at most {CHARACTERS_MAX:,} are allowed")
    if not text.strip() or "\0" in text or any("\ud800" <= each <= "\udfff" for each in text):
        raise _NotAllowed(f"it is empty, or has a character that is not allowed; {SCALAR}")
    with sealed_duckdb() as connection:
        found = connection.execute("SELECT json_serialize_sql($1)", [f"SELECT {text}\n"]).fetchone()
    assert found is not None
    try:
        document = msgspec.json.decode(found[0])
    except msgspec.DecodeError:
        raise _NotAllowed("it has a number that is too large") from None
    if document["error"]:
        raise _NotAllowed(f"DuckDB cannot parse it ({document['error_message'].splitlines()[0]}); {SCALAR}")
    statements = document["statements"]
    query = statements[0]["node"]
    plain: dict[str, Any] = {
        "modifiers": [],
        "where_clause": None,
        "group_expressions": [],
        "group_sets": [],
        "having": None,
    }
    plain |= {"sample": None, "qualify": None, "cte_map": {"map": []}}
    if (
        len(statements) > 1
        or query["type"] != "SELECT_NODE"
        or query["from_table"]["type"] != "EMPTY"
        or any(query[field] != empty for field, empty in plain.items())
        or len(query["select_list"]) != 1
        or query["select_list"][0]["alias"]
    ):
        raise _NotAllowed(f"it is more than an expression; {SCALAR}")
    node: dict[str, Any] = query["select_list"][0]
    return node


def _nodes(root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every node of a tree, without recursion. Those that are not allowed are not entered."""
    waiting: list[tuple[Any, int]] = [(root, 1)]
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, list):
            waiting += [(each, depth) for each in reversed(value)]
        elif isinstance(value, dict):
            if "class" in value:
                if depth > DEPTH_MAX:
                    raise _NotAllowed(f"it is nested more than {DEPTH_MAX} deep; simplify it")
                _check_kind(value)
                yield value
                depth += 1
            below = [each for key, each in value.items() if key not in ("value", "cast_type")]
            waiting += [(each, depth) for each in reversed(below)]


def _check_kind(node: Mapping[str, Any]) -> None:
    """X1."""
    kind, type_ = node["class"], node["type"]
    if kind in KINDS or (kind == "OPERATOR" and type_ in OPERATORS):
        return
    spelled = SPELLED.get(kind, f"the operator {type_}" if kind == "OPERATOR" else kind)
    raise _NotAllowed(f"it has {spelled}, which is not allowed; {SCALAR}")


def _check(node: Mapping[str, Any]) -> None:
    """X2."""
    if node["class"] != "FUNCTION":
        return
    function = node["function_name"]
    if node["schema"] not in ("", "main") or node["catalog"] or function.lower() not in allowed_functions():
        raise _NotAllowed(
            f"it calls the function {function:.100}, which is not in the list of functions whose result depends on "
            "their arguments alone"
        )
    if node["filter"] is not None or node["order_bys"]["orders"] or node["distinct"] or node["export_state"]:
        raise _NotAllowed(f"it calls {function:.100} as an aggregate, which is not allowed; {SCALAR}")


def _column(node: Mapping[str, Any], columns: Mapping[str, str]) -> str:
    names = node["column_names"]
    if len(names) != 1 or names[0].lower() not in columns:
        raise _NotAllowed(f"{'.'.join(names):.200} is not a column of the source table")
    return columns[names[0].lower()]
