"""The OpenAPI document: every operation, with all its answers.

A test generates requests from this document and compares every answer with it.
"""

from __future__ import annotations

from typing import Final

from trunkline.proxy.limits import BODY_BYTES_MAX, KEY_WINDOW
from trunkline.proxy.openapi_schemas import PARAMETERS, SCHEMAS, Json, problems, ref
from trunkline.version import version

JSON: Final = "application/json"
OCTETS: Final = "application/octet-stream"
ALWAYS: Final = ("invalid-request", "busy")
CLUSTER: Final = (*ALWAYS, "unreachable", "failed")
LOG: Final = (*CLUSTER, "no-such-log")
APPEND: Final = (
    *LOG,
    "body-too-slow",
    "condition-failed",
    "log-sealed",
    "owned-by-another",
    "not-for-this-log",
    "too-large",
    "unsupported-media-type",
    "key-reused",
    "outcome-unknown",
    "contended",
)
GONE: Final = ("trimmed", "entries-lost", "corrupt-entries")

ABOUT: Final = f"""The replicated log over HTTP. A log is a sequence of entries; each has a position, its GLSN, from 1.

- Bodies have at most {BODY_BYTES_MAX} bytes, and unknown fields and parameters are refused.
- The type of a `503` says whether the request may have had an effect: only `outcome-unknown` may.
- An append with an `Idempotency-Key` may be sent again, to any proxy of the same cluster, and happens once. A key is
  remembered for {KEY_WINDOW} positions of its log, unless the proxies were started with another window."""


def document(*, with_token: bool) -> Json:
    """``with_token``: requests need a token."""
    found: Json = {
        "openapi": "3.1.0",
        "info": {"title": "Trunkline proxy", "version": version(), "description": ABOUT},
        "paths": {
            path: {method: _with_refusals(operation, with_token=with_token) for method, operation in methods.items()}
            for path, methods in _paths().items()
        },
        "components": {"schemas": SCHEMAS, "parameters": PARAMETERS},
    }
    if with_token:
        found["components"] = {
            **found["components"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        }
    return found


def _with_refusals(operation: Json, *, with_token: bool) -> Json:
    """Health and readiness need no token; without a token, the proxy checks the name instead."""
    name = operation["operationId"]
    appends = name in ("appendEntry", "appendBatch")
    kinds = ["origin-refused"] if appends else []
    kinds += ["not-our-name"] if not with_token and name != "healthz" else []
    is_closed = with_token and name not in ("healthz", "readyz")
    refusals = problems(*kinds, *(["unauthorized"] if is_closed else []))
    found = {**operation, "responses": {**operation["responses"], **refusals}}
    return {**found, "security": [{"token": []}]} if is_closed else found


def _operation(
    name: str, summary: str, answer: Json, kinds: tuple[str, ...], parameters: tuple[str, ...] = (), **more: object
) -> Json:
    found: Json = {"operationId": name, "summary": summary, **more}
    if parameters:
        found["parameters"] = [{"$ref": f"#/components/parameters/{each}"} for each in parameters]
    return {**found, "responses": {**answer, **problems(*kinds)}}


def _json(status: int, schema: str, meaning: str, example: object) -> Json:
    content = {JSON: {"schema": ref(schema), "examples": {"usual": {"value": example}}}}
    return {str(status): {"description": meaning, "content": content}}


ENTRY_EXAMPLE: Final[Json] = {
    "glsn": 17,
    "headers": {"source": "shop"},
    "writer": "proxy-5c1d0a7e.1#1790000000000000000",
    "seq": 4,
    "time_ms": 1790000000000,
    "text": "hello",
}
PROCESS: Final[Json] = {"process": "proxy", "name": "127.0.0.1:8480"}


def _paths() -> Json:
    return {
        "/v1/logs": {
            "get": _operation(
                "listLogs", "The names of all logs.", _json(200, "Logs", "The names.", {"logs": ["orders"]}), CLUSTER
            )
        },
        "/v1/logs/{log}": {"get": _describe()},
        "/v1/logs/{log}/entries": {"post": _append_entry(), "get": _read_entries()},
        "/v1/logs/{log}/batches": {"post": _append_batch()},
        "/v1/logs/{log}/entries/{glsn}": {"get": _read_entry()},
        "/v1/logs/{log}/tail": {
            "get": _operation(
                "findTail", "Where the log ends.", _json(200, "Tail", "The tail.", {"tail": 18}), LOG, ("log",)
            )
        },
        "/v1/logs/{log}/subscribe": {"get": _subscribe()},
        "/v1/openapi.json": {"get": _openapi()},
        "/healthz": {
            "get": _operation(
                "healthz",
                "Whether the process works.",
                _json(200, "Health", "It does.", {"alive": True, **PROCESS}),
                ("invalid-request",),
            )
        },
        "/readyz": {"get": _readyz()},
        "/metrics": {"get": _metrics()},
    }


def _readyz() -> Json:
    ready = {"ready": True, "why": [], **PROCESS}
    unready = {"ready": False, "why": ["the cluster does not answer"], **PROCESS}
    answers = {**_json(200, "Readiness", "It does.", ready), **_json(503, "Readiness", "It does not.", unready)}
    return _operation("readyz", "Whether the cluster answers.", answers, ("invalid-request",))


def _describe() -> Json:
    example = {"name": "orders", "policy": "chain", "replicas": 3, "oldest": 1, "tail": 18, "sealed": False}
    return _operation("describeLog", "Describe a log.", _json(200, "Log", "The log.", example), LOG, ("log",))


def _append_entry() -> Json:
    content = {
        JSON: {
            "schema": ref("EntryToAppend"),
            "examples": {
                "text": {"value": {"text": "hello", "headers": {"source": "shop"}}},
                "bytes": {"value": {"payload": "AAEC/w=="}},
            },
        },
        OCTETS: {"schema": {"type": "string", "contentMediaType": OCTETS}},
    }
    return _operation(
        "appendEntry",
        "Append one entry. The answer comes when every replica has stored it.",
        _json(201, "Appended", "Its position.", {"glsn": 17}),
        APPEND,
        ("log", "key"),
        requestBody={"required": True, "content": content},
    )


def _append_batch() -> Json:
    example = {"entries": [{"text": "one"}, {"payload": "AAEC/w=="}], "expect": 18}
    content = {JSON: {"schema": ref("BatchToAppend"), "examples": {"two": {"value": example}}}}
    return _operation(
        "appendBatch",
        "Append several entries at neighbouring positions, all or none.",
        _json(201, "BatchAppended", "The position of the first one.", {"first": 18, "count": 2}),
        APPEND,
        ("log", "key"),
        requestBody={"required": True, "content": content},
    )


def _read_entry() -> Json:
    answer = _json(200, "Entry", "The entry; with `Accept: application/octet-stream` its bytes.", ENTRY_EXAMPLE)
    answer["200"]["content"][OCTETS] = {"schema": {"type": "string", "contentMediaType": OCTETS}}
    return _operation(
        "readEntry",
        "One entry. `not-written`: it may exist later; `hole`: it never will.",
        answer,
        (*LOG, "not-written", "hole", *GONE),
        ("log", "glsn", "encoding"),
    )


def _read_entries() -> Json:
    return _operation(
        "readEntries",
        "A page of entries, in order. It is empty at the end of the log.",
        _json(200, "Page", "The page.", {"entries": [ENTRY_EXAMPLE], "next": 18}),
        (*LOG, *GONE),
        ("log", "start", "limit", "wait_ms", "encoding"),
    )


def _subscribe() -> Json:
    meaning = (
        "An endless stream of server-sent events, each as in the schema. `entry`: `data` is an Entry and `id` its "
        "position; with `event=message` it has no name. `problem`: `data` is a Problem, and the stream ends. Holes are "
        "skipped. Comments keep a quiet stream alive."
    )
    data = '{"glsn":17,"headers":{},"writer":"proxy-5c1d0a7e.1#17","seq":4,"time_ms":1790000000000,"text":"hello"}'
    example = {"id": "17", "event": "entry", "data": data}
    content = {"text/event-stream": {"schema": ref("Event"), "examples": {"entry": {"value": example}}}}
    return _operation(
        "subscribe",
        "Entries as they are appended.",
        {"200": {"description": meaning, "content": content}},
        (*LOG, *GONE),
        ("log", "start", "idle_ms", "encoding", "event", "last_event"),
    )


def _openapi() -> Json:
    answer: Json = {"200": {"description": "The document.", "content": {JSON: {"schema": {"type": "object"}}}}}
    return _operation("openapi", "This document.", answer, ALWAYS)


def _metrics() -> Json:
    answer: Json = {
        "200": {
            "description": "In the text format of Prometheus.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        }
    }
    return _operation("metrics", "Counters.", answer, ALWAYS)
