"""Refused connections: logged, and kept for a minute for the status, so that a refused node is noticed."""

from __future__ import annotations

import logging
import time
from typing import Final

from trunkline.core.status import RefusedPeer
from trunkline.net.complaints import Complaints, printable
from trunkline.net.packets import Refusal

KEPT_MAX: Final = 32  # more: an unauthenticated peer fills the status
KEPT_S: Final = 60.0  # a peer that still tries returns within seconds
NAME_CHARACTERS_MAX: Final = 100
TEXT_CHARACTERS_MAX: Final = 500

complaints = Complaints(logging.getLogger("trunkline.net"))


class Refusals:
    def __init__(self) -> None:
        self._peers: dict[tuple[str, str], tuple[RefusedPeer, float]] = {}  # by name and host, the latest last

    def add(self, server: str, name: str, address: str, refusal: Refusal) -> None:
        name, why = printable(name)[:NAME_CHARACTERS_MAX], printable(refusal.text)[:TEXT_CHARACTERS_MAX]
        peer, where = name or "an unnamed peer", address or "an unknown address"
        complaints.warn(f"{server} refused a connection of {peer} from {where}: {why}")
        key = (name, address.rpartition(":")[0])
        before = self._peers.pop(key, None)
        count = before[0].count + 1 if before is not None else 1
        self._peers[key] = RefusedPeer(name, address, why, count, refusal.code.value), time.monotonic()
        if len(self._peers) > KEPT_MAX:
            del self._peers[next(iter(self._peers))]

    def recent(self) -> tuple[RefusedPeer, ...]:
        """Of the last minute."""
        now = time.monotonic()
        return tuple(peer for peer, at in self._peers.values() if now - at <= KEPT_S)
