"""Digests of a pipeline's configuration: what has changed since a deliverer recorded it.

Rules
 D1  A file that earlier versions understand has the digests that they gave it: an upgrade seeds nothing again. A key
     that they did not know counts only if it is set.
 D2  The order of keys in a mapping does not count.
 D3  The secret of hashes counts, by a short mark of it: with another secret every hash is another.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from trunkline.config import ENVIRONMENT
from trunkline.delivery.changes.shape import secret_mark
from trunkline.delivery.config.address_rules import identity
from trunkline.delivery.config.addresses import Address, DeltaAddress, IcebergAddress, LakeAddress, LogAddress
from trunkline.delivery.config.object_urls import LOGIN_FIELDS, STORE_FIELDS
from trunkline.delivery.config.tree import DestinationConfig, Pipeline, TableConfig

DIGEST_CHARS: Final = 16


def digest_of(pipeline: Pipeline, destination: DestinationConfig) -> str:
    """Of all that decides which rows a destination holds: when it changes, the destination is seeded again."""
    decisive = (
        _lasting(pipeline.source),
        pipeline.routing,
        pipeline.key,
        _decisive(destination.address),
        destination.values,
        destination.mode,
    )
    return _digest((*decisive, *_later(_rows_of(pipeline))))


def address_digest(destination: DestinationConfig) -> str:
    """Equal for two destinations with the same tables, as far as the text shows it."""
    return _digest(identity(destination.address))


def pipeline_digest(pipeline: Pipeline) -> str:
    """Of the configuration that all deliverers of a pipeline must share."""
    discover: object = pipeline.discover
    if pipeline.discover is not None:
        discover = {**msgspec.to_builtins(pipeline.discover), "template": _destination(pipeline.discover.template)}
    destinations = [_destination(each) for each in pipeline.destinations]
    common = (_lasting(pipeline.source), pipeline.routing, pipeline.key, destinations, discover)
    policies = {
        "duplicates": [each.duplicates for each in pipeline.tables],
        "without_routing_column": pipeline.without_routing_column,
        "dropped_tables": pipeline.dropped_tables,
    }
    return _digest((*common, *_later(_rows_of(pipeline) | (policies if pipeline.tables else {}))))


def _rows_of(pipeline: Pipeline) -> dict[str, object]:
    """What else decides which rows there are."""
    found = _shape(pipeline)
    if pipeline.tables:
        found["tables"] = [
            {"table": each.table, "key": each.key, "routing": each.routing, "mode": each.mode, **_shape(each)}
            for each in pipeline.tables
        ]
    return found


def _shape(owner: Pipeline | TableConfig) -> dict[str, object]:
    parts = {name: getattr(owner, name) for name in ("columns", "filter", "mask", "computed")}
    if owner.mask_secret_env is not None:
        secret = ENVIRONMENT.get(owner.mask_secret_env, "").encode("utf-8", "surrogateescape")
        parts["secret"] = secret_mark(secret)
    return {name: value for name, value in parts.items() if value is not None and value != {}}


def _later(found: dict[str, object]) -> list[str]:
    """Nothing for a file that has none of the keys (D1)."""
    return [msgspec.json.encode(found, order="deterministic").decode()] if found else []


def _destination(destination: DestinationConfig) -> dict[str, object]:
    found: dict[str, object] = msgspec.to_builtins(destination)
    found["address"] = _lasting(destination.address)
    if destination.seed_from is None:
        del found["seed_from"]
    return found


def _lasting(address: Address) -> object:
    found: dict[str, object] = msgspec.to_builtins(address)
    if isinstance(address, LogAddress) and address.table is None:
        del found["table"]
    if isinstance(address, LakeAddress | DeltaAddress):
        found = {key: value for key, value in found.items() if key not in STORE_FIELDS or value is not None}
    if isinstance(address, IcebergAddress):
        found = {key: value for key, value in found.items() if value is not None}
    return found


def _decisive(address: Address) -> object:
    """Without the keys of an object store or a catalog: others open the same table."""
    found = _lasting(address)
    assert isinstance(found, dict)
    hidden = (*STORE_FIELDS, *LOGIN_FIELDS) if isinstance(address, IcebergAddress) else STORE_FIELDS
    return {key: value for key, value in found.items() if key not in hidden or key == "endpoint"}


def _digest(value: object) -> str:
    return hashlib.sha256(msgspec.json.encode(value)).hexdigest()[:DIGEST_CHARS]
