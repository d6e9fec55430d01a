"""Values of roles' fields: how to compare, copy, rename and print them.

The rules of ``core.role``: fields hold ``None``, ``bool``, ``int``, ``str``, ``bytes``, enums, tuples, frozen structs,
and lists, dicts and sets of those, or plain objects that obey the same rule.

1. Dicts with different insertion orders are different: a role may iterate over its dict, so merging them would skip
   behaviour that ships. A role for which the order is irrelevant keeps a sorted tuple or a set.
2. Sets are compared without order. A role never iterates over a set of strings.
3. Frozen structs, frozen dataclasses and functions are shared between copies; all other objects are copied. An object
   that a role references twice is one object in its copy.
4. Roles never share a mutable object: each is copied alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping
from enum import Enum
from types import FunctionType
from typing import Any

from msgspec import Struct

_ATOMS = (int, str, bytes, float, bool, type(None), Enum, FunctionType, type)


def freeze(value: Any) -> Hashable:
    """A hashable value that is equal for equal contents."""
    if isinstance(value, _ATOMS):
        return value
    kind = type(value)
    if isinstance(value, tuple):
        return value if all(isinstance(each, _ATOMS) for each in value) else (kind, *map(freeze, value))
    if isinstance(value, (list, deque)):
        return (kind, *map(freeze, value))
    if isinstance(value, dict):
        return (kind, *((freeze(key), freeze(each)) for key, each in value.items()))
    if isinstance(value, (set, frozenset)):
        return (set, frozenset(map(freeze, value)))
    if _is_shared(value):
        hashable: Hashable = value
        return hashable
    return (kind, *((name, freeze(each)) for name, each in fields_of(value)))


def clone(value: Any) -> Any:
    """A copy that shares no mutable object."""
    return _Copier({}).copy(value)


def rename(value: Any, names: Mapping[str, str]) -> Any:
    """A copy in which each string that is a key of ``names`` is replaced, also inside frozen structs."""
    return _Copier(names).copy(value)


def text(value: Any) -> str:
    """One line, the same under any hash seed. A value with a ``brief`` method is shown by it."""
    if hasattr(value, "brief"):
        return str(value.brief())
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, FunctionType | type):
        return value.__qualname__
    if isinstance(value, _ATOMS):
        return repr(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{text(key)}: {text(each)}" for key, each in value.items()) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(text, value))) + "}"
    if isinstance(value, (list, deque)):
        return "[" + ", ".join(map(text, value)) + "]"
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return "(" + ", ".join(map(text, value)) + ("," if len(value) == 1 else "") + ")"
    return f"{type(value).__name__}(" + ", ".join(f"{name}={text(each)}" for name, each in fields_of(value)) + ")"


def fields_of(value: Any) -> list[tuple[str, Any]]:
    """The fields of a struct, a named tuple, a dataclass or a plain object, in definition order."""
    if isinstance(value, Struct):
        return [(name, getattr(value, name)) for name in value.__struct_fields__]
    if isinstance(value, tuple):
        return list(zip(value._fields, value, strict=True))  # type: ignore[attr-defined]
    slots = [name for kind in reversed(type(value).__mro__) for name in _slots_of(kind)]
    found = [(name, getattr(value, name)) for name in slots if hasattr(value, name)]
    if hasattr(value, "__dict__"):
        found += vars(value).items()
    elif not slots:
        raise TypeError(f"a role may not hold a {type(value).__name__}: the checker cannot compare or copy it")
    return found


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def _is_shared(value: Any) -> bool:
    if isinstance(value, Struct):
        return bool(value.__struct_config__.frozen)
    params: Any = getattr(type(value), "__dataclass_params__", None)
    return params is not None and bool(params.frozen)


class _Copier:
    """One traversal. With names it rebuilds frozen values too; without, it shares them."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._copies: dict[int, Any] = {}

    def copy(self, value: Any) -> Any:
        if isinstance(value, str) and not isinstance(value, Enum):
            return self._names.get(value, value)
        if isinstance(value, _ATOMS):
            return value
        if isinstance(value, tuple):
            return self._tuple(value)
        if isinstance(value, frozenset):
            return frozenset(map(self.copy, value)) if self._names else value
        if _is_shared(value):
            return self._rebuilt(value) if self._names else value
        return self._mutable(value)

    def _tuple(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        copies = [self.copy(each) for each in value]
        if all(copied is each for copied, each in zip(copies, value, strict=True)):
            return value
        make: Callable[..., tuple[Any, ...]] = getattr(type(value), "_make", type(value))
        return make(copies)

    def _rebuilt(self, value: Any) -> Any:
        """A frozen value with renamed fields; no constructor recomputes anything from them."""
        made = object.__new__(type(value)) if not isinstance(value, Struct) else None
        renamed = {name: self.copy(each) for name, each in fields_of(value)}
        if made is None:
            return type(value)(**renamed)
        for name, each in renamed.items():
            object.__setattr__(made, name, each)
        return made

    def _mutable(self, value: Any) -> Any:
        known = self._copies.get(id(value))
        if known is not None:
            return known
        kind: Any = type(value)
        made: Any
        if isinstance(value, set):
            made = self._copies[id(value)] = {self.copy(each) for each in value}
        elif isinstance(value, (list, deque, dict)):
            made = self._copies[id(value)] = value.copy()  # keeps a deque's bound and a defaultdict's factory
            made.clear()
            items = value.items() if isinstance(value, dict) else value
            copies = [self.copy(each) for each in items]
            made.update(copies) if isinstance(value, dict) else made.extend(copies)
        else:
            made = self._copies[id(value)] = kind.__new__(kind)
            for name, each in fields_of(value):
                object.__setattr__(made, name, self.copy(each))
        return made
