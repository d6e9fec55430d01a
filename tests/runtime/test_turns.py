"""Turns: so many at a time, in order, and a long one does not block others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from trunkline.runtime.turns import Turns

FOR_EVER_S = 3600.0


def beginning(begun: list[str], name: str) -> Callable[[], None]:
    return lambda: begun.append(name)


def test_so_many_begin_at_once_and_the_others_as_turns_are_given_back() -> None:
    async def scenario() -> None:
        turns, begun = Turns(2, FOR_EVER_S), list[str]()
        for name in "abcd":
            turns.ask(name, beginning(begun, name))
        assert begun == ["a", "b"]
        turns.give_back("b")
        turns.give_back("b")  # twice is once
        assert begun == ["a", "b", "c"]
        turns.forget("a")
        assert begun == ["a", "b", "c", "d"]

    asyncio.run(scenario())


def test_a_request_during_a_turn_gets_another_turn_afterwards_and_blocks_no_other() -> None:
    async def scenario() -> None:
        turns, begun = Turns(2, FOR_EVER_S), list[str]()
        turns.ask("a", beginning(begun, "a"))
        for _ in range(3):
            turns.ask("a", beginning(begun, "again"))
        turns.ask("b", beginning(begun, "b"))
        assert begun == ["a", "b"]
        turns.give_back("a")
        assert begun == ["a", "b", "again"]
        turns.give_back("a")
        assert begun == ["a", "b", "again"]

    asyncio.run(scenario())


def test_a_turn_that_lasts_too_long_is_over() -> None:
    async def scenario() -> None:
        turns, begun = Turns(1, 0.001), list[str]()
        done = asyncio.Event()
        turns.ask("a", beginning(begun, "a"))
        turns.ask("b", done.set)
        async with asyncio.timeout(20):
            await done.wait()
        assert begun == ["a"]

    asyncio.run(scenario())


def test_one_that_is_done_at_once_lets_the_next_one_begin() -> None:
    async def scenario() -> None:
        turns, begun = Turns(1, FOR_EVER_S), list[str]()

        def done_at_once(name: str) -> None:
            begun.append(name)
            turns.give_back(name)

        turns.ask("first", lambda: begun.append("first"))
        for number in range(2000):
            turns.ask(str(number), partial(done_at_once, str(number)))
        turns.give_back("first")
        assert len(begun) == 2001

    asyncio.run(scenario())


def test_one_that_is_forgotten_never_begins() -> None:
    async def scenario() -> None:
        turns, begun = Turns(1, FOR_EVER_S), list[str]()
        turns.ask("a", beginning(begun, "a"))
        turns.ask("b", beginning(begun, "b"))
        turns.forget("b")
        turns.give_back("a")
        assert begun == ["a"]

    asyncio.run(scenario())
