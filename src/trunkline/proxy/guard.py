"""The checks of every request: name, origin, token, limit, names of parameters; and how a request fails.

Every expected error becomes a problem document. Anything else is a bug, and is logged as one.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import hdrs, web

from trunkline.errors import TrunklineError
from trunkline.net.addresses import parse_address
from trunkline.net.http_guard import bearer_token, is_foreign_origin, is_own_name, is_token
from trunkline.net.http_names import NOT_OUR_NAME, OwnNames
from trunkline.proxy.limits import REQUESTS_MAX
from trunkline.proxy.parameters import check_query
from trunkline.proxy.problems import MEDIA_TYPE, ProblemDocument, RequestRefusal, problem, refusal, refusal_of
from trunkline.proxy.service import ProxyService

log = logging.getLogger("trunkline.proxy")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ApiOperation(msgspec.Struct, frozen=True):
    """``open``: for monitoring; it needs no token and does not count towards the limit of requests.
    ``nameless``: it reveals nothing, and is answered under any name.
    """

    name: str
    method: str
    path: str
    handler: Handler
    query: tuple[str, ...] = ()
    open: bool = False
    nameless: bool = False


class RequestGuard:
    """Raises ``ConfigError`` for an invalid name."""

    def __init__(self, service: ProxyService) -> None:
        self._service = service
        self._names = OwnNames(parse_address(service.config.listen, 0)[0], service.config.allow_hosts)

    def guarded(self, operation: ApiOperation) -> Handler:
        """The handler of an operation, with its checks and counts."""

        async def handle(request: web.Request) -> web.StreamResponse:
            counters = self._service.counters
            counters.in_progress += 1
            status = 499  # cancelled: the client disconnected
            try:
                response = await self._answer(operation, request)
                status = response.status
                return response
            finally:
                counters.in_progress -= 1
                counters.requests[operation.name, status] += 1

        return handle

    async def _answer(self, operation: ApiOperation, request: web.Request) -> web.StreamResponse:
        try:
            self._check(operation, request)
            check_query(request, operation.query)
            return await operation.handler(request)
        except RequestRefusal as error:
            return problem_response(error.problem, error.headers)
        except TrunklineError as error:
            refused = refusal_of(error)
            if refused.problem.status == 503:
                log.warning("%s %s: %s", operation.name, request.path, error)
            return problem_response(refused.problem, refused.headers)

    def _check(self, operation: ApiOperation, request: web.Request) -> None:
        self._check_origin(operation, request)
        if operation.open:
            return
        token = self._service.config.token
        if token and not is_token(bearer_token(request), token):
            raise RequestRefusal(
                problem("unauthorized", "send the proxy's token as `Authorization: Bearer ...`"),
                headers={hdrs.WWW_AUTHENTICATE: "Bearer"},
            )
        if self._service.counters.in_progress > REQUESTS_MAX:
            raise refusal("busy", f"{REQUESTS_MAX} requests are in progress; try again", retry=True)

    def _check_origin(self, operation: ApiOperation, request: web.Request) -> None:
        """Keep out pages of other sites in a user's browser. A page that knows the token is let in by its token."""
        config = self._service.config
        if not (config.token or operation.nameless or is_own_name(request, self._names)):
            raise refusal("not-our-name", NOT_OUR_NAME)
        if operation.method != "GET" and is_foreign_origin(request, config.allow_origins):
            raise refusal("origin-refused", "start the proxy with --allow-origin for pages of this origin")


def problem_response(found: ProblemDocument, headers: dict[str, str]) -> web.Response:
    return web.Response(body=msgspec.json.encode(found), status=found.status, content_type=MEDIA_TYPE, headers=headers)


@web.middleware
async def as_problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What the router refuses, as problem documents."""
    try:
        return await handler(request)
    except web.HTTPNotFound:
        return problem_response(problem("no-such-resource", "/v1/openapi.json lists what exists"), {})
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        return problem_response(problem("method-not-allowed", f"use {allowed} here"), {hdrs.ALLOW: allowed})
