"""Metrics and health, asked over HTTP as Prometheus and an orchestrator would."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse

from trunkline.core.planner_tracks import TrackStage
from trunkline.delivery.control.contract import Unrouted
from trunkline.delivery.deliverer.health import REQUESTS_MAX, STALLED_MS, HealthServer, alive, readiness
from trunkline.delivery.deliverer.metrics import (
    DESTINATION_TABLE,
    DESTINATIONS_MAX,
    PREFIX,
    TABLE,
    UNROUTED_VALUES_MAX,
    Metrics,
    reference,
)
from trunkline.delivery.deliverer.observer import Observer
from trunkline.delivery.deliverer.progress import DelivererView, DestinationView, JobView, StretchView
from trunkline.errors import ConfigError
from trunkline.net.addresses import parse_address

WAIT_S = 20.0
A = DestinationView(
    name="a",
    stage="ready",
    life="active",
    owned=True,
    position=7,
    effective=9,
    lag_versions=3,
    lag_ms=1500,
    flushed_at_ms=1_700_000_000_500,
    rows_last=4,
    removed=1,
    written=3,
    flushes=2,
    duplicates=5,
    missing=6,
)
B = DestinationView(name="b", stage="halted", life="active", owned=True, error="b: add column x, and resume")
ELSEWHERE = DestinationView(name="c", stage="unowned", life="active", owned=False)
STRETCH = StretchView(done=1, total=4, elapsed_ms=6000, percent=25.0, left_ms=18_000)
VIEW = DelivererView(
    pipeline="orders",
    deliverer="one",
    state="running",
    at_ms=1_700_000_000_000,
    turned_ms_ago=300,
    source_version=12,
    source_oldest=1,
    held=2,
    waiting_rows=8,
    unrouted=Unrouted({"x": 10, "y": 2}, nulls=4, others=1),
    unrouted_through=11,
    jobs=(JobView(job=1, kind="flush", after=9, through=12, destinations=2, elapsed_ms=10),),
    seeding=STRETCH,
    catching_up=STRETCH,
    destinations=(A, B, ELSEWHERE),
)


class Shown:
    """What a deliverer shows, to be changed by a test."""

    def __init__(self, view: DelivererView = VIEW, *, per_destination: bool | None = None) -> None:
        self.view = view
        self.metrics = Metrics("orders", lambda: self.view, per_destination=per_destination)

    def samples(self) -> dict[tuple[str, tuple[str, ...]], float]:
        """Value by name (without the prefix) and label values (without the pipeline's)."""
        found = {}
        for family in parse(self.metrics.text()[0].decode()):
            for sample in family.samples:
                labels = dict(sample.labels)
                assert labels.pop("pipeline") == "orders"
                found[sample.name.removeprefix(PREFIX), tuple(labels.values())] = sample.value
        return found


@pytest.fixture
def shown() -> Shown:
    return Shown()


@pytest.fixture
def server(shown: Shown) -> Iterator[HealthServer]:
    made = HealthServer("127.0.0.1:0", lambda: shown.view, shown.metrics)
    made.begin()
    try:
        yield made
    finally:
        made.close()


def get(server: HealthServer, path: str, **headers: str) -> tuple[int, str, str]:
    connection = HTTPConnection(*parse_address(server.address), timeout=WAIT_S)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type", ""), answer.read().decode()
    finally:
        connection.close()


def ask(server: HealthServer, path: str) -> tuple[int, Any]:
    status, kind, body = get(server, path)
    assert kind == "application/json"
    return status, json.loads(body)


# -------------------------------------------------------------------------------------------------------------- health


def test_a_deliverer_whose_loop_turns_is_alive(server: HealthServer, shown: Shown) -> None:
    assert ask(server, "/healthz") == (200, {"alive": True, "state": "running", "turned_ms_ago": 300})
    shown.view = replace(VIEW, turned_ms_ago=STALLED_MS)
    assert ask(server, "/healthz")[0] == 503


def test_a_deliverer_that_starts_has_more_time() -> None:
    starting = replace(VIEW, state="starting", turned_ms_ago=STALLED_MS)
    assert alive(starting)
    assert not readiness(starting).ready


def test_a_halted_destination_leaves_the_deliverer_ready_and_is_named(server: HealthServer) -> None:
    status, body = ask(server, "/readyz")
    assert status == 200
    assert (body["ready"], body["halted"], body["errors"]) == (True, 1, {"b": "b: add column x, and resume"})


def test_an_idle_deliverer_and_a_willing_standby_are_ready() -> None:
    idle = replace(VIEW, jobs=(), destinations=(replace(A, lag_versions=0, lag_ms=0),), at_ms=VIEW.at_ms + 86_400_000)
    assert readiness(idle).ready
    assert readiness(replace(idle, held=0, destinations=(ELSEWHERE,))).ready


@pytest.mark.parametrize(
    ("view", "why"),
    [
        (replace(VIEW, source_error="the lake is away"), "the source cannot be reached: the lake is away"),
        (replace(VIEW, held=0, store_error="gone"), "nothing is owned, and the control store cannot be reached: gone"),
        (replace(VIEW, state="draining"), "the deliverer is draining"),
        (replace(VIEW, turned_ms_ago=STALLED_MS), f"the loop has not turned for {STALLED_MS} ms"),
    ],
)
def test_what_makes_a_deliverer_unready_is_said(
    server: HealthServer, shown: Shown, view: DelivererView, why: str
) -> None:
    shown.view = view
    status, body = ask(server, "/readyz")
    assert (status, body["ready"]) == (503, False)
    assert body["why"][0].startswith(why)


def test_leases_that_run_keep_a_deliverer_ready_while_the_store_is_away() -> None:
    assert readiness(replace(VIEW, store_error="gone")).ready


def test_the_status_is_all_that_is_known(server: HealthServer) -> None:
    status, body = ask(server, "/status")
    assert status == 200
    assert body["destinations"][0]["lag_ms"] == 1500
    assert body["unrouted"]["values"] == {"x": 10, "y": 2}
    assert body["jobs"][0]["through"] == 12


def test_an_observer_that_was_never_begun_can_be_asked() -> None:
    observer = Observer("orders", "one")
    server = HealthServer("127.0.0.1:0", observer.snapshot, observer.metrics)
    server.begin()
    try:
        assert ask(server, "/healthz")[1]["state"] == "starting"
        assert get(server, "/metrics")[0] == 200
    finally:
        server.close()


def test_other_paths_are_answered_with_those_that_exist(server: HealthServer) -> None:
    status, _, body = get(server, "/")
    assert status == 404
    assert "/status" in body


def test_all_but_the_pulse_is_told_under_the_servers_own_names_only(shown: Shown) -> None:
    server = HealthServer("127.0.0.1:0", lambda: shown.view, shown.metrics, names=("deliverer.example",))
    server.begin()
    try:
        for path in ("/metrics", "/status", "/readyz"):
            assert get(server, path, Host="evil.example")[0] == 403
            assert get(server, path, Host="deliverer.example:9000")[0] in (200, 503)
        assert get(server, "/healthz", Host="evil.example")[0] == 200
    finally:
        server.close()


def test_a_taken_port_is_one_clear_message(server: HealthServer, shown: Shown) -> None:
    with pytest.raises(ConfigError, match=rf"^listen: {server.address} cannot be used .*port 0 for any free one"):
        HealthServer(server.address, lambda: shown.view, shown.metrics)


def test_a_host_that_does_not_exist_is_one_clear_message(shown: Shown) -> None:
    with pytest.raises(ConfigError, match=r"^listen: 203\.0\.113\.1:0 cannot be used"):
        HealthServer("203.0.113.1:0", lambda: shown.view, shown.metrics)


def test_the_real_port_is_told(shown: Shown, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    server = HealthServer("[::1]:0", lambda: shown.view, shown.metrics)
    server.begin()
    try:
        host, port = parse_address(server.address)
        assert (host, port > 0) == ("::1", True)
        assert f"http://{server.address}/status" in caplog.text
        assert ask(server, "/healthz")[0] == 200
    finally:
        server.close()


def test_a_closed_server_gives_its_port_back(shown: Shown) -> None:
    first = HealthServer("127.0.0.1:0", lambda: shown.view, shown.metrics)
    first.begin()
    first.close()
    second = HealthServer(first.address, lambda: shown.view, shown.metrics)
    second.close()


def test_silent_peers_take_only_so_many_threads_and_do_not_stop_the_server(server: HealthServer) -> None:
    before = threading.active_count()
    peers = [socket.create_connection(parse_address(server.address), timeout=WAIT_S) for _ in range(REQUESTS_MAX + 5)]
    try:
        for extra in peers[REQUESTS_MAX:]:
            assert extra.recv(1) == b""  # closed, unanswered
        assert threading.active_count() <= before + REQUESTS_MAX
    finally:
        for peer in peers:
            peer.close()
    wait_until_answered(server)


def test_requests_for_which_there_is_no_thread_use_up_no_place(
    server: HealthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Semaphore(0)

    def no_thread(_: threading.Thread) -> None:
        failed.release()
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        for _ in range(REQUESTS_MAX + 2):
            socket.create_connection(parse_address(server.address), WAIT_S).close()
            assert failed.acquire(timeout=WAIT_S)
    wait_until_answered(server)


def wait_until_answered(server: HealthServer) -> None:
    """The threads of peers that went away end a moment later."""
    pause = threading.Event()
    for _ in range(int(WAIT_S / 0.02)):
        try:
            assert ask(server, "/healthz")[0] == 200
            return
        except OSError:
            pause.wait(0.02)
    raise AssertionError("the server does not answer any more")


# -------------------------------------------------------------------------------------------------------------- metrics


def test_every_metric_of_the_table_is_shown_and_no_other(shown: Shown) -> None:
    for described in TABLE:
        if described.kind == "histogram":
            shown.metrics.observe(described.name, 1.0, tuple("x" for _ in described.labels))
        elif described.kind == "counter" and described.name != "unrouted_rows_total":
            shown.metrics.add(described.name, 1, tuple("x" for _ in described.labels))
    kinds = {}
    for family in parse(shown.metrics.text()[0].decode()):
        assert family.samples, family.name
        kinds[family.name + ("_total" if family.type == "counter" else "")] = family.type
        labels = {*family.samples[0].labels} - {"le"}
        (described,) = [each for each in (*TABLE, *DESTINATION_TABLE) if PREFIX + each.name in
                        (family.name, f"{family.name}_total")]  # fmt: skip
        assert labels == {"pipeline", *described.labels}
    assert kinds == {PREFIX + each.name: each.kind for each in (*TABLE, *DESTINATION_TABLE)}


def test_gauges_show_the_view(shown: Shown) -> None:
    samples = shown.samples()
    assert samples["source_version", ()] == 12
    assert (samples["source_up", ()], samples["control_up", ()]) == (1, 1)
    assert samples["leases_held", ()] == 2
    assert samples["halted_destinations", ()] == 1
    assert (samples["lag_versions_max", ()], samples["lag_seconds_max", ()]) == (3, 1.5)
    assert [
        samples["destinations", (stage.value,)] for stage in (TrackStage.READY, TrackStage.HALTED, TrackStage.PAUSED)
    ] == [1, 1, 0]
    assert (samples["seeding_ratio", ()], samples["turned_seconds", ()]) == (0.25, 0.3)
    assert samples["jobs", ("flush",)] == 1


def test_series_of_single_destinations_are_of_those_that_are_owned(shown: Shown) -> None:
    samples = shown.samples()
    assert samples["destination_position", ("a",)] == 7
    assert samples["destination_lag_seconds", ("a",)] == 1.5
    assert samples["destination_rows_written_total", ("a",)] == 3
    assert samples["destination_flushed_timestamp_seconds", ("a",)] == 1_700_000_000.5
    assert samples["destination_halted", ("b",)] == 1
    assert ("destination_position", ("b",)) not in samples
    assert ("destination_halted", ("c",)) not in samples


@pytest.mark.parametrize(("asked", "series"), [(None, 0), (True, DESTINATIONS_MAX + 1), (False, 0)])
def test_of_many_destinations_single_series_are_left_out_unless_asked_for(asked: bool | None, series: int) -> None:
    many = tuple(replace(A, name=f"d{number}") for number in range(DESTINATIONS_MAX + 1))
    samples = Shown(replace(VIEW, destinations=many), per_destination=asked).samples()
    assert sum(name == "destination_position" for name, _ in samples) == series
    assert samples["destinations", ("ready",)] == DESTINATIONS_MAX + 1


def test_unrouted_rows_are_shown_by_value_and_the_text_null_is_not_a_null(shown: Shown) -> None:
    shown.view = replace(VIEW, unrouted=Unrouted({"x": 10, "": 2, "NULL": 3}, nulls=4, others=1))
    samples = shown.samples()
    found = {labels: rows for (name, labels), rows in samples.items() if name == "unrouted_rows_total"}
    assert found == {
        ("value", "x"): 10, ("value", ""): 2, ("value", "NULL"): 3, ("null", ""): 4, ("other", ""): 1,
    }  # fmt: skip


def test_unrouted_values_are_bounded_and_no_counter_ever_shrinks(shown: Shown) -> None:
    many = {f"v{number}": number + 1 for number in range(UNROUTED_VALUES_MAX + 50)}
    before: dict[tuple[str, ...], float] = {}
    for growth in (0, 1000):
        changed = many | {"v0": 1 + growth, "fresh": 5 + growth}
        shown.view = replace(VIEW, unrouted=Unrouted(changed))
        found = {labels: rows for (name, labels), rows in shown.samples().items() if name == "unrouted_rows_total"}
        assert len(found) == UNROUTED_VALUES_MAX + 2
        assert sum(found.values()) == sum(changed.values())
        assert all(found[labels] >= rows for labels, rows in before.items())
        before = found


def test_counters_and_histograms_add_up(shown: Shown) -> None:
    shown.metrics.add("flushes_total", 2, ("applied",))
    shown.metrics.add("flushes_total", 1, ("applied",))
    for seconds in (0.01, 0.3, 9999.0):
        shown.metrics.observe("job_duration_seconds", seconds, ("flush", "small"))
    samples = shown.samples()
    assert samples["flushes_total", ("applied",)] == 3
    assert samples["rows_written_total", ()] == 0
    assert samples["job_duration_seconds_bucket", ("flush", "0.05", "small")] == 1
    assert samples["job_duration_seconds_bucket", ("flush", "0.5", "small")] == 2
    assert samples["job_duration_seconds_bucket", ("flush", "+Inf", "small")] == 3
    assert samples["job_duration_seconds_count", ("flush", "small")] == 3


def test_prometheus_gets_the_format_it_asks_for(server: HealthServer) -> None:
    status, kind, body = get(server, "/metrics")
    assert (status, kind.split(";")[0]) == (200, "text/plain")
    assert list(parse(body))
    status, kind, body = get(server, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert (status, kind.split(";")[0]) == (200, "application/openmetrics-text")
    assert list(parse_open(body))  # type: ignore[no-untyped-call]


def test_two_deliverers_in_one_process_do_not_share_metrics() -> None:
    one, other = Shown(), Shown()
    one.metrics.add("halts_total")
    assert (one.samples()["halts_total", ()], other.samples()["halts_total", ()]) == (1, 0)


def test_the_reference_has_a_row_for_every_metric() -> None:
    rows = reference().splitlines()[2:]
    assert len(rows) == len(TABLE) + len(DESTINATION_TABLE)
    assert "| `trunkline_delivery_flushes_total` | counter | `pipeline`, `outcome` |" in reference()
    assert all(row.count("|") == 5 for row in rows)
