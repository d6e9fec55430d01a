"""Errors of the functions inside of Spark plans, on their way to the driver.

A task that has results returns an error as one of them. A function inside a plan has only rows, and rows that lack the
failed ones must never be written: so it raises. Between Python, Java and Python an exception is only text. The type and
the message of a ``TrunklineError`` travel in that text as one word that is made and read here; other exceptions are
left as they are.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from typing import Final, Literal

import msgspec
import pyarrow as pa
from msgspec import Struct

from trunkline.errors import ConfigError, DestinationHalted, ProtocolError, SourceExpired, TrunklineError

Batches = Iterator[pa.RecordBatch]
Kind = Literal["halted", "config", "expired", "other"]
MESSAGE_CHARACTERS_MAX: Final = 4_000  # the rest is cut off
_WORD: Final = re.compile(r"^.*\bTaskError: trunkline-error:([A-Za-z0-9+/=]+)\s*$", re.MULTILINE)


class _Carried(Struct, frozen=True):
    kind: Kind
    message: str


class TaskError(Exception):
    """Raised inside a plan instead of a ``TrunklineError``; its text is the word."""

    def __init__(self, error: TrunklineError) -> None:
        carried = msgspec.json.encode(_Carried(_kind(error), str(error)[:MESSAGE_CHARACTERS_MAX]))
        super().__init__(f"trunkline-error:{b64encode(carried).decode()}")


def carrying(run: Callable[[Batches], Batches]) -> Callable[[Batches], Batches]:
    """A function for ``mapInArrow`` whose errors the driver can read with ``carried_error``."""

    def guarded(batches: Batches) -> Batches:
        try:
            yield from run(batches)
        except TrunklineError as error:
            raise TaskError(error) from error

    return guarded


def carried_error(text: str) -> TrunklineError | None:
    """The error of a task in the text of the exception that Spark raised; ``None``: it has none."""
    for word in _WORD.findall(text):
        try:
            carried = msgspec.json.decode(b64decode(word, validate=True), type=_Carried)
        except (binascii.Error, msgspec.MsgspecError):
            continue
        match carried.kind:
            case "halted":
                return DestinationHalted(carried.message)
            case "config":
                return ConfigError(carried.message)
            case "expired":
                return SourceExpired(carried.message)
            case "other":
                return TrunklineError(carried.message)
    return None


def _kind(error: TrunklineError) -> Kind:
    match error:
        case DestinationHalted() | ProtocolError():
            return "halted"
        case ConfigError():
            return "config"
        case SourceExpired():
            return "expired"
        case _:
            return "other"
