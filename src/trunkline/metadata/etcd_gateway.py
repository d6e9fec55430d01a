"""Requests to etcd through its JSON gateway: plain HTTP with aiohttp.

The Python clients of etcd are unmaintained, or pin a protobuf older than what applications use today; the gateway is
part of every etcd server since 3.4 and needs neither.

Rules
 E1  A request that may have been sent is never sent again, unless it is idempotent. The caller of a change gets
     ``StoreUnavailable`` and reads.
 E2  After a failure the next endpoint is used at once. Every request ends within ``request_ms`` per endpoint.
 E3  Reads are linearizable (``serializable`` is never set), so a member without a majority cannot answer with stale
     values.
"""

from __future__ import annotations

import asyncio
import base64
import io
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import aiohttp
import msgspec
from msgspec import Struct

from trunkline.errors import ConfigError, StorageError
from trunkline.metadata.store import StoreUnavailable

LINE_BYTES_MAX = 16 << 20  # of a watch; etcd sends no more than its request limit (1.5 MiB) per event
TOO_LARGE = ("request is too large", "message larger than max")  # from etcd, or a proxy before it
CONNECTIONS_MAX = 64  # concurrent requests, and the watch; others wait
SLOWEST_BYTES_PER_S = 250_000  # extends the time limit of large requests: a long map is written and replicated
JSON_CONTENT = {"Content-Type": "application/json"}
NEEDS_LEADER = {
    "Grpc-Metadata-hasleader": "true"
}  # a member without a leader ends the stream instead of staying silent


class EtcdOptions(Struct, frozen=True):
    endpoints: tuple[str, ...]  # "http://host:2379" of every member: one that is down is skipped
    prefix: str = "/trunkline/"  # clusters that share an etcd need different ones
    request_ms: int = 2000  # shorter: an election of etcd looks like an outage; longer: a dead member costs more
    watch_ms: int = 30_000  # a silent watch is restarted; longer: a dead connection is noticed later
    retry_ms: int = 500  # between attempts of background work; shorter: more load while etcd is down
    user: str = ""
    password: str = ""


Json = dict[str, Any]


class Gateway:
    """A session with the members of an etcd cluster."""

    def __init__(self, options: EtcdOptions, tls: ssl.SSLContext | None = None) -> None:
        if not options.endpoints:
            raise ConfigError("etcd needs at least one endpoint, such as http://127.0.0.1:2379")
        self._options = options
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None
        self._at = 0  # index of the endpoint in use
        self._token = ""
        self._streams: dict[aiohttp.ClientResponse, str] = {}  # with their endpoints
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def repeatable(self, path: str, body: Json, timeout_ms: int = 0) -> Json:
        """An idempotent request, such as a read: endpoints are tried until one answers."""
        for _ in self._options.endpoints[1:]:
            try:
                return await self._request(path, body, timeout_ms)
            except StoreUnavailable:
                continue  # try the next endpoint
        return await self._request(path, body, timeout_ms)

    async def once(self, path: str, body: Json) -> Json:
        """A request that is sent once (E1); endpoints that cannot be connected to are skipped."""
        for _ in self._options.endpoints[1:]:
            try:
                return await self._request(path, body)
            except NotSent:
                continue
        return await self._request(path, body)

    async def stream(self, path: str, body: Json) -> AsyncGenerator[Json, None]:
        """The results of a watch, from one endpoint; ends with ``StoreUnavailable``."""
        endpoint = self._endpoint()
        response: aiohttp.ClientResponse | None = None
        timeout = aiohttp.ClientTimeout(
            sock_connect=self._options.request_ms / 1000, sock_read=self._options.watch_ms / 1000
        )
        try:
            token = await self._authenticated()
            headers = NEEDS_LEADER | ({"Authorization": token} if token else {})
            async with asyncio.timeout(self._options.request_ms / 1000):  # etcd confirms a new watch at once
                response = await self._open().post(endpoint + path, json=body, headers=headers, timeout=timeout)
            async with response:
                if endpoint != self._endpoint():
                    raise StoreUnavailable(_what(endpoint, "another endpoint was chosen while the watch began"))
                self._streams[response] = endpoint
                async for line in _lines(response.content):
                    yield _result(line)
        except StoreUnavailable:
            self._token = ""  # it may be why the watch was refused; a new one is cheap
            self._skip(endpoint)
            raise
        except aiohttp.SocketTimeoutError as error:  # no change for a long time: not a fault of the endpoint
            raise StoreUnavailable(_what(endpoint, "the watch was silent")) from error
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            self._skip(endpoint)
            raise StoreUnavailable(_what(endpoint, error)) from error
        finally:
            if response is not None:
                self._streams.pop(response, None)
        raise StoreUnavailable(_what(endpoint, "the watch ended"))

    async def _request(self, path: str, body: Json, timeout_ms: int = 0) -> Json:
        token = await self._authenticated()
        try:
            return await self._post(path, body, token, timeout_ms)
        except TokenExpired:  # etcd checks the token first: the request was not carried out
            self._token = ""
            return await self._post(path, body, await self._authenticated(), timeout_ms)

    async def _authenticated(self) -> str:
        """The token of the session, "" without a user."""
        if self._options.user and not self._token:
            who = {"name": self._options.user, "password": self._options.password}
            self._token = (await self._post("/v3/auth/authenticate", who, ""))["token"]
        return self._token

    async def _post(self, path: str, body: Json, token: str, timeout_ms: int = 0) -> Json:
        endpoint = self._endpoint()
        headers = JSON_CONTENT | ({"Authorization": token} if token else {})
        encoded = msgspec.json.encode(body)
        content = io.BytesIO(encoded)  # sent in pieces: a long map does not block the event loop
        total_s = (timeout_ms or self._options.request_ms) / 1000 + len(encoded) / SLOWEST_BYTES_PER_S
        timeout = aiohttp.ClientTimeout(total=total_s, sock_connect=total_s / 2)
        try:
            async with self._open().post(endpoint + path, data=content, headers=headers, timeout=timeout) as response:
                data, status = await response.read(), response.status
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            self._skip(endpoint)
            raise NotSent(_what(endpoint, error)) from error
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            self._skip(endpoint)
            raise StoreUnavailable(_what(endpoint, error)) from error
        return self._answer(endpoint, status, data)

    def _answer(self, endpoint: str, status: int, data: bytes) -> Json:
        try:
            answer = msgspec.json.decode(data, type=Json)
        except msgspec.MsgspecError as error:
            self._skip(endpoint)
            raise StoreUnavailable(_what(endpoint, f"HTTP {status}, not JSON")) from error
        if status == 200:
            return answer
        text = str(answer.get("error", answer.get("message", f"HTTP {status}")))
        if self._token and ("invalid auth token" in text or status == 401):
            raise TokenExpired(_what(endpoint, text))
        if any(words in text for words in TOO_LARGE):
            raise RequestTooLarge(f"etcd at {endpoint}: {text}")  # not a fault of the endpoint
        self._skip(endpoint)
        raise StoreUnavailable(_what(endpoint, text))

    def _open(self) -> aiohttp.ClientSession:
        if self._closed:
            raise StoreUnavailable("the store is closed; open it again")
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self._tls if self._tls is not None else True, limit=CONNECTIONS_MAX)
            self._session = aiohttp.ClientSession(connector=connector)
        return self._session

    def _endpoint(self) -> str:
        return self._options.endpoints[self._at].rstrip("/")

    def _skip(self, endpoint: str) -> None:
        """E2; unless another request has already done it. Streams of the member end, too: it may hang."""
        if endpoint == self._endpoint():
            self._at = (self._at + 1) % len(self._options.endpoints)
        for response in [response for response, origin in self._streams.items() if origin == endpoint]:
            response.close()


class NotSent(StoreUnavailable):
    """The endpoint could not be reached: the request was not carried out."""


class RequestTooLarge(StorageError):
    """etcd does not accept a request of this size: it was not carried out."""


class TokenExpired(StoreUnavailable):
    """The session's token is not valid any more."""


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """aiohttp limits its own lines to 64 KiB; a projection may be longer."""
    pending = b""
    async for chunk in content.iter_any():
        *complete, pending = (pending + chunk).split(b"\n")
        if len(pending) > LINE_BYTES_MAX:
            raise StoreUnavailable(f"etcd sent an event of more than {LINE_BYTES_MAX} bytes; is another program there?")
        for line in complete:
            if line:
                yield line


def _result(line: bytes) -> Json:
    try:
        message = msgspec.json.decode(line, type=Json)
    except msgspec.MsgspecError as error:
        raise StoreUnavailable("etcd sent an event that is not JSON; is another program at its endpoint?") from error
    if "result" not in message:
        raise StoreUnavailable(f"etcd ended the watch: {message.get('error', message)}")
    result: Json = message["result"]
    return result


def _what(endpoint: str, error: object) -> str:
    reason = str(error) or type(error).__name__
    return f"etcd at {endpoint}: {reason}; check that a majority of its members is up and reachable"


# ------------------------------------------------------------------------------------------------- parts of requests


def text64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def bytes64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def from64(data: str) -> bytes:
    return base64.b64decode(data)


def range_of(key: str) -> Json:
    return {"key": text64(key)}


def range_below(prefix: str, *, keys_only: bool = False) -> Json:
    """Every key that begins with the prefix."""
    return {"key": text64(prefix), "range_end": text64(end_of(prefix)), "keys_only": keys_only}


def end_of(prefix: str) -> str:
    """The first key after all that begin with the prefix; prefixes end in "/"."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def unchanged(key: str, revision: int) -> Json:
    """A condition: the key was last changed at this revision; 0: it does not exist."""
    return {"key": text64(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}


def holds(key: str, value: bytes) -> Json:
    """A condition: the key exists and has this value."""
    return {"key": text64(key), "target": "VALUE", "result": "EQUAL", "value": bytes64(value)}


def delete(key: str) -> Json:
    return {"request_delete_range": {"key": text64(key)}}


def put(key: str, value: bytes, lease: int = 0) -> Json:
    return {"request_put": {"key": text64(key), "value": bytes64(value), "lease": str(lease)}}
