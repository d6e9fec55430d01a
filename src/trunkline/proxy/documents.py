"""The JSON of requests and answers.

Bytes are text where they are UTF-8, and base64 otherwise; requests may use either. Unknown fields are refused, so that
a misspelt one is noticed.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from trunkline.client.entries import Entry
from trunkline.proxy.keys import RESERVED
from trunkline.proxy.limits import BATCH_ENTRIES_MAX, GLSN_MAX, HEADER_NAME_CHARACTERS_MAX, HEADERS_MAX
from trunkline.proxy.problems import invalid

JSON: Final = "application/json"

Number = int | float | UnsetType  # 17.0 is a whole number: some languages have only floats


class Base64(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The value of a header that is not UTF-8."""

    base64: str


class EntryToAppend(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    payload: str | UnsetType = UNSET  # base64
    text: str | UnsetType = UNSET
    headers: dict[str, str | Base64] | UnsetType = UNSET

    def payload_bytes(self) -> bytes:
        if isinstance(self.payload, str) and self.text is UNSET:
            return _decoded(self.payload, "payload")
        if isinstance(self.text, str) and self.payload is UNSET:
            return self.text.encode()
        raise invalid("an entry has either a payload (base64) or a text")

    def header_bytes(self) -> dict[str, bytes]:
        given = self.headers if isinstance(self.headers, dict) else {}
        if len(given) > HEADERS_MAX:
            raise invalid(f"an entry has at most {HEADERS_MAX} headers, this one has {len(given)}")
        return {_checked_name(name): _header_value(name, value) for name, value in given.items()}


class OneToAppend(EntryToAppend, frozen=True, forbid_unknown_fields=True):
    expect: Number = UNSET


class BatchToAppend(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    entries: Annotated[list[EntryToAppend], Meta(min_length=1, max_length=BATCH_ENTRIES_MAX)]
    expect: Number = UNSET


class EntryDocument(msgspec.Struct, frozen=True):
    """An entry; it has a text or a payload."""

    glsn: int
    headers: dict[str, str | Base64]
    writer: str
    seq: int
    time_ms: int
    text: str | UnsetType = UNSET
    payload: str | UnsetType = UNSET
    unreadable_headers: str | UnsetType = UNSET  # bytes that cannot be decoded as headers


class EntriesPage(msgspec.Struct, frozen=True):
    entries: list[EntryDocument]
    next: int


class LogDocument(msgspec.Struct, frozen=True):
    name: str
    policy: str
    replicas: int
    oldest: int  # everything below was trimmed
    tail: int
    sealed: bool


def position_of(value: Number) -> int | None:
    if isinstance(value, UnsetType):
        return None
    if not 1 <= value <= GLSN_MAX or value != int(value):
        raise invalid(f"expect is a position, a whole number from 1 to {GLSN_MAX}, not {value}")
    return int(value)


def document_of(entry: Entry, *, always_base64: bool = False) -> EntryDocument:
    text: str | UnsetType = UNSET if always_base64 else _text(entry.payload)
    payload: str | UnsetType = UNSET if text is not UNSET else base64.b64encode(entry.payload).decode()
    headers = {name: _shown(value) for name, value in entry.headers.items()}
    raw = entry.unreadable_headers
    unreadable: str | UnsetType = base64.b64encode(raw).decode() if raw else UNSET
    return EntryDocument(entry.glsn, headers, entry.writer, entry.seq, entry.time_ms, text, payload, unreadable)


def _text(payload: bytes) -> str | UnsetType:
    try:
        return payload.decode("utf-8")
    except UnicodeDecodeError:
        return UNSET


def _shown(value: bytes) -> str | Base64:
    text = _text(value)
    return text if isinstance(text, str) else Base64(base64.b64encode(value).decode())


def _checked_name(name: str) -> str:
    if not 0 < len(name) <= HEADER_NAME_CHARACTERS_MAX:
        raise invalid(
            f"the name of a header has 1 to {HEADER_NAME_CHARACTERS_MAX} characters; {name[:20]!r}... does not"
        )
    if name.startswith(RESERVED):
        raise invalid(f"headers that begin with {RESERVED!r} are reserved; send the key as Idempotency-Key")
    return name


def _header_value(name: str, value: str | Base64) -> bytes:
    return value.encode() if isinstance(value, str) else _decoded(value.base64, f"the header {name}")


def _decoded(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise invalid(f"{what} is not valid base64 (with + and /, padded with =)") from None
