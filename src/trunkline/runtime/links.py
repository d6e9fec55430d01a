"""Messages of a host to other processes: finds the connection for a process, and the role for an answer.

A request carries a token that stands for the requesting role; the answer repeats it. The addresses of nodes come from
the answers of the metadata (``Got``), those of coordinators from the configuration. A message that cannot be sent is
lost, which the protocol allows: every role retries. A coordinator that does not answer is left for the next one.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from trunkline.core.effects import Address, Message
from trunkline.core.messages import Got, Registered, SwapLost, Swapped
from trunkline.net.admin import ClusterAnswer, EventsAnswer, LogsListed, NodeStateSet, RequestRefused, StatusAnswer
from trunkline.net.complaints import Complaints
from trunkline.net.connection import Connection
from trunkline.net.packets import Envelope
from trunkline.net.peers import Peers
from trunkline.runtime.process import Attachments, Process

COORDINATOR_SILENT_S = 1.5  # too small: leaves a busy coordinator too early; too big: a hung one costs leases

COORDINATOR = "coordinator"  # the process name under which roles know the metadata
REGISTER = Address(COORDINATOR, "register")
NO_ANSWER = 0  # the token of a message that gets no answer

COORDINATOR_ANSWERS = (
    ClusterAnswer, EventsAnswer, Got, LogsListed, NodeStateSet, Registered, RequestRefused, StatusAnswer, SwapLost,
    Swapped,
)  # fmt: skip


@runtime_checkable
class Asking(Protocol):
    """A role that wants to know that its request was refused. Others retry until their time is over."""

    def refused(self, why: str) -> None: ...


class Links:
    """``peers`` keeps the connections: set its ``cluster`` once it is known, and close it at the end."""

    def __init__(
        self, name: str, coordinators: Sequence[str] = (), *, token: str = "", tls: ssl.SSLContext | None = None
    ) -> None:
        self.peers = Peers(self._received, name=name, token=token, tls=tls)
        self._coordinators = list(coordinators)
        self._current = 0  # the coordinator in use
        self._asked_at: float | None = None  # when it got the oldest request since its last answer
        self._loop = asyncio.get_running_loop()
        self._addresses: dict[str, str] = {}  # of nodes, by name
        self._tokens: dict[str, dict[str, int]] = {}  # by process and role
        self._askers: dict[int, tuple[Process, str]] = {}
        self._tokens_given = 0
        self._complaints = Complaints(logging.getLogger("trunkline.links"))

    def send(self, process: Process, role: str, to: Address, message: Message, attachments: Attachments = ()) -> bool:
        address = self._address_of(to.process)
        if address is None:
            return False
        return self.peers.send(address, to.role, self._token(process, role), message, attachments)

    def send_to_connected_coordinator(self, message: Message) -> bool:
        """Send a message without an answer, over a connection that is open: a process that stops does not dial."""
        ahead = [*self._coordinators[self._current :], *self._coordinators[: self._current]]
        connections = (self.peers.connection(address) for address in ahead)
        connected = next((each for each in connections if each is not None and each.open), None)
        return connected is not None and connected.send("admin", NO_ANSWER, message)

    def at_work(self, process: str, within_s: float) -> bool:
        """Whether a node is busy with large messages that it was sent."""
        connection = self.peers.connection(self._addresses.get(process, ""))
        return connection is not None and connection.at_work(within_s)

    def learn(self, got: Got) -> None:
        for info in got.nodes:
            if info.address:
                self._addresses[info.node] = info.address

    def forget(self, process: Process, role: str | None = None) -> None:
        """Drop late answers to a process that stopped, or to one of its roles."""
        tokens = self._tokens.get(process.name, {})
        for removed in [role] if role is not None else list(tokens):
            if (token := tokens.pop(removed, None)) is not None:
                del self._askers[token]
        if not tokens:
            self._tokens.pop(process.name, None)

    # ---------------------------------------------------------------------------------------------------- inside

    def _address_of(self, process: str) -> str | None:
        if process != COORDINATOR:
            return self._addresses.get(process)
        if not self._coordinators:
            return None
        now = self._loop.time()
        silent = self._asked_at is not None and now - self._asked_at > COORDINATOR_SILENT_S
        if silent or self.peers.error(self._coordinators[self._current]) is not None:
            self._current = (self._current + 1) % len(self._coordinators)
            self._asked_at = None
        if self._asked_at is None:
            self._asked_at = now
        return self._coordinators[self._current]

    def _received(self, connection: Connection, envelope: Envelope, attachments: tuple[memoryview, ...]) -> None:
        asker = self._askers.get(envelope.token)
        if isinstance(envelope.message, COORDINATOR_ANSWERS):
            self._asked_at = None
        if isinstance(envelope.message, Got):
            self.learn(envelope.message)
        if isinstance(envelope.message, RequestRefused):
            self._on_refused(connection, envelope.token, envelope.message.why)
        elif asker is not None:
            process, role = asker
            process.deliver(role, Address(connection.peer_name, envelope.role), envelope.message, attachments)

    def _on_refused(self, connection: Connection, token: int, why: str) -> None:
        process, role = self._askers.get(token, (None, ""))
        self._complaints.warn(f"{connection.peer_name} at {connection.address} refused a request of {role!r}: {why}")
        asker = process.roles.get(role) if process is not None else None
        if isinstance(asker, Asking):
            asker.refused(why)

    def _token(self, process: Process, role: str) -> int:
        tokens = self._tokens.setdefault(process.name, {})
        token = tokens.get(role)
        if token is None:
            self._tokens_given += 1
            token = tokens[role] = self._tokens_given
            self._askers[token] = (process, role)
        return token
