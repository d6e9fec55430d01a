"""Values as they are stored: JSON objects with field names, so that an operator can read them.

On the wire the same structs are arrays. A stored value may lack fields that have a default (an older version wrote
it); a field that this version does not know is refused, because writing the value back would lose it.

The map of a log may have many thousand segments, of which a change concerns one or two. Texts of segments are therefore
kept beside them, and only what is new is encoded or decoded.
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


SEGMENTS_KEPT = 1 << 16  # with their texts, about 1 KiB each; fewer: long maps are worked out anew with every change
PACKED_FROM = 32 << 10  # bytes
PACKED = b"zlib:"  # no text in JSON begins so


def encode(value: Struct) -> bytes:
    return msgspec.json.encode(_plain(value))


def decode(kind: type[T], data: bytes | str) -> T:
    """The value that was stored. Raises ``ValueError`` that says what does not fit."""
    try:
        if kind is Projection:
            return typing.cast(T, _projection(data))
        return typing.cast(T, _build(kind, msgspec.json.decode(data)))
    except (TypeError, msgspec.MsgspecError) as error:
        raise ValueError(f"a stored {kind.__name__} cannot be read: {error}") from error


def pack(text: bytes) -> bytes:
    """A long text for a store that takes no long ones. A short one stays as it is, for people to read."""
    return text if len(text) < PACKED_FROM else PACKED + zlib.compress(text, level=1)


def unpack(data: bytes) -> bytes:
    """Raises ``ValueError`` for what was packed and cannot be unpacked."""
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


@functools.lru_cache(SEGMENTS_KEPT)
def _segment(text: bytes) -> Segment:
    return typing.cast(Segment, _build(Segment, msgspec.json.decode(text)))


@functools.lru_cache(SEGMENTS_KEPT)
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
    """Optional values only: nothing that is stored needs more."""
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
