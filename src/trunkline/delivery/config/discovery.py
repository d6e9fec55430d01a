"""Discovery: a destination for each routing value that has none yet."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Struct

from trunkline.delivery.config.address_rules import faults, filled, identity, safe
from trunkline.delivery.config.tree import DestinationConfig, DiscoverConfig, Pipeline

REFUSED_SHOWN_MAX: Final = 20


class Discovered(Struct, frozen=True):
    """Destinations to add, and a message for each value that cannot have one."""

    destinations: tuple[DestinationConfig, ...] = ()
    refused: tuple[str, ...] = ()


def discovered(pipeline: Pipeline, values: Iterable[str], present: Iterable[DestinationConfig] = ()) -> Discovered:
    """Destinations for ``values``, in their order; ``present``: those discovered before.

    A value that has a destination, or that the pattern excludes, is skipped.
    """
    rules = pipeline.discover
    before = tuple(present)
    wanted = _wanted(pipeline, values, before)
    if rules is None or not wanted:
        return Discovered()
    taken = _Taken(pipeline, before)
    found: list[DestinationConfig] = []
    refused: list[str] = []
    for count, value in enumerate(wanted):
        if len(before) + len(found) >= rules.limit:
            left = len(wanted) - count
            refused.append(f"{left} routing values get no destination: raise discover.limit ({rules.limit})")
            break
        destination = from_template(rules, value)
        why = taken.refusal(destination)
        if why is None:
            taken.add(destination)
            found.append(destination)
        else:
            refused.append(f"routing value {value!r} gets no destination: {why}; give it one under `destinations`")
    hidden = len(refused) - REFUSED_SHOWN_MAX
    if hidden > 0:
        refused[REFUSED_SHOWN_MAX:] = [f"and {hidden} more"]
    return Discovered(tuple(found), tuple(refused))


def _wanted(pipeline: Pipeline, values: Iterable[str], present: tuple[DestinationConfig, ...]) -> list[str]:
    """The values without a destination that match the pattern."""
    pattern = pipeline.discover.pattern if pipeline.discover is not None else None
    routed = {value for each in (*pipeline.destinations, *present) for value in each.values or ()}
    new = (value for value in dict.fromkeys(values) if value not in routed)
    return [value for value in new if pattern is None or re.fullmatch(pattern, value)]


def from_template(rules: DiscoverConfig, value: str) -> DestinationConfig:
    """The destination of a value; it may be invalid."""
    name = safe(value)
    address = filled(rules.template.address, name, value)
    return msgspec.structs.replace(rules.template, name=name, values=(value,), address=address)


class _Taken:
    """Names and tables that are in use."""

    def __init__(self, pipeline: Pipeline, present: tuple[DestinationConfig, ...]) -> None:
        self._names: set[str] = set()
        self._tables: dict[tuple[str, ...], str] = {identity(pipeline.source): "the source"}
        for destination in (*pipeline.destinations, *present):
            self.add(destination)

    def add(self, destination: DestinationConfig) -> None:
        self._names.add(destination.name)
        self._tables[identity(destination.address)] = f"destination {destination.name}"

    def refusal(self, destination: DestinationConfig) -> str | None:
        if destination.name in self._names:
            return f"the name {destination.name} is taken"
        for field, why in faults(destination.address):
            return f"{field} {why}"
        holder = self._tables.get(identity(destination.address))
        return f"its table is that of {holder}" if holder is not None else None
