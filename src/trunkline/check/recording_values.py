"""Decodes the JSON of a recording into values.

msgspec alone cannot: a field may hold any subclass of its type, and ``type`` names the subclass. Each converter is
built once and cached, since a recording has millions of values.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct

Converter = Callable[[Any], Any]


def decode(value: Any, hint: Any) -> Any:
    """The value of the hinted type; raises ValueError, TypeError or ``msgspec.ValidationError`` if it does not fit."""
    return _converter(hint)(value)


@cache
def _converter(hint: Any) -> Converter:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _union(tuple(_converter(arm) for arm in arguments))
    if origin is tuple and arguments[-1] is not Ellipsis:
        return _fixed(tuple(_converter(each) for each in arguments))
    if origin in (tuple, Sequence):
        return _many(tuple, _converter(arguments[0]), hint)
    if origin in (list, set, frozenset):
        return _many(origin, _converter(arguments[0]), hint)
    if isinstance(hint, type) and issubclass(hint, Struct):
        return lambda value: _struct(value, hint)
    if hint in (int, str, bool):
        return lambda value: value if type(value) is hint else msgspec.convert(value, hint)
    return lambda value: msgspec.convert(value, hint)


def _union(arms: tuple[Converter, ...]) -> Converter:
    def convert(value: Any) -> Any:
        problem: Exception | None = None
        for arm in arms:
            try:
                return arm(value)
            except (msgspec.ValidationError, TypeError, ValueError) as error:
                problem = error
        raise ValueError(str(problem))

    return convert


def _fixed(places: tuple[Converter, ...]) -> Converter:
    def convert(value: Any) -> Any:
        if not isinstance(value, list) or len(value) != len(places):
            raise ValueError(f"expected a list of {len(places)} values")
        return tuple(place(each) for place, each in zip(places, value, strict=True))

    return convert


def _many(container: Callable[[Any], Any], one: Converter, hint: Any) -> Converter:
    def convert(value: Any) -> Any:
        if not isinstance(value, list):
            raise ValueError(f"expected a list for {hint}")
        return container(map(one, value))

    return convert


def _struct(value: Any, root: type[Struct]) -> Struct:
    if not isinstance(value, dict):
        raise ValueError(f"expected an object with the type of a {root.__name__}")
    name = value.get("type")
    if not isinstance(name, str):
        raise ValueError(f"expected an object with the type of a {root.__name__}")
    kind, fields, required = _fields(root, name)
    made: dict[str, Any] = {}
    for key, each in value.items():
        if key == "type":
            continue
        if key not in fields:
            raise ValueError(f"{kind.__name__} has no field {key}")
        made[key] = fields[key](each)
    missing = [each for each in required if each not in made]
    if missing:
        raise ValueError(f"{kind.__name__} lacks the field {missing[0]}")
    return kind(**made)


@cache
def _fields(root: type[Struct], name: str) -> tuple[type[Struct], dict[str, Converter], tuple[str, ...]]:
    kind = _named(root, name)
    fields = msgspec.structs.fields(kind)
    required = tuple(field.name for field in fields if field.required)
    return kind, {field.name: _converter(field.type) for field in fields}, required


def _named(root: type[Struct], name: str) -> type[Struct]:
    """The one class called ``name`` among ``root`` and everything derived from it."""
    found: list[type[Struct]] = []
    pending = [root]
    while pending:
        each = pending.pop()
        if each.__name__ == name and each not in found:
            found.append(each)
        pending.extend(each.__subclasses__())
    if len(found) != 1:
        raise ValueError(f"{'no' if not found else 'more than one'} {root.__name__} type is called {name!r}")
    return found[0]
