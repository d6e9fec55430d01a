"""The recovery of a stream after a restart.

    found        rule        verdict
    G G G        -           all stand
    G B G2       V1          slot 1 lies below mark 2: data loss, slots 0 and 2 stand
    G B G1       V2, V3      mark 1 does not cover slot 1: cut there, whatever follows; uncertain
    G S          V2          torn at the end of the file: cut, and certainly never acknowledged
    B            V3          it may have been acknowledged and then rotted: uncertain
    B |1         V4          a seal vouches for it with mark 1: data loss

G2 is a good slot that carries mark 2, B a bad one of full length, S one in which the file ends;
|1 is a mark of the stream's own.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.driver import data
from trunkline.core.entries import Frame
from trunkline.core.recovery import Condition, Recovered, Slot, recover

GOOD, BAD, SHORT = Condition.GOOD, Condition.BAD, Condition.SHORT


def slots(drawn: str) -> tuple[Slot, ...]:
    """``"G B G2"``: conditions with their marks (0 where none is given); slot i holds the frame of position i + 1."""
    letters = {"G": GOOD, "B": BAD, "S": SHORT}
    return tuple(
        Slot(data(at, seq=at), int(word[1:] or 0), letters[word[0]]) for at, word in enumerate(drawn.split(), start=1)
    )


def naive(found: tuple[Slot, ...], own_mark: int) -> Recovered:
    """V1 to V5, read slowly: walk the file from its beginning."""
    mark = own_mark
    for slot in found:
        if slot.condition is GOOD and slot.mark > mark:
            mark = slot.mark
    standing: list[Frame] = []
    cut: list[Slot] = []
    lost = False
    kept = 0
    for index, slot in enumerate(found):
        if cut:  # V2: behind the first cut frame nothing stands
            cut.append(slot)
            continue
        if slot.condition is GOOD:
            standing.append(slot.frame)
        elif index < mark:  # V1
            lost = True
        else:
            cut.append(slot)
            continue
        kept += 1
    full_length = [slot for slot in cut if slot.condition in (GOOD, BAD)]  # V3
    return Recovered(kept, tuple(standing), lost, len(full_length) > 0)


@st.composite
def files(draw: st.DrawFn) -> tuple[Slot, ...]:
    count = draw(st.integers(0, 7))
    conditions = [draw(st.sampled_from((GOOD, GOOD, BAD))) for _ in range(count)]
    if count and draw(st.booleans()):
        conditions[-1] = SHORT  # a file ends once
    return tuple(Slot(data(i + 1, seq=i + 1), draw(st.integers(0, i)), c) for i, c in enumerate(conditions))


@given(files(), st.data())
def test_recovery_agrees_with_a_slow_reading_of_v1_to_v5(found: tuple[Slot, ...], more: st.DataObject) -> None:
    own_mark = more.draw(st.integers(0, len(found)))
    assert recover(found, own_mark) == naive(found, own_mark)


@given(files(), st.data())
def test_v5_a_bad_frame_is_never_returned(found: tuple[Slot, ...], more: st.DataObject) -> None:
    returned = recover(found, more.draw(st.integers(0, len(found)))).frames
    assert all(slot.frame not in returned for slot in found if slot.condition is not GOOD)


@pytest.mark.parametrize(
    ("drawn", "own_mark", "kept", "positions", "data_loss", "uncertain"),
    [
        ("", 0, 0, (), False, False),
        ("G G1 G2", 0, 3, (1, 2, 3), False, False),
        ("G B G2", 0, 3, (1, 3), True, False),  # V1
        ("G B", 2, 2, (1,), True, False),  # V4: a seal, or an idle stream, wrote the mark
        ("G B G1", 0, 1, (1,), False, True),  # V2, V3
        ("G S", 0, 1, (1,), False, False),  # V2: what is torn was never acknowledged
        ("B", 0, 0, (), False, True),  # V3
        ("B S", 0, 0, (), False, True),  # V3: one of what was cut had its full length
        ("G B G2 B G3", 0, 3, (1, 3), True, True),  # V1 and V2 at once
    ],
)
def test_drawn_examples(
    drawn: str, own_mark: int, kept: int, positions: tuple[int, ...], data_loss: bool, uncertain: bool
) -> None:
    found = recover(slots(drawn), own_mark)
    assert (found.kept, tuple(f.first for f in found.frames)) == (kept, positions)
    assert (found.data_loss, found.uncertain) == (data_loss, uncertain)


# A mark above the number of slots means that acknowledged frames are missing, for example because the file was
# cut exactly between two frames.
def test_v1_a_file_that_ends_before_its_mark_has_lost_data() -> None:
    assert recover(slots("G G1"), own_mark=3).data_loss
