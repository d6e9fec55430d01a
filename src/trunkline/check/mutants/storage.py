"""Known bugs of what a node keeps: streams, recovery, room, and what it tells of itself."""

from __future__ import annotations

from trunkline.check import disks
from trunkline.check.mutant import Mutant
from trunkline.check.mutants.patches import patch
from trunkline.core import storage as storing
from trunkline.core.effects import Address, Effects, Message, Persist, Send
from trunkline.core.lease import LeaseKeeper
from trunkline.core.messages import Finalize, Space, Stored, Write, Written
from trunkline.core.projection import Policy
from trunkline.core.recovery import Recovered, Slot, recover
from trunkline.core.siblings import DamageFound
from trunkline.core.storage import StorageNode
from trunkline.core.streams import Stream, StreamEnding, StreamImage

_on_write = StorageNode._on_write
_on_finalize = StorageNode._on_finalize
_seal_answer = Stream.seal_answer
_stream = Stream.__init__
_refused_from = storing._refused_from
_lease_on_message = LeaseKeeper.on_message

UNSEEN = {
    "streams S3": "Only fillers and coordinators send repairs, and only below an end that they have read in the "
    "metadata: a node that took them without knowing that end would store the same frames. It guards against peers "
    "that break their rules; tests of the role show it.",
    "storage N5": "Whoever is told that nothing is there asks on: below an end the filler asks all members, and at the "
    "tail the segment is ended, in which a stream that lost data has no vote. The lie costs time, and no run ends "
    "wrong.",
    "lease L2": "Whoever is refused for lack of room goes elsewhere by itself (A9, C11). What the registry knows saves "
    "attempts that would be refused, and no run ends otherwise; tests of the role and of real clusters show it.",
    "recovery V4": "Without it a sealed stream that rotted would be uncertain instead of lost. The two differ only "
    "where every member of a group rotted, and there V3 alone already lets an entry go.",
}


def _any_value_is_stored(self: StorageNode, source: Address, stream: Stream, message: Write) -> Effects:
    """A position that holds something else is acknowledged all the same."""
    return [
        Send(e.to, Stored(e.message.stream, e.message.offered))
        if isinstance(e, Send) and isinstance(e.message, Written)
        else e
        for e in _on_write(self, source, stream, message)
    ]


def _uncertain_stays_open(self: Stream, image: StreamImage) -> None:
    _stream(self, image)
    self.sealed = image.sealed or image.data_loss


def _released_only(self: Stream) -> int:
    """Seal answers with what the owner has released."""
    return self.lac + 1 if self.descriptor.policy is Policy.BROADCAST else _seal_answer(self)


def _end_forgotten(self: StorageNode, source: Address, message: Finalize) -> Effects:
    """An end is kept in memory only."""
    return [
        e
        for e in _on_finalize(self, source, message)
        if not (isinstance(e, Persist) and isinstance(e.record, StreamEnding))
    ]


def _never_lost(slots: tuple[Slot, ...], own_mark: int = 0) -> Recovered:
    found = recover(slots, own_mark)
    return Recovered(found.kept, found.frames, False, found.uncertain)


def _copies_like_repairs(stream: Stream, message: Write) -> Space:
    return Space.EXHAUSTED if message.repair else _refused_from(stream, message)


def _entries_like_fills(stream: Stream, message: Write) -> Space:
    return _refused_from(stream, message) if message.repair else Space.EXHAUSTED


def _to_the_last_byte(self: StorageNode, source: Address, stream: Stream, message: Write) -> Effects:
    space, self.space = self.space, min(self.space, Space.FULL)
    effects = _on_write(self, source, stream, message)
    self.space = space
    return effects


def _damage_untold(self: LeaseKeeper, source: Address, message: Message) -> Effects:
    return [] if isinstance(message, DamageFound) else _lease_on_message(self, source, message)


STORAGE_MUTANTS = (
    Mutant(
        "any-value-is-stored",
        "a write to a position that holds another value is acknowledged",
        "late-writer",
        patch((StorageNode, "_on_write", _any_value_is_stored)),
        ("TotalOrder", "ReadCommitted", "CommitDurability"),
        "swarm",
        50,
        breaks=("streams S1",),
    ),
    Mutant(
        "uncertain-stays-open",
        "a stream that may have lost data takes writes where something may have been",
        "roll-rot",
        patch((Stream, "__init__", _uncertain_stays_open)),
        ("Progress", "TotalOrder", "NoLostAck"),
        "swarm",
        200,
        breaks=("streams S6",),
    ),
    Mutant(
        "broadcast-seal-forgets-unreleased",
        "the seal of a broadcast stream answers with what was released, not with all that was acknowledged",
        "takeover",
        patch((Stream, "seal_answer", _released_only)),
        "NoLostAck",
        "swarm",
        50,
        breaks=("streams S4",),
    ),
    Mutant(
        "end-not-persisted",
        "an end is answered and forgotten in a crash",
        "finalize-restart",
        patch((StorageNode, "_on_finalize", _end_forgotten)),
        "EndsKept",
        "breadth",
        5_000,
        breaks=("storage N2",),
    ),
    Mutant(
        "loss-below-mark-unnoticed",
        "a bad frame that a later one vouches for is left out without a word",
        "broadcast-rot-below-mark",
        patch((disks, "recover", _never_lost)),
        ("NoLostAck", "TotalOrder"),
        "swarm",
        300,
        breaks=("recovery V1",),
    ),
    Mutant(
        "copy-on-tight-disk",
        "a tight disk takes copies as it takes repairs",
        "filling-joiner",
        patch((storing, "_refused_from", _copies_like_repairs)),
        "KeepsRoom",
        "breadth",
        40_000,
        breaks=("storage N6",),
    ),
    Mutant(
        "entry-on-full-disk",
        "a full disk takes entries as it takes fills",
        "filling-member",
        patch((storing, "_refused_from", _entries_like_fills)),
        "KeepsRoom",
        "breadth",
        5_000,
        breaks=("storage N6",),
    ),
    Mutant(
        "repair-to-the-last-byte",
        "fills and repairs take what is left for the manifest",
        "exhausted-repair",
        patch((StorageNode, "_on_write", _to_the_last_byte)),
        "KeepsRoom",
        "breadth",
        60_000,
        breaks=("storage N6",),
    ),
    Mutant(
        "damage-untold",
        "a node that found damage does not say so",
        "scrub",
        patch((LeaseKeeper, "on_message", _damage_untold)),
        "Progress",
        "swarm",
        20,
        breaks=("lease L1",),
    ),
)
