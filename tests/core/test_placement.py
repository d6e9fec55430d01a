"""Placement: which nodes a new segment may use, and which option is the default."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from core.driver import registered
from trunkline.core.messages import NodeInfo, NodeState, Space
from trunkline.core.placement import OPTIONS_MAX, eligible, openings, replacement, with_space
from trunkline.core.projection import Opening, Owner, Policy, Settings, create

CHAIN = Settings(Policy.CHAIN, replicas=2)
BROADCAST = Settings(Policy.BROADCAST, replicas=2)
W = Owner("w", 1)


def nodes_of(opening: Opening) -> list[str]:
    return [" ".join(seat.node for seat in group) for group in opening.groups]


def test_only_live_nodes_that_are_neither_leaving_nor_silent_are_eligible() -> None:
    a, b, c, d, e = registered("a b c d e", dead="b")
    nodes = (a, b, replace(c, state=NodeState.DRAINING), replace(d, state=NodeState.GONE), e)
    assert eligible(nodes, ("e",)) == (a,)


def test_members_that_answered_keep_their_places_in_the_first_option() -> None:
    options = openings(CHAIN, registered("a b c"), preferred=("c", "b"))
    assert nodes_of(options[0]) == ["c b"]
    assert {nodes_of(option)[0] for option in options} == {"c b", "b c", "c a", "a c", "b a", "a b"}


def test_silent_nodes_are_never_used() -> None:
    options = openings(CHAIN, registered("a b c"), preferred=("a", "b"), silent=("a",))
    assert all("a" not in " ".join(nodes_of(option)) for option in options)
    assert nodes_of(options[0]) == ["b c"]


def test_suspects_are_used_only_if_no_other_node_is_left_and_do_not_sequence() -> None:
    assert all(
        "a" not in nodes_of(option)[0].split() for option in openings(CHAIN, registered("a b c"), suspects=("a",))
    )
    for option in openings(CHAIN, registered("a b"), preferred=("a", "b"), suspects=("a",)):
        assert set(nodes_of(option)[0].split()) == {"a", "b"}
        assert option.owner == Owner("b", 1)
    [alone] = openings(CHAIN, registered("a"), suspects=("a",))
    assert alone.owner == Owner("a", 1)


def test_the_width_falls_to_what_is_left_but_not_below_the_minimum() -> None:
    assert nodes_of(openings(CHAIN, registered("a"))[0]) == ["a"]
    assert openings(Settings(Policy.CHAIN, replicas=3, min_replicas=2), registered("a")) == ()
    assert openings(CHAIN, ()) == ()


def test_an_owner_is_the_present_start_of_its_node() -> None:
    [option] = openings(CHAIN, (NodeInfo("a", 5, 9),))
    assert option.owner == Owner("a", 9)
    assert option.groups[0][0].incarnation == 5


def test_heads_rotate_over_the_nodes_of_the_groups() -> None:
    settings = Settings(Policy.CHAIN, replicas=2, groups=3)
    first = openings(settings, registered("a b c"))[0]
    assert nodes_of(first) == ["a b", "b c", "c a"]


def test_a_broadcast_segment_belongs_to_its_writer() -> None:
    options = openings(BROADCAST, registered("a b c"), owner=W)
    assert all(option.owner == W and len(option.groups) == 1 for option in options)


def zoned(text: str) -> tuple[NodeInfo, ...]:
    """Nodes written ``name`` or ``name@zone``."""
    parts = [each.partition("@") for each in text.split()]
    return tuple(NodeInfo(name, 1, 1, zone=zone) for name, _, zone in parts)


def test_members_of_a_group_are_in_different_zones_where_that_is_possible() -> None:
    options = openings(CHAIN, zoned("a@x b@x c@y"), preferred=("a", "b"))
    assert nodes_of(options[0]) == ["a c"]
    assert {nodes_of(option)[0] for option in options} == {"a c", "c a", "b c", "c b"}
    assert nodes_of(openings(CHAIN, zoned("a@x b@x"))[0]) == ["a b"]
    assert nodes_of(openings(CHAIN, zoned("a b c@y"))[0]) == ["a b"]  # nodes without a zone are their own


def test_a_suspect_does_not_come_in_for_the_sake_of_its_zone() -> None:
    assert nodes_of(openings(CHAIN, zoned("a@x b@x c@y"), suspects=("c",))[0]) == ["a b"]


def test_a_replacement_is_in_another_zone_where_there_is_one() -> None:
    nodes = zoned("a@x b@x c@y")
    assert replacement(nodes, ("a",)) == nodes[2]
    assert replacement(nodes, ("a", "c")) == nodes[1]
    assert replacement(nodes, ("a", "b", "c")) is None


def spaced(text: str) -> tuple[NodeInfo, ...]:
    """Nodes written ``name``, ``name-`` (tight) or ``name!`` (full), each perhaps with ``@zone``."""
    marks = {"-": Space.TIGHT, "!": Space.FULL}
    infos = zoned(text)
    return tuple(replace(i, node=i.node[0], space=marks.get(i.node[1:], Space.ROOMY)) for i in infos)


def used(
    text: str, settings: Settings = CHAIN, *, preferred: tuple[str, ...] = (), suspects: tuple[str, ...] = ()
) -> set[str]:
    """The nodes of all options together."""
    options = openings(settings, spaced(text), preferred=preferred, suspects=suspects)
    return {node for option in options for group in nodes_of(option) for node in group.split()}


def test_full_nodes_are_used_only_if_no_other_node_is_left() -> None:
    assert used("a b! c d", preferred=("a", "b")) == {"a", "c", "d"}
    assert used("a! b c!") == {"b"}
    assert used("a! b c!", Settings(Policy.CHAIN, replicas=3, min_replicas=2)) == {"a", "b", "c"}
    assert nodes_of(openings(CHAIN, spaced("a! b c!"), preferred=("a", "c"), silent=("b",))[0]) == ["a c"]
    assert with_space(spaced("a! b- c"), ("c",)) == spaced("b-")


def test_tight_nodes_are_used_where_the_segment_would_be_narrower_or_less_spread_without_them() -> None:
    assert used("a- b c", preferred=("a", "b")) == {"b", "c"}
    assert nodes_of(openings(CHAIN, spaced("a- b"), preferred=("a", "b"))[0]) == ["b a"]
    assert nodes_of(openings(CHAIN, spaced("a-@x b@y c@y"))[0]) == ["b a"]
    assert used("a- b c", suspects=("b",)) == {"a", "c"}


def test_a_copy_goes_to_a_roomy_node_or_nowhere() -> None:
    assert replacement(spaced("a b- c! d"), ("a",)) == spaced("d")[0]
    assert replacement(spaced("a b- c!"), ("a",)) is None


def test_in_a_large_pool_every_node_is_offered_as_head() -> None:
    settings = Settings(Policy.CHAIN, replicas=3)
    nodes = zoned("a@x b@x c@y d@y e@z f@z g")
    options = openings(settings, nodes, preferred=("c", "a", "e"))
    assert nodes_of(options[0]) == ["c a e"]
    assert sorted(nodes_of(option)[0].split()[0] for option in options) == list("abcdefg")
    zones = {info.node: info.zone for info in nodes}
    assert all(len({zones[node] for node in nodes_of(option)[0].split()}) == 3 for option in options)


@given(
    st.sampled_from(Policy),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 6),
    st.sets(st.sampled_from("abcdef")),
    st.sets(st.sampled_from("abcdef")),
)
def test_every_option_makes_a_legal_segment_of_eligible_nodes(
    policy: Policy, replicas: int, groups: int, count: int, silent: set[str], suspects: set[str]
) -> None:
    settings = Settings(policy, replicas, groups=groups)
    nodes = registered(" ".join("abcdef"[:count]))
    usable = [info.node for info in nodes if info.node not in silent]
    options = openings(settings, nodes, silent=tuple(sorted(silent)), suspects=tuple(sorted(suspects)), owner=W)
    assert bool(options) == bool(usable)
    assert len(options) <= OPTIONS_MAX
    for option in options:
        segment = create("cluster", "log", settings, option).last
        assert all(member.node in usable for member in segment.members())
        assert all(len(group) == min(replicas, len(usable)) for group in segment.groups)
