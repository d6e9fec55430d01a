"""Who was refused of late, for the log and for the status: a node that is turned away should not go unseen."""

from __future__ import annotations

import logging
import time
from typing import Final

from msgspec import Struct

from trunkline.net.complaints import Complaints, printable

KEPT_MAX: Final = 32  # more: a stranger fills the status
TOLD_S: Final = 60.0  # whoever still tries comes back within seconds
NAME_CHARACTERS_MAX: Final = 100
TEXT_CHARACTERS_MAX: Final = 500

complaints = Complaints(logging.getLogger("trunkline.net"))


class RefusedPeer(Struct, frozen=True):
    """``name`` is what it said, unproven; empty where it said nothing."""

    name: str
    address: str
    why: str
    count: int
    at: float


class Refusals:
    def __init__(self) -> None:
        self._peers: dict[tuple[str, str], RefusedPeer] = {}  # by name and host, the latest last

    def happened(self, server: str, name: str, address: str, why: str) -> None:
        name, why = printable(name)[:NAME_CHARACTERS_MAX], printable(why)[:TEXT_CHARACTERS_MAX]
        complaints.warn(f"{server} refused a connection of {name or 'a stranger'} from {address or 'nowhere'}: {why}")
        key = (name, address.rpartition(":")[0])
        before = self._peers.pop(key, None)
        self._peers[key] = RefusedPeer(name, address, why, before.count + 1 if before else 1, time.monotonic())
        if len(self._peers) > KEPT_MAX:
            del self._peers[next(iter(self._peers))]

    def told(self) -> list[dict[str, str | int]]:
        """Plain values, of the last minute."""
        now = time.monotonic()
        return [
            {"name": each.name, "address": each.address, "why": each.why, "count": each.count}
            for each in self._peers.values()
            if now - each.at <= TOLD_S
        ]
