"""Bytes as a person reads them: formatted JSON, text, captured changes, or a hex dump. All of it is pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import msgspec
from msgspec import Struct

PayloadKind = Literal["json", "text", "changes", "hex", "empty"]
ChangesText = Callable[[bytes], str | None]  # captured changes as text; None: these are no changes

TEXT_SHOWN_BYTES: Final = 16 * 1024
HEX_SHOWN_BYTES: Final = 1024
HEX_LINE_BYTES: Final = 16
HEADER_SHOWN_BYTES: Final = 256
WHITESPACE: Final = "\t\n\r"


class ShownPayload(Struct, frozen=True):
    """``cut_bytes``: how many bytes are left out at the end."""

    kind: PayloadKind
    text: str
    cut_bytes: int = 0


def no_changes(_: bytes) -> None:
    """The ``ChangesText`` of an installation that cannot decode them."""


def shown(payload: bytes, changes_text: ChangesText = no_changes) -> ShownPayload:
    if not payload:
        return ShownPayload("empty", "")
    text = _text(payload[:TEXT_SHOWN_BYTES], whole=len(payload) <= TEXT_SHOWN_BYTES)
    if text is None:
        changes = changes_text(payload)
        if changes is not None:
            return ShownPayload("changes", changes)
        return ShownPayload("hex", hex_dump(payload[:HEX_SHOWN_BYTES]), max(0, len(payload) - HEX_SHOWN_BYTES))
    cut = max(0, len(payload) - TEXT_SHOWN_BYTES)
    formatted = _json(payload) if not cut else None
    return ShownPayload("json", formatted) if formatted is not None else ShownPayload("text", text, cut)


def shown_header(value: bytes) -> str:
    text = _text(value[:HEADER_SHOWN_BYTES], whole=len(value) <= HEADER_SHOWN_BYTES)
    start = text if text is not None else value[:HEADER_SHOWN_BYTES].hex(" ")
    return start if len(value) <= HEADER_SHOWN_BYTES else f"{start}… ({len(value):,} bytes)"


def hex_dump(data: bytes) -> str:
    lines = []
    for at in range(0, len(data), HEX_LINE_BYTES):
        row = data[at : at + HEX_LINE_BYTES]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:06x}  {row.hex(' '):<{HEX_LINE_BYTES * 3 - 1}}  {letters}")
    return "\n".join(lines)


def _text(data: bytes, *, whole: bool) -> str | None:
    """None if it is not text. A part may end in the middle of a character."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if whole or error.start < len(data) - 3:
            return None
        text = data[: error.start].decode()
    return text if all(letter.isprintable() or letter in WHITESPACE for letter in text) else None


def _json(payload: bytes) -> str | None:
    """Formatted token by token, so that no number is rounded; None if it is neither an object nor an array."""
    if payload.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        return msgspec.json.format(payload, indent=2).decode()
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
