"""The connections of a worker: kept from task to task, let go when something fails, never more than so many."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from local_cluster import WAIT_S, RunningCluster
from trunkline import sync
from trunkline.errors import ConfigError, NoSuchLog, Unreachable
from trunkline.spark.connections import CONNECTIONS_MAX, Connections
from trunkline.spark.options import ConnectionOptions


@pytest.fixture
def connections() -> Iterator[Connections]:
    opened = Connections()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def place(cluster: RunningCluster, handle: sync.Cluster) -> ConnectionOptions:
    for name in ("one", "two"):
        handle.log(name, create=True)
    return ConnectionOptions(cluster.connect, "one")


def test_a_connection_and_its_logs_are_used_again(connections: Connections, place: ConnectionOptions) -> None:
    with connections.using(place) as first, connections.using(place) as second:
        assert first == second
    with connections.using(replace(place, log="two")) as (cluster, log):
        assert cluster is first[0]
        assert log.name == "two"


def test_after_an_error_the_next_use_reconnects(connections: Connections, place: ConnectionOptions) -> None:
    with connections.using(place) as (before, _):
        pass
    with pytest.raises(NoSuchLog), connections.using(replace(place, log="no-such-log")):
        pass
    with connections.using(place) as (after, log):
        assert after is not before
        assert log.tail() == 1


def test_the_connection_used_longest_ago_is_closed_for_another(
    connections: Connections, place: ConnectionOptions
) -> None:
    with connections.using(place) as (oldest, _):
        pass
    for number in range(CONNECTIONS_MAX):
        with connections.using(replace(place, timeout_s=10.0 + number)):
            pass
    with pytest.raises(ConfigError, match="not open"):
        oldest.logs()


def test_the_secret_is_read_from_a_file_or_the_environment(
    connections: Connections, place: ConnectionOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "token"
    with pytest.raises(ConfigError, match="option tokenFile: cannot read"):
        connections.using(replace(place, token_file=str(secret))).__enter__()
    secret.write_text("wrong\n")
    monkeypatch.setenv("THE_SECRET", "wrong")
    for given in (replace(place, token_file=str(secret)), replace(place, token_env="THE_SECRET")):
        with connections.using(replace(given, timeout_s=0.5)):
            pass  # this cluster asks for none
    with pytest.raises(ConfigError, match="set tls-ca, too"):
        connections.using(replace(place, tls_cert="a.pem")).__enter__()


def test_a_reader_that_knows_of_more_does_not_wait_for_ever(connections: Connections, place: ConnectionOptions) -> None:
    with connections.using(place) as (_, log):
        first = log.append([b"a", b"b"])
        log.append([b"c"], headers={"k": b"v"})
        with log.batches(first) as batches:
            found = batches.some(timeout=WAIT_S)
            while found[-1].last < first + 2:
                found += batches.some(timeout=WAIT_S)
            assert [payload for batch in found for payload in batch.payloads()] == [b"a", b"b", b"c"]
            assert [headers for batch in found for headers in batch.headers()] == [{}, {}, {"k": b"v"}]
            assert [batch.has_headers for batch in found] == [False, True]
            with pytest.raises(Unreachable, match=f"position {first + 3} of one did not arrive in time"):
                batches.some(timeout=0.05)
        with log.batches(first, first + 1) as batches:
            assert len(batches.some(timeout=WAIT_S)[0]) == 2
            assert batches.some(timeout=WAIT_S) == []


def test_a_cluster_that_does_not_answer_is_unreachable(connections: Connections, place: ConnectionOptions) -> None:
    away = replace(place, connect="127.0.0.1:1", timeout_s=0.3)
    with pytest.raises(Unreachable, match="is the cluster up"), connections.using(away):
        pass
