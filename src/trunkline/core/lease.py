"""The lease keeper of a process: registers the process, and renews its lease.

States
    joining --Registered--> fresh --no answer for lease_ms--> stale --Registered--> fresh

Rules
 L1  Damage is reported at once, and with every later renewal: a coordinator with an older count checks the node again.
 L2  Less space is reported at once, and with every later renewal, so that nothing is placed where it would be refused.
     More space is reported with the next renewal.
"""

from __future__ import annotations

import enum

from msgspec.structs import replace

from trunkline.core.effects import Address, CancelTimer, Effects, Message, Send, SetTimer
from trunkline.core.messages import NodeInfo, Register, Registered
from trunkline.core.siblings import DamageFound, SpaceReported


class LeaseState(enum.Enum):
    JOINING = "joining"
    FRESH = "fresh"
    STALE = "stale"


class LeaseKeeper:
    def __init__(self, info: NodeInfo, register: Address, *, retry_ms: int, lease_ms: int | None = None) -> None:
        self.info = info
        self.register = register
        self.retry_ms = retry_ms
        self.lease_ms = lease_ms  # None: registers once, without a lease
        self.state = LeaseState.JOINING

    @property
    def phase(self) -> str:
        return self.state.value

    def on_start(self) -> Effects:
        return self._renew()

    def on_choice(self, key: str, option: object) -> Effects:
        raise AssertionError(f"a lease keeper makes no choice, but {key} was chosen")

    def on_timer(self, key: str) -> Effects:
        if key == "renew":
            return self._renew()
        self.state = LeaseState.STALE
        return []

    def on_message(self, source: Address, message: Message) -> Effects:
        match message:
            case Registered(_, start) if start == self.info.start:
                return self._on_registered()
            case Registered():
                return []
            case DamageFound():
                self.info = replace(self.info, damaged=self.info.damaged + 1)  # L1
                return self._renew()
            case SpaceReported(space) if space is self.info.space:
                return []
            case SpaceReported(space):
                less = space > self.info.space
                self.info = replace(self.info, space=space)  # L2
                return self._renew() if less or self.lease_ms is None else []
        raise AssertionError(f"a lease keeper does not accept {message}")

    def _renew(self) -> Effects:
        return [Send(self.register, Register(self.info)), SetTimer("renew", self.retry_ms)]

    def _on_registered(self) -> Effects:
        self.state = LeaseState.FRESH
        if self.lease_ms is None:
            return [CancelTimer("renew")]
        return [SetTimer("renew", self.retry_ms), SetTimer("lease", self.lease_ms)]
