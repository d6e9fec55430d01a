"""Messages and records can be written and read back by their types alone, also where only a union of them is known."""

from __future__ import annotations

import enum
import functools
import importlib
import operator
import pkgutil
import types
import typing
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

import trunkline.core
from trunkline.core.effects import Message, Record
from trunkline.core.messages import Reason

for found in pkgutil.iter_modules(trunkline.core.__path__, "trunkline.core."):
    importlib.import_module(found.name)


def _core(kind: Any) -> list[type]:
    return [each for each in kind.__subclasses__() if each.__module__.startswith("trunkline.core.")]


MESSAGES, RECORDS = _core(Message), _core(Record)


def example(kind: Any, number: int = 1) -> Any:
    """Some value of a type. Optional things are there, and sequences hold one value."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return example(inner[0], number)
    if origin in (tuple, Sequence):
        values = [each for each in inner if each is not ...]
        return tuple(example(each, number) for each in values)
    if kind is bytes:
        return str(number).encode()
    if kind in (int, str, bool):
        return kind(number)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return list(kind)[-1]
    hints = typing.get_type_hints(kind)
    fields = kind._fields if issubclass(kind, tuple) else kind.__struct_fields__
    return kind(*(example(hints[name], number + at) for at, name in enumerate(fields)))


@pytest.mark.parametrize("kind", [*MESSAGES, *RECORDS], ids=lambda kind: kind.__name__)
def test_a_message_or_record_comes_back_as_it_was(kind: type) -> None:
    value = example(kind)
    written = msgspec.msgpack.encode(value)
    assert msgspec.msgpack.decode(written, type=kind) == value
    anything = functools.reduce(operator.or_, MESSAGES if kind in MESSAGES else RECORDS)
    assert msgspec.msgpack.decode(written, type=anything) == value
    assert msgspec.msgpack.decode(written)[0] == kind.__name__


def test_every_struct_inside_is_written_without_names_of_fields() -> None:
    def maps(value: Any) -> bool:
        return isinstance(value, dict) or (isinstance(value, list) and any(map(maps, value)))

    named = [
        kind for kind in (*MESSAGES, *RECORDS) if maps(msgspec.msgpack.decode(msgspec.msgpack.encode(example(kind))))
    ]
    assert named == []


def test_the_reason_of_an_older_recording_is_read() -> None:
    assert msgspec.convert("too large", Reason) is Reason.TOO_LARGE
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert("too small", Reason)
