"""The format of an extent, byte by byte. Everything is little endian and aligned to 8 bytes.

    extent   [header][frame][frame][mark][frame] ... [closing][columns][trailer]
    frame    [frame header, 56 bytes][writer id, padded][body, padded]
    footer   from ``closing`` on; a full extent has one, so that a restart does not read its frames

Rules
 L1  Every header has its own checksum (crc32c, seeded with the stream's salt), so its lengths can be trusted. A body
     that holds a copy of an extent is never mistaken for frames: the salt differs.
 L2  A frame carries its slot, which is its number in the stream from 0 on, and the synced mark: how many slots were
     durable when it was written.
 L3  A mark takes 24 bytes, fewer than any frame. A rest at the end of a file that is shorter than a frame header was
     never acknowledged.
 L4  A footer is written only after every frame of its extent is durable: it is a mark, too.
"""

from __future__ import annotations

import struct
from array import array
from typing import NamedTuple

import crc32c

from trunkline.core.entries import Frame, FrameKind
from trunkline.storage.packed import COLUMN_TYPES, KIND_CODES, KINDS, PackedFrames

BODY_BYTES_MAX = 32 << 20
WRITER_BYTES_MAX = 255
ALIGNMENT = 8
VERSION = 1

EXTENT_MAGIC = b"TLE1"
FRAME_MAGIC = b"TLf1"
MARK_MAGIC = b"TLm1"
CLOSING_MAGIC = b"TLc1"
TRAILER_MAGIC = b"TLt1"

EXTENT_HEADER = struct.Struct("<4sIIIQ")  # magic, crc, version, extent number, first slot
# magic, crc, body length, count, first, seq, slot, mark, checksum, writer length, kind, 0
FRAME_HEADER = struct.Struct("<4sIIIqqQQIBBH")
MARK = struct.Struct("<4sIQQ")  # magic, crc, mark, slots so far
# magic, crc, frames, length of the columns, first slot, end of the frames, crc of the columns, successor
TRAILER = struct.Struct("<4sIIIQQII")

PADDING = tuple(bytes(n) for n in range(ALIGNMENT))


def checksum(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    """crc32c, continued from ``crc``."""
    return int(crc32c.crc32c(data, crc))


def padding(size: int) -> bytes:
    return PADDING[-size % ALIGNMENT]


def padded(size: int) -> int:
    return size + -size % ALIGNMENT


def frame_fits(frame: Frame, body_bytes: int) -> bool:
    """Whether a frame can be stored at all. A host checks it before a role sees the request."""
    return (
        1 <= frame.first < 1 << 62
        and 1 <= frame.count < 1 << 32
        and 0 <= frame.seq < 1 << 63
        and 0 <= frame.checksum < 1 << 32
        and len(frame.writer.encode(errors="replace")) <= WRITER_BYTES_MAX
        and body_bytes <= BODY_BYTES_MAX
        and (frame.kind is FrameKind.DATA or body_bytes == 0)
    )


class StoredWriter(NamedTuple):
    """A writer id as it is stored."""

    size: int
    content: bytes  # padded


def stored_writer(name: str) -> StoredWriter:
    encoded = name.encode()
    return StoredWriter(len(encoded), encoded + padding(len(encoded)))


# --------------------------------------------------------------------------------------------------------- small parts


def _signed(salt: int, magic: bytes, rest: bytes) -> bytes:
    return magic + checksum(rest, salt).to_bytes(4, "little") + rest


def _is_signed(salt: int, content: bytes, magic: bytes) -> bool:
    return content[:4] == magic and checksum(content[8:], salt) == int.from_bytes(content[4:8], "little")


def pack_extent_header(salt: int, number: int, first_slot: int) -> bytes:
    return _signed(salt, EXTENT_MAGIC, EXTENT_HEADER.pack(EXTENT_MAGIC, 0, VERSION, number, first_slot)[8:])


def extent_version(salt: int, content: bytes) -> int | None:
    """The version of an extent; None if its header is damaged."""
    head = content[: EXTENT_HEADER.size]
    if len(head) < EXTENT_HEADER.size or not _is_signed(salt, head, EXTENT_MAGIC):
        return None
    return int(EXTENT_HEADER.unpack(head)[2])


def extent_first_slot(salt: int, content: bytes, number: int) -> int | None:
    """The first slot of an extent; None if its header is damaged."""
    head = content[: EXTENT_HEADER.size]
    if len(head) < EXTENT_HEADER.size or not _is_signed(salt, head, EXTENT_MAGIC):
        return None
    _, _, version, found, first_slot = EXTENT_HEADER.unpack(head)
    return int(first_slot) if (version, found) == (VERSION, number) else None


def pack_mark(salt: int, mark: int, slots: int, magic: bytes = MARK_MAGIC) -> bytes:
    return _signed(salt, magic, MARK.pack(magic, 0, mark, slots)[8:])


class FoundMark(NamedTuple):
    mark: int
    slots: int  # of the stream at that time
    start: int
    closing: bool  # it begins a footer


def unpack_mark(salt: int, content: bytes, at: int) -> FoundMark | None:
    found = content[at : at + MARK.size]
    if len(found) < MARK.size:
        return None
    for magic in (MARK_MAGIC, CLOSING_MAGIC):
        if _is_signed(salt, found, magic):
            _, _, mark, slots = MARK.unpack(found)
            return FoundMark(mark, slots, at, magic is CLOSING_MAGIC)
    return None


# -------------------------------------------------------------------------------------------------------------- frames


def pack_frame_header(salt: int, frame: Frame, body_bytes: int, slot: int, mark: int, writer: StoredWriter) -> bytes:
    """The header and the writer id. The body follows, then ``padding``."""
    rest = (
        FRAME_HEADER.pack(
            FRAME_MAGIC,
            0,
            body_bytes,
            frame.count,
            frame.first,
            frame.seq,
            slot,
            mark,
            frame.checksum,
            writer.size,
            KIND_CODES[frame.kind],
            0,
        )[8:]
        + writer.content
    )
    return _signed(salt, FRAME_MAGIC, rest)


class FoundFrame(NamedTuple):
    """A frame with an intact header. Its body may be damaged or incomplete."""

    frame: Frame
    slot: int
    mark: int
    start: int
    body: int  # where its body begins
    size: int  # of the body

    @property
    def end(self) -> int:
        return self.body + padded(self.size)

    def body_is_good(self, content: bytes) -> bool:
        """Includes the padding, so that any flipped bit is detected."""
        body_end = self.body + self.size
        return (
            checksum(content[self.body : body_end]) == self.frame.checksum
            and content[body_end : self.end] == PADDING[self.end - body_end]
        )


def unpack_frame(salt: int, content: bytes, at: int) -> FoundFrame | None:
    """The frame that begins at ``at``, if any."""
    if content[at : at + 4] != FRAME_MAGIC or len(content) - at < FRAME_HEADER.size:
        return None
    _, crc, size, count, first, seq, slot, mark, body_crc, writer_size, kind, _ = FRAME_HEADER.unpack_from(content, at)
    body = at + FRAME_HEADER.size + padded(writer_size)
    if checksum(content[at + 8 : body], salt) != crc or kind >= len(KINDS):
        return None
    writer_at = at + FRAME_HEADER.size
    try:
        writer = content[writer_at : writer_at + writer_size].decode()
    except UnicodeDecodeError:
        return None
    return FoundFrame(Frame(first, count, KINDS[kind], writer, seq, body_crc), slot, mark, at, body, size)


# ------------------------------------------------------------------------------------------------------------- footers


class Footer(NamedTuple):
    """The index of a full extent: frames sorted by position, and where their bodies are."""

    first_slot: int
    slots: int
    end: int  # where the frames end
    successor: bool  # another extent follows, so it must exist
    frames: PackedFrames
    bodies: array[int]  # offsets
    sizes: array[int]


def pack_footer(salt: int, footer: Footer) -> list[bytes]:
    names = b"".join(bytes([len(name)]) + name for name in map(str.encode, footer.frames.writer_names))
    columns = [column.tobytes() for column in (*footer.frames.columns, footer.bodies, footer.sizes)]
    content = b"".join([*columns, len(footer.frames.writer_names).to_bytes(4, "little"), names])
    content += padding(len(content))
    mark = footer.first_slot + footer.slots
    trailer = TRAILER.pack(
        TRAILER_MAGIC,
        0,
        footer.slots,
        len(content),
        footer.first_slot,
        footer.end,
        checksum(content),
        footer.successor,
    )
    return [pack_mark(salt, mark, mark, CLOSING_MAGIC), content, _signed(salt, TRAILER_MAGIC, trailer[8:])]


class FooterPlace(NamedTuple):
    """Where the columns of a footer are, according to its trailer."""

    slots: int
    first_slot: int
    end: int
    crc: int
    successor: bool
    columns: int  # offset
    columns_bytes: int


def footer_place(salt: int, tail: bytes, file_bytes: int) -> FooterPlace | None:
    """The footer of a file that ends in ``tail``, if it has one."""
    trailer = tail[-TRAILER.size :]
    if len(trailer) < TRAILER.size or not _is_signed(salt, trailer, TRAILER_MAGIC):
        return None
    _, _, slots, columns_bytes, first_slot, end, crc, successor = TRAILER.unpack(trailer)
    columns = end + MARK.size
    if columns + columns_bytes + TRAILER.size != file_bytes:
        return None
    return FooterPlace(slots, first_slot, end, crc, bool(successor), columns, columns_bytes)


def unpack_footer(place: FooterPlace, content: bytes) -> Footer | None:
    """The footer whose columns are ``content``; None if they are damaged."""
    if len(content) != place.columns_bytes or checksum(content) != place.crc:
        return None
    at = 0
    columns: list[array[int]] = []
    for typecode in COLUMN_TYPES + "II":
        column = array(typecode)
        size = column.itemsize * place.slots
        if at + size > len(content):
            return None
        column.frombytes(content[at : at + size])
        columns.append(column)
        at += size
    names = _unpack_names(content, at)
    if names is None or any(code >= len(names) for code in set(columns[4])):
        return None
    frames = PackedFrames.of_columns(columns[:6], names)
    return Footer(place.first_slot, place.slots, place.end, place.successor, frames, columns[6], columns[7])


def _unpack_names(content: bytes, at: int) -> list[str] | None:
    count = int.from_bytes(content[at : at + 4], "little")
    at += 4
    names: list[str] = []
    for _ in range(count):
        if at >= len(content):
            return None
        size = content[at]
        names.append(content[at + 1 : at + 1 + size].decode(errors="replace"))
        at += 1 + size
    return names
