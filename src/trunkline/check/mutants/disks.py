"""Known bugs of disks: rules of the world that recovery depends on."""

from __future__ import annotations

from trunkline.check import disks
from trunkline.check.mutant import Mutant
from trunkline.check.mutants.patches import patch
from trunkline.core.recovery import Condition, Recovered, Slot, recover


def _behind_the_hole(slots: tuple[Slot, ...], own_mark: int = 0) -> Recovered:
    """What looks good behind a bad frame is kept, and nothing is said of the frame that is missing."""
    good = tuple(slot.frame for slot in slots if slot.condition is Condition.GOOD)
    return Recovered(len(slots), good, False, False)


def _never_uncertain(slots: tuple[Slot, ...], own_mark: int = 0) -> Recovered:
    found = recover(slots, own_mark)
    return Recovered(found.kept, found.frames, found.data_loss, False)


def _torn_files(files: disks.StoredStream) -> disks.StoredStream:
    """Recovery believes what a bad slot claims to hold."""
    good = tuple(Slot(slot.frame, slot.mark) for slot in files.slots)
    return files._replace(slots=good)


DISK_MUTANTS = (
    Mutant(
        "torn-write-valid",
        "a torn or rotten frame is taken as valid",
        "rot",
        patch((disks, "_judged", _torn_files)),
        ("TotalOrder", "ReadCommitted", "NoLostAck"),
        "swarm",
        1_000,
        breaks=("recovery V5",),
    ),
    Mutant(
        "rot-never-uncertain",
        "a frame cut above the last mark leaves no doubt behind",
        "broadcast-rot",
        patch((disks, "recover", _never_uncertain)),
        ("NoLostAck",),
        "swarm",
        2_000,
        breaks=("recovery V3",),
    ),
    Mutant(
        "good-behind-bad",
        "recovery keeps what looks good behind a bad frame, and does not tell",
        "broadcast-rot",
        patch((disks, "recover", _behind_the_hole)),
        ("NoLostAck",),
        "swarm",
        2_000,
        breaks=("recovery V2",),
    ),
)
