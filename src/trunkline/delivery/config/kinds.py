"""Kinds of destinations: those of this package, and those that other packages add by an entry point.

An entry point of the group ``trunkline.destinations`` is named like the ``type`` of its addresses, and refers to their
class, a ``DestinationAddress``.

Rules
 K1  A package is imported only if a pipeline uses its kind. One that cannot be used is a problem of the pipelines that
     name it, with the package's name, and of no other.
 K2  The kinds of this package keep their names. A name that two other packages claim is a problem of its users.
"""

from __future__ import annotations

import logging
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from msgspec import inspect

from trunkline.delivery.config.address_rules import DESTINATION_KINDS, KINDS
from trunkline.delivery.config.addresses import Address, DestinationAddress
from trunkline.delivery.config.tree import DestinationConfig
from trunkline.delivery.config.values import keys_of
from trunkline.errors import ConfigError

logger = logging.getLogger(__name__)
GROUP: Final = "trunkline.destinations"
READABLE: Final = (inspect.StrType, inspect.IntType, inspect.BoolType, inspect.LiteralType, inspect.NoneType)


def destination_kinds() -> tuple[str, ...]:
    """Every ``type`` that a destination may have, whether its package can be used or not."""
    return (*DESTINATION_KINDS, *sorted(_elsewhere()))


def address_class(kind: str) -> type[Address]:
    """The class of a kind's addresses. Raises ``ConfigError`` if its package cannot be used (K1)."""
    return KINDS[kind] if kind in KINDS else _loaded(kind)


@cache
def _elsewhere() -> dict[str, tuple[EntryPoint, ...]]:
    """By name. Read once: a package that is installed later is found by the next process."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for each in entry_points(group=GROUP):
        if each.name in KINDS:
            logger.warning("%s is ignored: type %s is one of Trunkline's own", _spelled(each), each.name)
        elif each not in found.get(each.name, ()):
            found[each.name] = (*found.get(each.name, ()), each)
    return found


@cache
def _loaded(kind: str) -> type[DestinationAddress]:
    entry, *others = _elsewhere()[kind]
    if others:
        packages = " and ".join(map(_spelled, (entry, *others)))
        raise ConfigError(f"type {kind} is claimed by {packages}; uninstall one of them")
    try:
        found = entry.load()
    except Exception as error:  # of someone else's module: anything
        raise _unusable(entry, f"it cannot be loaded: {type(error).__name__}: {error}") from error
    if why := _refusal(kind, found):
        raise _unusable(entry, why)
    address: type[DestinationAddress] = found
    return address


def _unusable(entry: EntryPoint, why: str) -> ConfigError:
    return ConfigError(
        f"type {entry.name} is of {_spelled(entry)}, which cannot be used: {why}; repair or upgrade that package, or "
        "use another type"
    )


def _refusal(kind: str, found: object) -> str:
    """Why an object is not the class of a kind's addresses; empty: it is."""
    if not (isinstance(found, type) and issubclass(found, DestinationAddress)):
        return f"it refers to {found!r:.200}, not to a class that derives from DestinationAddress"
    if found.__struct_config__.tag != kind:
        return f"{found.__name__} has the tag {found.__struct_config__.tag!r}, not that of its entry point"
    fields = {name: key.type for name, key in keys_of(found).items()}
    if not isinstance(_plain(fields.get("table")), inspect.StrType):
        return f"{found.__name__} has no field `table` that is a text"
    if taken := sorted(({*keys_of(DestinationConfig), "type"} - {"address"}) & fields.keys()):
        return f"its key {taken[0]} is one of every destination"
    if taken := sorted({name for name in vars(DestinationAddress) if not name.startswith("_")} & fields.keys()):
        return f"its key {taken[0]} is an attribute of every address"
    if lost := sorted(set(found.paths) - fields.keys()):
        return f"`paths` of {found.__name__} names {lost[0]}, which is not a field"
    odd = [name for name, type_ in fields.items() if not all(isinstance(each, READABLE) for each in _parts(type_))]
    return f"its key {odd[0]} is not a text, a whole number, true or false, or one of some words" if odd else ""


def _plain(type_: inspect.Type | None) -> inspect.Type | None:
    return type_.type if isinstance(type_, inspect.Metadata) else type_


def _parts(type_: inspect.Type) -> tuple[inspect.Type | None, ...]:
    plain = _plain(type_)
    return tuple(map(_plain, plain.types)) if isinstance(plain, inspect.UnionType) else (plain,)


def _spelled(entry: EntryPoint) -> str:
    package = f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unknown package"
    return f"{package} ({entry.value})"
