"""Reads the keys of a destination whose values have several forms, and checks where a seed comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trunkline.delivery.config.table_rules import is_shaped
from trunkline.delivery.config.tree import DestinationConfig, Pipeline
from trunkline.delivery.config.values import WRONG, Key, read_value, shown
from trunkline.delivery.config.yaml_file import Problems, YamlNode

EVERY_ROW: Final = "*"


def read_values(node: YamlNode, key: Key, routed: bool, problems: Problems) -> dict[str, Any]:
    """``values`` of a destination, if the file has them and they are valid; ``None``: every row."""
    if node.value == EVERY_ROW:
        return {"values": None}
    if not isinstance(node.value, list):
        problems.add(node, f"must be {key.allowed}, it is {shown(node.value)}")
    elif not routed:
        problems.add(node, 'needs `routing`, which names the column with these values; add it, or write values: "*"')
    elif not node.value:
        problems.add(node, "is empty; list at least one routing value, or leave it out")
    elif (values := read_value(node, key.type, problems)) is not WRONG:
        return {"values": values}
    return {}


def read_seed(node: YamlNode, key: Key, problems: Problems) -> dict[str, Any]:
    """``seed`` of a destination or of a template, if it is valid."""
    if not isinstance(node.value, dict):
        seed = read_value(node, key.type, problems)
        return {} if seed is WRONG else {"seed": seed}
    name = node.at("from").value
    if list(node.items()) != ["from"] or not isinstance(name, str) or not name:
        problems.add(node, f"must be {key.allowed}, it is {shown(node.value)}")
        return {}
    return {"seed": "scan", "seed_from": name}


def check_seeds(pipeline: Pipeline, nodes: Mapping[str, YamlNode], template: YamlNode, problems: Problems) -> None:
    """A destination that begins as a copy of another: that one has all its rows, as they are in the source.

    ``nodes``: of the destinations, by name.
    """
    known = {each.name: each for each in pipeline.destinations}
    followers = [(nodes[each.name], each) for each in pipeline.destinations]
    if pipeline.discover is not None:
        followers.append((template, pipeline.discover.template))
    for node, each in followers:
        if each.seed_from is not None and (why := _refusal(pipeline, each, known)):
            problems.add(node.at("seed"), why)


def _refusal(pipeline: Pipeline, follower: DestinationConfig, known: Mapping[str, DestinationConfig]) -> str:
    name = str(follower.seed_from)
    if name not in known:
        return f"there is no destination {name} under `destinations`; name one of them"
    origin, origins = known[name], _origins(follower, known)
    if follower in origins:
        return f"destination {name} begins as a copy of this one; name another"
    if {origin.mode, *(each.mode or origin.mode for each in pipeline.tables)} != {"mirror"}:
        return f"destination {name} has tables that are not in mode mirror; name one that has none"
    if "warn" in {origin.duplicates, *(each.duplicates for each in pipeline.tables)}:
        return f"destination {name} may lack rows (duplicates: warn); name one with duplicates: halt"
    if any(each.seed == "now" for each in origins):
        return f"destination {name} began without rows (seed: now); name one with seed: scan"
    if is_shaped(pipeline):
        return (
            f"the rows of destination {name} are not those of the source, but what `columns`, `filter`, `mask` and "
            "`computed` make of them; use scan or history"
        )
    if origin.values is not None and not (follower.values and set(follower.values) <= set(origin.values)):
        return f'destination {name} lacks rows of this one; name one with all its values, or with values: "*"'
    return ""


def _origins(follower: DestinationConfig, known: Mapping[str, DestinationConfig]) -> list[DestinationConfig]:
    """The destination that it copies, the one that that one copies, and so on."""
    found: list[DestinationConfig] = []
    at = known.get(follower.seed_from or "")
    while at is not None and at not in found:
        found.append(at)
        at = known.get(at.seed_from or "")
    return found
