"""The host's rules (``runtime/process.py``), with roles that do just what a test needs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from trunkline.core.effects import (
    SELF,
    Address,
    Announce,
    CancelTimer,
    Choose,
    Complete,
    Effects,
    Event,
    Message,
    Persist,
    Record,
    Send,
    SetTimer,
)
from trunkline.runtime.process import Process, Step

OTHER = Address("other", "role")


class Said(Message, frozen=True):
    text: str


class Kept(Record, frozen=True):
    text: str


class Happened(Event, frozen=True):
    text: str


class Scripted:
    """Answers each message, timer and choice with prepared effects."""

    def __init__(self, **answers: Effects) -> None:
        self.answers = answers
        self.seen: list[str] = []

    @property
    def phase(self) -> str:
        return "ready"

    def on_start(self) -> Effects:
        return self._answer("start")

    def on_message(self, source: Address, message: Message) -> Effects:
        assert isinstance(message, Said)
        return self._answer(message.text)

    def on_timer(self, key: str) -> Effects:
        return self._answer(key)

    def on_choice(self, key: str, option: object) -> Effects:
        return self._answer(f"{key}={option}")

    def _answer(self, text: str) -> Effects:
        self.seen.append(text)
        if text == "raise":
            raise ValueError("a bug")
        return self.answers.get(text, [])


class Notebook:
    """Surroundings that record the effects; the test makes records durable."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.tickets = 0
        self.working: set[str] = set()  # processes that are busy

    def send(self, role: str, to: Address, message: Message, step: Step) -> None:
        assert isinstance(message, Said)
        self.lines.append(f"send {message.text}")

    def persist(self, record: Record, step: Step) -> int:
        assert isinstance(record, Kept)
        self.lines.append(f"write {record.text}")
        self.tickets += 1
        return self.tickets

    def completed(self, role: str, complete: Complete) -> None:
        self.lines.append(f"complete {complete.operation}")

    def at_work(self, process: str, within_s: float) -> bool:
        return process in self.working

    def announced(self, role: str, event: Event, step: Step) -> None:
        assert isinstance(event, Happened)
        self.lines.append(f"announce {event.text}")

    def choose(self, role: str, choose: Choose) -> object:
        return choose.options[-1]

    def broken(self, role: str) -> None:
        self.lines.append(f"broken {role}")


def in_loop(test: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await test()

    asyncio.run(run())


def send(text: str, to: Address = OTHER) -> Send:
    return Send(to, Said(text))


def test_what_follows_a_persist_leaves_only_when_it_is_durable() -> None:
    async def run() -> None:
        notes = Notebook()
        process = Process("p", notes)
        process.add("r", Scripted(go=[send("early"), Persist(Kept("a")), send("late"), Announce(Happened("late"))]))
        process.deliver("r", OTHER, Said("go"))
        assert notes.lines == ["send early", "write a"]
        assert process.withheld == 2
        process.durable(1)
        assert notes.lines == ["send early", "write a", "send late", "announce late"]

    in_loop(run)


def test_an_answer_of_a_later_step_waits_for_an_earlier_record_too() -> None:
    async def run() -> None:
        notes = Notebook()
        process = Process("p", notes)
        process.add("r", Scripted(keep=[Persist(Kept("a")), send("kept")], ask=[send("answer")]))
        process.deliver("r", OTHER, Said("keep"))
        process.deliver("r", OTHER, Said("ask"))
        process.deliver("r", OTHER, Said("keep"))
        assert notes.lines == ["write a", "write a"]
        process.durable(1)
        assert notes.lines[2:] == ["send kept", "send answer"]
        process.durable(2)
        assert notes.lines[4:] == ["send kept"]

    in_loop(run)


def test_messages_to_oneself_are_handled_before_anything_else() -> None:
    async def run() -> None:
        notes = Notebook()
        process = Process("p", notes)
        inner = Scripted(hello=[send("from inner")])
        process.add("inner", inner)
        process.add("r", Scripted(go=[send("hello", Address(SELF, "inner")), send("from outer")]))
        process.deliver("r", OTHER, Said("go"))
        assert notes.lines == ["send from outer", "send from inner"]
        assert inner.seen == ["start", "hello"]

    in_loop(run)


def test_a_timer_that_was_cancelled_or_set_again_never_fires_for_its_earlier_setting() -> None:
    async def run() -> None:
        fired = asyncio.Event()
        notes = Notebook()
        process = Process("p", notes)

        class Timed(Scripted):
            def on_timer(self, key: str) -> Effects:
                if key == "last":
                    fired.set()
                return super().on_timer(key)

        role = Timed(
            go=[SetTimer("dead", 1), SetTimer("twice", 1), SetTimer("last", 30)],
            then=[CancelTimer("dead"), SetTimer("twice", 10_000)],
        )
        process.add("r", role)
        process.deliver("r", OTHER, Said("go"))
        process.deliver("r", OTHER, Said("then"))
        await fired.wait()
        assert role.seen == ["start", "go", "then", "last"]
        process.stop()

    in_loop(run)


def test_a_choice_is_answered_at_once() -> None:
    async def run() -> None:
        notes = Notebook()
        process = Process("p", notes)
        role = Scripted(go=[Choose("which", ("a", "b"))])
        role.answers["which=b"] = [send("b it is")]
        process.add("r", role)
        process.deliver("r", OTHER, Said("go"))
        assert notes.lines == ["send b it is"]

    in_loop(run)


def test_a_role_that_raises_stops_its_process_and_nothing_more_leaves() -> None:
    async def run() -> None:
        notes = Notebook()
        process = Process("p", notes)
        process.add("r", Scripted(go=[send("x")], keep=[Persist(Kept("a")), send("never")]))
        process.deliver("r", OTHER, Said("keep"))
        with pytest.raises(ValueError, match="a bug"):
            process.deliver("r", OTHER, Said("raise"))
        process.durable(1)
        process.deliver("r", OTHER, Said("go"))
        assert notes.lines == ["write a", "broken r"]

    in_loop(run)


def test_a_paused_role_waits_with_effects_messages_and_timers() -> None:
    async def run() -> None:
        class Full(Notebook):
            def announced(self, role: str, event: Event, step: Step) -> None:
                self.lines.append("full")
                process.pause(role)

        notes = Full()
        process = Process("p", notes)
        role = Scripted(go=[SetTimer("t", 1), Announce(Happened("full")), send("next")], more=[send("more")])

        process.add("r", role)
        process.deliver("r", OTHER, Said("go"))
        process.deliver("r", OTHER, Said("more"))
        await asyncio.sleep(0.02)
        assert notes.lines == ["full"]
        assert role.seen == ["start", "go"]
        process.resume("r")
        assert notes.lines == ["full", "send next", "send more"]
        process.stop()

    in_loop(run)


def test_messages_to_a_removed_role_are_lost() -> None:
    async def run() -> None:
        notes = Notebook()
        process = Process("p", notes)
        process.add("r", Scripted(go=[send("x")]))
        process.remove("r")
        process.deliver("r", OTHER, Said("go"))
        assert notes.lines == []

    in_loop(run)


class Waiting(Scripted):
    """Waits for two processes with its timer."""

    def awaits(self, key: str) -> tuple[str, ...]:
        return ("slow", "other")

    def on_silence(self, key: str, silent: tuple[str, ...]) -> Effects:
        return self._answer(f"{key} {' '.join(silent)}")


def test_h7_a_timer_is_extended_while_all_that_it_waits_for_are_at_work() -> None:
    async def run() -> None:
        notes, role = Notebook(), Waiting(go=[SetTimer("t", 20)])
        notes.working = {"slow", "other"}
        looked = 0

        def at_work(process: str, within_s: float) -> bool:
            nonlocal looked
            looked += 1
            return process in notes.working

        notes.at_work = at_work  # type: ignore[method-assign]
        process = Process("p", notes)
        process.add("r", role)
        process.deliver("r", OTHER, Said("go"))
        while looked < 6:
            await asyncio.sleep(0.001)
        assert role.seen == ["start", "go"]
        notes.working = {"slow"}
        while len(role.seen) < 3:
            await asyncio.sleep(0.001)
        assert role.seen[2] == "t other"  # the role learns who is silent

    in_loop(run)


def test_h4_an_extended_timer_can_be_cancelled() -> None:
    async def run() -> None:
        notes, role = Notebook(), Waiting(go=[SetTimer("t", 4), SetTimer("end", 40)], halt=[CancelTimer("t")])
        notes.working = {"slow", "other"}
        process = Process("p", notes)
        process.add("r", role)
        process.deliver("r", OTHER, Said("go"))
        await asyncio.sleep(0.01)
        process.deliver("r", OTHER, Said("halt"))
        notes.working = set()
        while len(role.seen) < 4:
            await asyncio.sleep(0.001)
        assert role.seen == ["start", "go", "halt", "end slow other"]

    in_loop(run)
