"""Bodies of requests, with limits, and answers that a client must take in time."""

from __future__ import annotations

import asyncio
from typing import Literal, TypeVar

import msgspec
from aiohttp import web

from trunkline.errors import ConfigError

T = TypeVar("T")


class BodyError(ConfigError):
    """A body that did not arrive: it is too large, too slow, or the connection broke."""

    def __init__(self, kind: Literal["too-large", "too-slow", "broken"], message: str) -> None:
        super().__init__(message)
        self.kind = kind


async def read_body(request: web.Request, bytes_max: int, timeout_s: float) -> bytes:
    """Raises ``BodyError``. The application's ``client_max_size`` is ``bytes_max``, for bodies without a length."""
    try:
        if (request.content_length or 0) > bytes_max:
            raise _too_large(bytes_max)
        async with asyncio.timeout(timeout_s):
            return await request.read()
    except TimeoutError:
        raise BodyError("too-slow", f"the body did not arrive within {timeout_s:.0f} s; send less at once") from None
    except web.HTTPRequestEntityTooLarge:
        raise _too_large(bytes_max) from None
    except (web.RequestPayloadError, ConnectionError) as error:  # mostly there is no client left to read the answer
        raise BodyError("broken", f"the body is incomplete: {error}; send it again, nothing was changed") from None


def _too_large(bytes_max: int) -> BodyError:
    return BodyError("too-large", f"a body has at most {bytes_max} bytes; send it in parts")


def decode_body(content: bytes, kind: type[T]) -> T:
    """The JSON of a body. Raises ``ConfigError``."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # RecursionError: nested too deeply
        raise ConfigError(f"the body is not valid: {error}") from None


def json_response(value: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


async def write_within(response: web.StreamResponse, content: bytes, timeout_s: float) -> None:
    """Raises ``TimeoutError`` if the client does not read for so long, ``ConnectionError`` if it left."""
    async with asyncio.timeout(timeout_s):
        await response.write(content)


def abort(request: web.Request) -> None:
    """Close the connection of a client that does not read: there is no end of the answer to wait for."""
    if request.transport is not None:
        request.transport.abort()
