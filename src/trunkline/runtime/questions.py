"""Requests to a coordinator or a node that need no role: descriptions, lists, status, node states."""

from __future__ import annotations

import asyncio
import itertools

from trunkline.core.effects import Address, Choose, Complete, Effects, Event, Message, Record
from trunkline.errors import Refused
from trunkline.runtime.links import Links
from trunkline.runtime.process import Process, Step

RETRY_MS = 500


class Question:
    """Accepts the first answer."""

    def __init__(self, answer: asyncio.Future[Message]) -> None:
        self._answer = answer

    @property
    def phase(self) -> str:
        return "asking"

    def on_start(self) -> Effects:
        return []

    def on_timer(self, key: str) -> Effects:
        return []

    def on_choice(self, key: str, option: object) -> Effects:
        return []

    def refused(self, why: str) -> None:
        if not self._answer.done():
            self._answer.set_exception(Refused(why))

    def on_message(self, source: Address, message: Message) -> Effects:
        if not self._answer.done():
            self._answer.set_result(message)
        return []


class Questions:
    """Repeats a request until there is an answer. The caller sets the time limit.

    ``ask`` raises ``Refused`` if the peer does not accept the request.
    """

    def __init__(self, name: str, links: Links) -> None:
        self._links = links
        self._process = Process(name, self)
        self._numbers = itertools.count(1)

    async def ask(self, to: Address, message: Message) -> Message:
        role = f"question:{next(self._numbers)}"
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._process.add(role, Question(answer))
        try:
            while True:
                self._links.send(self._process, role, to, message)
                done, _ = await asyncio.wait((answer,), timeout=RETRY_MS / 1000)
                if done:
                    return answer.result()
        finally:
            self._process.remove(role)
            self._links.forget(self._process, role)

    # A question has no effects to carry out.

    def send(self, role: str, to: Address, message: Message, step: Step) -> None: ...

    def persist(self, record: Record, step: Step) -> int:
        raise AssertionError(f"a question persists nothing, but was to persist {record}")

    def completed(self, role: str, complete: Complete) -> None: ...

    def at_work(self, process: str, within_s: float) -> bool:
        return False

    def announced(self, role: str, event: Event, step: Step) -> None: ...

    def choose(self, role: str, choose: Choose) -> object:
        raise AssertionError(f"a question makes no choices, but asked for {choose.key}")

    def broken(self, role: str) -> None: ...
