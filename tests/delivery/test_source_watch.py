"""Polls of the source: what a deliverer logs about it."""

from __future__ import annotations

from typing import Any

import pytest

from trunkline.delivery.deliverer.source_watch import SourceWatch
from trunkline.delivery.sources.contract import SourceState
from trunkline.threads import Threads


class States:
    """A source with these states, one for each poll."""

    def __init__(self, *states: SourceState) -> None:
        self._states = list(states)

    def change_hint(self) -> None:
        return None

    def state(self, known: int) -> SourceState:
        return self._states.pop(0)


def test_tables_that_are_not_read_yet_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    names = tuple(f"public.t{number}" for number in range(7))
    source: Any = States(*(SourceState(version, 1, awaited=names) for version in (1, 2)), SourceState(3, 1))
    watch = SourceWatch(source, 10, lambda _: None, lambda _: None, Threads())
    for _ in range(3):
        watch.poll()
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("7 tables not read yet: public.t0, public.t1, public.t2, public.t3, public.t4 and 2 more:")
