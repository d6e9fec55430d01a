"""Errors of the API, as problem documents (RFC 9457).

``KINDS`` lists all of them. The type says whether the request had an effect: only ``outcome-unknown`` may have had one.
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
    "invalid-request": (400, "The request does not follow the document"),
    "unauthorized": (401, "The token is missing or wrong"),
    "not-our-name": (403, "The proxy does not answer to this name"),
    "origin-refused": (403, "A page of this origin may not append"),
    "no-such-log": (404, "There is no such log"),
    "no-such-resource": (404, "This address does not exist"),
    "not-written": (404, "The position is not written yet"),
    "hole": (404, "The position is a hole and never holds an entry"),
    "method-not-allowed": (405, "This address does not support the method"),
    "body-too-slow": (408, "The body did not arrive in time"),
    "condition-failed": (409, "The append did not get the position that it expects"),
    "log-sealed": (409, "The log is read-only"),
    "owned-by-another": (409, "The log has another writer"),
    "not-for-this-log": (409, "A log of this policy cannot do this"),
    "trimmed": (410, "The position was trimmed"),
    "entries-lost": (410, "The positions were declared lost"),
    "corrupt-entries": (410, "The positions hold bytes that are not entries"),
    "too-large": (413, "The request is too large"),
    "unsupported-media-type": (415, "The media type of the body is not supported"),
    "key-reused": (422, "The key was used for another request"),
    "unreachable": (503, "The cluster did not answer in time"),
    "outcome-unknown": (503, "The append may have happened"),
    "contended": (503, "Other writers were faster each time"),
    "busy": (503, "The proxy is overloaded"),
    "failed": (503, "The cluster could not do it"),
}


class ProblemDocument(msgspec.Struct, frozen=True):
    """Fields that are unset are left out."""

    type: str
    title: str
    status: int
    detail: str
    tail: int | UnsetType = UNSET  # condition-failed
    point: int | UnsetType = UNSET  # trimmed: the last trimmed position
    first: int | UnsetType = UNSET  # entries-lost, corrupt-entries: [first, end)
    end: int | UnsetType = UNSET
    glsn: int | UnsetType = UNSET  # key-reused: the entry that has the key
    owner: str | UnsetType = UNSET  # owned-by-another


class RequestRefusal(Exception):
    """Ends a request with a problem. ``retry``: trying again later is safe, and may help."""

    def __init__(
        self, problem: ProblemDocument, *, retry: bool = False, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        self.headers = {**(headers or {}), **({"Retry-After": str(RETRY_AFTER_S)} if retry else {})}


def problem(kind: str, detail: str, **facts: int | str | UnsetType) -> ProblemDocument:
    status, title = KINDS[kind]
    return ProblemDocument(URN + kind, title, status, detail, **facts)  # type: ignore[arg-type]


def refusal(kind: str, detail: str, *, retry: bool = False, **facts: int | str | UnsetType) -> RequestRefusal:
    return RequestRefusal(problem(kind, detail, **facts), retry=retry)


def invalid(detail: str) -> RequestRefusal:
    return refusal("invalid-request", detail)


def refusal_of(error: TrunklineError) -> RequestRefusal:
    """The problem of an error of the client. An unknown outcome has no ``Retry-After``: trying again may append twice.
    For appends with a key, where it is safe, the append itself raises another refusal.
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
            detail = f"owned by {error.owner}; append there, or wait until it stops"
            return refusal("owned-by-another", detail, owner=error.owner)
        case ConfigError():
            return invalid(text)
        case OutcomeUnknown():
            return refusal("outcome-unknown", f"{text}; with an Idempotency-Key you could try again safely")
        case Unreachable():
            return refusal("unreachable", text, retry=True)
    return refusal("failed", text, retry=True)
