"""What every request passes: count, limit, name and origin, the token, the names of its parameters; and how it fails.

The one middleware turns every expected error into a problem document. Anything else is a bug, and is logged as such.
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
from trunkline.proxy.problems import MEDIA_TYPE, Problem, Refusal, problem, refusal, refusal_of
from trunkline.proxy.service import Service

log = logging.getLogger("trunkline.proxy")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Operation(msgspec.Struct, frozen=True):
    """One of the API's operations. ``open``: for whoever watches the proxy; no token, and no limit of requests.
    ``nameless``: it tells nothing, and is answered under any name.
    """

    name: str
    method: str
    path: str
    handler: Handler
    query: tuple[str, ...] = ()
    open: bool = False
    nameless: bool = False


class Guard:
    """Raises ``ConfigError`` for a name that is none."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._names = OwnNames(parse_address(service.config.listen, 0)[0], service.config.allow_hosts)

    def guarded(self, operation: Operation) -> Handler:
        """The handler of an operation, with everything that comes before and after it."""

        async def handle(request: web.Request) -> web.StreamResponse:
            counters = self._service.counters
            counters.in_progress += 1
            status = 499  # the request was cancelled: nobody is there to be answered
            try:
                response = await self._answer(operation, request)
                status = response.status
                return response
            finally:
                counters.in_progress -= 1
                counters.requests[operation.name, status] += 1

        return handle

    async def _answer(self, operation: Operation, request: web.Request) -> web.StreamResponse:
        try:
            self._let_in(operation, request)
            check_query(request, operation.query)
            return await operation.handler(request)
        except Refusal as error:
            return problem_response(error.problem, error.headers)
        except TrunklineError as error:
            refused = refusal_of(error)
            if refused.problem.status == 503:
                log.warning("%s %s: %s", operation.name, request.path, error)
            return problem_response(refused.problem, refused.headers)

    def _let_in(self, operation: Operation, request: web.Request) -> None:
        self._check_asker(operation, request)
        if operation.open:
            return
        token = self._service.config.token
        if token and not is_token(bearer_token(request), token):
            raise Refusal(
                problem("unauthorized", "send the proxy's token as `Authorization: Bearer ...`"),
                headers={hdrs.WWW_AUTHENTICATE: "Bearer"},
            )
        if self._service.counters.in_progress > REQUESTS_MAX:
            raise refusal("busy", f"{REQUESTS_MAX} requests are under way already; ask again", retry=True)

    def _check_asker(self, operation: Operation, request: web.Request) -> None:
        """No page of another site asks through somebody's browser. One that could show the token is let in by that."""
        config = self._service.config
        if not (config.token or operation.nameless or is_own_name(request, self._names)):
            raise refusal("not-our-name", NOT_OUR_NAME)
        if operation.method != "GET" and is_foreign_origin(request, config.allow_origins):
            raise refusal("origin-refused", "start the proxy with --allow-origin for pages of this origin")


def problem_response(found: Problem, headers: dict[str, str]) -> web.Response:
    return web.Response(body=msgspec.json.encode(found), status=found.status, content_type=MEDIA_TYPE, headers=headers)


@web.middleware
async def as_problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What the router refuses, said in the API's own way."""
    try:
        return await handler(request)
    except web.HTTPNotFound:
        return problem_response(problem("no-such-resource", "see /v1/openapi.json for what there is"), {})
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        return problem_response(problem("method-not-allowed", f"use {allowed} here"), {hdrs.ALLOW: allowed})
