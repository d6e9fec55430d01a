"""How much one peer may ask of this process."""

from __future__ import annotations

from msgspec import Struct

KIB = 1024
MIB = 1024 * KIB

HANDSHAKE_BYTES_MAX = 16 * KIB  # of HELLO, WELCOME and REFUSED: whoever has not shown a token gets no more memory
PEER_PACKET_BYTES_MIN = MIB  # whoever takes less cannot take the answers to what it may ask


class Limits(Struct, frozen=True):
    """Each line says what goes wrong when the value is too small, then when it is too big."""

    packet_bytes_max: int = 64 * MIB  # a body with its head is refused / one packet takes the memory of many
    head_bytes_max: int = 16 * MIB  # the map of 60,000 segments is refused / decoded, a head takes ten times its size
    attachments_max: int = 8192  # a long answer to a read is refused / the loop splits one packet for long
    handshake_ms: int = 5_000  # slow links cannot connect / silent connections hold a place for long
    packet_ms: int = 60_000  # slow links cannot send large bodies / one that trickles holds a packet's memory for long
    ping_ms: int = 10_000  # pings cost more than the work / a dead peer is noticed late
    silent_ms: int = 30_000  # a stalled peer is dropped too early / too late
    linger_ms: int = 1_000  # the last words do not reach the peer / closing takes long
    send_buffer_high: int = 4 * MIB  # the peer's requests stop all the time / answers pile up
    send_buffer_max: int = 64 * MIB  # peers are dropped in bursts / one that does not read takes memory
    handshakes_max: int = 256  # many clients that come back at once are turned away / strangers take files
    connections_max: int = 1024  # clients are turned away / the process runs out of files
