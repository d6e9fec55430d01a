"""Who was refused of late, for the log and for the status: a node that is turned away should not go unseen."""

from __future__ import annotations

import logging
import time
from typing import Final

from trunkline.core.status import RefusedPeer
from trunkline.net.complaints import Complaints, printable

KEPT_MAX: Final = 32  # more: a stranger fills the status
TOLD_S: Final = 60.0  # whoever still tries comes back within seconds
NAME_CHARACTERS_MAX: Final = 100
TEXT_CHARACTERS_MAX: Final = 500

complaints = Complaints(logging.getLogger("trunkline.net"))


class Refusals:
    def __init__(self) -> None:
        self._peers: dict[tuple[str, str], tuple[RefusedPeer, float]] = {}  # by name and host, the latest last

    def happened(self, server: str, name: str, address: str, why: str) -> None:
        name, why = printable(name)[:NAME_CHARACTERS_MAX], printable(why)[:TEXT_CHARACTERS_MAX]
        complaints.warn(f"{server} refused a connection of {name or 'a stranger'} from {address or 'nowhere'}: {why}")
        key = (name, address.rpartition(":")[0])
        before = self._peers.pop(key, None)
        count = before[0].count + 1 if before is not None else 1
        self._peers[key] = RefusedPeer(name, address, why, count), time.monotonic()
        if len(self._peers) > KEPT_MAX:
            del self._peers[next(iter(self._peers))]

    def recent(self) -> tuple[RefusedPeer, ...]:
        """Of the last minute."""
        now = time.monotonic()
        return tuple(peer for peer, at in self._peers.values() if now - at <= TOLD_S)
