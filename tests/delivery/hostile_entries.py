"""Entries that are wrong in their structure, not only in their bytes: any JSON, any headers, any order; and a log of
them in memory, read as a pipeline reads a real one."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from trunkline.client.entries import Entry
from trunkline.delivery.changes.captured import EntryPlace, change_rows, encoded, truncation
from trunkline.delivery.changes.columns import Column, Columns, arrow_schema
from trunkline.delivery.changes.ordered import net_of_ordered
from trunkline.delivery.changes.rows import ChangeKind
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.config.addresses import LogAddress
from trunkline.delivery.sources.contract import ReadRequest
from trunkline.delivery.sources.debezium_batches import EventBatches
from trunkline.delivery.sources.debezium_values import declared_columns
from trunkline.delivery.sources.log import LogSource
from trunkline.delivery.sources.log_reader import ChangeLogReader, LogBounds
from trunkline.errors import CorruptEntry, DestinationHalted, ProtocolError, Unreachable

KEY: Columns = (Column("id", "BIGINT"), Column("tenant", "VARCHAR"))
DEPTH = 400  # of a value that is nested too deeply
HALT_NAMES_ITS_POSITION = re.compile(r"\bentry \d+|\bpositions \d+")
WEIRD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**400, 0.1, 1e308, float("nan"), float("inf"),
    "", "0", "x", "\0", "\ud800", "ä" * 300, "9" * 5000, "1e999999", "NaN", "2026-01-01", "infinity", "AA==",
    "__debezium_unavailable_value", [], {}, [[]], [None], {"": None}, {"id": 1, "tenant": "acme"},
    "c", "u", "d", "t", "m", "BEGIN", "int64", "array", "struct", "bytes", "io.debezium.time.Date",
    "io.debezium.time.Timestamp", "org.apache.kafka.connect.data.Decimal", "io.debezium.data.Json",
)  # fmt: skip
NAMES = (
    "op", "before", "after", "source", "ts_ms", "payload", "schema", "fields", "field", "type", "name", "items",
    "parameters", "scale", "connect.decimal.precision", "optional", "status", "id", "tenant", "ddl", "tableChanges",
    "__deleted", "__op", "message", "", "_trunkline_route", "\0",
)  # fmt: skip
IGNORED_FIELDS = (
    {"ts_ms", "ts_us", "ts_ns"},
    {"status", "id", "event_count", "data_collections", "ts_ms", "ts_us", "ts_ns"},
    {"source", "position", "databaseName", "schemaName", "ddl", "tableChanges", "ts_ms", "ts_us", "ts_ns"},
)


# ---------------------------------------------------------------------------------------------------------- any JSON


def mutated_json(content: bytes, other: bytes, chance: random.Random) -> bytes:
    """A few nodes of a document replaced, dropped, doubled, renamed, wrapped, or taken from elsewhere."""
    root = {"": json.loads(content)}
    for _ in range(chance.randrange(1, 5)):
        if not root:
            break
        holder, place = chance.choice(list(_nodes(root)))
        match chance.randrange(7):
            case 0 | 1 | 2:
                holder[place] = chance.choice(WEIRD)
            case 3:
                del holder[place]
            case 4:
                other_holder, other_place = chance.choice(list(_nodes(root)))
                holder[place] = json.loads(json.dumps(other_holder[other_place]))
            case 5 if isinstance(holder, dict):
                holder[chance.choice(NAMES)] = holder.pop(place)
            case _:
                holder[place] = {chance.choice(NAMES): holder[place]} if chance.random() < 0.5 else [holder[place]]
    made = json.dumps(root.get("", root)).encode()
    if chance.random() < 0.05:
        made = made.replace(b"null", b"[" * DEPTH + b"]" * DEPTH, 1)
    if chance.random() < 0.05:
        made = made.replace(b'"', b'"\xff', chance.randrange(1, 3))
    return made


def _nodes(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a document: who holds it, and under what."""
    places = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for place in places:
        yield value, place
        yield from _nodes(value[place])


def use_event(columns: dict[str, str], content: bytes, around: Callable[[int], bytes]) -> None:
    """An event between two good ones, which are delivered: it becomes rows, a dead letter, or nothing."""
    asked = ReadRequest(declared_columns(columns), ("id",), "tenant")
    refused = []
    for declared in (columns, {}):
        batches = EventBatches(LogAddress("events", "nowhere:1", format="debezium", columns=declared), asked)
        for glsn, payload in enumerate((around(1001), content, around(1002)), start=1):
            batches.add(Entry(glsn, payload))
        tables, letters = batches.finished()
        rows = [row for table in tables for row in table.select(["_trunkline_version", "id"]).to_pylist()]
        assert {row["id"] for row in rows if row["_trunkline_version"] != 2} == {1001, 1002}
        assert all(letter.glsn == 2 and letter.reason.encode(errors="replace") for letter in letters)
        assert len(letters) <= 1
        if not letters and all(row["_trunkline_version"] != 2 for row in rows):
            assert is_ignored(content), content
        for table in tables:
            net_of_ordered(table, ("id",))
        refused += [letter.reason for letter in letters]
        assert not any("which is a bug" in reason for reason in refused), refused
    if len(refused) == 2:
        raise ProtocolError(refused[0])  # for the count


def is_ignored(content: bytes) -> bool:
    """Whether an event may be passed over: nothing in it can be a row."""
    body = json.loads(content) if content else None
    if isinstance(body, dict) and "payload" in body and "op" not in body:
        body = body["payload"]
    if not isinstance(body, dict):
        return body is None
    return body.get("op") == "m" or any(body.keys() <= each for each in IGNORED_FIELDS)


# ---------------------------------------------------------------------------------------------------------- any log


class MemoryLogReader(ChangeLogReader):
    """A log in memory: what lies at each position, from 1 on; ``None`` is a hole, an error is what reading raises."""

    def __init__(self, address: LogAddress, entries: list[Entry | CorruptEntry | None], trimmed: int = 0) -> None:
        self._address = address
        self._entries = entries
        self._trimmed = trimmed
        self.reads = 0

    def close(self) -> None: ...

    def bounds(self) -> LogBounds:
        return LogBounds("memory", self._trimmed, len(self._entries) + 1)

    def tail(self) -> int:
        return len(self._entries) + 1

    def at(self, glsn: int) -> Entry | None:
        assert self._trimmed < glsn <= len(self._entries)
        self.reads += 1
        found = self._entries[glsn - 1]
        if isinstance(found, CorruptEntry):
            raise found
        return found

    def entries(self, first: int, last: int) -> Iterator[Entry]:
        for glsn in range(first, last + 1):
            found = self.at(glsn)
            if found is not None:
                yield found


def honest_entries() -> list[tuple[bytes, bytes]]:
    """A captured log: a snapshot of three entries, a mark, and transactions of one and of two."""
    from delivery.payload_samples import rows_of  # which imports this module

    rows = encoded(KEY, change_rows(ChangeKind.INSERT, rows_of(KEY)))
    gone = encoded(KEY, change_rows(ChangeKind.DELETE, rows_of(KEY, 2)))
    emptied = encoded(KEY, truncation(KEY))
    places = [(emptied, 0, False), (rows, 1, False), (rows, 2, True), (b"", 0, True), (rows, 0, True)]
    places += [(gone, 0, False), (rows, 1, True)]
    return [
        (payload, msgspec.msgpack.encode(EntryPlace(index, last, "p").headers())) for payload, index, last in places
    ]


def log_content() -> bytes:
    return msgspec.msgpack.encode(honest_entries())


def mutated_log(content: bytes, other: bytes, chance: random.Random) -> bytes:
    """Headers that lie or are none, payloads that are broken, entries dropped, doubled, moved, foreign, lost."""
    from delivery.fuzz_payloads import mutated

    entries: list[Any] = msgspec.msgpack.decode(content)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(entries))
        payload, headers = entries[at] if isinstance(entries[at], list | tuple) else (b"", b"\x80")
        match chance.randrange(9):
            case 0 | 1 | 2:
                entries[at] = (payload, mutated_headers(headers, chance))
            case 3:
                entries[at] = (mutated(payload, other, chance) if payload else other, headers)
            case 4:
                entries[at] = None
            case 5:
                entries.insert(chance.randrange(len(entries) + 1), entries[at])
            case 6 if len(entries) > 1:
                del entries[at]
            case 7:
                entries.append((payload, mutated_headers(headers, chance)))
            case _:
                entries[at] = chance.choice(((b"text", b""), (b"", b"\x80"), (other, headers), "corrupt"))
    return msgspec.msgpack.encode([entries, chance.choice((0, 0, 0, 1, 2))])


def mutated_headers(headers: bytes, chance: random.Random) -> bytes:
    try:
        found: Any = msgspec.msgpack.decode(headers)
    except (msgspec.DecodeError, ValueError):
        return headers
    if not isinstance(found, dict) or chance.random() < 0.15:
        return chance.choice((b"\xc1", b"", b"\x81\xa1n", msgspec.msgpack.encode("text"), msgspec.msgpack.encode([])))
    name = chance.choice(("trunkline-index", "trunkline-last", "trunkline-position", "other"))
    numbers = (b"-1", b"0", b"1", b"2", b"3", b"7", b"9" * 18, b"9" * 40)
    values: tuple[Any, ...] = (*numbers, b"", b"x", b"\xff", "0", "text", 5, None, {})
    if chance.random() < 0.2:
        found.pop(name, None)
    else:
        found[name] = chance.choice(values)
    return msgspec.msgpack.encode(found)


def log_of(made: list[Any]) -> list[Entry | CorruptEntry | None]:
    found: list[Entry | CorruptEntry | None] = []
    for glsn, each in enumerate(made, start=1):
        if each == "corrupt":
            found.append(CorruptEntry(f"positions {glsn} to {glsn} hold a corrupt batch", glsn, glsn + 1))
        else:
            found.append(None if each is None else Entry(glsn, each[0], encoded_headers=each[1]))
    return found


def use_log(content: bytes) -> None:
    """As a deliverer does: how far it is, its columns, then rows; or a halt that names the position."""
    made, trimmed = msgspec.msgpack.decode(content)
    entries = log_of(made)
    log = MemoryLogReader(LogAddress("log", "nowhere:1"), entries, min(trimmed, len(entries)))
    source = LogSource(LogAddress("log", "nowhere:1"))
    try:
        state = source._state(0, log)
        assert log.reads <= 4 * len(entries) + 4
        window = Window(0, state.version)
        columns = source._survey(window, log).columns
        assert arrow_schema(columns) is not None
        changes, letters = source._changes(window, ReadRequest(KEY, ("id",), "tenant"), None, log)
        assert letters == []
        net_of_ordered(changes, ("id",))
    except (CorruptEntry, DestinationHalted) as error:
        text = str(error)
        assert HALT_NAMES_ITS_POSITION.search(text) or "was trimmed up to" in text, text
        raise ProtocolError(text) from error  # for the count
    except Unreachable as error:  # no entry has columns yet
        if any(isinstance(entry, Entry) and entry.payload for entry in entries[trimmed : state.version]):
            raise AssertionError("it waits for what is there") from error
