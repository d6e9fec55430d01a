"""The parser gives exactly what was encoded, however the stream is cut, and only a violation for anything else.

``TRUNKLINE_FUZZ_SECONDS=300 pytest tests/net/test_parser.py`` fuzzes for longer, with new examples each time.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from net.wiring import FRAME, STORED, greeting
from trunkline.core.entries import junk
from trunkline.core.messages import Fetched, ReadFrames, Reason, Rejected, Written
from trunkline.net.packets import (
    HEADER_BYTES,
    Envelope,
    PacketKind,
    ProtocolViolation,
    Refusal,
    RefusalCode,
    decode_hello,
    decode_message,
    decode_refusal,
    decode_welcome,
    encode,
    encode_message,
)
from trunkline.net.parser import PacketParser

FUZZ_SECONDS = float(os.environ.get("TRUNKLINE_FUZZ_SECONDS", "2"))
RECEIVE_BYTES = 256  # small, so that packets of all sizes meet its end
PACKET_BYTES_MAX = 1 << 16

Decoded = tuple[Envelope, tuple[bytes, ...]]

MESSAGES = (
    STORED,
    Written("s", FRAME, junk(3)),
    Rejected("stream", 9, Reason.SEALED),
    ReadFrames("s", 1, (FRAME, junk(10))),
    Fetched("s", 1, 90, tuple(junk(at) for at in range(1, 90))),  # a head that is larger than the receive buffer
)


def sent(role: str, token: int, bodies: tuple[bytes, ...], which: int) -> tuple[bytes, Decoded]:
    """A packet's bytes, and what must come out of them."""
    sizes, message = tuple(map(len, bodies)), MESSAGES[which]
    encoded = encode_message(role, token, sizes, message) + b"".join(bodies)
    return encoded, (Envelope(role, token, 0, sizes, message), bodies)


def fed(parser: PacketParser, stream: bytes, cuts: random.Random) -> Iterator[Decoded]:
    """Everything that the parser makes of a stream, given in pieces as a socket would give them."""
    at = 0
    while at < len(stream):
        room = parser.room()
        assert len(room) > 0, "a socket could receive nothing any more"
        count = min(len(room), len(stream) - at, cuts.choice((1, 15, 16, 17, 100, 5_000)))
        room[:count] = stream[at : at + count]
        parser.received(count)
        at += count
        while (packet := parser.next()) is not None:
            if packet.kind == PacketKind.MESSAGE:
                envelope, views = decode_message(packet.head, packet.body, attachments_max=100)
                yield envelope, tuple(map(bytes, views))


def new_parser() -> PacketParser:
    return PacketParser(PACKET_BYTES_MAX, PACKET_BYTES_MAX // 2, RECEIVE_BYTES)


PACKETS = st.lists(
    st.builds(
        sent,
        st.text(max_size=8),
        st.integers(0, 2**63 - 1),
        st.lists(st.binary(max_size=700), max_size=4).map(tuple),
        st.integers(0, len(MESSAGES) - 1),
    ),
    max_size=8,
)
SEEDS = st.integers(0, 2**32)


@given(PACKETS, SEEDS)
def test_a_valid_stream_gives_what_was_encoded_whatever_its_pieces(
    packets: list[tuple[bytes, Decoded]], seed: int
) -> None:
    parser = new_parser()
    stream = encode(PacketKind.PING).join(encoded for encoded, _ in packets)
    assert list(fed(parser, stream, random.Random(seed))) == [decoded for _, decoded in packets]
    assert not parser.midway
    assert parser.packets == 2 * len(packets) - 1 if packets else parser.packets == 0


@given(PACKETS, SEEDS, SEEDS)
def test_a_stream_with_a_changed_byte_gives_a_true_beginning_and_at_most_a_violation(
    packets: list[tuple[bytes, Decoded]], at: int, seed: int
) -> None:
    stream = bytearray(b"".join(encoded for encoded, _ in packets))
    if not stream:
        return
    at %= len(stream)
    stream[at] ^= 1 + seed % 255
    intact = changed_packet(packets, at)
    received = received_before_violation(bytes(stream), seed)
    assert received[:intact] == [decoded for _, decoded in packets[:intact]]
    for (envelope, _), (_, (original, _)) in zip(received[intact:], packets[intact:], strict=False):
        assert envelope == original  # only an attachment can have changed: it has a checksum of its own


@given(st.binary(max_size=2_000), SEEDS)
def test_random_bytes_give_nothing_and_at_most_a_violation(stream: bytes, seed: int) -> None:
    assert received_before_violation(stream, seed) == []


@pytest.mark.parametrize("decode", [decode_hello, decode_welcome, decode_refusal])
@given(st.binary(max_size=200), st.integers(0, 200))
def test_a_handshake_of_random_bytes_is_at_most_a_violation(decode: object, head: bytes, cut: int) -> None:
    for text in (head, encode(PacketKind.HELLO, greeting())[HEADER_BYTES:][:cut] + head):
        try:
            decode(text)  # type: ignore[operator]
        except ProtocolViolation:
            continue


def changed_packet(packets: list[tuple[bytes, Decoded]], at: int) -> int:
    """Index of the packet that holds this byte."""
    for index, (encoded, _) in enumerate(packets):
        if at < len(encoded):
            return index
        at -= len(encoded)
    raise AssertionError("the byte is in the stream")


def received_before_violation(stream: bytes, seed: int) -> list[Decoded]:
    received: list[Decoded] = []
    with contextlib.suppress(ProtocolViolation):
        received.extend(fed(new_parser(), stream, random.Random(seed)))  # keeps what came before it
    return received


def test_mutated_streams_never_break_the_parser() -> None:
    """Many bytes changed, cut out, doubled or put in, as long as ``TRUNKLINE_FUZZ_SECONDS`` says."""
    seed = 1 if FUZZ_SECONDS <= 2 else random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")  # shown if it fails
    source = random.Random(seed)
    end = time.monotonic() + FUZZ_SECONDS
    while time.monotonic() < end:
        packets = [random_packet(source) for _ in range(source.randint(1, 6))]
        stream = b"".join(encoded for encoded, _ in packets)
        originals = [envelope for _, (envelope, _) in packets]
        for decoded, _ in received_before_violation(mutated(stream, source), source.getrandbits(32)):
            assert decoded in originals, seed


def random_packet(source: random.Random) -> tuple[bytes, Decoded]:
    bodies = tuple(source.randbytes(source.choice((0, 1, 50, 600))) for _ in range(source.randint(0, 3)))
    return sent("r" * source.randint(0, 5), source.getrandbits(60), bodies, source.randrange(len(MESSAGES)))


def mutated(stream: bytes, source: random.Random) -> bytes:
    changed = bytearray(stream)
    for _ in range(source.randint(1, 4)):
        at, length = source.randrange(len(changed) + 1), source.choice((1, 1, 2, 16, 40))
        piece = source.choice((b"", source.randbytes(length), bytes(changed[at : at + length]) * 2))
        changed[at : at + length] = piece
    return bytes(changed)


def test_a_packet_up_to_the_limit_is_taken_and_one_above_it_is_not() -> None:
    room = PACKET_BYTES_MAX - len(encode_message("r", 1, (PACKET_BYTES_MAX - 1,), STORED)) + HEADER_BYTES
    encoded, decoded = sent("r", 1, (bytes(room),), 0)
    assert len(encoded) == PACKET_BYTES_MAX + HEADER_BYTES
    assert list(fed(new_parser(), encoded, random.Random(1))) == [decoded]
    with pytest.raises(ProtocolViolation, match="larger than this process accepts"):
        list(fed(new_parser(), sent("r", 1, (bytes(room + 1),), 0)[0], random.Random(1)))


def test_memory_for_attachments_is_taken_only_after_the_head_is_checked() -> None:
    encoded = bytearray(encode_message("r", 1, (50_000,), STORED))
    encoded[-1] ^= 1
    parser = new_parser()
    with pytest.raises(ProtocolViolation, match="checksum"):
        list(fed(parser, bytes(encoded), random.Random(1)))
    assert len(parser.room()) <= RECEIVE_BYTES


def test_other_kinds_of_packets_come_out_with_their_heads() -> None:
    parser = new_parser()
    stream = encode(PacketKind.REFUSED, Refusal(RefusalCode.BUSY, "later")) + encode(PacketKind.PONG)
    parser.room()[: len(stream)] = stream
    parser.received(len(stream))
    first, second = parser.next(), parser.next()
    assert first is not None
    assert second is not None
    assert decode_refusal(first.head) == Refusal(RefusalCode.BUSY, "later")
    assert (second.kind, second.head, bytes(second.body)) == (PacketKind.PONG, b"", b"")
