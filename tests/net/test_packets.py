"""The format of packets, and which messages may be in them."""

from __future__ import annotations

import struct
from typing import get_args

import crc32c
import msgspec
import pytest

from net.wiring import FRAME, STORED
from trunkline.core import calls, messages
from trunkline.core.effects import Message
from trunkline.core.entries import Frame, FrameKind
from trunkline.core.messages import Digested
from trunkline.net import admin
from trunkline.net.limits import Limits
from trunkline.net.packets import (
    BadRequest,
    Envelope,
    PacketKind,
    ProtocolViolation,
    decode_message,
    encode,
    encode_message,
)
from trunkline.net.wire import WireMessage

STAYS_INSIDE = {
    *("LeaseExpired", "CreateLog", "AppendRequested", "SubscribeRequested", "TailRequested"),
    *("PeekRequested", "TrimRequested", "SealRequested", "DeleteRequested"),
}


def messages_of(*modules: object) -> set[str]:
    values = [value for module in modules for value in vars(module).values()]
    return {value.__name__ for value in values if isinstance(value, type) and issubclass(value, Message)} - {"Message"}


def test_every_message_either_travels_or_is_named_as_one_that_does_not() -> None:
    travelling = {message.__name__ for message in get_args(WireMessage)}
    assert travelling | STAYS_INSIDE == messages_of(calls, messages, admin)
    assert not travelling & STAYS_INSIDE


def test_a_packet_is_laid_out_as_documented() -> None:
    packet = encode_message("storage", 9, [3, 0], STORED)
    length, head_length, kind, flags, zero, crc = struct.unpack_from("<IIBBHI", packet)
    head = packet[16:]
    assert (length, head_length, kind, flags, zero) == (len(head) + 3, len(head), 3, 0, 0)
    assert crc == crc32c.crc32c(packet[:12] + head)
    fields = ["Stored", "stream", [7, 3, "data", "w1", 5, 4_000_000_000]]
    assert msgspec.msgpack.decode(head) == ["storage", 9, 0, [3, 0], fields]


def test_a_packet_without_a_head_is_a_header_alone() -> None:
    assert len(encode(PacketKind.PING)) == 16


def test_a_digest_of_4096_frames_fits_a_head() -> None:
    frame = Frame(2**62, 2**31, FrameKind.DATA, "w" * 64, 2**62, 2**32 - 1)
    packet = encode_message("storage", 2**62, (), Digested("s" * 64, 2**62, 2**62, (frame,) * 4096))
    assert len(packet) < Limits().head_bytes_max


def test_fields_that_a_newer_peer_added_are_skipped() -> None:
    head = msgspec.msgpack.encode(["r", 1, 0, [], ["Stored", "s", FRAME, "new"], "newer"])
    envelope, attachments = decode_message(head, memoryview(b""), 10)
    assert envelope == Envelope("r", 1, 0, (), messages.Stored("s", FRAME))
    assert attachments == ()


@pytest.mark.parametrize("sizes", [(), (4,), (6,), (2, 2), (5, 1), (6, -1), (1,) * 5])
def test_attachments_that_do_not_fit_their_sizes_are_a_bad_request(sizes: tuple[int, ...]) -> None:
    head = msgspec.msgpack.encode(("r", 1, 0, sizes, STORED))
    with pytest.raises(BadRequest, match="do not fit their sizes") as bad:
        decode_message(head, memoryview(b"12345"), attachments_max=4)
    assert bad.value.token == 1


def test_a_message_that_cannot_be_decoded_is_a_bad_request_of_that_token() -> None:
    head = msgspec.msgpack.encode(["r", 7, 0, [], ["NoSuch"]])
    with pytest.raises(BadRequest, match="cannot be decoded") as bad:
        decode_message(head, memoryview(b""), 10)
    assert bad.value.token == 7


@pytest.mark.parametrize("head", [b"", b"\xc1", b"\x91" * 100_000, b"\xa2\xff\xff"])
def test_a_head_that_cannot_be_decoded_is_a_violation(head: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="cannot be decoded"):
        decode_message(head, memoryview(b""), 10)
