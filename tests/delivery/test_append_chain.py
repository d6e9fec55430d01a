"""The chain of appends: one in flight, what waits goes together, and nothing follows a failure."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest

from trunkline.core.capture_messages import AppendOutcome
from trunkline.delivery.capture.append_chain import BYTES_MAX, ENTRIES_MAX, AppendChain, Encoded, Ended
from trunkline.delivery.changes.database_entries import CATALOG_HEADER, EntryKind, Heading
from trunkline.errors import LogSealed, OutcomeUnknown, OwnedByAnother, TrunklineError, Unreachable
from trunkline.threads import Threads

WAIT_S = 30.0


class HeldLog:
    """Appends wait until they are let go."""

    def __init__(self) -> None:
        self.tail = 1
        self.calls: queue.Queue[list[bytes]] = queue.Queue()
        self.catalogs: list[list[bytes | None]] = []
        self.go = threading.Semaphore(0)
        self.error: TrunklineError | None = None

    def append(self, payload: Sequence[bytes], *, headers: Sequence[Mapping[str, bytes]]) -> int:
        self.calls.put(list(payload))
        self.catalogs.append([each.get(CATALOG_HEADER) for each in headers])
        assert self.go.acquire(timeout=WAIT_S)
        if self.error is not None:
            raise self.error
        first, self.tail = self.tail, self.tail + len(payload)
        return first


class Rig:
    def __init__(self) -> None:
        self.log = HeldLog()
        self.ended: queue.Queue[Ended] = queue.Queue()
        self.chain = AppendChain(self.log.append, 0, self.ended.put, Threads())

    def add(self, *numbers: int, size: int = 1, kind: EntryKind = EntryKind.GROUP) -> None:
        heading = Heading(kind, "p", end=kind is EntryKind.GROUP)
        self.chain.add([Encoded(number, heading, bytes([number % 256]) * size) for number in numbers])

    def called(self) -> int:
        """How many entries the next append has."""
        return len(self.log.calls.get(timeout=WAIT_S))

    def end(self) -> Ended:
        self.log.go.release()
        return self.ended.get(timeout=WAIT_S)


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.log.go.release(1000)
    made.chain.close()


def test_a1_what_waits_goes_in_one_append_up_to_its_limits(rig: Rig) -> None:
    rig.add(1)
    assert rig.called() == 1
    rig.add(*range(2, ENTRIES_MAX + 12))
    assert rig.end() == Ended(1, AppendOutcome.COMMITTED)
    assert rig.called() == ENTRIES_MAX
    rig.add(200, 201, 202, size=BYTES_MAX // 2)
    assert rig.end().number == ENTRIES_MAX + 1
    assert rig.called() == 11  # the ten that were left, and one large one
    assert rig.end().number == 200
    assert rig.called() == 2
    assert rig.end().number == 202


def test_a1_a_request_has_ended_when_the_last_of_its_entries_has(rig: Rig) -> None:
    rig.add(1)
    rig.called()
    rig.add(2, 3, 3, 3, size=BYTES_MAX // 2)
    rig.end()
    assert rig.called() == 2
    assert rig.end() == Ended(2, AppendOutcome.COMMITTED)
    assert rig.called() == 2
    assert rig.end() == Ended(3, AppendOutcome.COMMITTED)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (OutcomeUnknown("lost"), AppendOutcome.UNKNOWN),
        (OwnedByAnother("taken"), AppendOutcome.FENCED),
        (LogSealed("sealed"), AppendOutcome.REFUSED),
        (Unreachable("silent"), AppendOutcome.REFUSED),
        (TrunklineError("a bug"), AppendOutcome.UNKNOWN),
    ],
)
def test_a2_after_a_failure_everything_is_refused(rig: Rig, error: TrunklineError, outcome: AppendOutcome) -> None:
    rig.add(1)
    rig.called()
    rig.add(2, 3)
    rig.log.error = error
    assert rig.end() == Ended(1, outcome, error)
    assert rig.ended.get(timeout=WAIT_S) == Ended(3, AppendOutcome.REFUSED)
    rig.add(4)
    assert rig.ended.get(timeout=WAIT_S) == Ended(4, AppendOutcome.REFUSED)
    assert rig.log.calls.empty()


def test_a3_a_closed_chain_appends_nothing_more(rig: Rig) -> None:
    rig.add(1)
    rig.called()
    rig.add(2)
    with _closing(rig.chain) as closing:
        assert closing.is_alive()  # it waits for the append in flight
        rig.log.go.release()
    assert rig.ended.get(timeout=WAIT_S).number == 1
    assert rig.log.calls.empty()


@contextmanager
def _closing(chain: AppendChain) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=chain.close)
    thread.start()
    yield thread
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_a4_entries_after_a_catalog_name_it(rig: Rig) -> None:
    rig.add(1, kind=EntryKind.CATALOG)
    assert rig.called() == 1
    rig.add(2)
    rig.add(3, kind=EntryKind.CATALOG)
    rig.add(4)
    rig.end()
    assert rig.called() == 2
    rig.end()
    assert rig.called() == 1
    rig.end()
    assert rig.log.catalogs == [[None], [b"1", b"1"], [b"3"]]
