"""The network between processes: one inbox per target with the messages in flight to it, as one interned number.

Bag: any message may be next. FIFO: each ordered pair of processes is a channel, and only its first message may be next.

Sending a message while ``copies`` identical ones (source, target, content) are in flight changes nothing. That keeps
the retries of a correct protocol finite. With one copy, the default, a message that is sent twice arrives once, unless
a fault doubles it (``duplicate``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trunkline.check.frozen import text
from trunkline.check.interner import Interner
from trunkline.core.effects import Address, Message


class Envelope(NamedTuple):
    source: Address
    target: Address
    message: Message

    def text(self) -> str:
        source, target = self.source, self.target
        return f"{source.process}.{source.role}>{target.process}.{target.role} {text(self.message)}"


class Flight(NamedTuple):
    """One message that may be next, and the inbox without it."""

    message: int
    rest: int


Bundle = tuple[tuple[int, int], ...]  # what one step sends: (index of the target process, number of the parcel)


class Network:
    """Interned messages and inboxes. An inbox is a tuple of message numbers: sorted, or under FIFO in channel order.

    A number occurs once for each copy in flight.

    ``texts`` and ``channels`` are indexed by a message's number, ``bundles`` by a bundle's.
    """

    EMPTY = 0

    def __init__(self, process_names: tuple[str, ...], *, fifo: bool, copies: int = 1) -> None:
        self._index_of = {name: index for index, name in enumerate(process_names)}
        self._fifo = fifo
        self._copies = copies
        self.messages: Interner[Envelope] = Interner()
        self.texts: list[str] = []
        self.channels: list[tuple[str, str]] = []
        self._channel: list[int] = []  # the index of the source process
        self._inboxes: Interner[tuple[int, ...]] = Interner()
        self._parcels: Interner[tuple[int, ...]] = Interner()
        self._bundles: Interner[Bundle] = Interner()
        self.bundles = self._bundles.values
        self._flights: dict[int, tuple[Flight, ...]] = {}
        self._added: dict[tuple[int, int], int] = {}
        self._inboxes.intern(())
        self._bundles.intern(())

    def message(self, source: Address, target: Address, message: Message) -> int:
        """The number of a message; its target must be a process of the scenario."""
        envelope = Envelope(source, target, message)
        number = self.messages.intern(envelope)
        if number == len(self.texts):
            self.texts.append(envelope.text())
            self.channels.append((source.process, target.process))
            self._channel.append(self._index_of[source.process])
        return number

    def bundle(self, messages: tuple[int, ...]) -> int:
        """The messages of one step, in order; 0: none."""
        grouped: dict[int, list[int]] = {}
        for each in messages:
            grouped.setdefault(self._index_of[self.channels[each][1]], []).append(each)
        parcels = [(index, self._parcels.intern(self._bounded(parts))) for index, parts in grouped.items()]
        return self._bundles.intern(tuple(sorted(parcels)))

    def inbox(self, messages: list[int]) -> int:
        """The inbox with exactly these messages, in sending order if channels are FIFO."""
        key = self._channel.__getitem__ if self._fifo else None
        return self._inboxes.intern(tuple(sorted(messages, key=key)))

    def contents(self, inbox: int) -> tuple[int, ...]:
        return self._inboxes.values[inbox]

    def add(self, inbox: int, parcel: int) -> int:
        """The inbox with one more parcel."""
        key = (inbox, parcel)
        number = self._added.get(key)
        if number is None:
            both = self._inboxes.values[inbox] + self._parcels.values[parcel]
            number = self._added[key] = self.inbox(list(self._bounded(both)))
        return number

    def without(self, inbox: int, dropped: list[int]) -> int:
        return self.inbox([each for each in self._inboxes.values[inbox] if each not in dropped])

    def flights(self, inbox: int) -> tuple[Flight, ...]:
        """All messages that may be next, ordered by text, so that the order does not depend on what was seen first."""
        found = self._flights.get(inbox)
        if found is None:
            nexts = sorted(self._next(inbox), key=self.texts.__getitem__)
            found = self._flights[inbox] = tuple(Flight(each, self._without_one(inbox, each)) for each in nexts)
        return found

    def _without_one(self, inbox: int, message: int) -> int:
        """The inbox without the first copy of a message."""
        left = list(self._inboxes.values[inbox])
        left.remove(message)
        return self.inbox(left)

    def _bounded(self, messages: Sequence[int]) -> tuple[int, ...]:
        """At most ``copies`` of each message, in sending order."""
        if self._copies == 1:
            return tuple(dict.fromkeys(messages))
        kept: list[int] = []
        for each in messages:
            if kept.count(each) < self._copies:
                kept.append(each)
        return tuple(kept)

    def _next(self, inbox: int) -> list[int]:
        messages = self._inboxes.values[inbox]
        if not self._fifo:
            return list(dict.fromkeys(messages))
        first: dict[int, int] = {}
        for each in messages:
            first.setdefault(self._channel[each], each)
        return list(first.values())
