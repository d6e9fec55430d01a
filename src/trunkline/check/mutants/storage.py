"""Mutants of a node's storage: streams, recovery, free space, and what it reports."""

from __future__ import annotations

from trunkline.check import disks
from trunkline.check.mutant import Mutant
from trunkline.check.mutants.patches import patch, without_records
from trunkline.core import storage as storing
from trunkline.core.effects import Address, Effects, Message, Send
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
    "streams S3": "Only fillers and coordinators send repairs, and only below an end that they read in the "
    "projection: a node that accepted them without knowing that end would store the same frames. The rule guards "
    "against peers that break theirs; tests of the role cover it.",
    "storage N5": "A client that gets such an answer asks others: below an end the filler asks all members, and at "
    "the tail the segment ends, where a stream that lost data has no vote. The wrong answer costs time, and no run "
    "ends wrong.",
    "lease L2": "A client that is refused for lack of space uses other nodes (A9, C11). The registry only saves "
    "attempts that would be refused, and no run ends differently; tests of the role and of real clusters cover it.",
    "recovery V4": "Without it a sealed stream that rotted would be uncertain instead of lost. The two differ only "
    "where every member of a group rotted, and there V3 alone already gives an entry up.",
}


def _acknowledge_other_value(self: StorageNode, source: Address, stream: Stream, message: Write) -> Effects:
    """A write to a position that holds another value is acknowledged."""
    return [
        Send(e.to, Stored(e.message.stream, e.message.offered))
        if isinstance(e, Send) and isinstance(e.message, Written)
        else e
        for e in _on_write(self, source, stream, message)
    ]


def _leave_uncertain_open(self: Stream, image: StreamImage) -> None:
    _stream(self, image)
    self.sealed = image.sealed or image.data_loss


def _answer_released_only(self: Stream) -> int:
    """The answer to Seal counts released entries only."""
    return self.lac + 1 if self.descriptor.policy is Policy.BROADCAST else _seal_answer(self)


def _end_in_memory(self: StorageNode, source: Address, message: Finalize) -> Effects:
    return without_records(_on_finalize(self, source, message), StreamEnding)


def _never_report_loss(slots: tuple[Slot, ...], own_mark: int = 0) -> Recovered:
    found = recover(slots, own_mark)
    return Recovered(found.kept, found.frames, False, found.uncertain)


def _accept_copies_as_repairs(stream: Stream, message: Write) -> Space:
    return Space.EXHAUSTED if message.repair else _refused_from(stream, message)


def _accept_entries_as_fills(stream: Stream, message: Write) -> Space:
    return _refused_from(stream, message) if message.repair else Space.EXHAUSTED


def _repair_to_last_byte(self: StorageNode, source: Address, stream: Stream, message: Write) -> Effects:
    space, self.space = self.space, min(self.space, Space.FULL)
    effects = _on_write(self, source, stream, message)
    self.space = space
    return effects


def _hide_damage(self: LeaseKeeper, source: Address, message: Message) -> Effects:
    return [] if isinstance(message, DamageFound) else _lease_on_message(self, source, message)


STORAGE_MUTANTS = (
    Mutant(
        "any-value-is-stored",
        "a write to a position that holds another value is acknowledged",
        "late-writer",
        patch((StorageNode, "_on_write", _acknowledge_other_value)),
        ("TotalOrder", "ReadCommitted", "CommitDurability"),
        "swarm",
        50,
        breaks=("streams S1",),
    ),
    Mutant(
        "uncertain-stays-open",
        "a stream that may have lost data accepts writes at positions that it may have lost",
        "roll-rot",
        patch((Stream, "__init__", _leave_uncertain_open)),
        ("Progress", "TotalOrder", "NoLostAck"),
        "swarm",
        200,
        breaks=("streams S6",),
    ),
    Mutant(
        "broadcast-seal-forgets-unreleased",
        "the answer to the seal of a broadcast stream counts released entries, not acknowledged ones",
        "takeover",
        patch((Stream, "seal_answer", _answer_released_only)),
        "NoLostAck",
        "swarm",
        50,
        breaks=("streams S4",),
    ),
    Mutant(
        "end-not-persisted",
        "an acknowledged end is lost in a crash",
        "finalize-restart",
        patch((StorageNode, "_on_finalize", _end_in_memory)),
        "EndsKept",
        "breadth",
        5_000,
        breaks=("storage N2",),
    ),
    Mutant(
        "loss-below-mark-unnoticed",
        "a bad frame below a later frame's mark is dropped silently",
        "broadcast-rot-below-mark",
        patch((disks, "recover", _never_report_loss)),
        ("NoLostAck", "TotalOrder"),
        "swarm",
        300,
        breaks=("recovery V1",),
    ),
    Mutant(
        "copy-on-tight-disk",
        "a tight disk accepts copies as it accepts repairs",
        "filling-joiner",
        patch((storing, "_refused_from", _accept_copies_as_repairs)),
        "KeepsRoom",
        "breadth",
        40_000,
        breaks=("storage N6",),
    ),
    Mutant(
        "entry-on-full-disk",
        "a full disk accepts entries as it accepts fills",
        "filling-member",
        patch((storing, "_refused_from", _accept_entries_as_fills)),
        "KeepsRoom",
        "breadth",
        5_000,
        breaks=("storage N6",),
    ),
    Mutant(
        "repair-to-the-last-byte",
        "fills and repairs use the space reserved for the manifest",
        "exhausted-repair",
        patch((StorageNode, "_on_write", _repair_to_last_byte)),
        "KeepsRoom",
        "breadth",
        60_000,
        breaks=("storage N6",),
    ),
    Mutant(
        "damage-untold",
        "a node does not report the damage that it found",
        "scrub",
        patch((LeaseKeeper, "on_message", _hide_damage)),
        "Progress",
        "swarm",
        20,
        breaks=("lease L1",),
    ),
)
