"""The proxy's own state: health, readiness, metrics; and its OpenAPI document."""

from __future__ import annotations

from aiohttp import web

from trunkline.errors import TrunklineError
from trunkline.net.http_requests import json_response
from trunkline.observing.pages import ObservedProcess
from trunkline.observing.readiness import Readiness
from trunkline.proxy.counters import TABLE
from trunkline.proxy.limits import READY_S_MAX
from trunkline.proxy.openapi import document
from trunkline.proxy.service import ProxyService


class StatusHandlers:
    def __init__(self, service: ProxyService) -> None:
        self._service = service
        self._document = document(with_token=bool(service.config.token))
        name = service.config.listen
        self._process = ObservedProcess("proxy", name, TABLE, service.counters.values, self._readiness)

    async def openapi(self, _: web.Request) -> web.StreamResponse:
        return json_response(self._document)

    async def page(self, request: web.Request) -> web.StreamResponse:
        """``/metrics``, ``/healthz`` or ``/readyz``."""
        found = await self._process.page(request.path)
        assert found is not None
        return found

    async def _readiness(self) -> Readiness:
        if self._service.shutdown.begun:
            return Readiness(("the proxy is shutting down; use another one",))
        try:
            await self._service.cluster.status(logs=False, timeout=READY_S_MAX)
        except TrunklineError as error:
            return Readiness((f"the cluster does not answer: {error}",))
        return Readiness()
