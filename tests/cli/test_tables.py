"""Output of commands: tables, sizes, progress and warnings."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from trunkline.cli.status import members, warnings
from trunkline.cli.tables import Bar, plural, size, table
from trunkline.core.status import LogStatus, MemberStatus, SegmentStatus


def test_a_table_fits_its_contents_and_numbers_are_right_aligned() -> None:
    assert table(["name", "n"], [["a", 1], ["long name", None], ["b", 1000]]) == (
        "name          n\n---------  ----\na             1\nlong name     -\nb          1000"
    )
    assert table(["name", "live"], []) == "name  live\n----  ----"
    assert table(["live"], [[True], [False]]).splitlines()[2:] == ["yes", "no"]


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "-"), (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 << 20, "5.0 MiB"), (3 << 40, "3.0 TiB")],
)
def test_a_size_has_a_suitable_unit(count: int | None, text: str) -> None:
    assert size(count) == text


def test_a_count_of_one_is_singular() -> None:
    assert (plural(1, "node"), plural(2, "node")) == ("1 node", "2 nodes")
    assert plural(1000, "entry", "entries") == "1,000 entries"


def test_a_bar_shows_the_share_and_the_rate() -> None:
    assert Bar("append").text(500, 2.0) == "append: 500 (250/s)"
    assert Bar("read", 1000).text(500, 1.0) == f"read: [{'#' * 15}{' ' * 15}]  50% 500 of 1,000 (500/s)"


def member(node: str, joining: bool = False) -> MemberStatus:
    return MemberStatus(node, joining=joining)


def segment(*groups: tuple[MemberStatus, ...]) -> SegmentStatus:
    return SegmentStatus(groups=groups)


def log(*segments: SegmentStatus, blocked: bool = False) -> LogStatus:
    return LogStatus("a", replicas=3, segments=segments, blocked=blocked, gaps=((3, 5),))


def test_members_are_shown_from_head_to_tail_and_joiners_are_marked() -> None:
    assert members(segment((member("n1"), member("n2", True)), (member("n3"),))) == "n1 > n2+joining / n3"


def test_missing_copies_blocked_logs_and_losses_are_warnings() -> None:
    full = segment((member("n1"), member("n2"), member("n3")))
    assert warnings(replace(log(full), gaps=())) == []
    lone = segment((member("n1"), member("n2", True)))
    fewer = segment((member("n1"), member("n2")))
    found = warnings(log(lone, fewer, blocked=True))
    assert [text.split(":")[0] for text in found] == ["BLOCKED", "NO REDUNDANCY", "fewer copies", "lost"]
    assert found[-1] == "lost: a, positions 3 to 4"
