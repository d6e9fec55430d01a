"""Headers of entries: names and bytes, in msgpack. Checked before they are appended, and not trusted when read.

Rules
 H1  Headers to append are names and bytes within the limits below. Anything else is refused, and nothing of that append
     is made: a log keeps its entries forever.
 H2  Invalid headers in a log never prevent reading payloads. A str as a value is its UTF-8: earlier versions accepted
     it. Other invalid headers count as none, and a reader can get their bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from trunkline.errors import ConfigError

HEADERS_MAX: Final = 1_000  # of an entry
NAME_CHARACTERS_MAX: Final = 256
ENTRY_HEADERS_BYTES_MAX: Final = 1024 * 1024  # of an entry, encoded
MAP_32: Final = 0xDF  # first byte of more than 65,535 headers: not valid (H1), and they would fill the memory

Headers = Mapping[str, bytes]

_plain: Final = msgspec.msgpack.Decoder(dict[str, bytes])
_mixed: Final = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_bytes: Final = msgspec.msgpack.Decoder(bytes)
_text: Final = msgspec.msgpack.Decoder(str)


def encode_all(headers: Headers | Sequence[Headers | None] | None, count: int) -> list[bytes] | None:
    """The encoded headers of ``count`` entries: the same for each, or one for each. Raises ``ConfigError`` (H1)."""
    if headers is None:
        return None
    if isinstance(headers, Mapping):
        return [encode_headers(headers)] * count
    given: object = headers
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise ConfigError(
            f"headers must be a mapping of names to bytes, or a list of mappings, one for each entry, not "
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
        raise ConfigError(f"headers must be a mapping of names to bytes, not {type(headers).__name__}")
    if not headers:
        return b""
    if len(headers) > HEADERS_MAX:
        raise ConfigError(
            f"an entry has at most {HEADERS_MAX:,} headers, not {len(headers):,}: put them in its payload"
        )
    encoded = msgspec.msgpack.encode({_name(name): _value(name, value) for name, value in headers.items()})
    if len(encoded) > ENTRY_HEADERS_BYTES_MAX:
        raise ConfigError(
            f"the headers of an entry have {len(encoded):,} bytes in total, more than {ENTRY_HEADERS_BYTES_MAX:,}: "
            "put large values in its payload"
        )
    return encoded


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise ConfigError(f"the name of a header must be a str, not {type(name).__name__}: {name!r:.40}")
    if not 0 < len(name) <= NAME_CHARACTERS_MAX:
        raise ConfigError(
            f"the name of a header must have 1 to {NAME_CHARACTERS_MAX} characters; {name[:20]!r} has {len(name)}"
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"the name of a header must be valid Unicode; {name[:40]!r} is not") from None
    return name


def _value(name: object, value: object) -> bytes:
    if type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    hint = "encode it, as in value.encode()" if isinstance(value, str) else "encode it first"
    raise ConfigError(f"the value of header {name!r:.40} must be bytes, not {type(value).__name__}: {hint}")


def decode_headers(encoded: bytes) -> dict[str, bytes] | None:
    """None if they are invalid (H2)."""
    if not encoded:
        return {}
    if encoded[0] == MAP_32:
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
