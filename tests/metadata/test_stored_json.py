"""Stored values."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from metadata.projections import first_of, node, rolled, trimmed
from trunkline.core.messages import NodeInfo, NodeState
from trunkline.core.projection import Gap, Projection
from trunkline.metadata.stored_json import decode, encode


def test_a_projection_and_a_node_come_back_as_they_were() -> None:
    projection = replace(rolled(trimmed(first_of())), gaps=(Gap(1, 3),))
    assert decode(Projection, encode(projection)) == projection
    info = replace(node(), state=NodeState.DRAINING, live=False)
    assert decode(NodeInfo, encode(info)) == info


def test_stored_values_have_readable_field_names() -> None:
    stored = json.loads(encode(rolled(first_of())))
    assert stored["segments"][0]["policy"] == "chain"
    assert stored["segments"][0]["groups"][0][1]["node"] == "b"
    assert stored["segments"][1]["end"] is None


def test_a_field_with_a_default_may_be_missing_because_an_older_version_wrote_it() -> None:
    assert decode(NodeInfo, b'{"node": "a", "incarnation": 1, "start": 2}') == NodeInfo("a", 1, 2)


@pytest.mark.parametrize(
    ("stored", "complaint"),
    [
        ('{"node": "a", "incarnation": 1, "start": 2, "hat": 1}', "no field hat"),
        ('{"node": "a", "incarnation": 1}', "start"),
        ('{"node": "a", "incarnation": "1", "start": 2}', "should be of type int"),
        ('{"node": "a", "incarnation": true, "start": 2}', "should be of type int"),
        ('{"node": "a", "incarnation": 1, "start": 2, "state": "odd"}', "odd"),
        ("[]", "should be an object"),
        ("{", "cannot be read"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_reason(stored: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        decode(NodeInfo, stored)
