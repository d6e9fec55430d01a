"""The JSON of a status is kept: old and new peers understand each other."""

from __future__ import annotations

import json

import msgspec
import pytest

from trunkline.core.status import ClusterEvents, ClusterStatus, NodeStatus

CLUSTER = b"""{
"cluster": "c1", "name": "k", "address": "127.0.0.1:7400", "active": true, "active_coordinator": "k",
"default_policy": "chain", "observe": "",
"nodes": [{"name": "a", "address": "a:7400", "zone": "z1", "state": "rw", "live": true, "incarnation": 1, "start": 1,
    "damaged": 0, "streams_named": 2}],
"logs_total": 2, "refused": [{"name": "n1", "address": "127.0.0.1:9", "why": "the token is wrong", "count": 2,
    "code": "token"}],
"logs_left_out": 0,
"logs": [{"name": "orders", "policy": "chain", "replicas": 2, "min_replicas": 1, "epoch": 2, "trim": 0,
    "deleted": false, "gaps": [[3, 5]],
    "segments": [
        {"index": 0, "epoch": 1, "base": 1, "end": 1, "repaired": true, "owner": "a",
            "groups": [[{"node": "a", "stream": "1.0.0", "joining": false}]]},
        {"index": 1, "epoch": 2, "base": 1, "end": null, "repaired": false, "owner": "a",
            "groups": [[{"node": "a", "stream": "2.0.0", "joining": true}]]}],
    "segments_total": 2, "problems_total": 0, "blocked": false, "duty": "idle", "refused": ""},
    {"name": "without-segments", "policy": "chain", "replicas": 2, "min_replicas": 1, "epoch": 2, "trim": 0,
    "deleted": false, "gaps": [], "segments_total": 2, "problems_total": 0, "blocked": false, "duty": "idle",
    "refused": ""}]
}"""

NODE = b"""{
"node": "a", "address": "127.0.0.1:7401", "zone": "", "incarnation": 7, "start": 9, "sync": "always", "streams": 1,
"extents": 2, "bytes_used": 3, "bytes_free": 4, "full": false, "tight": true, "fresh": true, "unsynced_bytes": 5,
"connections": 6, "uptime_s": 1.5, "entries_appended": 10, "bytes_appended": 11, "entries_read": 12, "bytes_read": 13,
"observe": "127.0.0.1:9401"
}"""

EVENTS = b"""{
"book": "0a1b", "events": [
    {"number": 1, "at_ms": 5, "level": "bad", "text": "node b lost", "node": "b", "live": false},
    {"number": 2, "at_ms": 6, "level": "info", "text": "orders trimmed up to 3", "log": "orders"}],
"minutes": [{"at_ms": 60000, "seconds": 60.0, "written": 0, "read": 1}], "lost": {"b": 5}
}"""

SAMPLES = [
    pytest.param(CLUSTER, ClusterStatus, id="cluster"),
    pytest.param(NODE, NodeStatus, id="node"),
    pytest.param(EVENTS, ClusterEvents, id="events"),
]


@pytest.mark.parametrize(("sample", "kind"), SAMPLES)
def test_a_kept_answer_is_read_and_written_as_it_is(sample: bytes, kind: type) -> None:
    assert json.loads(msgspec.json.encode(msgspec.json.decode(sample, type=kind))) == json.loads(sample)


@pytest.mark.parametrize(("sample", "kind"), SAMPLES)
def test_unknown_fields_are_ignored_and_missing_ones_have_defaults(sample: bytes, kind: type) -> None:
    newer = json.dumps({**json.loads(sample), "added_later": {"of": "any kind"}}).encode()
    assert msgspec.json.decode(newer, type=kind) == msgspec.json.decode(sample, type=kind)
    assert msgspec.json.decode(b"{}", type=kind) == kind()


def test_a_log_whose_segments_were_left_out_has_none_listed() -> None:
    orders, brief = msgspec.json.decode(CLUSTER, type=ClusterStatus).logs
    assert [segment.copies() for segment in orders.listed()] == [1, 0]
    assert (brief.listed(), brief.segments_total) == ((), 2)


@pytest.mark.parametrize("count", [b"-1", b"99999999999999999999", b'"1"'])
def test_an_absurd_count_of_a_node_is_not_accepted(count: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"entries_appended": %b}' % count, type=NodeStatus)
