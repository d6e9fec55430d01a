"""Logs and nodes for tests of metadata stores."""

from __future__ import annotations

from trunkline.core.messages import NodeInfo, Swap
from trunkline.core.projection import (
    EndSegment,
    Opening,
    Owner,
    Projection,
    RaiseTrim,
    Seat,
    Settings,
    apply,
    create,
)

OPENING = Opening(((Seat("a", 1), Seat("b", 1)),), Owner("a", 1))


def first_of(log: str = "orders") -> Projection:
    return create("cluster", log, Settings(replicas=2), OPENING)


def trimmed(projection: Projection, by: int = 1) -> Projection:
    return apply(projection, RaiseTrim(projection.trim + by))


def rolled(projection: Projection) -> Projection:
    """The open segment ended, and the next one opened."""
    last = projection.last
    return apply(projection, EndSegment(last.index, last.base, last.groups, OPENING))


def creation(log: str = "orders") -> Swap:
    return Swap(log, 0, first_of(log))


def trim(projection: Projection, by: int = 1) -> Swap:
    return Swap(projection.log, projection.epoch, trimmed(projection, by))


def node(name: str = "a", start: int = 1, incarnation: int = 1) -> NodeInfo:
    return NodeInfo(name, incarnation, start, address=f"{name}:7400", zone="z1")
