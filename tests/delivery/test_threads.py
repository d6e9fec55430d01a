"""A thread that fails stops the deliverer with an error: a bug is planted in each thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest

from trunkline.delivery.config.addresses import DeltaAddress
from trunkline.delivery.config.tree import Pipeline, ReadingConfig, RoutingConfig
from trunkline.delivery.control.store import ControlStore, open_control_store
from trunkline.delivery.deliverer.health import observed_deliverer, readiness
from trunkline.delivery.deliverer.host import Deliverer
from trunkline.delivery.deliverer.observer import Observer
from trunkline.delivery.job.runner import JobRunner
from trunkline.delivery.sources.contract import SourceState
from trunkline.errors import TrunklineError
from trunkline.observing.thread import ObservingThread
from trunkline.threads import Threads

WAIT_S = 60.0


class Planted(Exception):
    """No error of ours, as a bug is none."""


def broken(*_: object, **__: object) -> Any:
    raise Planted("planted")


class QuietSource:
    """A source where nothing happens."""

    def change_hint(self) -> object:
        return None

    def state(self, known: int) -> SourceState:
        return SourceState(1, 0)


class Parts:
    """A deliverer without destinations, so that it needs no Spark."""

    def __init__(self, folder: Path, store: ControlStore) -> None:
        pipeline = Pipeline(
            name="orders",
            source=DeltaAddress(str(folder / "orders")),
            routing=RoutingConfig(column="tenant"),
            key=("id",),
            destinations=(),
            reading=ReadingConfig(poll_ms=10),
        )
        self.store, self.source, self.threads = store, QuietSource(), Threads()
        self.observer = Observer("orders", "one")
        self.observing = ObservingThread("0", observed_deliverer(self.observer), threads=self.threads)
        self.deliverer = Deliverer(
            pipeline, lambda _: create_autospec(JobRunner, instance=True), store, "one", self.observer, self.threads
        )
        self.deliverer._watch._source = self.source  # type: ignore[assignment]


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    with closing(open_control_store(f"sqlite:{tmp_path / 'control.db'}")) as store:
        yield Parts(tmp_path, store)


def break_observing(parts: Parts, patch: pytest.MonkeyPatch) -> None:
    async def serve() -> None:
        parts.observing._started.set_result("nowhere:1")
        broken()

    patch.setattr(parts.observing, "_serve", serve)


PLANTS: dict[str, Callable[[Parts, pytest.MonkeyPatch], None]] = {
    "source": lambda parts, patch: patch.setattr(parts.source, "change_hint", broken),
    "control": lambda parts, patch: patch.setattr(parts.store.configurations, "revision", broken),
    "unrouted": lambda parts, patch: patch.setattr(parts.store.unrouted, "counts", broken),
    "observing": break_observing,
}


@pytest.mark.parametrize("name", PLANTS)
def test_d4_a_thread_that_fails_stops_the_deliverer_and_readyz_reports_it(
    parts: Parts, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    began, ended = parts.observer.began, ExitStack()

    def plant(*arguments: Any) -> None:
        began(*arguments)
        PLANTS[name](parts, monkeypatch)  # from here on the loop turns
        ended.enter_context(parts.observing)

    monkeypatch.setattr(parts.observer, "began", plant)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            parts.deliverer.run()
        except TrunklineError as error:
            errors.append(error)

    with ended:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(WAIT_S)
    assert not thread.is_alive()
    assert f"the thread {name} died, which is a bug: Planted('planted')" in str(errors[0])
    ready = readiness(parts.observer.snapshot())
    assert not ready.ready
    assert any(f"the thread {name} died" in why for why in ready.why)
    assert "raise Planted" in caplog.text  # with its traceback


def test_a_poll_of_the_source_that_does_not_end_is_reported(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck, reported = threading.Event(), threading.Event()
    monkeypatch.setattr("trunkline.delivery.deliverer.host.POLL_S_MAX", 0.0)
    source_error, began = parts.observer.source_error, parts.observer.began

    def listening(text: str) -> None:
        source_error(text)
        if "takes longer than" in text:
            reported.set()

    def plant(*arguments: Any) -> None:
        began(*arguments)
        monkeypatch.setattr(parts.source, "change_hint", lambda: stuck.wait(WAIT_S))

    monkeypatch.setattr(parts.observer, "source_error", listening)
    monkeypatch.setattr(parts.observer, "began", plant)
    thread = threading.Thread(target=parts.deliverer.run, daemon=True)
    thread.start()
    assert reported.wait(WAIT_S)
    assert "the source cannot be reached" in " ".join(readiness(parts.observer.snapshot()).why)
    stuck.set()
    parts.deliverer.stop(drain=False)
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_t2_a_thread_that_failed_earlier_is_reported_at_once() -> None:
    threads = Threads()
    threads.start("early", broken).join(WAIT_S)
    reported: list[str] = []
    threads.when_one_dies(reported.append)
    threads.run("late", broken)

    def leave() -> None:
        raise SystemExit  # which Python would pass over in a thread

    threads.start("leaving", leave).join(WAIT_S)
    assert [text.split()[2] for text in reported] == ["early", "late", "leaving"]
    assert threads.died == tuple(reported)
    threads.start("well", lambda: None).join(WAIT_S)
    assert len(threads.died) == 3
