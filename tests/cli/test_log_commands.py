"""``log ...``, ``reconfigure``, ``node ...``, ``status`` and ``bench`` on a real cluster, and their errors."""

from __future__ import annotations

import json
import re

import pytest

from local_cluster import Command, RunningCluster, wait_until


def test_a_log_is_created_listed_and_described(on_cluster: Command) -> None:
    assert on_cluster("log", "create", "made").text.startswith("log made: chain, node")
    listed = on_cluster("log", "list", "--json").json["logs"]
    assert "made" in [log["name"] for log in listed]
    assert "made" in on_cluster("log", "list").text
    described = on_cluster("log", "describe", "made", "--json").json
    assert (described["epoch"], described["tail"], described["trim"]) == (1, 1, 0)
    assert len(described["segments"][0]["groups"][0]) == 3
    assert "1 x 3 replicas (at least 1)" in on_cluster("log", "describe", "made").text


def test_creating_again_is_a_no_op_with_the_same_settings_and_refused_with_others(on_cluster: Command) -> None:
    assert on_cluster("log", "create", "twice").code == 0
    assert on_cluster("log", "create", "twice").code == 0
    other = on_cluster("log", "create", "twice", "--policy", "broadcast", "--json")
    assert other.code == 1
    assert json.loads(other.err)["error"] == "Refused"


def test_a_sealed_log_refuses_appends_until_it_is_reopened(on_cluster: Command) -> None:
    on_cluster("log", "create", "sealed")
    on_cluster("append", "sealed", stdin=b"a\n")
    assert on_cluster("log", "seal", "sealed").text == "log sealed is sealed; its last position is 1\n"
    assert on_cluster("log", "seal", "sealed", "--json").json == {"log": "sealed", "end": 2}
    refused = on_cluster("append", "sealed", stdin=b"b\n")
    assert refused.code == 1
    assert "nothing was appended" in refused.err
    assert on_cluster("reconfigure", "sealed").code == 1
    assert on_cluster("log", "reopen", "sealed").text.startswith("log sealed: segment 1, epoch ")
    assert on_cluster("append", "sealed", stdin=b"b\n").text == "appended 1 entry at 2\n"
    assert on_cluster("log", "reopen", "sealed").code == 1


def test_a_reconfiguration_shows_the_new_segments_epoch(on_cluster: Command) -> None:
    on_cluster("log", "create", "moved")
    on_cluster("append", "moved", stdin=b"a\n")
    segment = on_cluster("reconfigure", "moved", "--json").json["segment"]
    assert (segment["index"], segment["base"], segment["end"]) == (1, 2, None)
    assert segment["epoch"] > 1
    assert on_cluster("read", "moved").out == b"a\n"


def test_events_are_listed_the_oldest_first(on_cluster: Command) -> None:
    on_cluster("log", "create", "eventful")
    wait_until(lambda: "+ log eventful created: chain, 3 copies, on node" in on_cluster("events").text)
    texts = [event["text"] for event in on_cluster("events", "--json").json["events"]]
    assert texts[0] == "coordinator started"
    assert "log eventful" not in on_cluster("events", "--hide-logs").text
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d    coordinator started\n", on_cluster("events").text)


def test_a_broadcast_log_takes_the_same_calls(on_cluster: Command) -> None:
    on_cluster("log", "create", "spread", "--policy", "broadcast")
    on_cluster("append", "spread", stdin=b"a\nb\n")
    assert on_cluster("append", "spread", "--takeover", stdin=b"c\n").code == 0
    assert on_cluster("read", "spread").out == b"a\nb\nc\n"


def test_a_log_over_several_groups_takes_batches_of_any_size(on_cluster: Command) -> None:
    on_cluster("log", "create", "striped", "--groups", "2", "--replicas", "2", "--stripe-unit", "16")
    text = b"".join(b"%d\n" % number for number in range(100))
    assert on_cluster("append", "striped", stdin=text).code == 0
    assert on_cluster("read", "striped").out == text


def test_deleting_needs_a_confirmation_and_the_name_cannot_be_reused(on_cluster: Command) -> None:
    on_cluster("log", "create", "deleted")
    assert on_cluster("log", "delete", "deleted").code == 2
    assert on_cluster("log", "delete", "deleted", "--yes").text == "log deleted is deleted\n"
    assert on_cluster("read", "deleted").err == "trunkline: log deleted was deleted\n"
    assert on_cluster("log", "create", "deleted").code == 1
    assert "deleted" not in [
        log["name"] for log in on_cluster("log", "list", "--json").json["logs"] if not log["deleted"]
    ]


def test_declaring_a_loss_needs_a_confirmation(on_cluster: Command) -> None:
    on_cluster("log", "create", "kept")
    done = on_cluster("log", "declare-lost", "kept", "--end", "5")
    assert (done.code, "add --yes to confirm" in done.err) == (2, True)


def test_the_status_shows_nodes_logs_and_process_ids(on_cluster: Command, cluster: RunningCluster) -> None:
    on_cluster("log", "create", "shown")
    text = on_cluster("status", "--dir", str(cluster.directory)).text
    assert text.startswith("cluster ")
    assert "(active, process " in text
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert rows["node1"][3:5] == ["rw", "yes"]
    assert rows["node1"][-1] == str(cluster.process("node1").pid)
    assert rows["shown"][:3] == ["shown", "chain", "1"]
    facts = on_cluster("status", "--json").json
    assert {node["self"]["sync"] for node in facts["nodes"]} == {"always"}


def test_nodes_are_listed_drained_and_taken_back(on_cluster: Command) -> None:
    on_cluster("log", "create", "held")
    assert [node["name"] for node in on_cluster("node", "list", "--json").json["nodes"]] == ["node1", "node2", "node3"]
    assert on_cluster("node", "drain", "node3", "--json").json["state"] == "draining"
    assert "draining" in on_cluster("node", "list").text
    assert on_cluster("node", "undrain", "node3").text == "node node3 is used again\n"
    refused = on_cluster("node", "remove", "node3")
    assert refused.code == 1
    assert "`trunkline node drain node3 --wait` moves them" in refused.err


@pytest.mark.parametrize("action", ["drain", "undrain", "remove", "forget"])
def test_a_node_that_does_not_exist_is_refused(on_cluster: Command, action: str) -> None:
    done = on_cluster("node", action, "node99")
    assert done.code == 1
    assert "there is no node node99" in done.err


def test_a_live_node_is_not_forgotten(on_cluster: Command) -> None:
    done = on_cluster("node", "forget", "node1")
    assert done.code == 1
    assert "node node1 is live; stop it first" in done.err


def test_the_bench_measures_and_leaves_no_log(on_cluster: Command) -> None:
    result = on_cluster("bench", "--records", "500", "--size", "10", "--batch", "10", "--json").json
    assert result["append_records_per_s"] > 0
    assert result["read_records_per_s"] > 0
    assert not [log for log in on_cluster("log", "list", "--json").json["logs"] if log["name"].startswith("bench-")]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["read", "no-such-log"], 1, "log no-such-log does not exist; create it first"),
        (["log", "create", "bad/name"], 2, "is not a valid name of a log"),
        (["log", "create", "x", "--replicas", "1", "--min-replicas", "2"], 2, "min_replicas (2) must be between"),
        (["log", "create", "x", "--policy", "broadcast", "--groups", "2"], 2, "must be 1 for a broadcast log"),
        (["log", "create", "x", "--replicas", "0"], 2, "expected a whole number above 0"),
        (["read", "x", "--from", "0"], 2, "expected a position, a whole number above 0, got '0'"),
        (["read", "x", "--from", "5", "--to", "4"], 2, "--to 4 is before --from 5"),
        (["append", "x", "--expect", "1", "--unordered"], 2, "cannot be used with --unordered"),
        (["append", "x", "--file", "no-such-file"], 1, "log x does not exist"),
        (["log"], 2, "the following arguments are required: ACTION"),
        (["fly"], 2, "there is no command 'fly'"),
        ([], 2, "the following arguments are required: COMMAND"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    on_cluster: Command, arguments: list[str], code: int, words: str
) -> None:
    done = on_cluster(*arguments)
    assert (done.code, done.out) == (code, b"")
    assert done.err.count("\n") == 1
    assert done.err.startswith("trunkline: ")
    assert words in done.err


def test_an_error_is_an_object_with_json(on_cluster: Command) -> None:
    done = on_cluster("read", "no-such-log", "--json")
    assert json.loads(done.err) == {
        "error": "NoSuchLog",
        "message": "log no-such-log does not exist; create it first",
    }
