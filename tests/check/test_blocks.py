"""Building blocks of scenarios: a node that bounds its answers, two logs on the same nodes."""

from __future__ import annotations

from trunkline.check.disks import NodeFiles, StorageDisk
from trunkline.check.report import bounds_text
from trunkline.check.scenarios.cluster import CHAIN2, CLUSTER, LOG, chain_log, descriptors
from trunkline.check.scenarios.hosts import BoundedNode
from trunkline.check.scenarios.several import doubled_requests, rationed_register, two_logs
from trunkline.core.effects import Address, Message, Send
from trunkline.core.entries import Frame, FrameKind
from trunkline.core.messages import Fetch, Fetched, Finalize, Open, Read, ReadFrames, Write

ME = Address("c", "reader")
VIEW = chain_log(CHAIN2, "n1 n2", sequencer="n3")
(DESCRIPTOR,) = descriptors(VIEW, "n1")
FRAMES = tuple(Frame(1 + 2 * n, 2, FrameKind.DATA, "w", n, n) for n in range(3))


def answers(node: BoundedNode, message: Message) -> list[Message]:
    return [effect.message for effect in node.on_message(ME, message) if isinstance(effect, Send)]


def bounded(answer_max: int) -> BoundedNode:
    """A node that holds three batches of two entries."""
    node = BoundedNode(CLUSTER, "n1", 1, StorageDisk().load(NodeFiles()))
    node.answer_max = answer_max
    answers(node, Open(DESCRIPTOR))
    for frame in FRAMES:
        answers(node, Write(DESCRIPTOR.target, frame))
    return node


def test_a_bounded_answer_to_a_read_has_the_first_batches() -> None:
    assert answers(bounded(2), Read(DESCRIPTOR.target, 1, 9)) == [ReadFrames("1.0.0", 1, FRAMES[:2])]
    assert answers(bounded(3), Read(DESCRIPTOR.target, 1, 9)) == [ReadFrames("1.0.0", 1, FRAMES)]


def test_a_bounded_answer_to_a_fetch_has_its_own_end() -> None:
    node = bounded(1)
    answers(node, Finalize(DESCRIPTOR, 7))
    assert answers(node, Fetch(DESCRIPTOR.target, 1, 7)) == [Fetched("1.0.0", 1, 3, FRAMES[:1])]


def test_two_logs_have_streams_of_the_same_names_on_the_same_nodes() -> None:
    other = chain_log(CHAIN2, "n1 n2", sequencer="n3", log="other")
    keys = {(each.target.log, each.target.stream) for log in (VIEW, other) for each in descriptors(log, "n1")}
    assert keys == {(LOG, "1.0.0"), ("other", "1.0.0")}
    assert len({monitor.name for monitor in two_logs().monitors}) * 2 == len(two_logs().monitors)


def test_the_bounds_of_a_scenario_include_timers_copies_and_drops() -> None:
    assert "free timers: coordinator.coordinator tick 2 times; 2 copies" in bounds_text(doubled_requests())
    assert "dropped: *>meta Get 2 times, n2>c1 * 1 times" in bounds_text(rationed_register())
