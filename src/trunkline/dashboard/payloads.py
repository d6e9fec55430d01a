"""Bytes as a person reads them: JSON laid out, text, captured changes, or a dump in hex. All of it is pure."""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import Struct

from trunkline.dashboard.captured import changes_text

Kind = Literal["json", "text", "changes", "hex", "empty"]

TEXT_SHOWN_BYTES: Final = 16 * 1024
HEX_SHOWN_BYTES: Final = 1024
HEX_LINE_BYTES: Final = 16
HEADER_SHOWN_BYTES: Final = 256
WHITESPACE: Final = "\t\n\r"


class Shown(Struct, frozen=True):
    """``cut_bytes``: how many bytes are left out at the end."""

    kind: Kind
    text: str
    cut_bytes: int = 0


def shown(payload: bytes) -> Shown:
    if not payload:
        return Shown("empty", "")
    text = _text(payload[:TEXT_SHOWN_BYTES], whole=len(payload) <= TEXT_SHOWN_BYTES)
    if text is None:
        changes = changes_text(payload)
        if changes is not None:
            return Shown("changes", changes)
        return Shown("hex", hex_dump(payload[:HEX_SHOWN_BYTES]), max(0, len(payload) - HEX_SHOWN_BYTES))
    cut = max(0, len(payload) - TEXT_SHOWN_BYTES)
    laid_out = _json(payload) if not cut else None
    return Shown("json", laid_out) if laid_out is not None else Shown("text", text, cut)


def shown_header(value: bytes) -> str:
    text = _text(value[:HEADER_SHOWN_BYTES], whole=len(value) <= HEADER_SHOWN_BYTES)
    told = text if text is not None else value[:HEADER_SHOWN_BYTES].hex(" ")
    return told if len(value) <= HEADER_SHOWN_BYTES else f"{told}… ({len(value):,} bytes)"


def hex_dump(data: bytes) -> str:
    lines = []
    for at in range(0, len(data), HEX_LINE_BYTES):
        row = data[at : at + HEX_LINE_BYTES]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:06x}  {row.hex(' '):<{HEX_LINE_BYTES * 3 - 1}}  {letters}")
    return "\n".join(lines)


def _text(data: bytes, *, whole: bool) -> str | None:
    """None where it is no text. What was cut may end in the middle of a character."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if whole or error.start < len(data) - 3:
            return None
        text = data[: error.start].decode()
    return text if all(letter.isprintable() or letter in WHITESPACE for letter in text) else None


def _json(payload: bytes) -> str | None:
    """Laid out token by token, so that no number is rounded; None where it is neither an object nor an array."""
    if payload.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        return msgspec.json.format(payload, indent=2).decode()
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
