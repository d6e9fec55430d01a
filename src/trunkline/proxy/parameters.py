"""Path, query, headers and body of a request, all checked before it has any effect."""

from __future__ import annotations

from typing import Final

from aiohttp import hdrs, web

from trunkline.net.http_requests import BodyError, read_body
from trunkline.proxy.documents import JSON
from trunkline.proxy.limits import BODY_BYTES_MAX, BODY_S_MAX, GLSN_MAX, KEY_CHARACTERS_MAX
from trunkline.proxy.problems import invalid, refusal

OCTETS: Final = "application/octet-stream"
KEY: Final = "Idempotency-Key"
LAST_EVENT: Final = "Last-Event-ID"
DIGITS_MAX: Final = len(str(GLSN_MAX))
BODY_PROBLEMS: Final = {"too-large": "too-large", "too-slow": "body-too-slow", "broken": "invalid-request"}


def check_query(request: web.Request, known: tuple[str, ...]) -> None:
    """Refuse unknown parameters: a misspelt one would be ignored."""
    for name in request.query:
        if name not in known:
            raise invalid(f"unknown parameter {name[:40]!r}; known: {', '.join(known) or 'none'}")
        if len(request.query.getall(name)) > 1:
            raise invalid(f"the parameter {name} occurs more than once")


def log_name(request: web.Request) -> str:
    return request.match_info["log"]


def glsn(request: web.Request) -> int:
    return _number("the position", request.match_info["glsn"], 1, GLSN_MAX)


def query_number(request: web.Request, name: str, low: int, high: int) -> int | None:
    text = request.query.get(name)
    return None if text is None else _number(name, text, low, high)


def query_choice(request: web.Request, name: str, choices: tuple[str, ...]) -> str:
    """The first choice is the default."""
    text = request.query.get(name, choices[0])
    if text not in choices:
        raise invalid(f"{name} is one of {', '.join(choices)}, not {text[:40]!r}")
    return text


def key(request: web.Request) -> str | None:
    text = _header(request, KEY)
    if text is not None and not (0 < len(text) <= KEY_CHARACTERS_MAX and all("!" <= each <= "~" for each in text)):
        raise invalid(f"{KEY} is 1 to {KEY_CHARACTERS_MAX} visible ASCII characters without spaces")
    return text


def last_event(request: web.Request) -> int | None:
    text = _header(request, LAST_EVENT)
    return None if text is None else _number(LAST_EVENT, text, 0, GLSN_MAX - 1)


def wants_octets(request: web.Request) -> bool:
    """Whether only bytes are accepted; the default is JSON."""
    accepted = [each.partition(";")[0].strip().lower() for each in request.headers.get(hdrs.ACCEPT, "").split(",")]
    return OCTETS in accepted and JSON not in accepted


def media_type(request: web.Request, *taken: str) -> str:
    if request.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
        raise refusal("unsupported-media-type", "send the body without a Content-Encoding")
    given = request.headers.get(hdrs.CONTENT_TYPE, "").partition(";")[0].strip().lower()
    if given not in taken:
        raise refusal("unsupported-media-type", f"the body must be {' or '.join(taken)}; set Content-Type")
    return given


async def body(request: web.Request) -> bytes:
    try:
        return await read_body(request, BODY_BYTES_MAX, BODY_S_MAX)
    except BodyError as error:
        raise refusal(BODY_PROBLEMS[error.kind], str(error)) from None


def _header(request: web.Request, name: str) -> str | None:
    values = request.headers.getall(name, [])
    if len(values) > 1:
        raise invalid(f"{name} occurs more than once")
    return values[0] if values else None


def _number(name: str, text: str, low: int, high: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX and low <= int(text) <= high):
        raise invalid(f"{name} is a whole number from {low} to {high}, not {text[:40]!r}")
    return int(text)
