"""The client as a process of the cluster: its name, its connections, and the requests that no role handles."""

from __future__ import annotations

import asyncio
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from trunkline.core.effects import Address, Message
from trunkline.errors import ConfigError, Unreachable
from trunkline.net.admin import ClusterAnswer, ClusterRequest
from trunkline.net.dial import Fault
from trunkline.runtime.links import COORDINATOR, Links
from trunkline.runtime.questions import Questions

ADMIN = Address(COORDINATOR, "admin")
POLL_S = 0.02  # of the addresses' errors, during an impatient ``open``
START_IT = "Start one with `trunkline up`, or give the address of the one that runs"


class ClientProcess:
    """Make it inside the event loop that it is used in, and ``close`` it there."""

    def __init__(self, addresses: Sequence[str], name: str, token: str, tls: ssl.SSLContext | None) -> None:
        self.name = f"{name or 'client'}-{secrets.token_hex(4)}"
        self.start = time.time_ns()
        self.links = Links(self.name, addresses, token=token, tls=tls)
        self._addresses = addresses
        self._loop = asyncio.get_running_loop()
        self._questions = Questions(f"{self.name}.questions", self.links)

    def check_loop(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise ConfigError("the cluster handle belongs to another event loop: connect again in this one")

    async def find_cluster(self, timeout: float, *, patient: bool) -> str:
        """The id of the cluster. Impatient: raises ``Unreachable`` as soon as every address has failed once."""
        async with self.within(timeout):
            answer = await (self._cluster_answer() if patient else self._cluster_answer_or_failure())
        assert isinstance(answer, ClusterAnswer)
        self.links.peers.cluster = answer.cluster
        return answer.cluster

    async def ask(self, to: Address, message: Message, what: str, timeout: float | None) -> Message:
        async with self.within(timeout, what):
            return await self._questions.ask(to, message)
        raise AssertionError("unreachable")

    @asynccontextmanager
    async def within(self, timeout: float | None, what: str = "") -> AsyncIterator[None]:
        """Raise ``Unreachable`` after ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout):
                yield
        except TimeoutError:
            raise Unreachable(self._why_unreachable(what)) from None

    async def close(self) -> None:
        await self.links.peers.close()

    # ---------------------------------------------------------------------------------------------------------- inside

    async def _cluster_answer(self) -> Message:
        return await self._questions.ask(ADMIN, ClusterRequest())

    async def _cluster_answer_or_failure(self) -> Message:
        asking = asyncio.ensure_future(self._cluster_answer())
        try:
            while not asking.done():
                if all(self.links.peers.error(address) for address in self._addresses):
                    raise TimeoutError
                await asyncio.wait((asking,), timeout=POLL_S)
            return asking.result()
        finally:
            asking.cancel()

    def _why_unreachable(self, what: str) -> str:
        """Each address once, with its error."""
        errors = {address: self.links.peers.error(address) for address in self._addresses}
        request = f"{what}: " if what else ""
        if all(error is not None and error.fault is Fault.NOT_LISTENING for error in errors.values()):
            where = f"{' and '.join(errors)} (connection refused)"
            return f"{request}no coordinator answered at {where}; is the cluster up? {START_IT}"
        reasons = "; ".join(f"{address}: {error or 'no answer'}" for address, error in errors.items())
        return f"{request}no coordinator answered ({reasons}); is the cluster up? (`trunkline status`)"
