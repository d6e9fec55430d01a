"""Unrouted rows are counted once each, in whatever order windows end, and with several deliverers."""

from __future__ import annotations

import random

import pytest

from delivery.deliverer_rig import PIPELINE, wait_until
from trunkline.core.delivery_messages import (
    SourceAt,
)
from trunkline.delivery.changes.versions import BEFORE_ALL, Window
from trunkline.delivery.control.contract import UnroutedCounts
from trunkline.delivery.control.store import ControlStore
from trunkline.delivery.deliverer.unrouted_counter import WINDOWS_MAX, UnroutedCounter
from trunkline.errors import SourceExpired, Unreachable

# ------------------------------------------------------------------------------------------------------- unrouted rows

ROWS = {version: {"x": version % 3, None: version % 2, f"v{version % 5}": 1} for version in range(1, 200)}


class Lake:
    """A source whose rows arrive and stay: a window holds what its versions brought."""

    def __init__(self, *, stops: tuple[int, ...] = (), oldest: int = 1) -> None:
        self.at = SourceAt(199, oldest, stops)
        self.reads: list[Window] = []
        self.fails: list[Exception] = []

    def count(self, window: Window) -> dict[str | None, int]:
        self.reads.append(window)
        if self.fails:
            raise self.fails.pop()
        if 0 <= window.after < self.at.oldest:
            raise SourceExpired(f"{window.after} has expired; seed again")
        return truth(window)


def truth(window: Window) -> dict[str | None, int]:
    found: dict[str | None, int] = {}
    for version in range(max(window.after, 0) + 1, window.through + 1):
        for value, rows in ROWS[version].items():
            found[value] = found.get(value, 0) + rows
    return {value: rows for value, rows in found.items() if rows}


def unrouted(through: int) -> UnroutedCounts:
    found = truth(Window(0, through))
    return UnroutedCounts({value: rows for value, rows in found.items() if value is not None}, found.get(None, 0))


class Counting:
    """A counter, and what it published."""

    def __init__(self, store: ControlStore, lake: Lake, *, patience_s: float = 0.0) -> None:
        self.published: list[tuple[int, UnroutedCounts]] = []
        self.counter = UnroutedCounter(
            store,
            PIPELINE,
            lake.count,
            lambda: lake.at,
            lambda through, counts: self.published.append((through, counts)),
            patience_s=patience_s,
            retry_first_s=0.01,
        )
        self.counter.begin()

    def jobs_ended(self, *windows: tuple[int, int], counted: bool = True) -> None:
        for after, through in windows:
            window = Window(after, through)
            self.counter.job_ended(window, truth(window) if counted else None)


@pytest.fixture
def counted(store: ControlStore) -> ControlStore:
    store.configurations.configure(PIPELINE, "digest", {"a": "digest"})
    return store


def test_n1_windows_that_follow_each_other_are_added_without_a_read(counted: ControlStore) -> None:
    lake = Lake()
    one = Counting(counted, lake, patience_s=60)
    one.jobs_ended((0, 10), (10, 12), (12, 30), (10, 12))
    one.counter.close()
    assert counted.unrouted.counts(PIPELINE) == (30, unrouted(30))
    assert lake.reads == []
    assert one.published[-1] == (30, unrouted(30))


def test_n2_a_gap_is_read_for_itself(counted: ControlStore) -> None:
    lake = Lake()
    one = Counting(counted, lake)
    one.jobs_ended((0, 10), (20, 30))
    one.counter.close()
    assert counted.unrouted.counts(PIPELINE) == (30, unrouted(30))
    assert lake.reads == [Window(10, 20)]


def test_n2_of_an_overlapping_window_only_the_rest_is_read(counted: ControlStore) -> None:
    lake = Lake()
    one = Counting(counted, lake, patience_s=60)
    one.jobs_ended((0, 10), (5, 30))
    one.counter.close()
    assert counted.unrouted.counts(PIPELINE) == (30, unrouted(30))
    assert lake.reads == [Window(10, 30)]


def test_n2_a_window_whose_job_did_not_count_is_read(counted: ControlStore) -> None:
    lake = Lake()
    one = Counting(counted, lake)
    one.jobs_ended((0, 10))
    one.jobs_ended((10, 20), counted=False)
    one.counter.close()
    assert counted.unrouted.counts(PIPELINE) == (20, unrouted(20))
    assert lake.reads == [Window(10, 20)]


def test_n3_a_read_crosses_no_stop(counted: ControlStore) -> None:
    lake = Lake(stops=(5, 15, 18, 25))
    one = Counting(counted, lake)
    one.jobs_ended((0, 10), (20, 30))
    one.counter.close()
    assert counted.unrouted.counts(PIPELINE) == (30, unrouted(30))
    assert lake.reads == [Window(10, 15), Window(15, 18), Window(18, 20)]


def test_n3_where_nothing_was_counted_the_state_is(counted: ControlStore) -> None:
    lake = Lake(stops=(5,), oldest=8)
    one = Counting(counted, lake)
    one.jobs_ended((20, 30))
    one.counter.close()
    assert counted.unrouted.counts(PIPELINE) == (30, unrouted(30))
    assert lake.reads == [Window(BEFORE_ALL, 20)]


def test_n3_a_seed_counts_as_the_window_from_nothing_when_nothing_was_counted(counted: ControlStore) -> None:
    lake = Lake()
    one = Counting(counted, lake)
    one.counter.job_ended(Window(BEFORE_ALL, 40), truth(Window(0, 40)))
    one.counter.job_ended(Window(0, 50), truth(Window(0, 50)))  # a second seed: only what is new counts
    one.counter.close()
    assert counted.unrouted.counts(PIPELINE) == (50, unrouted(50))
    assert lake.reads == [Window(40, 50)]


def test_n4_a_gap_that_others_close_is_not_read(counted: ControlStore) -> None:
    lake = Lake()
    one, other = Counting(counted, lake, patience_s=60), Counting(counted, lake, patience_s=60)
    one.jobs_ended((0, 10), (20, 30))
    wait_until(lambda: counted.unrouted.counts(PIPELINE)[0] == 10)
    other.jobs_ended((10, 20))
    other.counter.close()
    one.jobs_ended((30, 31))
    one.counter.close()
    assert counted.unrouted.counts(PIPELINE) == (31, unrouted(31))
    assert lake.reads == []


def test_n5_versions_that_the_source_expired_are_skipped_with_a_warning(
    counted: ControlStore, caplog: pytest.LogCaptureFixture
) -> None:
    lake = Lake(oldest=15)
    one = Counting(counted, lake)
    one.jobs_ended((0, 10), (20, 30))
    one.counter.close()
    through, counts = counted.unrouted.counts(PIPELINE)
    lost = sum(truth(Window(10, 15)).values())
    assert (through, counts.rows) == (30, unrouted(30).rows - lost)
    assert lake.reads == [Window(15, 20)]
    assert "versions 11 to 15" in caplog.text


def test_n6_a_read_that_fails_is_tried_again(counted: ControlStore) -> None:
    lake = Lake()
    lake.fails = [Unreachable("the lake is unreachable"), Unreachable("the lake is unreachable")]
    one = Counting(counted, lake)
    one.jobs_ended((0, 10), (20, 30))
    wait_until(lambda: counted.unrouted.counts(PIPELINE)[0] == 30)
    one.counter.close()
    assert counted.unrouted.counts(PIPELINE) == (30, unrouted(30))
    assert len(lake.reads) == 3


def test_n6_after_too_many_failures_the_next_job_tries_again(
    counted: ControlStore, caplog: pytest.LogCaptureFixture
) -> None:
    lake = Lake()
    lake.fails = [Unreachable("the lake is unreachable") for _ in range(5)]
    one = Counting(counted, lake)
    one.jobs_ended((0, 10), (20, 30))
    wait_until(lambda: "could not be counted" in caplog.text)
    assert counted.unrouted.counts(PIPELINE)[0] == 10
    one.jobs_ended((30, 31))
    wait_until(lambda: counted.unrouted.counts(PIPELINE)[0] == 31)
    one.counter.close()
    assert counted.unrouted.counts(PIPELINE) == (31, unrouted(31))


def test_without_finishing_a_gap_stays_and_the_next_deliverer_closes_it(counted: ControlStore) -> None:
    lake = Lake()
    one = Counting(counted, lake, patience_s=60)
    one.jobs_ended((0, 10), (20, 30))
    one.counter.close(finish=False)
    assert counted.unrouted.counts(PIPELINE) == (10, unrouted(10))
    assert lake.reads == []
    later = Counting(counted, lake)
    later.jobs_ended((30, 31))
    later.counter.close()
    assert counted.unrouted.counts(PIPELINE) == (31, unrouted(31))


def test_more_windows_than_can_wait_are_counted_all_the_same(counted: ControlStore) -> None:
    lake = Lake()
    one = Counting(counted, lake, patience_s=60)
    one.jobs_ended(*((at, at + 1) for at in range(50, 50 + WINDOWS_MAX + 20)))
    one.counter.close()
    last = 50 + WINDOWS_MAX + 20
    assert counted.unrouted.counts(PIPELINE) == (last, unrouted(last))


@pytest.mark.parametrize("seed", range(8))
def test_windows_in_any_order_from_several_deliverers_are_counted_once(counted: ControlStore, seed: int) -> None:
    chance = random.Random(seed)
    lake = Lake(stops=tuple(sorted(chance.sample(range(1, 199), 6))))
    several = [Counting(counted, lake, patience_s=chance.choice([0.0, 0.02])) for _ in range(2)]
    ends = []
    for _ in range(30):
        after = chance.choice([0, chance.randrange(190), chance.randrange(190)])
        through = min(199, after + chance.randrange(1, 30))
        chance.choice(several).jobs_ended((after, through), counted=chance.random() < 0.8)
        ends.append(through)
    for each in several:
        each.counter.close()
    reach, counts = counted.unrouted.counts(PIPELINE)
    assert reach == max(ends)
    assert counts == unrouted(reach)
