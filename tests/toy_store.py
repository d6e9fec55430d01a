"""A protocol small enough to know by heart: a caller asks a keeper to store values, over a network that loses some.

Two bugs can be put in. ``Keeper.careless`` answers before it persists; ``Caller.patient = False`` never asks again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from trunkline.check.catalogue import Catalogue
from trunkline.check.mutant import Mutant
from trunkline.check.scenario import (
    Boot,
    Completed,
    Faults,
    Invoked,
    ObservedEvent,
    Operation,
    ProcessSpec,
    Scenario,
    Violation,
)
from trunkline.core.effects import (
    Address,
    Announce,
    CancelTimer,
    Complete,
    Effects,
    Event,
    Message,
    Persist,
    Record,
    Send,
    SetTimer,
)
from trunkline.core.role import Role


class Put(Message, frozen=True):
    operation: int
    value: int


class PutDone(Message, frozen=True):
    operation: int


class Kept(Record, frozen=True):
    value: int


class Stored(Event, frozen=True):
    value: int


class Recovered(Event, frozen=True):
    values: tuple[int, ...]


class Acknowledged(Event, frozen=True):
    value: int


class Keeper:
    careless = False

    def __init__(self, values: tuple[int, ...]) -> None:
        self.values = values

    @property
    def phase(self) -> str:
        return "holding" if self.values else "empty"

    def on_start(self) -> Effects:
        return [Announce(Recovered(self.values))]

    def on_message(self, source: Address, message: Message) -> Effects:
        assert isinstance(message, Put)
        answer = Send(source, PutDone(message.operation))
        if message.value in self.values:
            return [answer]
        self.values += (message.value,)
        store: Effects = [Persist(Kept(message.value)), Announce(Stored(message.value))]
        return [answer, *store] if self.careless else [*store, answer]

    def on_timer(self, key: str) -> Effects:
        raise AssertionError(key)

    def on_choice(self, key: str, option: object) -> Effects:
        raise AssertionError(key)


class Caller:
    patient = True

    def __init__(self) -> None:
        self.asked: Put | None = None

    @property
    def phase(self) -> str:
        return "waiting" if self.asked else "idle"

    def on_start(self) -> Effects:
        return []

    def on_message(self, source: Address, message: Message) -> Effects:
        if isinstance(message, Put):
            self.asked = message
            return self._ask()
        assert isinstance(message, PutDone)
        if self.asked is None or message.operation != self.asked.operation:
            return []
        done, self.asked = self.asked, None
        return [CancelTimer("retry"), Complete(done.operation, Acknowledged(done.value))]

    def on_timer(self, key: str) -> Effects:
        return self._ask()

    def on_choice(self, key: str, option: object) -> Effects:
        raise AssertionError(key)

    def _ask(self) -> Effects:
        assert self.asked is not None
        ask = Send(Address("k", "keeper"), self.asked)
        return [ask, SetTimer("retry", 100)] if self.patient else [ask]


class ValuesDisk:
    """Every write is synced at once."""

    def write(self, image: tuple[int, ...], record: Record) -> tuple[int, ...]:
        assert isinstance(record, Kept)
        return (*image, record.value)

    def sync(self, image: tuple[int, ...]) -> tuple[int, ...]:
        return image

    def synced(self, image: tuple[int, ...]) -> bool:
        return True

    def after_power_cut(self, image: tuple[int, ...]) -> tuple[tuple[str, tuple[int, ...]], ...]:
        return (("kept", image),)

    def after_rot(self, image: tuple[int, ...]) -> tuple[tuple[str, tuple[int, ...]], ...]:
        return ()

    def load(self, image: tuple[int, ...]) -> tuple[int, ...]:
        return image


@dataclass(frozen=True)
class NoLostAck:
    """What was acknowledged is there after a restart."""

    name: str = "NoLostAck"

    def initial(self) -> tuple[int, ...]:
        return ()

    def observe(self, state: tuple[int, ...], observed: ObservedEvent) -> tuple[int, ...]:
        event = observed.event
        if isinstance(event, Completed) and isinstance(event.result, Acknowledged):
            return (*state, event.result.value)
        if isinstance(event, Recovered):
            lost = [value for value in state if value not in event.values]
            if lost:
                raise Violation(f"acknowledged, but lost: {lost}")
        return state

    def hot(self, state: tuple[int, ...]) -> str:
        return ""


@dataclass(frozen=True)
class Answered:
    """Every operation ends."""

    name: str = "Answered"

    def initial(self) -> int:
        return 0

    def observe(self, state: int, observed: ObservedEvent) -> int:
        return state + isinstance(observed.event, Invoked) - isinstance(observed.event, Completed)

    def hot(self, state: int) -> str:
        return f"{state} operations wait for their answer" if state else ""


def _keeper(boot: Boot) -> Mapping[str, Role]:
    values: Any = boot.durable
    return {"keeper": Keeper(values)}


def _caller(boot: Boot) -> Mapping[str, Role]:
    return {"caller": Caller()}


def put_scenario(
    values: int = 2, callers: int = 1, name: str = "put", sometimes: tuple[str, ...] = ("Stored",)
) -> Scenario:
    disk = ValuesDisk()
    asking = [
        ProcessSpec(
            f"c{number}",
            _caller,
            disk,
            (),
            tuple(Operation("caller", Put(at, 10 * number + at)) for at in range(1, values + 1)),
        )
        for number in range(1, callers + 1)
    ]
    return Scenario(
        name=name,
        summary=f"{callers} callers store {values} values each",
        processes=(ProcessSpec("k", _keeper, disk, ()), *asking),
        monitors=(NoLostAck(), Answered()),
        faults=Faults(loss=2, duplicate=1, crash=1, restart=1),
        crashable=("k",),
        sometimes=sometimes,
        smaller=(partial(put_scenario, 1, 1, "put-small"),) if values > 1 else (),
    )


def unshrinkable_scenario() -> Scenario:
    """As ``put``, but with nothing smaller to try."""
    scenario = put_scenario(1, 2, "pair")
    assert scenario.smaller == ()
    return scenario


@contextmanager
def _patched(kind: type[Keeper] | type[Caller], name: str, value: bool) -> Iterator[None]:
    before = getattr(kind, name)
    setattr(kind, name, value)
    try:
        yield
    finally:
        setattr(kind, name, before)


def careless() -> AbstractContextManager[None]:
    return _patched(Keeper, "careless", True)


def impatient() -> AbstractContextManager[None]:
    return _patched(Caller, "patient", False)


MUTANTS = (
    Mutant("answer-first", "the answer leaves before the disk has it", "put", careless, "NoLostAck", "breadth", 5_000),
    Mutant("ask-once", "a lost request is never sent again", "pair", impatient, "Progress", "random", 500),
)


def catalogue() -> Catalogue:
    return Catalogue({"put": put_scenario, "pair": unshrinkable_scenario}, MUTANTS)
