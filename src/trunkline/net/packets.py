"""The layout of a packet.

    0        4        8     9      10     12     16                   16 + head           16 + length
    +--------+--------+-----+------+------+------+---------------------+--------------------+
    | length |  head  |kind |flags | zero | crc  | head (msgpack)      | attachments (raw)  |
    +--------+--------+-----+------+------+------+---------------------+--------------------+
      u32      u32     u8    u8     u16    u32                            little endian

1. ``length`` counts what follows the header, ``head`` the part of it that is decoded.
2. ``crc`` is the crc32c of the first 12 bytes and of the head. Attachments have their own checksum inside the message
   (that of a frame), so that their bytes are read once, by the process that stores or returns them.
3. Flags and zero are 0. A version that uses them announces it in the handshake first.
4. The first packet of a client is HELLO, the first of a server WELCOME or REFUSED. Nothing follows REFUSED.
5. After a handshake, a head may have more fields than this version knows: they are skipped.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import TypeVar

import crc32c
import msgspec
from msgspec import Struct

from trunkline.core.effects import Message
from trunkline.errors import ProtocolError
from trunkline.net.wire import WireMessage

HEADER_BYTES = 16
CHECKED_BYTES = 12  # of the header: all but the crc
_HEADER = struct.Struct("<IIBBHI")
_FIELDS = struct.Struct("<IIBBH")  # the checked part
_CRC = struct.Struct("<I")

MAGIC = "trunkline"
VERSION_MIN = 2
VERSION_MAX = 2


class ProtocolViolation(ProtocolError):
    """A peer broke the protocol. Its connection is refused and closed; others are not affected."""


class BadRequest(ProtocolError):
    """An intact packet with an invalid message. Its sender receives an error; the connection stays open."""

    def __init__(self, text: str, token: int = 0) -> None:
        super().__init__(text)
        self.token = token  # of the request; 0: not known where it is raised


class PacketKind(enum.IntEnum):
    HELLO = 1
    WELCOME = 2
    MESSAGE = 3
    REFUSED = 4
    PING = 5
    PONG = 6


_KINDS = frozenset(int(kind) for kind in PacketKind)  # plain numbers are faster to look up, for every packet


class Hello(Struct, frozen=True, array_like=True):
    """The first packet of a client."""

    magic: str
    version_min: int
    version_max: int
    cluster: str  # "": any
    token: str  # a credential; "": none
    name: str  # of the process that dials
    packet_bytes_max: int  # the largest packet that it accepts


class Welcome(Struct, frozen=True, array_like=True):
    version: int
    cluster: str
    name: str
    packet_bytes_max: int


class RefusalCode(enum.Enum):
    VERSION = "version"
    CLUSTER = "cluster"
    TOKEN = "token"
    BUSY = "busy"
    PROTOCOL = "protocol"


class Refusal(Struct, frozen=True, array_like=True):
    code: RefusalCode
    text: str


class Envelope(Struct, frozen=True, array_like=True):
    """A message on the wire."""

    role: str  # of the receiver
    token: int  # chosen by the requester, repeated in the answer
    reserved: int  # 0
    sizes: tuple[int, ...]  # of the attachments
    message: WireMessage


class _ReturnAddress(Struct, frozen=True, array_like=True):
    """As much of an envelope as an answer needs, even if the message is unknown."""

    role: str
    token: int


T = TypeVar("T")

_encode = msgspec.msgpack.Encoder().encode
_hellos = msgspec.msgpack.Decoder(Hello)
_welcomes = msgspec.msgpack.Decoder(Welcome)
_refusals = msgspec.msgpack.Decoder(Refusal)
_envelopes = msgspec.msgpack.Decoder(Envelope)
_return_addresses = msgspec.msgpack.Decoder(_ReturnAddress)


def encode(kind: PacketKind, head: Struct | None = None) -> bytes:
    """A whole packet without attachments."""
    return _framed(kind, b"" if head is None else _encode(head), 0)


def encode_message(role: str, token: int, sizes: Sequence[int], message: Message) -> bytes:
    """Header and head of a MESSAGE; its attachments follow."""
    return _framed(PacketKind.MESSAGE, _encode((role, token, 0, sizes, message)), sum(sizes))


def _framed(kind: PacketKind, head: bytes, attached_bytes: int) -> bytes:
    fields = _FIELDS.pack(len(head) + attached_bytes, len(head), kind, 0, 0)
    return b"".join((fields, _CRC.pack(crc32c.crc32c(head, crc32c.crc32c(fields))), head))


def parse_header(buffer: bytes | bytearray | memoryview, offset: int) -> tuple[int, int, int, int]:
    """Length, head length, kind and crc. Raises ``ProtocolViolation``."""
    length, head_length, kind, flags, zero, crc = _HEADER.unpack_from(buffer, offset)
    if flags or zero or kind not in _KINDS or head_length > length:
        raise ProtocolViolation("this is not a Trunkline packet; check that both ends speak its protocol (TLS or not?)")
    return length, head_length, kind, crc


def checked_head(view: memoryview, offset: int, head_length: int, crc: int) -> bytes:
    """The head of the packet at ``offset``. Raises ``ProtocolViolation`` if its checksum is wrong."""
    start = offset + HEADER_BYTES
    head = bytes(view[start : start + head_length])
    if crc32c.crc32c(head, crc32c.crc32c(view[offset : offset + CHECKED_BYTES])) != crc:
        raise ProtocolViolation("the checksum of a packet is wrong; connect again")
    return head


def decode_hello(head: bytes) -> Hello:
    return _decoded(_hellos, head)


def decode_welcome(head: bytes) -> Welcome:
    return _decoded(_welcomes, head)


def decode_refusal(head: bytes) -> Refusal:
    return _decoded(_refusals, head)


def decode_message(head: bytes, body: memoryview, attachments_max: int) -> tuple[Envelope, tuple[memoryview, ...]]:
    """An envelope and views into ``body``, one for each attachment.

    Raises ``BadRequest`` for an invalid message, ``ProtocolViolation`` if not even the return address can be read.
    """
    try:
        envelope = _decoded(_envelopes, head)
    except ProtocolViolation as violation:
        raise BadRequest(str(violation), _decoded(_return_addresses, head).token) from violation
    sizes = envelope.sizes
    if not sizes and not body:
        return envelope, ()
    if len(sizes) > attachments_max or min(sizes, default=0) < 0 or sum(sizes) != len(body):
        text = "the attachments of a packet do not fit their sizes; upgrade the older of the two"
        raise BadRequest(text, envelope.token)
    if len(sizes) == 1:
        return envelope, (body,)
    views = []
    start = 0
    for size in sizes:
        views.append(body[start : start + size])
        start += size
    return envelope, tuple(views)


def _decoded(decoder: msgspec.msgpack.Decoder[T], head: bytes) -> T:
    try:
        return decoder.decode(head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolViolation(
            f"the head of a packet cannot be decoded ({error}); upgrade the older of the two"
        ) from error
