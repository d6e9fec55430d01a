"""Parts for the smallest worlds: roles that do nothing by default, a disk that shows what was synced, and a monitor
that keeps the whole story, so that a test can name every story that a world allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any, NamedTuple

from trunkline.check.actions import Action, parse
from trunkline.check.frozen import text
from trunkline.check.scenario import (
    Boot,
    Completed,
    Invoked,
    Monitor,
    ObservedEvent,
    Operation,
    ProcessEnded,
    ProcessSpec,
    Scenario,
    Violation,
)
from trunkline.check.world import State, World
from trunkline.core.effects import Address, Announce, Choose, Effects, Event, Message, Persist, Record, Send, SetTimer
from trunkline.core.role import Role


class Note(Message, frozen=True):
    value: int


class Mark(Record, frozen=True):
    value: int


class Saw(Event, frozen=True):
    value: int


class Quiet:
    """A role that does nothing; tests override what they need."""

    phase = "quiet"

    def on_start(self) -> Effects:
        return []

    def on_message(self, source: Address, message: Message) -> Effects:
        return []

    def on_timer(self, key: str) -> Effects:
        return []

    def on_choice(self, key: str, option: object) -> Effects:
        return []


class Sender(Quiet):
    """Sends 1 and 2 to ``b`` when it starts."""

    def __init__(self, boot: Boot) -> None:
        pass

    def on_start(self) -> Effects:
        return [Send(main("b"), Note(1)), Send(main("b"), Note(2))]


class Reporter(Quiet):
    """Announces each note that it gets."""

    def __init__(self, boot: Boot) -> None:
        pass

    def on_message(self, source: Address, message: Message) -> Effects:
        assert isinstance(message, Note)
        return [Announce(Saw(message.value))]


class Ticker(Reporter):
    """Announces 9 when its timer fires."""

    def on_start(self) -> Effects:
        return [SetTimer("tick", 10)]

    def on_timer(self, key: str) -> Effects:
        return [Announce(Saw(9))]


class Writer(Quiet):
    """Persists and announces each of its operations, in the right order; announces what it finds when it starts."""

    def __init__(self, boot: Boot) -> None:
        self.found = tuple(boot.durable)
        self.incarnation = boot.incarnation

    def on_start(self) -> Effects:
        return [Announce(Saw(value + 100 * self.incarnation)) for value in self.found]

    def on_message(self, source: Address, message: Message) -> Effects:
        assert isinstance(message, Note)
        return [Persist(Mark(message.value)), Announce(Saw(message.value))]


class Chooser(Quiet):
    def __init__(self, boot: Boot) -> None:
        pass

    def on_message(self, source: Address, message: Message) -> Effects:
        return [Choose("which", (1, 2, 3))]

    def on_choice(self, key: str, option: object) -> Effects:
        assert isinstance(option, int)
        return [Announce(Saw(option))] if option != 3 else [Choose("again", (7, 8))]


class Image(NamedTuple):
    synced: tuple[int, ...] = ()
    unsynced: tuple[int, ...] = ()


class LogDisk:
    """Values in order. A power cut loses any subset of what was not synced; rot turns one synced value into 0."""

    def write(self, image: Image, record: Record) -> Image:
        assert isinstance(record, Mark)
        return Image(image.synced, (*image.unsynced, record.value))

    def sync(self, image: Image) -> Image:
        return Image((*image.synced, *image.unsynced))

    def synced(self, image: Image) -> bool:
        return not image.unsynced

    def after_power_cut(self, image: Image) -> tuple[tuple[str, Image], ...]:
        count = len(image.unsynced)
        kept = [each for size in range(count + 1) for each in combinations(image.unsynced, size)]
        return tuple((f"kept {each}", Image((*image.synced, *each))) for each in kept)

    def after_rot(self, image: Image) -> tuple[tuple[str, Image], ...]:
        places = range(len(image.synced))
        return tuple(
            (f"value {place}", Image((*image.synced[:place], 0, *image.synced[place + 1 :]))) for place in places
        )

    def load(self, image: Image) -> tuple[int, ...]:
        return image.synced + image.unsynced


class Story:
    """Keeps the text of every event; ``rest`` decides when nothing more has to happen."""

    name = "Story"

    def __init__(self, rest: Callable[[tuple[str, ...]], bool] = lambda _: True) -> None:
        self._rest = rest

    def initial(self) -> tuple[str, ...]:
        return ()

    def observe(self, state: tuple[str, ...], observed: ObservedEvent) -> tuple[str, ...]:
        return (*state, text_of(observed))

    def hot(self, state: tuple[str, ...]) -> str:
        return "" if self._rest(state) else "the story is not over"


class Never:
    """Broken by the first event whose text is ``what``."""

    name = "Never"

    def __init__(self, what: str) -> None:
        self._what = what

    def initial(self) -> None:
        return None

    def observe(self, state: None, observed: ObservedEvent) -> None:
        if text_of(observed) == self._what:
            raise Violation(f"{self._what} happened")

    def hot(self, state: None) -> str:
        return ""


def text_of(observed: ObservedEvent) -> str:
    event = observed.event
    if isinstance(event, Saw):
        return f"{observed.process} saw {event.value}"
    if isinstance(event, Invoked):
        return f"{observed.process} began {event.operation}"
    if isinstance(event, Completed):
        return f"{observed.process} ended {event.operation}"
    if isinstance(event, ProcessEnded):
        return f"{observed.process} {event.kind}"
    return text(event)


def process(name: str, make: Callable[[Boot], Role], *operations: int, up: bool = True) -> ProcessSpec:
    """A process with one role, ``main``, that is asked for ``Note(value)`` for each operation."""

    def start(boot: Boot) -> Mapping[str, Role]:
        return {"main": make(boot)}

    asked = tuple(Operation("main", Note(value)) for value in operations)
    return ProcessSpec(name, start, LogDisk(), Image(), asked, up)


def scenario(*processes: ProcessSpec, monitors: tuple[Monitor, ...] = (Story(),), **options: Any) -> Scenario:
    return replace(Scenario("toy", "a toy", processes, monitors), **options)


def main(name: str) -> Address:
    return Address(name, "main")


def reachable(world: World) -> list[State]:
    """Every state, in the order of discovery."""
    states = [world.initial()]
    seen = set(states)
    for state in states:
        for _, after in world.expand(state):
            if after not in seen:
                seen.add(after)
                states.append(after)
    return states


def stories(world: World) -> set[str]:
    """What ``Story`` holds at each end of a run."""
    return {dict(world.describe(state).monitors)["Story"] for state in reachable(world) if not world.expand(state)}


def enabled(world: World, state: State) -> list[str]:
    return [world.action(action_id).text() for action_id, _ in world.expand(state)]


def run(world: World, *lines: str) -> State:
    """The state after these actions; each must be enabled in its turn."""
    state = world.initial()
    for line in lines:
        action: Action = parse(line)
        after = world.apply(state, action)
        assert after is not None, f"{line} is not enabled; these are: {enabled(world, state)}"
        state = after
    return state


def pair(**options: Any) -> Scenario:
    """``a`` sends 1 and 2 to ``b``, which announces what it gets."""
    return scenario(process("a", Sender), process("b", Reporter), **options)
