"""Stored values: JSON objects with field names, so that an operator can read them.

On the wire the same structs are arrays. A stored value may lack fields that have a default (an older version wrote
it); an unknown field is an error, because writing the value back would lose it.

The map of a log may have thousands of segments, of which a change concerns one or two. Encoded segments are cached, so
that only new ones are encoded or decoded.
"""

from __future__ import annotations

import functools
import types
import typing
import zlib
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar, Union

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trunkline.core.projection import Projection, Segment

T = TypeVar("T")


SEGMENTS_CACHED_MAX = 1 << 16  # about 1 KiB each; fewer: every change encodes long maps again
PACKED_FROM = 32 << 10  # bytes
PACKED = b"zlib:"  # JSON never begins like this


def encode(value: Struct) -> bytes:
    return msgspec.json.encode(_plain(value))


def decode(kind: type[T], data: bytes | str) -> T:
    """Raises ``ValueError`` if the stored value does not fit the type."""
    try:
        if kind is Projection:
            return typing.cast(T, _projection(data))
        return typing.cast(T, _build(kind, msgspec.json.decode(data)))
    except (TypeError, msgspec.MsgspecError) as error:
        raise ValueError(f"a stored {kind.__name__} cannot be read: {error}") from error


def pack(text: bytes) -> bytes:
    """Compress a long text for a store with a size limit. A short one stays readable."""
    return text if len(text) < PACKED_FROM else PACKED + zlib.compress(text, level=1)


def unpack(data: bytes) -> bytes:
    """Raises ``ValueError`` if it is damaged."""
    if not data.startswith(PACKED):
        return data
    try:
        return zlib.decompress(data[len(PACKED) :])
    except zlib.error as error:
        raise ValueError(f"a packed value cannot be unpacked: {error}") from error


def _projection(data: bytes | str) -> Projection:
    fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    segments = msgspec.json.decode(fields.pop("segments", msgspec.Raw(b"null")), type=list[msgspec.Raw])
    values = {name: msgspec.json.decode(text) for name, text in fields.items()}
    projection: Projection = _build(Projection, {**values, "segments": []})
    return replace(projection, segments=tuple(_segment(bytes(text)) for text in segments))


@functools.lru_cache(SEGMENTS_CACHED_MAX)
def _segment(text: bytes) -> Segment:
    return typing.cast(Segment, _build(Segment, msgspec.json.decode(text)))


@functools.lru_cache(SEGMENTS_CACHED_MAX)
def _segment_text(segment: Segment) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(_fields_of(segment)))


def _plain(value: object) -> object:
    if isinstance(value, Segment):
        return _segment_text(value)
    if isinstance(value, Struct):
        return _fields_of(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: _plain(getattr(value, name)) for name in value._fields}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Enum):
        return value.value
    return value


def _fields_of(value: Struct) -> dict[str, object]:
    return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}


def _build(kind: Any, value: Any) -> Any:
    origin = typing.get_origin(kind)
    if origin in (Union, types.UnionType):
        return _one_of(typing.get_args(kind), value)
    if origin is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{value!r} should be a list")
        return tuple(_build(typing.get_args(kind)[0], each) for each in value)
    if issubclass(kind, Enum):
        return kind(value)
    if (fields := _fields(kind)) is not None:
        return _build_named(kind, fields, value)
    if type(value) is not kind:
        raise ValueError(f"{value!r} should be of type {kind.__name__}")
    return value


def _one_of(kinds: tuple[Any, ...], value: Any) -> Any:
    """Optional values only; stored types need no other unions."""
    if value is None and type(None) in kinds:
        return None
    [kind] = [kind for kind in kinds if kind is not type(None)]
    return _build(kind, value)


def _build_named(kind: Any, fields: Mapping[str, Any], value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} should be an object, a {kind.__name__}")
    if unknown := value.keys() - fields.keys():
        names = ", ".join(sorted(unknown))
        raise ValueError(f"{kind.__name__} has no field {names}: a newer version wrote it; upgrade this coordinator")
    return kind(**{name: _build(fields[name], each) for name, each in value.items()})


@functools.cache
def _fields(kind: Any) -> Mapping[str, Any] | None:
    """The fields of a struct or named tuple, with their types."""
    if issubclass(kind, Struct) or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        return typing.get_type_hints(kind)
    return None
