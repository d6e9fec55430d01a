"""Histories that the monitors of owners and of metadata accept, and for each clause one that they reject."""

from __future__ import annotations

from msgspec.structs import replace

from check.histories import (
    ADMITTED,
    CLOSED,
    ENDED,
    FIRST,
    JOINING,
    LOST,
    NARROW,
    NEXT,
    REPAIRED,
    SEQUENCER,
    TRIMMED,
    A,
    B,
    C,
    Case,
    History,
    announced,
    changed,
    committed,
    data,
    filled,
    finalized,
    forged,
    projected,
)
from trunkline.check.monitors import (
    BoundaryWrittenOnce,
    SingleOwner,
)
from trunkline.check.scenarios.cluster import LOG
from trunkline.core.events import (
    PositionsGranted,
    ReopenRequested,
    StreamDropped,
    StreamSealed,
)
from trunkline.core.projection import (
    DeleteLog,
    EndSegment,
    ForgetSegment,
    Gap,
    MarkRepaired,
    Owner,
    Policy,
    Projection,
    RaiseTrim,
    Reopen,
    apply,
)

# ------------------------------------------------------------------------------------------------------------- owners


def granted(first: int, count: int = 1, *, owner: Owner = SEQUENCER, segment: int = 0) -> PositionsGranted:
    return PositionsGranted(LOG, segment, owner, first, count)


RESTARTED = Owner("a", 2)

SINGLE_OWNER = [
    Case(
        "the owner grants, commits and lets holes be filled",
        SingleOwner(),
        projected(FIRST)
        + announced(
            granted(1), granted(3, 2), committed(data(1, 7), SEQUENCER), committed(data(1, 7)), filled(2), filled(4)
        )
        + projected(ENDED)
        + announced(granted(4, segment=1), filled(3), filled(4, 1)),
    ),
    Case("a segment that has ended is filled up to its end", SingleOwner(ENDED), announced(filled(3))),
    Case(
        "another start of the owner grants",
        SingleOwner(FIRST),
        announced(granted(1, owner=RESTARTED)),
        "ordered segment 0, which belongs to",
    ),
    Case("an unknown segment is granted", SingleOwner(FIRST), announced(granted(4, segment=1)), "belongs to None"),
    Case(
        "another owner commits",
        SingleOwner(FIRST),
        announced(committed(data(1, 7), RESTARTED)),
        "ordered segment 0, which belongs to",
    ),
    Case("a position is granted twice", SingleOwner(FIRST), announced(granted(1, 2), granted(2)), "2 of segment 0 was"),
    Case(
        "a position below the base is granted",
        SingleOwner(ENDED),
        announced(granted(3, segment=1)),
        "3 of segment 1 was granted twice",
    ),
    Case("a position of an earlier grant is filled", SingleOwner(FIRST, granted=3), announced(filled(2))),
    Case("a position above the grants is filled", SingleOwner(FIRST, granted=3), announced(filled(3)), "never granted"),
    Case(
        "a hole is filled that was never granted", SingleOwner(FIRST), announced(granted(1), filled(2)), "never granted"
    ),
    Case("a hole is filled past the end", SingleOwner(ENDED), announced(filled(4)), "position 4 was filled"),
    Case("nothing was granted, and a hole is filled", SingleOwner(ENDED), announced(filled(4, 1)), "never granted"),
]

# ------------------------------------------------------------------------------------------------------------ metadata

SEG = ENDED.segments[0]
STAGES = (FIRST, ENDED, REPAIRED, NARROW, JOINING, ADMITTED)
FORGOTTEN = changed(ADMITTED, RaiseTrim(3), ForgetSegment(0))
OPENED = apply(CLOSED, Reopen(NEXT))
ASKED = announced(ReopenRequested(LOG))
ONLY_MEMBER = (replace(SEG.members()[0], joining=True),)


def boundary(clause: str, history: History, verdict: str = "", begin: Projection | None = None) -> Case:
    return Case(clause, BoundaryWrittenOnce(begin), history, verdict)


def fixed(field: str, value: object) -> Case:
    return boundary(
        f"a segment changes its {field}",
        projected(ENDED, forged(ENDED, replace(SEG, **{field: value}))),
        "segment 0 changed a fixed property",
    )


BOUNDARY = [
    boundary(
        "a segment ends, and its streams are finalized, dropped and forgotten",
        projected(*STAGES[:2])
        + announced(StreamSealed("n", LOG, 0, A, 4), *map(finalized, (A, B, C)))
        + projected(*STAGES[2:4])
        + announced(StreamDropped("c", LOG, C))
        + projected(*STAGES[4:], ADMITTED, changed(ADMITTED, RaiseTrim(3)), FORGOTTEN)
        + announced(finalized(A), StreamDropped("a", LOG, A)),
    ),
    boundary("an operator closes and opens", projected(FIRST, CLOSED) + ASKED + projected(OPENED)),
    boundary("a closed log is repaired and stays closed", projected(CLOSED, apply(CLOSED, MarkRepaired(0)))),
    boundary("a segment without a member is declared lost", projected(LOST), begin=FIRST),
    boundary(
        "an end is written again", projected(ENDED, forged(ENDED, replace(SEG, end=3))), "ended at 4, but now at 3"
    ),
    boundary(
        "the end of the first projection is written again",
        projected(forged(ENDED, replace(SEG, end=5))),
        "ended at 4, but now at 5",
        begin=ENDED,
    ),
    boundary(
        "a stream gets another end",
        projected(ENDED) + announced(finalized(A, 3)),
        "was finalized at 3, but the projection has 4",
    ),
    boundary("a stream of an open segment ends", projected(ENDED) + announced(finalized("x", 5, 1)), "has None"),
    boundary(
        "a stream of the projection is dropped",
        projected(REPAIRED) + announced(StreamDropped("c", LOG, C)),
        "was dropped",
    ),
    boundary(
        "a finalized stream is sealed",
        projected(ENDED) + announced(finalized(A), StreamSealed("n", LOG, 0, A, 4)),
        "finalized and then sealed again",
    ),
    boundary(
        "a stream comes back",
        projected(REPAIRED, NARROW, forged(NARROW, replace(SEG, repaired=True))),
        f"stream {C} left the projection and returned",
    ),
    boundary(
        "an end is taken back",
        projected(ENDED, forged(ENDED, replace(SEG, end=None))),
        "begins at 4, but the previous one ends at None",
    ),
    boundary(
        "a segment does not begin where the previous one ends",
        projected(ENDED, forged(ENDED, segments=(SEG, replace(ENDED.last, base=5)))),
        "begins at 5, but the previous one ends at 4",
    ),
    boundary(
        "a closed log's end is taken back",
        projected(CLOSED, forged(CLOSED, replace(CLOSED.last, end=None))),
        "ended at",
    ),
    boundary(
        "a segment has another number of groups",
        projected(ENDED, forged(ENDED, replace(SEG, groups=(*SEG.groups, SEG.groups[0])))),
        "had 1 groups and now has 2",
    ),
    boundary("an epoch is left out", projected(FIRST, forged(ENDED)), "epoch 1 was followed by 3"),
    boundary("an epoch is used twice", projected(ENDED, replace(REPAIRED, epoch=2)), "epoch 2 was followed by 2"),
    boundary("the trim point goes back", projected(forged(TRIMMED, trim=0)), "went back", begin=TRIMMED),
    boundary(
        "a segment is forgotten early",
        projected(forged(ADMITTED, trim=2), forged(FORGOTTEN, epoch=ADMITTED.epoch + 2, trim=2)),
        "segment 0 was forgotten before it was trimmed",
    ),
    boundary(
        "an open segment is forgotten", projected(ENDED, forged(ENDED, segments=(SEG,))), "segment 1 was forgotten"
    ),
    fixed("epoch", 2),
    fixed("base", 2),
    fixed("policy", Policy.BROADCAST),
    fixed("stripe_unit", 1),
    fixed("owner", RESTARTED),
    boundary("a repair is taken back", projected(REPAIRED, forged(REPAIRED, SEG)), "was repaired and no longer is"),
    boundary(
        "survivors change their order",
        projected(ENDED, forged(ENDED, replace(SEG, groups=(SEG.groups[0][::-1],)))),
        "survivors of segment 0 changed their order",
    ),
    boundary(
        "the last member is removed",
        projected(ENDED, forged(ENDED, replace(SEG, groups=((),)))),
        "a group of segment 0 has no serving member left",
    ),
    boundary(
        "the last member only joins",
        projected(ENDED, forged(ENDED, replace(SEG, groups=(ONLY_MEMBER,)))),
        "a group of segment 0 has no serving member left",
    ),
    boundary(
        "the members of a segment other than the lost one are removed",
        projected(ENDED, forged(ENDED, replace(SEG, groups=((),)), gaps=(Gap(4, 6),))),
        "no serving member left",
    ),
    boundary(
        "a member joins before the repair",
        projected(ENDED, forged(ENDED, replace(JOINING.segments[0], repaired=False))),
        "segment 0 gained a member before it was repaired",
    ),
    boundary(
        "a member joins an open segment",
        projected(FIRST, forged(FIRST, replace(JOINING.segments[0], end=None, repaired=False))),
        "gained a member",
    ),
    boundary(
        "a member joins and serves at once",
        projected(NARROW, forged(NARROW, ADMITTED.segments[0])),
        "gained a member",
    ),
    boundary("a closed log opens by itself", projected(FIRST, CLOSED, OPENED), "reopened without a request"),
    boundary(
        "one request opens a log twice",
        projected(CLOSED)
        + ASKED
        + projected(
            OPENED,
            changed(OPENED, EndSegment(1, 4, OPENED.last.groups, None)),
            changed(OPENED, EndSegment(1, 4, OPENED.last.groups, None), Reopen(NEXT)),
        ),
        "reopened without a request",
    ),
    boundary(
        "a log is closed, then deleted",
        projected(CLOSED, changed(CLOSED, DeleteLog())),
    ),
    boundary(
        "an open log is deleted",
        projected(FIRST, forged(FIRST, deleted=True)),
        "an open log was deleted",
    ),
    boundary(
        "a deleted log is changed",
        projected(CLOSED, changed(CLOSED, DeleteLog()), forged(changed(CLOSED, DeleteLog()), trim=3)),
        "a deleted log was changed",
    ),
]
