"""Everything that is answered instead of what was asked for, as problem documents (RFC 9457).

``KINDS`` is the whole list. The type of a problem says whether the thing happened: only ``outcome-unknown`` may have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from trunkline.errors import (
    ConditionFailed,
    ConfigError,
    CorruptEntry,
    EntriesLost,
    Hole,
    LogSealed,
    NoSuchLog,
    NotWritten,
    OutcomeUnknown,
    OwnedByAnother,
    Trimmed,
    TrunklineError,
    Unreachable,
)
from trunkline.proxy.limits import RETRY_AFTER_S

MEDIA_TYPE: Final = "application/problem+json"
URN: Final = "urn:trunkline:problem:"

KINDS: Final[Mapping[str, tuple[int, str]]] = {
    "invalid-request": (400, "The request is not what the document describes"),
    "unauthorized": (401, "The token is missing or wrong"),
    "not-our-name": (403, "The proxy does not go by this name"),
    "origin-refused": (403, "A page of this origin may not ask for a change"),
    "no-such-log": (404, "There is no such log"),
    "no-such-resource": (404, "There is nothing at this address"),
    "not-written": (404, "The position is not written yet"),
    "hole": (404, "The position is a hole and never holds an entry"),
    "method-not-allowed": (405, "The method is not for this address"),
    "body-too-slow": (408, "The body did not arrive in time"),
    "condition-failed": (409, "The append did not get the position that it expects"),
    "log-sealed": (409, "The log is read-only"),
    "owned-by-another": (409, "The log has another writer"),
    "not-for-this-log": (409, "A log of this policy cannot do this"),
    "trimmed": (410, "The position was trimmed away"),
    "entries-lost": (410, "The positions were declared lost"),
    "corrupt-entries": (410, "The positions hold bytes that are no entries"),
    "too-large": (413, "The request is too large"),
    "unsupported-media-type": (415, "The body has a media type that is not taken"),
    "key-reused": (422, "The key was used for another request"),
    "unreachable": (503, "The cluster did not answer in time"),
    "outcome-unknown": (503, "The append may have happened"),
    "contended": (503, "Other writers were faster each time"),
    "busy": (503, "The proxy has too much to do"),
    "failed": (503, "The cluster could not do it"),
}


class Problem(msgspec.Struct, frozen=True):
    """A problem document. What is unset is left out."""

    type: str
    title: str
    status: int
    detail: str
    tail: int | UnsetType = UNSET  # condition-failed
    point: int | UnsetType = UNSET  # trimmed: the last position that was
    first: int | UnsetType = UNSET  # entries-lost, corrupt-entries: [first, end)
    end: int | UnsetType = UNSET
    glsn: int | UnsetType = UNSET  # key-reused: what the key was used for
    owner: str | UnsetType = UNSET  # owned-by-another


class Refusal(Exception):
    """Ends a request with a problem. ``retry``: asking again later is safe, and may help."""

    def __init__(self, problem: Problem, *, retry: bool = False, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        self.headers = {**(headers or {}), **({"Retry-After": str(RETRY_AFTER_S)} if retry else {})}


def problem(kind: str, detail: str, **facts: int | str | UnsetType) -> Problem:
    status, title = KINDS[kind]
    return Problem(URN + kind, title, status, detail, **facts)  # type: ignore[arg-type]


def refusal(kind: str, detail: str, *, retry: bool = False, **facts: int | str | UnsetType) -> Refusal:
    return Refusal(problem(kind, detail, **facts), retry=retry)


def invalid(detail: str) -> Refusal:
    return refusal("invalid-request", detail)


def refusal_of(error: TrunklineError) -> Refusal:
    """What an error of the client becomes. An unknown outcome is not to be tried again blindly, so it has no
    ``Retry-After``; who appends with a key is told otherwise by the append itself.
    """
    text = str(error)
    match error:
        case NoSuchLog():
            return refusal("no-such-log", text)
        case NotWritten():
            return refusal("not-written", text)
        case Hole():
            return refusal("hole", text)
        case Trimmed():
            return refusal("trimmed", text, point=error.point)
        case EntriesLost():
            return refusal("entries-lost", text, first=error.first, end=error.end)
        case CorruptEntry() if error.end:
            return refusal("corrupt-entries", text, first=error.first, end=error.end)
        case ConditionFailed():
            return refusal("condition-failed", text, tail=UNSET if error.tail is None else error.tail)
        case LogSealed():
            return refusal("log-sealed", text)
        case OwnedByAnother():
            detail = f"owned by {error.owner}; append there, or wait until it has left"
            return refusal("owned-by-another", detail, owner=error.owner)
        case ConfigError():
            return invalid(text)
        case OutcomeUnknown():
            return refusal("outcome-unknown", f"{text}; with an Idempotency-Key you could simply ask again")
        case Unreachable():
            return refusal("unreachable", text, retry=True)
    return refusal("failed", text, retry=True)
