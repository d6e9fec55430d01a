"""Sentences about what happened to pipelines between two polls."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from trunkline.dashboard.delivery_words import (
    ERROR_CHARACTERS_MAX,
    changes,
    destination_news,
    state_words,
    store_news,
    worst_lags_ms,
)
from trunkline.dashboard.views import (
    ChangedDestinations,
    FeedLine,
    ShownDeliverer,
    ShownDestination,
    ShownPipeline,
    ShownStore,
)


def destination(name: str, state: str = "ready", desired_state: str = "active", error: str = "") -> ShownDestination:
    return ShownDestination(f"0/p/{name}", 0, "p", name, state, desired_state, "one", state == "halted", error=error)


def keyed(*destinations: ShownDestination) -> dict[str, ShownDestination]:
    return {each.key: each for each in destinations}


ACME = destination("acme")


@pytest.mark.parametrize(
    ("state", "desired_state", "owned", "words"),
    [
        ("ready", "active", True, "ready"),
        ("", "active", False, "new"),
        ("ready", "active", False, "was ready"),
        ("ready", "paused", True, "ready, to be paused"),
        ("paused", "paused", True, "paused"),
        ("drained", "draining", True, "drained"),
        ("flushing", "draining", True, "flushing, to be drained"),
    ],
)
def test_a_state_is_what_the_deliverer_reported_and_the_desired_state_while_it_differs(
    state: str, desired_state: str, owned: bool, words: str
) -> None:
    assert state_words(state, desired_state, owned=owned) == words


def test_changed_desired_states_are_news() -> None:
    paused = replace(ACME, desired_state="paused")
    assert destination_news(keyed(ACME), keyed(paused)) == [FeedLine("warn", "destination acme paused")]
    assert destination_news(keyed(paused), keyed(ACME)) == [FeedLine("good", "destination acme resumed")]


def test_a_halt_is_reported_with_its_reason_and_its_end() -> None:
    halted = destination("acme", "halted", error="acme: two rows share a key")
    assert destination_news(keyed(ACME), keyed(halted)) == [FeedLine("bad", "acme: halted: two rows share a key")]
    assert destination_news(keyed(halted), keyed(halted)) == []
    assert destination_news(keyed(halted), keyed(ACME)) == [FeedLine("good", "acme: no longer halted")]


def test_an_error_is_reported_when_it_changes() -> None:
    failed = destination("acme", "backing off", error="no answer")
    assert destination_news(keyed(ACME), keyed(failed)) == [FeedLine("warn", "acme: no answer")]
    assert destination_news(keyed(failed), keyed(replace(failed, lag_ms=9))) == []


def test_a_long_error_is_cut() -> None:
    (said,) = destination_news(keyed(ACME), keyed(destination("acme", "halted", error="x" * 1000)))
    assert len(said.text) < ERROR_CHARACTERS_MAX + 30


def test_only_rows_that_changed_are_sent() -> None:
    before, moved = keyed(ACME, destination("b"), destination("c")), replace(ACME, position=5)
    assert changes(before, keyed(moved, destination("b"))) == ChangedDestinations((moved,), ("0/p/c",))
    assert changes(before, before) == ChangedDestinations()


def test_stores_pipelines_and_deliverers_come_and_go() -> None:
    def store(*names: str, error: str = "") -> ShownStore:
        return ShownStore(
            "sqlite:x", error, (ShownPipeline(0, "p", tuple(ShownDeliverer(name, True, 1) for name in names), 1),)
        )

    empty = ShownStore("sqlite:x", "", ())
    assert store_news([empty], [store("one")]) == [FeedLine("info", "pipeline p was added")]
    assert store_news([store("one")], [store("two")]) == [
        FeedLine("good", "deliverer two runs p"),
        FeedLine("warn", "deliverer one no longer runs p"),
    ]
    assert store_news([store()], [store(error="locked")]) == [
        FeedLine("bad", "control store sqlite:x cannot be read: locked")
    ]
    assert store_news([store(error="locked")], [store()]) == [
        FeedLine("good", "control store sqlite:x can be read again")
    ]


def test_the_lag_of_a_pipeline_is_the_worst_of_those_that_are_to_be_delivered() -> None:
    rows = [
        replace(ACME, lag_ms=5),
        replace(destination("b"), lag_ms=9),
        replace(destination("c"), lag_ms=99, desired_state="paused"),
    ]
    assert worst_lags_ms(keyed(*rows)) == {"0/p": 9}
