"""A status from a coordinator of another version, or from one that is broken."""

from __future__ import annotations

import asyncio

import pytest

from trunkline import connect
from trunkline.core.status import ClusterStatus, RegisteredNode
from trunkline.errors import ProtocolError
from trunkline.net.admin import ClusterAnswer, ClusterRequest, EventsAnswer, StatusAnswer, StatusRequest
from trunkline.net.connection import Connection
from trunkline.net.packets import Envelope
from trunkline.net.server import Server


def test_a_status_of_another_version_is_read_and_a_broken_one_is_a_protocol_error() -> None:
    answers = [b'{"cluster": "c", "nodes": [{"name": "a", "live": true, "new": 1}], "new": []}', b"{", b'{"nodes": 5}']

    def received(connection: Connection, envelope: Envelope, attachments: tuple[memoryview, ...]) -> None:
        if isinstance(envelope.message, ClusterRequest):
            connection.send("", envelope.token, ClusterAnswer("c"))
        elif isinstance(envelope.message, StatusRequest):
            connection.send("", envelope.token, StatusAnswer(answers.pop(0)))
        else:
            connection.send("", envelope.token, EventsAnswer(b'{"events": [{"number": "one"}]}'))

    async def scene() -> None:
        server = await Server.start("127.0.0.1", 0, received, cluster="c", name="k")
        try:
            async with connect(f"127.0.0.1:{server.port}") as cluster:
                assert await cluster.status() == ClusterStatus("c", nodes=(RegisteredNode("a", live=True),))
                for _ in range(2):
                    with pytest.raises(ProtocolError, match=r"the status cannot be read .*; upgrade the older peer"):
                        await cluster.status()
                with pytest.raises(ProtocolError, match="events cannot be read"):
                    await cluster.events()
        finally:
            await server.close()

    asyncio.run(scene())
