"""One transaction for several members: who is written, who is left out, and what is reported (U1 to U5)."""

from __future__ import annotations

import pytest

from trunkline.core.fence import PlannedWrite, StoredPosition
from trunkline.core.group_commit import GroupCommit, GroupStage, MemberFate

AT_FIVE = StoredPosition(5, 2, "five", "lake")
FLUSH = PlannedWrite(5, "five", 8, "eight", 3, "lake")


def group(*names: str, races_max: int = 16) -> GroupCommit:
    return GroupCommit(dict.fromkeys(names, FLUSH), races_max)


def fates(commit: GroupCommit) -> dict[str, MemberFate]:
    return {name: verdict.fate for name, verdict in commit.verdicts.items()}


def test_u1_each_member_is_judged_by_what_it_holds_and_only_those_that_may_are_written() -> None:
    commit = group("already", "fenced", "fine", "foreign", "moved")
    held = {
        "already": StoredPosition(8, 2, "eight", "lake"),
        "fenced": AT_FIVE._replace(token=4),
        "fine": AT_FIVE,
        "foreign": AT_FIVE._replace(source="other"),
        "moved": AT_FIVE._replace(position=6),
    }
    assert commit.judge(held) == ("fine",)
    commit.committed()
    assert fates(commit) == {
        "already": MemberFate.ALREADY,
        "fenced": MemberFate.FENCED,
        "fine": MemberFate.APPLIED,
        "foreign": MemberFate.FOREIGN,
        "moved": MemberFate.MOVED,
    }
    assert {name: verdict.held for name, verdict in commit.verdicts.items()} == held


def test_a_group_without_members_is_over_at_once_and_one_that_may_not_be_written_after_it_was_judged() -> None:
    assert GroupCommit({}).stage is GroupStage.OVER
    commit = group("a")
    assert commit.judge({"a": AT_FIVE._replace(token=4)}) == ()
    assert commit.stage is GroupStage.OVER


def test_u2_a_member_that_was_undone_alone_leaves_the_others_in_the_transaction() -> None:
    commit = group("a", "b", "c")
    commit.judge(dict.fromkeys("abc", AT_FIVE))
    commit.leave_out("b", undone_alone=True)
    assert (commit.stage, commit.writing) == (GroupStage.WRITING, ("a", "c"))
    commit.committed()
    assert fates(commit) == {"a": MemberFate.APPLIED, "b": MemberFate.FAILED, "c": MemberFate.APPLIED}


def test_u2_u4_if_everything_was_undone_the_others_are_read_and_judged_again() -> None:
    commit = group("a", "b", "c")
    commit.judge(dict.fromkeys("abc", AT_FIVE))
    commit.leave_out("b", undone_alone=False)
    assert (commit.stage, commit.writing, commit.waiting) == (GroupStage.READING, (), ("a", "c"))
    assert commit.judge({"a": AT_FIVE._replace(token=9), "c": AT_FIVE}) == ("c",)
    commit.committed()
    assert fates(commit) == {"a": MemberFate.FENCED, "b": MemberFate.FAILED, "c": MemberFate.APPLIED}


@pytest.mark.parametrize("alone", [False, True])
def test_u2_a_group_whose_members_all_failed_is_over(alone: bool) -> None:
    commit = group("a", "b")
    for name in "ab":
        if commit.stage is GroupStage.READING:
            commit.judge(dict.fromkeys(commit.waiting, AT_FIVE))
        commit.leave_out(name, undone_alone=alone)
    assert commit.stage is GroupStage.OVER
    assert set(fates(commit).values()) == {MemberFate.FAILED}


def test_u4_after_a_lost_race_everything_is_read_and_judged_again() -> None:
    commit = group("a", "b")
    commit.judge(dict.fromkeys("ab", AT_FIVE))
    commit.lost_race()
    assert (commit.stage, commit.writing) == (GroupStage.READING, ())
    assert commit.judge({"a": StoredPosition(8, 3, "eight", "lake"), "b": AT_FIVE}) == ("b",)
    commit.committed()
    assert fates(commit) == {"a": MemberFate.ALREADY, "b": MemberFate.APPLIED}


def test_u4_after_too_many_lost_races_the_rest_is_busy() -> None:
    commit = group("a", "b", races_max=2)
    commit.judge({"a": AT_FIVE._replace(token=4), "b": AT_FIVE})
    commit.lost_race()
    commit.judge({"b": AT_FIVE})
    commit.lost_race()
    assert commit.stage is GroupStage.OVER
    assert fates(commit) == {"a": MemberFate.FENCED, "b": MemberFate.BUSY}


def test_u5_an_unknown_outcome_is_unknown_for_those_that_were_written_and_for_no_other() -> None:
    commit = group("a", "b", "c")
    commit.judge({"a": AT_FIVE, "b": AT_FIVE._replace(token=4), "c": AT_FIVE})
    commit.leave_out("c", undone_alone=True)
    assert MemberFate.APPLIED not in fates(commit).values()
    commit.unknown()
    assert fates(commit) == {"a": MemberFate.UNKNOWN, "b": MemberFate.FENCED, "c": MemberFate.FAILED}


def test_what_happens_out_of_turn_is_a_bug() -> None:
    commit = group("a", "b")
    with pytest.raises(AssertionError):
        commit.committed()
    commit.judge(dict.fromkeys("ab", AT_FIVE))
    with pytest.raises(AssertionError):
        commit.judge(dict.fromkeys("ab", AT_FIVE))
    commit.leave_out("a", undone_alone=True)
    with pytest.raises(AssertionError):
        commit.leave_out("a", undone_alone=True)


def test_ten_thousand_members_cost_little_more_than_their_number() -> None:
    """Each is left out once, and then the rest is reported."""
    names = [f"d{n:05}" for n in range(10_000)]
    commit = GroupCommit(dict.fromkeys(names, FLUSH))
    commit.judge(dict.fromkeys(names, AT_FIVE._replace(token=4)))
    assert commit.stage is GroupStage.OVER
    commit = GroupCommit(dict.fromkeys(names, FLUSH))
    commit.judge(dict.fromkeys(names, AT_FIVE))
    commit.committed()
    assert len(commit.verdicts) == 10_000
