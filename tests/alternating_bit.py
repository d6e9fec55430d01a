"""Two senders and one receiver speak the alternating-bit protocol; ``check/spin/alternating_bit.pml`` is its twin."""

from __future__ import annotations

from collections.abc import Mapping

from toy_world import Quiet, main
from trunkline.check.scenario import Boot, Faults, ProcessSpec, Scenario
from trunkline.core.effects import Address, CancelTimer, Effects, Message, Persist, Record, Send, SetTimer
from trunkline.core.role import Role

VALUES = 3


class Data(Message, frozen=True):
    bit: int


class Ack(Message, frozen=True):
    bit: int


class Turned(Record, frozen=True):
    sender: str


class Sender(Quiet):
    def __init__(self) -> None:
        self.bit = 0
        self.left = VALUES

    def on_start(self) -> Effects:
        return self._send()

    def on_timer(self, key: str) -> Effects:
        return self._send()

    def on_message(self, source: Address, message: Message) -> Effects:
        assert isinstance(message, Ack)
        if not self.left or message.bit != self.bit:
            return []
        self.left -= 1
        self.bit = 1 - self.bit
        return self._send() if self.left else [CancelTimer("retry")]

    def _send(self) -> Effects:
        return [Send(main("r"), Data(self.bit)), SetTimer("retry", 10)]


class Receiver(Quiet):
    """``expects_one`` names the senders of which bit 1 is expected next; of the others it is 0."""

    def __init__(self, expects_one: frozenset[str]) -> None:
        self.expects_one = expects_one

    def on_message(self, source: Address, message: Message) -> Effects:
        assert isinstance(message, Data)
        answer = Send(source, Ack(message.bit))
        if message.bit != (source.process in self.expects_one):
            return [answer]
        self.expects_one ^= {source.process}
        return [Persist(Turned(source.process)), answer]


class TurnsDisk:
    """The image is what ``Receiver.expects_one`` was; every write is safe at once."""

    def write(self, image: frozenset[str], record: Record) -> frozenset[str]:
        assert isinstance(record, Turned)
        return image ^ {record.sender}

    def sync(self, image: frozenset[str]) -> frozenset[str]:
        return image

    def synced(self, image: frozenset[str]) -> bool:
        return True

    def after_power_cut(self, image: frozenset[str]) -> tuple[tuple[str, frozenset[str]], ...]:
        return (("all", image),)

    def after_rot(self, image: frozenset[str]) -> tuple[tuple[str, frozenset[str]], ...]:
        return ()

    def load(self, image: frozenset[str]) -> frozenset[str]:
        return image


def alternating_bit() -> Scenario:
    def sender(boot: Boot) -> Mapping[str, Role]:
        return {"main": Sender()}

    def receiver(boot: Boot) -> Mapping[str, Role]:
        return {"main": Receiver(boot.durable)}

    disk = TurnsDisk()
    return Scenario(
        "alternating-bit",
        "two senders, one receiver that crashes, a network that loses and doubles",
        (
            ProcessSpec("s0", sender, disk, frozenset()),
            ProcessSpec("s1", sender, disk, frozenset()),
            ProcessSpec("r", receiver, disk, frozenset()),
        ),
        (),
        Faults(loss=2, duplicate=1, crash=2, restart=2, early_timer=1),
        crashable=("r",),
        symmetric=(("s0", "s1"),),
    )
