"""Events of a MariaDB binlog (version 4), as the server sends them to a replica.

    u32 time | u8 kind | u32 server | u32 size | u32 end | u16 flags | body | u32 CRC-32, unless it is off

Numbers are little-endian. Only events that a capture needs are parsed; the checksum of each is checked.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from typing import Final

from msgspec import Struct

from trunkline.errors import ProtocolError

HEADER: Final = struct.Struct("<IBIIIH")
CRC: Final = struct.Struct("<I")
ARTIFICIAL: Final = 0x20  # a flag: the event is in no file
HEAD_BYTES: Final = HEADER.size
NOTHING: Final = b""


class Kind(IntEnum):
    UNKNOWN = 0
    QUERY = 2
    STOP = 3
    ROTATE = 4
    INTVAR = 5
    RAND = 13
    USER_VAR = 14
    FORMAT = 15
    XID = 16
    BEGIN_LOAD = 17
    EXECUTE_LOAD = 18
    TABLE_MAP = 19
    WRITE_ROWS_1 = 23
    UPDATE_ROWS_1 = 24
    DELETE_ROWS_1 = 25
    INCIDENT = 26
    HEARTBEAT = 27
    WRITE_ROWS = 30
    UPDATE_ROWS = 31
    DELETE_ROWS = 32
    XA_PREPARE = 38
    ANNOTATE = 160
    CHECKPOINT = 161
    GTID = 162
    GTID_LIST = 163
    START_ENCRYPTION = 164
    QUERY_COMPRESSED = 165
    WRITE_ROWS_1_COMPRESSED = 166
    UPDATE_ROWS_1_COMPRESSED = 167
    DELETE_ROWS_1_COMPRESSED = 168
    WRITE_ROWS_COMPRESSED = 169
    UPDATE_ROWS_COMPRESSED = 170
    DELETE_ROWS_COMPRESSED = 171


INSERTS: Final = (
    Kind.WRITE_ROWS_1, Kind.WRITE_ROWS, Kind.WRITE_ROWS_1_COMPRESSED, Kind.WRITE_ROWS_COMPRESSED,
)  # fmt: skip
UPDATES: Final = (
    Kind.UPDATE_ROWS_1, Kind.UPDATE_ROWS, Kind.UPDATE_ROWS_1_COMPRESSED, Kind.UPDATE_ROWS_COMPRESSED,
)  # fmt: skip
DELETES: Final = (
    Kind.DELETE_ROWS_1, Kind.DELETE_ROWS, Kind.DELETE_ROWS_1_COMPRESSED, Kind.DELETE_ROWS_COMPRESSED,
)  # fmt: skip
ROWS: Final = frozenset(map(int, (*INSERTS, *UPDATES, *DELETES)))
SECOND_VERSION: Final = frozenset(
    map(
        int,
        (
            Kind.WRITE_ROWS,
            Kind.UPDATE_ROWS,
            Kind.DELETE_ROWS,
            Kind.WRITE_ROWS_COMPRESSED,
            Kind.UPDATE_ROWS_COMPRESSED,
            Kind.DELETE_ROWS_COMPRESSED,
        ),
    )
)
COMPRESSED_ROWS: Final = frozenset(range(Kind.WRITE_ROWS_1_COMPRESSED, Kind.DELETE_ROWS_COMPRESSED + 1))
# Events that change no row, or say so in another event.
IGNORED: Final = frozenset(
    map(int, (Kind.ANNOTATE, Kind.CHECKPOINT, Kind.GTID_LIST, Kind.START_ENCRYPTION, Kind.STOP, Kind.INTVAR))
) | frozenset(map(int, (Kind.RAND, Kind.USER_VAR, Kind.UNKNOWN)))


# Events that may lie between transactions.
BETWEEN: Final = frozenset(
    map(int, (Kind.FORMAT, Kind.GTID, Kind.GTID_LIST, Kind.CHECKPOINT, Kind.STOP, Kind.START_ENCRYPTION, Kind.INCIDENT))
)


class GtidFlag(IntEnum):
    STANDALONE = 1  # one statement, without an end of its own
    TRANSACTIONAL = 4  # it is whole or not at all
    PREPARED_XA = 64
    COMPLETED_XA = 128


class Event(Struct, frozen=True, gc=False):
    """``end``: the offset after it in its file, modulo 2**32; 0: it is in no file."""

    kind: int
    time: int  # seconds since 1970
    size: int
    end: int
    flags: int
    body: bytes


class Query(Struct, frozen=True):
    database: str
    statement: str
    sql_mode: int


class RowsHead(Struct, frozen=True):
    table: int
    columns: int
    masks: tuple[bytes, ...]  # of the columns that the row has; an update has two
    at: int  # where the rows begin


def malformed(what: str) -> ProtocolError:
    return ProtocolError(f"the server sent a malformed binlog event ({what}); restart the capture")


def event_of(packet: bytes, *, checksums: bool) -> Event:
    """``packet``: without the byte that says that it is one."""
    if len(packet) < HEAD_BYTES:
        raise malformed("it is truncated")
    time, kind, _, size, end, flags = HEADER.unpack_from(packet)
    if size != len(packet):
        raise malformed(f"it states {size} bytes and has {len(packet)}")
    if not checksums:
        return Event(kind, time, size, end, flags, packet[HEAD_BYTES:])
    if size < HEAD_BYTES + CRC.size or CRC.unpack_from(packet, size - CRC.size)[0] != zlib.crc32(
        memoryview(packet)[: -CRC.size]
    ):
        raise malformed("its checksum does not match")
    return Event(kind, time, size, end, flags, packet[HEAD_BYTES : -CRC.size])


def made_up(packet: bytes) -> Event:
    """An event that the server may make up for a replica: whether it has a checksum depends on what came before."""
    try:
        return event_of(packet, checksums=True)
    except ProtocolError:
        return event_of(packet, checksums=False)


def checksummed(packet: bytes) -> bool:
    """Whether events after this Format event have checksums: the last byte before its own says so."""
    if len(packet) < HEAD_BYTES + 58:
        raise malformed("a format event is truncated")
    return packet[-CRC.size - 1] == 1


def rotation(event: Event) -> tuple[int, str]:
    """The offset in the next file, and the name of that file."""
    return struct.unpack_from("<Q", event.body)[0], event.body[8:].decode()


def gtid_flags(event: Event) -> int:
    return event.body[12]


def query_of(event: Event) -> Query:
    _, _, database_size, _, status_size = struct.unpack_from("<IIBHH", event.body)
    at = 13 + status_size
    status, body = event.body[13:at], event.body
    database = body[at : at + database_size]
    statement = body[at + database_size + 1 :]
    if event.kind == Kind.QUERY_COMPRESSED:
        statement = uncompressed(statement)
    return Query(database.decode(), statement.decode("utf-8", "replace"), _sql_mode(status))


def _sql_mode(status: bytes) -> int:
    """The second of the status variables; the first is four bytes of flags."""
    at = 5 if status[:1] == b"\0" else 0
    mode: int = struct.unpack_from("<Q", status, at + 1)[0] if status[at : at + 1] == b"\1" else 0
    return mode


def uncompressed(content: bytes) -> bytes:
    """MariaDB's form: the number of bytes of the size, the size (big-endian), a zlib stream."""
    count = content[0] & 7
    size = int.from_bytes(content[1 : 1 + count], "big")
    unpacking = zlib.decompressobj()
    found = unpacking.decompress(content[1 + count :], size + 1)
    if len(found) != size or not unpacking.eof:
        raise malformed("compressed content has another size")
    return found


def rows_of(event: Event) -> tuple[RowsHead, bytes]:
    """What an event of rows is about, and its body."""
    body = event.body
    if event.kind in COMPRESSED_ROWS:
        start = _rows_start(event.kind, body)
        count, _ = length_at(body, start)
        masks = 2 if event.kind in UPDATES else 1
        at = length_at(body, start)[1] + masks * ((count + 7) // 8)
        body = body[:at] + uncompressed(body[at:])
    table = int.from_bytes(body[:6], "little")
    count, at = length_at(body, _rows_start(event.kind, body))
    width = (count + 7) // 8
    masks_at = [at, at + width] if event.kind in UPDATES else [at]
    masks_found = tuple(body[place : place + width] for place in masks_at)
    return RowsHead(table, count, masks_found, at + width * len(masks_at)), body


def _rows_start(kind: int, body: bytes) -> int:
    """Table and flags; the second version has more after them, and says how much."""
    return 8 + (int(struct.unpack_from("<H", body, 8)[0]) if kind in SECOND_VERSION else 0)


def length_at(content: bytes, at: int) -> tuple[int, int]:
    """A number of one to nine bytes, and where the next thing is."""
    first = content[at]
    if first < 251:
        return first, at + 1
    size = {252: 2, 253: 3, 254: 8}.get(first)
    if size is None:
        raise malformed("a length is invalid")
    return int.from_bytes(content[at + 1 : at + 1 + size], "little"), at + 1 + size
