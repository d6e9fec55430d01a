"""How much one peer may demand of this process."""

from __future__ import annotations

from msgspec import Struct

KIB = 1024
MIB = 1024 * KIB

HANDSHAKE_BYTES_MAX = 16 * KIB  # of HELLO, WELCOME and REFUSED: an unauthenticated peer gets no more memory
PEER_PACKET_BYTES_MIN = MIB  # a peer that accepts less cannot receive the answers to its requests


class Limits(Struct, frozen=True):
    """Each comment: what goes wrong when the value is too small / too big."""

    packet_bytes_max: int = 64 * MIB  # large bodies are refused / one packet takes the memory of many
    head_bytes_max: int = 16 * MIB  # projections of 60,000 segments are refused / a decoded head takes ten times this
    attachments_max: int = 8192  # long answers to a read are refused / splitting one packet blocks the loop
    handshake_ms: int = 5_000  # slow links cannot connect / silent connections hold a place for long
    packet_ms: int = 60_000  # slow links cannot send large bodies / a trickling peer holds a packet's memory for long
    ping_ms: int = 10_000  # pings cost more than the work / a dead peer is noticed late
    silent_ms: int = 30_000  # a stalled peer is dropped too early / too late
    linger_ms: int = 1_000  # the reason of a refusal does not reach the peer / closing takes long
    send_buffer_high: int = 4 * MIB  # reading requests stops all the time / answers pile up
    send_buffer_max: int = 64 * MIB  # peers are dropped in bursts / a peer that does not read takes memory
    handshakes_max: int = 256  # clients that reconnect at once are refused / unauthenticated peers take descriptors
    connections_max: int = 1024  # clients are refused / the process runs out of descriptors
