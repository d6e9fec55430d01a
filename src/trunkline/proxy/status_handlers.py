"""For whoever watches the proxy or reads about it: health, readiness, counters, the document."""

from __future__ import annotations

from aiohttp import web

from trunkline.proxy.limits import READY_S_MAX
from trunkline.proxy.openapi import document
from trunkline.proxy.problems import refusal
from trunkline.proxy.service import Service, json_response
from trunkline.runtime.observing_format import MEDIA_TYPE


class Watching:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._document = document(with_token=bool(service.config.token))

    async def openapi(self, request: web.Request) -> web.StreamResponse:
        return json_response(self._document)

    async def healthz(self, request: web.Request) -> web.StreamResponse:
        """The event loop turns: that is all that a restart could mend."""
        return json_response({"status": "ok"})

    async def readyz(self, request: web.Request) -> web.StreamResponse:
        if self._service.stopping.begun:
            raise refusal("busy", "the proxy stops; ask another one", retry=True)
        await self._service.cluster.status(logs=False, timeout=READY_S_MAX)
        return json_response({"status": "ok"})

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text=self._service.counters.text(), headers={"Content-Type": MEDIA_TYPE})
