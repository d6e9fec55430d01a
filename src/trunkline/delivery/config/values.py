"""Reads the values of a file by the types of a struct's fields; an error message repeats what is allowed.

A field's ``Meta`` may have ``extra``: ``allowed`` (describes its pattern) and ``as_text`` (numbers, true and false
stand for their text). Its ``description`` documents the key.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Any, Final, TypeVar

from msgspec import NODEFAULT, Struct, inspect

from trunkline.delivery.config.yaml_file import Problems, YamlNode

SHOWN_CHARS_MAX: Final = 60
WRONG: Final = object()  # replaces an invalid value; its problem is recorded
AnyStruct = TypeVar("AnyStruct", bound=Struct)


class Key(Struct, frozen=True):
    """A key that a mapping may have."""

    attribute: str
    type: inspect.Type
    required: bool
    default: Any
    note: str
    allowed: str


def keys_of(struct: type[Struct]) -> dict[str, Key]:
    """By the name in the file, in the order of the struct."""
    described = inspect.type_info(struct)
    assert isinstance(described, inspect.StructType)
    return {field.encode_name: _key(field) for field in described.fields}


def _key(field: inspect.Field) -> Key:
    default = field.default if field.default is not NODEFAULT else None
    if field.default_factory is not NODEFAULT:
        default = field.default_factory()
    note = (
        (field.type.extra_json_schema or {}).get("description", "") if isinstance(field.type, inspect.Metadata) else ""
    )
    return Key(field.name, field.type, field.required, default, str(note), allowed(field.type))


def read_mapping(
    node: YamlNode, keys: Mapping[str, Key], problems: Problems, elsewhere: Collection[str] = ()
) -> dict[str, Any]:
    """The values that could be read, by attribute; unknown and missing keys are problems.

    ``elsewhere``: keys that are known and that the caller reads.
    """
    if not isinstance(node.value, dict):
        problems.add(node, f"must be a mapping with the keys {_listed([*elsewhere, *keys])}, it is {shown(node.value)}")
        return {}
    known = [*elsewhere, *keys]
    for name in (name for name in node.value if name not in known):
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"the keys are {_listed(known)}"
        problems.add(node.at(name), f"unknown key; {hint}")
    found: dict[str, Any] = {}
    for name, key in keys.items():
        if name in node.value:
            value = read_value(node.value[name], key.type, problems)
            if value is not WRONG:
                found[key.attribute] = value
        elif key.required:
            problems.add(node.at(name), f"missing; it must be {key.allowed}")
    return found


def read_struct(node: YamlNode, struct: type[AnyStruct], problems: Problems) -> AnyStruct | None:
    """``None`` if a value is invalid; its problem is recorded."""
    before = problems.count
    found = read_mapping(node, keys_of(struct), problems)
    return struct(**found) if problems.count == before else None


def read_value(node: YamlNode, wanted: inspect.Type, problems: Problems) -> Any:
    """The typed value, or ``WRONG``."""
    plain, extra = _unwrapped(wanted)
    if isinstance(plain, inspect.UnionType):  # a type or nothing
        if node.value is None:
            return None
        return read_value(node, _without_none(plain), problems)
    if isinstance(plain, inspect.StructType):
        read = read_struct(node, plain.cls, problems)
        return WRONG if read is None else read
    if isinstance(plain, inspect.VarTupleType) and isinstance(node.value, list):
        return _read_all(node.value, plain.item_type, problems)
    if isinstance(plain, inspect.DictType) and isinstance(node.value, dict):
        values = _read_all(list(node.value.values()), plain.value_type, problems)
        return WRONG if values is WRONG else dict(zip(node.value, values, strict=True))
    value = _as_text(node.value) if extra.get("as_text") else node.value
    if not _fits(value, plain):
        # Someone may have written the secret itself instead of the variable's name.
        but = "" if "_env" in node.path else f", it is {shown(node.value)}"
        problems.add(node, f"must be {allowed(wanted)}{but}")
        return WRONG
    if isinstance(value, str) and not extra.get("as_text") and not value.isprintable():
        problems.add(node, "has a character that cannot be printed; remove it")
        return WRONG
    return value


def _read_all(nodes: list[YamlNode], wanted: inspect.Type, problems: Problems) -> Any:
    values = tuple(read_value(each, wanted, problems) for each in nodes)
    return WRONG if any(value is WRONG for value in values) else values


def _fits(value: object, wanted: inspect.Type) -> bool:
    match wanted:
        case inspect.BoolType():
            return isinstance(value, bool)
        case inspect.IntType(ge=least, le=most):
            whole = isinstance(value, int) and not isinstance(value, bool)
            return whole and (least is None or value >= least) and (most is None or value <= most)  # type: ignore[operator]
        case inspect.LiteralType(values=choices):
            return isinstance(value, str) and value in choices
        case inspect.StrType(pattern=pattern, min_length=least):
            if not isinstance(value, str) or len(value) < (1 if least is None else least):
                return False
            return pattern is None or re.search(pattern, value) is not None
    return False


def _as_text(value: object) -> object:
    """Numbers, true and false as a database writes them."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else value


def allowed(wanted: inspect.Type) -> str:
    """In words."""
    plain, extra = _unwrapped(wanted)
    if "allowed" in extra:
        return str(extra["allowed"])
    match plain:
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType(ge=least, le=most):
            return "a whole number" if least is None or most is None else f"a whole number from {least} to {most}"
        case inspect.LiteralType(values=choices):
            return one_of([str(choice) for choice in choices])
        case inspect.VarTupleType(item_type=item):
            return f"a list, such as [a, b], each {allowed(item)}"
        case inspect.DictType():
            return "a mapping"
        case inspect.StructType(fields=fields):
            return "a mapping with the keys " + _listed([field.encode_name for field in fields])
        case inspect.UnionType():
            return allowed(_without_none(plain))
    return "a text"


def shown(value: object) -> str:
    """For a message; never used for what may be a secret."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "empty"
    text = repr(value) if isinstance(value, str) else str(_as_text(value))
    return text if len(text) <= SHOWN_CHARS_MAX else text[: SHOWN_CHARS_MAX - 1] + "…"


def _unwrapped(wanted: inspect.Type) -> tuple[inspect.Type, dict[str, Any]]:
    if isinstance(wanted, inspect.Metadata):
        return wanted.type, wanted.extra or {}
    return wanted, {}


def _without_none(union: inspect.UnionType) -> inspect.Type:
    return next(each for each in union.types if not isinstance(each, inspect.NoneType))


def _listed(names: list[str]) -> str:
    return ", ".join(names)


def one_of(names: Collection[str]) -> str:
    """In words."""
    names = list(names)
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
