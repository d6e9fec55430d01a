"""Entries of log format 2 that are broken in their bytes or wrong in their structure, and a reader of what is left."""

from __future__ import annotations

import random
import struct
import zlib
from copy import deepcopy
from decimal import Decimal
from typing import Any

import msgspec

from delivery.group_log import GroupLog, changed, schema_of
from delivery.hostile_entries import WEIRD, _nodes
from trunkline.client.entries import Entry
from trunkline.delivery.changes.arrow_stream import _validate
from trunkline.delivery.changes.database_entries import CatalogEntry, DatabaseEntry, EntryKind, OneTable, entry_of
from trunkline.delivery.changes.database_reader import DatabaseReader, ends
from trunkline.delivery.changes.groups import RowKind
from trunkline.delivery.changes.rebuilt import rebuild
from trunkline.delivery.changes.schemas import SchemaChange, SourceColumn
from trunkline.errors import CorruptEntry, ProtocolError

INSERT, DELETE, OLD, NEW, TRUNCATE, READ = RowKind
NAMES = ("trunkline-capture", "trunkline-kind", "trunkline-index", "trunkline-last", "trunkline-position")
VALUES: tuple[Any, ...] = (
    b"", b"0", b"1", b"2", b"3", b"-1", b"9" * 18, b"9" * 40, b"x", b"\xff", "text", 5, None, {},
    *(kind.value.encode() for kind in EntryKind),
)  # fmt: skip
PLAIN_VALUES = tuple(value for value in WEIRD if not isinstance(value, int) or -(2**63) <= value < 2**64)


def whole_log() -> GroupLog:
    """Every kind of entry and of row, over many types."""
    log = GroupLog()
    first = log.schema(schema_of(1, "id BIGINT, note VARCHAR, price DECIMAL(18,3), at TIME, tags INTEGER[]"))
    second = log.schema(schema_of(2, "a INTEGER, b DOUBLE, c BLOB", key=()))
    log.chunk(
        first, 0, [(1, "one", Decimal("1.250"), 11_045_000_000, [1, 2]), (2, None, None, None, None)], complete=False
    )
    log.group([(first, NEW, (2, None, None, None, []), b"\x02"), (second, INSERT, (1, 0.5, b"x"))])
    log.chunk(first, 1, [(3, "three", Decimal("-9.5"), 86_400_000_000, None)])
    log.chunk(second, 0, [(1, 0.5, b"x")] * 3)
    log.catalog()
    columns = (*first.columns, SourceColumn("more", "DATE", 9))
    later = log.schema(changed(first, SchemaChange.ADDED, columns=columns, defaults={"more": 20_000}))
    log.part(0, [(first, INSERT, (4, "four", None, None, [None]))])
    log.mark()
    log.part(0, [(first, INSERT, (4, "four", None, None, [None]))])
    log.part(1, [(later, OLD, (1,) + (None,) * 5), (later, NEW, (5, "x", None, None, [], None))], last=True)
    log.group([(second, TRUNCATE, ())], [], [(second, INSERT, (2, None, None)), (later, DELETE, (4,) + (None,) * 5)])
    log.schema(changed(second, SchemaChange.TABLE_DROPPED))
    log.group([(later, INSERT, (7, "seven", None, None, None, 5))])
    log.catalog()
    log.group([(later, DELETE, (7,) + (None,) * 5)])
    return log


def log_content() -> bytes:
    return msgspec.msgpack.encode([(entry.payload, entry.encoded_headers) for entry in whole_log().entries])


def mutated_group_log(content: bytes, other: bytes, chance: random.Random) -> bytes:
    """Entries with other bytes, heads, schemas or headers; dropped, doubled, moved, or lost as holes."""
    from delivery.fuzz_payloads import mutated

    entries: list[Any] = msgspec.msgpack.decode(content)
    for _ in range(chance.randrange(1, 3)):
        at = chance.randrange(len(entries))
        payload, headers = entries[at] or (b"", b"\x80")
        match chance.randrange(10):
            case 0 | 1 | 2:
                entries[at] = (mutated(payload, other, chance) if payload else other, headers)
            case 3 | 4 | 5 if payload:
                entries[at] = (_restated(payload, chance), headers)
            case 6:
                entries[at] = (payload, _mutated_headers(headers, chance))
            case 7:
                entries[at] = None
            case 8:
                entries.insert(chance.randrange(len(entries) + 1), entries[at])
            case _:
                to = chance.randrange(len(entries))
                entries[at], entries[to] = entries[to], entries[at]
    return msgspec.msgpack.encode(entries)


def _restated(payload: bytes, chance: random.Random) -> bytes:
    """The same, with another structure in its head, schema or catalog."""
    size = struct.unpack_from("<I", payload)[0] if len(payload) >= 4 else len(payload)
    try:
        if 4 + size <= len(payload):
            made = _weird(payload[4 : 4 + size], chance)
            begin = 4 + size + -(4 + size) % 8
            return struct.pack("<I", len(made)) + made + bytes(-(4 + len(made)) % 8) + payload[begin:]
        if payload[:1] == b"\x78":
            return zlib.compress(_weird(zlib.decompress(payload), chance))
        return _weird(payload, chance)
    except (msgspec.MsgspecError, zlib.error, ValueError, OverflowError):
        return payload


def _weird(encoded: bytes, chance: random.Random) -> bytes:
    root = {"": msgspec.msgpack.decode(encoded)}
    for _ in range(chance.randrange(1, 4)):
        places = list(_nodes(root))
        holder, place = chance.choice(places)
        match chance.randrange(6):
            case 0 if isinstance(holder[place], int):
                holder[place] += chance.choice((-1, 1, 2, 8, 2**31, 2**40))
            case 1 if len(holder) > 1:
                del holder[place]
            case 2:
                other, there = chance.choice(places)
                if there in other if isinstance(other, dict) else there < len(other):
                    holder[place] = deepcopy(other[there])
            case 3 if isinstance(holder, list):
                holder.append(deepcopy(holder[place]))
            case _:
                holder[place] = deepcopy(chance.choice(PLAIN_VALUES))
    return msgspec.msgpack.encode(root.get(""))


def _mutated_headers(headers: bytes, chance: random.Random) -> bytes:
    found = msgspec.msgpack.decode(headers)
    name = chance.choice((*NAMES, "trunkline-catalog"))
    if not isinstance(found, dict) or chance.random() < 0.1:
        return chance.choice((b"\xc1", b"", b"\x81\xa1n", msgspec.msgpack.encode("text")))
    if chance.random() < 0.3:
        found.pop(name, None)
    else:
        found[name] = chance.choice(VALUES)
    return msgspec.msgpack.encode(found)


def use_group_log(content: bytes) -> None:
    """As a pipeline does, up to every end; what is corrupt names its position."""
    made = msgspec.msgpack.decode(content)
    entries = [
        Entry(glsn, each[0], encoded_headers=each[1]) for glsn, each in enumerate(made, start=1) if each is not None
    ]
    try:
        last = _followed([entry_of(entry) for entry in entries])
    except CorruptEntry as error:
        if not 0 < error.first < error.end or f"entry {error.first}" not in str(error):
            raise AssertionError("it does not say where") from error
        raise
    try:
        tables = {} if last is None else rebuild(entries, last)
    except ValueError as error:  # values that lie, or the first catalog is missing
        raise ProtocolError(str(error)) from error
    for batch in (batch for table in tables.values() for batch in table.to_batches()):
        _validate(batch)


def _followed(entries: list[DatabaseEntry | OneTable]) -> int | None:
    """The last end; every row was used, under its own version and the newest one."""
    start = next((entry for entry in entries if isinstance(entry, CatalogEntry)), None)
    if start is None:
        raise ProtocolError("there is no catalog")
    reader = DatabaseReader(start)
    last = None
    for end in ends(reader, (entry for entry in entries if entry.glsn > start.glsn)):
        last = end.glsn
        for rows in (rows for step in end.steps for rows in step.rows):
            _validate(rows.batch)
            if any(schema.version == rows.version for schema in reader.versions(rows.number)):
                _validate(reader.presented(rows).batch)
    return last
