"""Metrics, health, readiness and status of a deliverer."""

from __future__ import annotations

import asyncio
import json
from http.client import HTTPConnection
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families as parse

from observing.series import series
from trunkline.core.planner_tracks import TrackStage
from trunkline.delivery.control.contract import UnroutedCounts
from trunkline.delivery.deliverer.health import STALLED_MS, health, observed_deliverer, readiness
from trunkline.delivery.deliverer.metrics import (
    DESTINATIONS_MAX,
    OVERALL,
    TABLE,
    UNROUTED_VALUES_MAX,
    DelivererMetrics,
)
from trunkline.delivery.deliverer.observer import Observer
from trunkline.delivery.deliverer.views import DelivererView, DestinationView, JobView, ProgressView
from trunkline.net.addresses import parse_address
from trunkline.observing.pages import metrics_page
from trunkline.observing.thread import ObservingThread

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
STRETCH = ProgressView(done=1, total=4, elapsed_ms=6000, percent=25.0, left_ms=18_000)
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
    unrouted=UnroutedCounts({"x": 10, "y": 2}, nulls=4, others=1),
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
        self.metrics = DelivererMetrics(lambda: self.view, per_destination=per_destination)

    def page(self) -> str:
        return metrics_page(TABLE, asyncio.run(self.metrics.values()), ("orders",)).decode()

    def samples(self) -> dict[tuple[str, tuple[str, ...]], float]:
        """Value by name (without the prefix) and label values (without the pipeline's)."""
        found = series(self.page())
        assert all("orders" in labels for _, labels in found)
        return {
            (name.removeprefix(TABLE.prefix), tuple(each for each in labels if each != "orders")): value
            for (name, labels), value in found.items()
        }


@pytest.fixture
def shown() -> Shown:
    return Shown()


# -------------------------------------------------------------------------------------------------------------- health


def test_a_deliverer_whose_loop_turns_is_alive() -> None:
    found = health(VIEW)
    assert (found.alive, found.facts) == (True, {"state": "running", "turned_ms_ago": 300})
    assert not health(replace(VIEW, turned_ms_ago=STALLED_MS)).alive


def test_a_deliverer_that_starts_has_more_time() -> None:
    starting = replace(VIEW, state="starting", turned_ms_ago=STALLED_MS)
    assert health(starting).alive
    assert not readiness(starting).ready


def test_a_halted_destination_leaves_the_deliverer_ready_and_is_named() -> None:
    found = readiness(VIEW)
    assert found.ready
    errors = {"b": "b: add column x, and resume"}
    assert found.facts == {"state": "running", "held": 2, "halted": 1, "errors": errors}


def test_an_idle_deliverer_and_a_willing_standby_are_ready() -> None:
    idle = replace(VIEW, jobs=(), destinations=(replace(A, lag_versions=0, lag_ms=0),), at_ms=VIEW.at_ms + 86_400_000)
    assert readiness(idle).ready
    assert readiness(replace(idle, held=0, destinations=(ELSEWHERE,))).ready


@pytest.mark.parametrize(
    ("view", "why"),
    [
        (replace(VIEW, source_error="a lake"), "the source cannot be reached: a lake"),
        (replace(VIEW, held=0, store_error="x"), "no destination is owned, and the control store cannot be reached: x"),
        (replace(VIEW, state="draining"), "the deliverer is draining"),
        (replace(VIEW, turned_ms_ago=STALLED_MS), f"the loop has not turned for {STALLED_MS} ms"),
    ],
)
def test_a_deliverer_that_is_not_ready_says_why(view: DelivererView, why: str) -> None:
    (found,) = readiness(view).why
    assert found.startswith(why)


def test_leases_that_run_keep_a_deliverer_ready_while_the_store_is_unreachable() -> None:
    assert readiness(replace(VIEW, store_error="x")).ready


def test_a_deliverer_serves_its_pages_before_it_has_started() -> None:
    observer = Observer("orders", "one")
    with ObservingThread("127.0.0.1:0", observed_deliverer(observer), ("deliverer.example",)) as server:
        status, body = ask(server, "/healthz")
        assert body.pop("turned_ms_ago") >= 0
        assert (status, body) == (200, {"alive": True, "process": "deliverer", "name": "one", "state": "starting"})
        status, body = ask(server, "/readyz")
        assert (status, body["ready"], body["why"]) == (503, False, ["the deliverer is starting"])
        assert get(server, "/metrics", Host="deliverer.example:9000")[0] == 200
        for path in ("/metrics", "/status", "/readyz"):
            assert get(server, path, Host="evil.example")[0] == 403


def test_the_status_is_all_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    observer = Observer("orders", "one")
    monkeypatch.setattr(observer, "snapshot", lambda: VIEW)
    with ObservingThread("0", observed_deliverer(observer)) as server:
        assert ask(server, "/readyz")[0] == 200
        status, body = ask(server, "/status")
        assert status == 200
        assert body["destinations"][0]["lag_ms"] == 1500
        assert body["unrouted"]["values"] == {"x": 10, "y": 2}
        assert body["jobs"][0]["through"] == 12


def get(server: ObservingThread, path: str, **headers: str) -> tuple[int, str]:
    connection = HTTPConnection(*parse_address(server.address), timeout=WAIT_S)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def ask(server: ObservingThread, path: str) -> tuple[int, Any]:
    status, body = get(server, path)
    return status, json.loads(body)


# -------------------------------------------------------------------------------------------------------------- metrics


def test_every_metric_of_the_table_has_a_series(shown: Shown) -> None:
    for spec in OVERALL:
        labels = tuple("x" for _ in spec.labels)
        if spec.kind == "histogram":
            shown.metrics.observe(spec.name, 1.0, labels)
        elif spec.kind == "counter" and spec.name != "unrouted_rows_total":
            shown.metrics.add(spec.name, 1, labels)
    families = {family.name + ("_total" if family.type == "counter" else ""): family for family in parse(shown.page())}
    for spec in TABLE.metrics:
        family = families[TABLE.prefix + spec.name]
        assert family.type == spec.kind
        assert {*family.samples[0].labels} - {"le"} == {"pipeline", *spec.labels}


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
    shown.view = replace(VIEW, unrouted=UnroutedCounts({"x": 10, "": 2, "NULL": 3}, nulls=4, others=1))
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
        shown.view = replace(VIEW, unrouted=UnroutedCounts(changed))
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


def test_two_deliverers_in_one_process_do_not_share_metrics() -> None:
    one, other = Shown(), Shown()
    one.metrics.add("halts_total")
    assert (one.samples()["halts_total", ()], other.samples()["halts_total", ()]) == (1, 0)
