"""One connection, as either end uses it. The *server* is the end that accepted it, the *client* the end that dialled.

1. Until the handshake is done, a peer gets little memory and little time.
2. A message that does not fit into the send buffer is not sent, and ``send`` returns False. Nothing is sent in part.
   A request whose answer is larger than the client accepts is answered with an error: no request fails a server.
3. A server stops reading requests from a client that does not read its answers, and closes the connection when even
   the answers under way pile up. A client always reads: if both stopped, they would deadlock.
4. Attachments are sent without a copy. Their bytes must not change after ``send``.
5. Messages that are sent in one turn of the loop leave together: a system call costs more than encoding a message.
6. A peer that breaks the protocol receives the reason (REFUSED); what it sends after that is discarded until it
   closes, so that the reason arrives (closing with unread bytes would reset the connection and lose it).
7. An intact packet with an invalid message does not break the protocol: many logs share a connection, and one of them
   must not close it for all. A server answers with ``RequestRefused``, a client drops the message. Only broken
   framing, a wrong checksum or an unreadable return address ends the connection.
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import itertools
import logging
import socket
import termios
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from trunkline.core.effects import Message
from trunkline.net.addresses import format_address
from trunkline.net.admin import RequestRefused
from trunkline.net.complaints import Complaints
from trunkline.net.limits import HANDSHAKE_BYTES_MAX, KIB, PEER_PACKET_BYTES_MIN, Limits
from trunkline.net.packets import (
    HEADER_BYTES,
    BadRequest,
    Envelope,
    PacketKind,
    ProtocolViolation,
    Refusal,
    RefusalCode,
    decode_message,
    decode_refusal,
    encode,
    encode_message,
)
from trunkline.net.parser import Packet, PacketParser
from trunkline.net.progress import TransferProgress

GATHERED_BYTES_MAX = 64 * KIB  # of messages that leave together; up to here one copy is cheaper than many buffers
KEEPALIVE_IDLE_S = 10
KEEPALIVE_INTERVAL_S = 5
KEEPALIVE_PROBES = 3
USER_TIMEOUT_MS = 30_000  # unacknowledged bytes for so long: the peer is dead

_SLOW_PEER = "the peer does not read"

complaints = Complaints(logging.getLogger("trunkline.net"))

Attachment = bytes | bytearray | memoryview
Handler = Callable[["Connection", Envelope, tuple[memoryview, ...]], None]


class Handshake(Protocol):
    """What one end does until its connection is open."""

    def made(self, connection: Connection) -> None: ...

    def packet(self, connection: Connection, kind: int, head: bytes) -> None:
        """Calls ``opened`` or ``refuse``, or raises ``ProtocolViolation``."""

    def lost(self, connection: Connection) -> None:
        """The connection is closed, opened or not. Called once."""


class Connection(asyncio.BufferedProtocol):
    """Made by ``Server`` and ``dial``. ``handler`` is called in the loop for every message that arrives."""

    _numbers = itertools.count(1)

    def __init__(self, handler: Handler, handshake: Handshake, limits: Limits, *, serving: bool) -> None:
        self.number = next(self._numbers)
        self.peer_name = ""
        self.cluster = ""  # as the handshake settled it
        self.address = ""
        self.open = False  # the handshake is done and the connection not closed
        self.closed = False
        self.violations = 0  # invalid messages of the peer
        self.refusal_received: Refusal | None = None
        self.refusal_sent: Refusal | None = None
        self.reason = "the connection was closed"  # why it is closed, for people
        self.received_at = 0.0  # by the loop's clock: when the last bytes came
        self.active_at = 0.0  # when the last message came or went
        self._handler = handler
        self._handshake = handshake
        self._limits = limits
        self._serving = serving
        self._loop = asyncio.get_running_loop()
        self._parser = PacketParser(HANDSHAKE_BYTES_MAX, HANDSHAKE_BYTES_MAX)
        self._peer_packet_bytes_max = HANDSHAKE_BYTES_MAX
        self._pauses: set[str] = set()
        self._full: asyncio.Future[None] | None = None  # while the send buffer is high
        self._gathered: list[Attachment] = []  # leaves when this turn of the loop ends
        self._gathered_bytes = 0
        self._flush_due = False  # ``_flush`` will be called
        self._timer: asyncio.TimerHandle | None = None
        self._seen = (0, 0.0)  # packets and last arrival at the last tick
        self._quiet_ticks = 0  # in a row, without received bytes
        self._stuck_ticks = 0  # in a row, with the same packet still incomplete
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._made = False
        self._progress = TransferProgress(self._loop, self._outstanding_bytes, self._ping)
        self._transport: asyncio.Transport  # once it is made

    # ------------------------------------------------------------------------------------------------ for its users

    @property
    def buffered_bytes(self) -> int:
        """Not yet sent."""
        return 0 if self.closed else self._transport.get_write_buffer_size() + self._gathered_bytes

    @property
    def full(self) -> bool:
        """Whether more than ``send_buffer_high`` waits to be sent: a bulk sender then awaits ``drained``."""
        return self._full is not None

    def send(self, role: str, token: int, message: Message, attachments: Sequence[Attachment] = ()) -> bool:
        """False: closed or overfull, and the message is lost, which the protocol allows.

        A message larger than the peer accepts: a server sends ``RequestRefused`` instead, a client raises
        ``ValueError``, because hosts bound what they send.
        """
        if not self.open:
            return False
        sizes = [len(attachment) for attachment in attachments]
        head = encode_message(role, token, sizes, message)
        size = len(head) + sum(sizes)
        if size > self._peer_packet_bytes_max + HEADER_BYTES or len(head) > self._limits.head_bytes_max + HEADER_BYTES:
            return self._on_oversized(token, size)
        waiting = self.buffered_bytes
        if waiting and waiting + size > self._limits.send_buffer_max:
            if self._serving:
                self._abort("the peer does not read its answers")
            return False
        self.active_at = self._loop.time()
        self._gathered.append(head)
        self._gathered += attachments
        self._gathered_bytes += size
        self._progress.sent(size)
        if self._gathered_bytes > GATHERED_BYTES_MAX:
            self._flush()
        elif not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)
        return True

    def at_work(self, within_s: float) -> bool:
        """Whether the peer is busy with large messages, and fast enough to wait for (``progress.py``)."""
        return not self.closed and self._progress.at_work(within_s, self.received_at)

    def pause(self, reason: str = "the host is busy") -> None:
        """Deliver nothing until ``resume`` with this reason. Pausing twice for one reason changes nothing."""
        if not self._pauses and not self.closed:
            self._transport.pause_reading()
        self._pauses.add(reason)

    def resume(self, reason: str = "the host is busy") -> None:
        if reason in self._pauses:
            self._pauses.remove(reason)
            if not self._pauses:
                self._loop.call_soon(self._go_on)

    async def drained(self) -> None:
        """Wait until the send buffer is below ``send_buffer_high``, or the connection is closed."""
        if self._full is not None:
            await asyncio.shield(self._full)

    def close(self) -> None:
        """What was sent still leaves, if the peer reads it within ``linger_ms``."""
        if not self.closed:
            self._flush()
            self._stop()
            if self._made:
                self._transport.close()
                self._timer = self._loop.call_later(self._limits.linger_ms / 1000, self._transport.abort)

    async def wait_closed(self) -> None:
        """Wait until the socket of a connection that was made is closed."""
        await asyncio.shield(self._lost)

    def refuse(self, code: RefusalCode, text: str) -> None:
        """Send the reason, and close."""
        if self.closed:
            return
        self.reason = text
        self.refusal_sent = Refusal(code, text)
        self.violations += code is RefusalCode.PROTOCOL
        self._flush()
        self._stop()
        self._transport.write(encode(PacketKind.REFUSED, self.refusal_sent))
        if self._pauses:
            self._pauses.clear()
            self._transport.resume_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._timer = self._loop.call_later(self._limits.linger_ms / 1000, self._transport.abort)

    def refuse_request(self, token: int, why: str) -> None:
        """Answer one request with an error; the connection stays open (rule 7)."""
        self.violations += 1
        complaints.warn(f"refused a request of {self.peer_name} at {self.address}: {why}")
        self.send("", token, RequestRefused(why))

    # -------------------------------------------------------------------------------------------- for its handshake

    def drop(self) -> None:
        """Close without waiting for anything."""
        self._transport.abort()

    def write(self, packet: bytes) -> None:
        if not self.closed:
            self._transport.write(packet)

    def opened(self, peer_name: str, cluster: str, peer_packet_bytes_max: int) -> None:
        """Raises ``ProtocolViolation`` for a peer whose packet limit is too small for the answers to its requests."""
        if peer_packet_bytes_max < PEER_PACKET_BYTES_MIN:
            raise ProtocolViolation(
                f"a packet limit of {peer_packet_bytes_max} bytes is too small; accept {PEER_PACKET_BYTES_MIN} or more"
            )
        self.peer_name = peer_name
        self.cluster = cluster
        self.open = True
        self._peer_packet_bytes_max = min(peer_packet_bytes_max, self._limits.packet_bytes_max)
        self._parser.packet_bytes_max = self._limits.packet_bytes_max
        self._parser.head_bytes_max = self._limits.head_bytes_max
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._limits.ping_ms / 1000, self._watch)

    # ------------------------------------------------------------------------------------------------- for the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._made = True
        if self.closed:  # the caller of ``dial`` gave up at this moment
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=self._limits.send_buffer_high)
        self.address = _peer_address(transport)
        self.received_at = self.active_at = self._loop.time()
        _configure(transport.get_extra_info("socket"))
        self._timer = self._loop.call_later(self._limits.handshake_ms / 1000, self._on_handshake_overdue)
        self._handshake.made(self)

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._parser.room() if not self.closed else memoryview(bytearray(4 * KIB))

    def buffer_updated(self, count: int) -> None:
        self.received_at = self._loop.time()
        if not self.closed:
            self._parser.received(count)
            self._deliver()

    def eof_received(self) -> bool:
        return False  # the loop closes the transport

    def pause_writing(self) -> None:
        if not self.closed:
            self._full = self._loop.create_future()
        if self._serving:
            self.pause(_SLOW_PEER)

    def resume_writing(self) -> None:
        self._release_waiters()
        if self._serving:
            self.resume(_SLOW_PEER)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and not self.closed:
            self.reason = f"the connection was lost ({exc})"
        self._stop()
        self._lost.set_result(None)
        self._handshake.lost(self)

    # ---------------------------------------------------------------------------------------------------- inside

    def _deliver(self) -> None:
        parser = self._parser
        self._flush_due = True  # immediate answers leave together at the end
        try:
            while not self._pauses and not self.closed:
                packet = parser.next()
                if packet is None:
                    break
                if packet.kind == PacketKind.MESSAGE and self.open:
                    self._on_message(packet)
                else:
                    self._on_other(packet)
        except ProtocolViolation as violation:
            self.refuse(RefusalCode.PROTOCOL, str(violation))
        finally:
            self._flush()

    def _flush(self) -> None:
        gathered, size = self._gathered, self._gathered_bytes
        self._flush_due = False
        if not gathered or self.closed:
            return
        self._gathered, self._gathered_bytes = [], 0
        if size <= GATHERED_BYTES_MAX:
            self._transport.write(gathered[0] if len(gathered) == 1 else b"".join(gathered))
        else:
            self._transport.writelines(gathered)

    def _on_message(self, packet: Packet) -> None:
        token = 0
        try:
            envelope, attachments = decode_message(packet.head, packet.body, self._limits.attachments_max)
            token = envelope.token
            self.active_at = self._loop.time()
            self._handler(self, envelope, attachments)
        except BadRequest as bad:  # rule 7
            if self._serving:
                self.refuse_request(token or bad.token, str(bad))
            else:
                self.violations += 1
                complaints.warn(f"dropped an answer of {self.peer_name} at {self.address}: {bad}")

    def _on_other(self, packet: Packet) -> None:
        if packet.body:
            raise ProtocolViolation("only messages have attachments; upgrade the older of the two")
        if packet.kind == PacketKind.REFUSED:
            self.refusal_received = decode_refusal(packet.head)
            self._abort(self.refusal_received.text)
        elif not self.open:
            self._handshake.packet(self, packet.kind, packet.head)
        elif packet.kind == PacketKind.PING:
            if self._full is None:  # a peer that pings and does not read gets no more memory
                self._transport.write(encode(PacketKind.PONG))
        elif packet.kind != PacketKind.PONG:
            raise ProtocolViolation("the handshake is over; upgrade the older of the two")

    def _on_oversized(self, token: int, size: int) -> bool:
        text = f"a packet of {size} bytes is larger than {self.peer_name} accepts"
        if not self._serving:
            raise ValueError(f"{text}; send less at once")
        self.send("", token, RequestRefused(f"{text}; request less at once"))
        return False

    def _outstanding_bytes(self) -> int:
        """Not yet acknowledged by the peer's kernel."""
        if self.closed:
            return 0
        unacknowledged = array.array("i", [0])
        fcntl.ioctl(self._transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, unacknowledged)
        return self.buffered_bytes + unacknowledged[0]

    def _ping(self) -> None:
        if not self.closed:
            self._transport.write(encode(PacketKind.PING))

    def _go_on(self) -> None:
        """Deliver what arrived before the pause, then continue to read."""
        if not self._pauses and not self.closed:
            self._deliver()
        if not self._pauses and not self.closed:
            self._transport.resume_reading()

    def _on_handshake_overdue(self) -> None:
        self.refuse(RefusalCode.PROTOCOL, f"no handshake within {self._limits.handshake_ms} ms; connect again")

    def _watch(self) -> None:
        """Detect a dead peer, and a packet that is never completed.

        It counts ticks instead of time, so that a process that was itself suspended does not blame its peers.
        """
        limits, packets = self._limits, self._parser.packets
        reading = not self._pauses
        self._stuck_ticks = self._stuck_ticks + 1 if reading and self._parser.midway and packets == self._seen[0] else 0
        self._quiet_ticks = self._quiet_ticks + 1 if reading and self.received_at == self._seen[1] else 0
        self._seen = (packets, self.received_at)
        if self._stuck_ticks * limits.ping_ms >= limits.packet_ms:
            self.refuse(RefusalCode.PROTOCOL, f"a packet took longer than {limits.packet_ms} ms; connect again")
        elif not self._serving and self._quiet_ticks * limits.ping_ms >= limits.silent_ms:
            self._abort(f"{self.peer_name} was silent for {limits.silent_ms} ms; is it suspended?")
        else:
            if not self._serving and self._quiet_ticks:
                self._ping()
            self._timer = self._loop.call_later(limits.ping_ms / 1000, self._watch)

    def _abort(self, reason: str) -> None:
        self.reason = reason
        self._stop()
        self._transport.abort()

    def _stop(self) -> None:
        self.closed = True
        self.open = False
        self._gathered, self._gathered_bytes = [], 0
        self._release_waiters()
        self._progress.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _release_waiters(self) -> None:
        if self._full is not None:
            self._full.set_result(None)
            self._full = None


def _peer_address(transport: asyncio.BaseTransport) -> str:
    name = transport.get_extra_info("peername")
    return format_address(*name[:2]) if name else ""  # "": it is closed already


def _configure(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
