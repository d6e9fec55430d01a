"""Mutants of disks: rules of the world that recovery depends on."""

from __future__ import annotations

from trunkline.check import disks
from trunkline.check.mutant import Mutant
from trunkline.check.mutants.patches import patch
from trunkline.core.recovery import Condition, Recovered, Slot, recover


def _keep_frames_after_bad(slots: tuple[Slot, ...], own_mark: int = 0) -> Recovered:
    """Good frames after a bad one are kept, and the missing frame is not reported."""
    good = tuple(slot.frame for slot in slots if slot.condition is Condition.GOOD)
    return Recovered(len(slots), good, False, False)


def _never_uncertain(slots: tuple[Slot, ...], own_mark: int = 0) -> Recovered:
    found = recover(slots, own_mark)
    return Recovered(found.kept, found.frames, found.data_loss, False)


def _trust_bad_slots(files: disks.StoredStream) -> disks.StoredStream:
    """Recovery trusts the content of a bad slot."""
    good = tuple(Slot(slot.frame, slot.mark) for slot in files.slots)
    return files._replace(slots=good)


DISK_MUTANTS = (
    Mutant(
        "torn-write-valid",
        "a torn or rotten frame counts as valid",
        "rot",
        patch((disks, "_judged", _trust_bad_slots)),
        ("TotalOrder", "ReadCommitted", "NoLostAck"),
        "swarm",
        1_000,
        breaks=("recovery V5",),
    ),
    Mutant(
        "rot-never-uncertain",
        "a frame cut above the last mark does not make the stream uncertain",
        "broadcast-rot",
        patch((disks, "recover", _never_uncertain)),
        ("NoLostAck",),
        "swarm",
        2_000,
        breaks=("recovery V3",),
    ),
    Mutant(
        "good-behind-bad",
        "recovery keeps good frames after a bad one, and does not report it",
        "broadcast-rot",
        patch((disks, "recover", _keep_frames_after_bad)),
        ("NoLostAck",),
        "swarm",
        2_000,
        breaks=("recovery V2",),
    ),
)
