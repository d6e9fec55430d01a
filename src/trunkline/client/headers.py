"""Headers of entries: names and bytes, in msgpack. Checked before they are appended, believed of nobody when read.

Rules
 H1  What is appended is names and bytes within the limits below, whoever appends. Anything else is refused, and nothing
     of that append is made: a log keeps for ever what it was given.
 H2  Whatever lies in a log in the place of headers, payloads are read. A text as a value is its UTF-8: earlier versions
     took it. Headers that are none otherwise are none at all, and the reader can see their bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from trunkline.errors import ConfigError

HEADERS_MAX: Final = 1_000  # of an entry
NAME_CHARACTERS_MAX: Final = 256
ENTRY_HEADERS_BYTES_MAX: Final = 1024 * 1024  # of an entry, as they are encoded
MANY: Final = 0xDF  # how more than 65,535 headers begin: nobody could append them, and they would fill the memory

Headers = Mapping[str, bytes]

_plain: Final = msgspec.msgpack.Decoder(dict[str, bytes])
_mixed: Final = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_bytes: Final = msgspec.msgpack.Decoder(bytes)
_text: Final = msgspec.msgpack.Decoder(str)


def encode_all(headers: Headers | Sequence[Headers | None] | None, count: int) -> list[bytes] | None:
    """The headers of ``count`` entries: the same for each, or one for each. Raises ``ConfigError`` (H1)."""
    if headers is None:
        return None
    if isinstance(headers, Mapping):
        return [encode_headers(headers)] * count
    given: object = headers
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise ConfigError(
            f"headers are a mapping of names to bytes, or a list of mappings, one for each entry; they are "
            f"{type(headers).__name__}"
        )
    each = list(headers)
    if len(each) != count:
        raise ConfigError(f"headers were given for {len(each)} of {count} entries; give one mapping for each, or None")
    return [encode_headers(one) for one in each]


def encode_headers(headers: Headers | None) -> bytes:
    """Raises ``ConfigError`` (H1)."""
    if headers is None:
        return b""
    if not isinstance(headers, Mapping):
        raise ConfigError(f"headers are a mapping of names to bytes, not {type(headers).__name__}")
    if not headers:
        return b""
    if len(headers) > HEADERS_MAX:
        raise ConfigError(
            f"an entry has at most {HEADERS_MAX:,} headers, not {len(headers):,}: put them in its payload"
        )
    encoded = msgspec.msgpack.encode({_name(name): _value(name, value) for name, value in headers.items()})
    if len(encoded) > ENTRY_HEADERS_BYTES_MAX:
        raise ConfigError(
            f"the headers of an entry have {len(encoded):,} bytes together, more than {ENTRY_HEADERS_BYTES_MAX:,}: "
            "put large values in its payload"
        )
    return encoded


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise ConfigError(f"the name of a header is a str, not {type(name).__name__}: {name!r:.40}")
    if not 0 < len(name) <= NAME_CHARACTERS_MAX:
        raise ConfigError(
            f"the name of a header has 1 to {NAME_CHARACTERS_MAX} characters; {name[:20]!r} has {len(name)}"
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"the name of a header is text that UTF-8 has; {name[:40]!r} is not") from None
    return name


def _value(name: object, value: object) -> bytes:
    if type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    hint = "encode it, as in value.encode()" if isinstance(value, str) else "encode it first"
    raise ConfigError(f"the header {name!r:.40} is {type(value).__name__}; values of headers are bytes: {hint}")


def decode_headers(encoded: bytes) -> dict[str, bytes] | None:
    """None where they are no headers (H2)."""
    if not encoded:
        return {}
    if encoded[0] == MANY:
        return None
    try:
        return _plain.decode(encoded)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return {name: _bytes_of(bytes(value)) for name, value in _mixed.decode(encoded).items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _bytes_of(value: bytes) -> bytes:
    try:
        return _bytes.decode(value)
    except msgspec.ValidationError:
        return _text.decode(value).encode()
