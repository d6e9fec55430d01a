"""The schemas, parameters and problem answers of the OpenAPI document."""

from __future__ import annotations

from typing import Any, Final

from trunkline.core.names import LOG_NAME_BYTES_MAX, LOG_NAME_PATTERN
from trunkline.proxy.keys import RESERVED
from trunkline.proxy.limits import (
    BATCH_ENTRIES_MAX,
    BODY_BYTES_MAX,
    GLSN_MAX,
    HEADER_NAME_CHARACTERS_MAX,
    HEADERS_MAX,
    IDLE_MS_MAX,
    KEY_CHARACTERS_MAX,
    PAGE_ENTRIES,
    PAGE_ENTRIES_MAX,
    WAIT_MS_MAX,
)
from trunkline.proxy.problems import KINDS, MEDIA_TYPE, URN, problem

Json = dict[str, Any]

NAME_PATTERN: Final = f"^{LOG_NAME_PATTERN}$"
BASE64_PATTERN: Final = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
KEY_PATTERN: Final = r"^[!-~]+$"
POSITION: Final[Json] = {"type": "integer", "minimum": 1, "maximum": GLSN_MAX}
COUNT: Final[Json] = {"type": "integer", "minimum": 0}


def ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def record(required: Json, optional: Json | None = None) -> Json:
    """An object with these fields and no others."""
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


def _base64(meaning: str) -> Json:
    return {"type": "string", "contentEncoding": "base64", "pattern": BASE64_PATTERN, "description": meaning}


def _headers_to_append() -> Json:
    return {
        "type": "object",
        "description": f"Names and values. Names that begin with `{RESERVED}` are reserved for the proxy.",
        "maxProperties": HEADERS_MAX,
        "propertyNames": {
            "minLength": 1,
            "maxLength": HEADER_NAME_CHARACTERS_MAX,
            "pattern": f"^(?!{RESERVED})",
        },
        "additionalProperties": ref("HeaderValue"),
    }


def _entry_to_append(more: Json) -> Json:
    fields = {"headers": _headers_to_append(), **more}
    return {
        "oneOf": [
            record({"payload": _base64("The bytes of the entry.")}, fields),
            record({"text": {"type": "string", "description": "The entry as UTF-8."}}, fields),
        ]
    }


def _entry() -> Json:
    facts: Json = {
        "glsn": POSITION,
        "headers": {"type": "object", "additionalProperties": ref("HeaderValue")},
        "writer": {"type": "string", "description": "Which client appended it."},
        "seq": {**COUNT, "description": "The number of its batch at that client."},
        "time_ms": {**COUNT, "description": "By the clock of that client: for people, not for ordering."},
    }
    unreadable: Json = {
        "unreadable_headers": _base64("Bytes that cannot be decoded as headers; `headers` is empty then.")
    }
    return {
        "oneOf": [
            record({**facts, "text": {"type": "string", "description": "The entry as UTF-8."}}, unreadable),
            record({**facts, "payload": _base64("The bytes of the entry.")}, unreadable),
        ]
    }


def _event(kinds: list[str], schema: str, more: Json) -> Json:
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": ref(schema)}
    return {**record({"event": {"enum": kinds}, "data": data, **more}), "required": ["data", *more]}


EXPECT: Final[Json] = {
    **POSITION,
    "description": "Append only if the (first) entry gets exactly this position. For chain logs.",
}

PROCESS: Final[Json] = {"process": {"const": "proxy"}, "name": {"type": "string"}}
SCHEMAS: Final[Json] = {
    "Position": {**POSITION, "description": "A position of the log, its GLSN."},
    "HeaderValue": {
        "description": "A text, or the base64 of bytes that are not UTF-8.",
        "oneOf": [{"type": "string"}, record({"base64": _base64("The bytes.")})],
    },
    "EntryToAppend": _entry_to_append({"expect": EXPECT}),
    "BatchToAppend": record(
        {
            "entries": {
                "type": "array",
                "items": _entry_to_append({}),
                "minItems": 1,
                "maxItems": BATCH_ENTRIES_MAX,
            }
        },
        {"expect": EXPECT},
    ),
    "Appended": record({"glsn": ref("Position")}),
    "BatchAppended": record({"first": ref("Position"), "count": {**COUNT, "minimum": 1}}),
    "Entry": _entry(),
    "Event": {
        "description": "A server-sent event; `data` is JSON.",
        "oneOf": [
            _event(["entry", "message"], "Entry", {"id": {"type": "string", "pattern": "^[1-9][0-9]*$"}}),
            _event(["problem"], "Problem", {}),
        ],
    },
    "Page": record(
        {
            "entries": {"type": "array", "items": ref("Entry"), "maxItems": PAGE_ENTRIES_MAX},
            "next": {
                **POSITION,
                "maximum": GLSN_MAX + PAGE_ENTRIES_MAX,
                "description": "Where the next page begins: after the entries and holes that were read.",
            },
        }
    ),
    "Logs": record({"logs": {"type": "array", "items": {"type": "string"}}}),
    "Log": record(
        {
            "name": {"type": "string"},
            "policy": {"enum": ["chain", "broadcast"]},
            "replicas": {**COUNT, "minimum": 1},
            "oldest": {**POSITION, "description": "Everything below was trimmed."},
            "tail": {**POSITION, "description": "The position after the last entry."},
            "sealed": {"type": "boolean", "description": "Whether the log is read-only."},
        }
    ),
    "Tail": record({"tail": {**POSITION, "description": "The position after the last entry."}}),
    "Health": record({"alive": {"const": True}, **PROCESS}),
    "Readiness": record(
        {
            "ready": {"type": "boolean"},
            "why": {"type": "array", "items": {"type": "string"}, "description": "What is missing, and what to do."},
            **PROCESS,
        }
    ),
    "Problem": record(
        {
            "type": {"enum": [URN + kind for kind in KINDS]},
            "title": {"type": "string"},
            "status": {"enum": sorted({status for status, _ in KINDS.values()})},
            "detail": {"type": "string", "description": "What is wrong with this request, and what to do next."},
        },
        {
            "tail": {**POSITION, "description": "Of `condition-failed`: the position to expect instead."},
            "point": {**POSITION, "description": "Of `trimmed`: the last trimmed position."},
            "first": {**POSITION, "description": "Of `entries-lost` and `corrupt-entries`: the first position."},
            "end": {**POSITION, "description": "Of `entries-lost` and `corrupt-entries`: the position after the last."},
            "glsn": {**POSITION, "description": "Of `key-reused`: the entry that has the key."},
            "owner": {"type": "string", "description": "Of `owned-by-another`: the writer of the log."},
        },
    ),
}


def _parameter(name: str, place: str, schema: Json, meaning: str) -> Json:
    found: Json = {"name": name, "in": place, "schema": schema, "description": meaning}
    return {**found, "required": True} if place == "path" else found


PARAMETERS: Final[Json] = {
    "log": _parameter(
        "log",
        "path",
        {"type": "string", "pattern": NAME_PATTERN, "maxLength": LOG_NAME_BYTES_MAX, "examples": ["orders"]},
        "The name of a log. The proxy does not create logs.",
    ),
    "glsn": _parameter("glsn", "path", {**POSITION, "examples": [1]}, "A position."),
    "start": _parameter("start", "query", POSITION, "The first position to read; by default the oldest one."),
    "limit": _parameter(
        "limit",
        "query",
        {"type": "integer", "minimum": 1, "maximum": PAGE_ENTRIES_MAX, "default": PAGE_ENTRIES},
        "How many positions to read at most. A page may have fewer entries, also before the end of the log.",
    ),
    "wait_ms": _parameter(
        "wait_ms",
        "query",
        {"type": "integer", "minimum": 0, "maximum": WAIT_MS_MAX, "default": 0},
        "How long to wait for an entry at the end of the log.",
    ),
    "idle_ms": _parameter(
        "idle_ms",
        "query",
        {"type": "integer", "minimum": 1, "maximum": IDLE_MS_MAX},
        "End the stream after so long without an entry; by default never.",
    ),
    "encoding": _parameter(
        "encoding",
        "query",
        {"enum": ["auto", "base64"], "type": "string", "default": "auto"},
        "`auto`: an entry is a `text` where it is UTF-8. `base64`: it is always a `payload`.",
    ),
    "event": _parameter(
        "event",
        "query",
        {"enum": ["entry", "message"], "type": "string", "default": "entry"},
        "The name of the events. `message`: they have no name, and reach a browser's `onmessage`.",
    ),
    "key": _parameter(
        "Idempotency-Key",
        "header",
        {"type": "string", "minLength": 1, "maxLength": KEY_CHARACTERS_MAX, "pattern": KEY_PATTERN},
        "A request with this key, sent any number of times and to any proxy, is in the log once.",
    ),
    "last_event": _parameter(
        "Last-Event-ID",
        "header",
        {"type": "integer", "minimum": 0, "maximum": GLSN_MAX - 1},
        "The position of the last event that the client received; outweighs `start`.",
    ),
}

DETAILS: Final[Json] = {
    "invalid-request": "limit is a whole number from 1 to 1000, not '0'",
    "not-written": "position 18 is not written yet; subscribe to wait for it",
    "trimmed": "positions up to 16 were trimmed away; read from 17 on",
    "too-large": f"a body has at most {BODY_BYTES_MAX} bytes; send it in parts",
}


def problems(*kinds: str) -> Json:
    """The answers with these problems, by status."""
    statuses = sorted({KINDS[kind][0] for kind in kinds})
    return {str(status): _problem([kind for kind in kinds if KINDS[kind][0] == status]) for status in statuses}


def _problem(kinds: list[str]) -> Json:
    status = KINDS[kinds[0]][0]
    answer: Json = {
        "description": "; ".join(f"`{kind}`: {KINDS[kind][1]}" for kind in kinds),
        "content": {
            MEDIA_TYPE: {
                "schema": {
                    "allOf": [
                        ref("Problem"),
                        {
                            "properties": {
                                "type": {"enum": [URN + kind for kind in kinds]},
                                "status": {"const": status},
                            }
                        },
                    ]
                },
                "examples": {kind: {"value": _example(kind)} for kind in kinds},
            }
        },
    }
    if status == 503:
        seconds = {"schema": {"type": "integer"}, "description": "Seconds. Present if it is safe to try again."}
        answer["headers"] = {"Retry-After": seconds}
    return answer


def _example(kind: str) -> Json:
    found = problem(kind, DETAILS.get(kind, KINDS[kind][1]))
    gap = {"first": 3, "end": 9}
    facts: dict[str, Json] = {
        "trimmed": {"point": 16},
        "entries-lost": gap,
        "corrupt-entries": gap,
        "condition-failed": {"tail": 18},
        "owned-by-another": {"owner": "shop-1f2e3d4c.1"},
    }
    fields = {"type": found.type, "title": found.title, "status": found.status, "detail": found.detail}
    return {**fields, **facts.get(kind, {})}
