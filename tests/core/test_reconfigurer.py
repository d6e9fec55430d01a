"""The reconfigurer: ending a segment step by step, and which answers count."""

from __future__ import annotations

import pytest

from core.driver import META, announced, messages, registered, seen, sent, timers
from trunkline.check.scenarios.cluster import BROADCAST3, CHAIN3, LOG, broadcast_log, chain_log
from trunkline.core.effects import Address, Choose, Effects, Message
from trunkline.core.events import NoRedundancy, ReconfigurationBlocked
from trunkline.core.messages import (
    Get,
    Got,
    NodeInfo,
    Reason,
    Rejected,
    Seal,
    Sealed,
    Swap,
    SwapLost,
    Swapped,
    descriptor_of,
)
from trunkline.core.projection import EndSegment, Gap, Opening, Owner, Projection, RaiseTrim, Seat, apply
from trunkline.core.reconfigurer import Reconfigurer, ReconfigurerConfig
from trunkline.core.siblings import ChangeProjection, EndOpenSegment, OpenClosedLog, Refresh

VIEW = chain_log(CHAIN3, "a b c", sequencer="a")
OWNED = broadcast_log(BROADCAST3, "a b c", owner="w")
NODES = registered("a b c d")
A, B, C = (member.stream for member in VIEW.last.members())
APPENDER = Address("client", "appender")
END = EndOpenSegment(LOG, 0)


def sealed(stream: str, next_: int, *, intact: bool = True, uncertain: bool = False) -> Sealed:
    return Sealed(stream, next_, intact, uncertain)


class Client:
    """A reconfigurer; a choice is taken at once, the first option."""

    def __init__(self) -> None:
        self.role = Reconfigurer(ReconfigurerConfig(META, LOG))

    def job(self, job: Message, role: str = "appender") -> Effects:
        return self.role.on_message(Address("client", role), job)

    def deliver(self, message: Message) -> Effects:
        return self._chosen(self.role.on_message(META, message))

    def got(self, view: Projection | None, nodes: tuple[NodeInfo, ...] = NODES) -> Effects:
        return self.deliver(Got(LOG, 0, view, nodes))

    def fire(self) -> Effects:
        return self._chosen(self.role.on_timer("wait"))

    def sealing(self, view: Projection = VIEW, job: EndOpenSegment = END) -> Effects:
        self.job(job)
        return self.got(view)

    def _chosen(self, effects: Effects) -> Effects:
        if effects and isinstance(effects[-1], Choose):
            return effects[:-1] + self.role.on_choice(effects[-1].key, effects[-1].options[0])
        return effects


def proposal(effects: Effects) -> Projection:
    """The projection of the one swap among the effects."""
    [swap] = [message for message in messages(effects) if isinstance(message, Swap)]
    assert swap.expected == swap.projection.epoch - 1
    return swap.projection


def outcome(effects: Effects) -> tuple[int | None, list[str]]:
    """The end that is proposed, and the nodes that survive."""
    return outcome_of(proposal(effects))


def outcome_of(view: Projection) -> tuple[int | None, list[str]]:
    segment = view.segments[0]
    return segment.end, [member.node for member in segment.members()]


# ---------------------------------------------------------------------------------------------------- the procedure


def test_a_segment_is_ended_by_read_seal_swap_and_read() -> None:
    client = Client()
    assert sent(client.job(END)) == [("meta.register", Get(LOG))]
    seals = client.got(VIEW)
    assert sent(seals) == [
        (f"{member.node}.storage", Seal(descriptor_of(VIEW, VIEW.last, member))) for member in VIEW.last.members()
    ]
    client.deliver(sealed(A, 4))
    client.deliver(sealed(B, 3))
    swapped = client.deliver(sealed(C, 3))
    assert [where for where, _ in sent(swapped)] == ["meta.register"]
    after = proposal(swapped)
    assert (after.last.base, after.last.index) == (3, 1)
    assert messages(client.deliver(Swapped(LOG, 2))) == [Get(LOG, known=1)]
    assert sent(client.got(after)) == [("self.appender", seen(after, NODES))]
    assert client.role.phase == "idle"


def test_r1_nothing_but_seals_is_sent_to_a_node() -> None:
    client = Client()
    effects = client.sealing()
    effects += [effect for stream in (A, B, C) for effect in client.deliver(sealed(stream, 3))]
    to_nodes = [message for where, message in sent(effects) if where.endswith(".storage")]
    assert len(to_nodes) == 3
    assert all(isinstance(message, Seal) for message in to_nodes)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([sealed(A, 5), sealed(B, 4), sealed(C, 3)], (3, ["a", "b", "c"])),  # R3, R4
        ([sealed(C, 3), sealed(A, 5)], (3, ["a", "c"])),  # R4: in their old order, not in that of the answers
        ([sealed(A, 5)], (5, ["a"])),
        ([sealed(A, 1, intact=False), sealed(B, 4), sealed(C, 3)], (3, ["b", "c"])),  # R2
        ([Rejected(A, 0, Reason.MISMATCH, 2), sealed(B, 4)], (4, ["b"])),
        ([Rejected(A, 0, Reason.GONE), sealed(B, 4)], (4, ["b"])),
        ([sealed(A, 1, uncertain=True), sealed(B, 4), sealed(C, 4)], (4, ["b", "c"])),
        ([sealed(A, 1, uncertain=True), sealed(B, 4)], (4, ["b"])),
        ([sealed(A, 1, uncertain=True), sealed(B, 4), sealed(C, 9, intact=False)], (4, ["b"])),
        ([sealed(A, 9, uncertain=True), sealed(B, 2), Rejected(C, 0, Reason.MISMATCH, 2)], (2, ["b"])),
        # a power cut that tore every last write: the members with the most entries decide, and stay
        ([sealed(A, 4, uncertain=True), sealed(B, 4, uncertain=True), sealed(C, 4, uncertain=True)], (4, list("abc"))),
        ([sealed(A, 3, uncertain=True), sealed(B, 1, uncertain=True), sealed(C, 3, uncertain=True)], (3, ["a", "c"])),
        ([sealed(A, 1, uncertain=True), sealed(B, 2, uncertain=True), sealed(C, 4, uncertain=True)], (4, ["c"])),
    ],
)
def test_r2_r3_r4_which_answers_count_and_where_the_segment_ends(
    answers: list[Sealed | Rejected], expected: tuple[int | None, list[str]]
) -> None:
    client = Client()
    client.sealing()
    effects = [effect for answer in answers for effect in client.deliver(answer)]
    effects += client.fire() if client.role.phase == "sealing" else []
    assert outcome(effects) == expected


@pytest.mark.parametrize(
    "answers",
    [
        [],
        [sealed(A, 1, intact=False)],
        [Rejected(A, 0, Reason.MISMATCH, 2), Rejected(B, 0, Reason.GONE)],
        [sealed(A, 1, uncertain=True), sealed(B, 4, uncertain=True)],  # c is silent, and may know better
        [sealed(A, 3, intact=False), sealed(B, 1, uncertain=True), sealed(C, 1, uncertain=True)],
        [sealed(A, 1, intact=False), sealed(B, 9, uncertain=True), sealed(C, 9, uncertain=True)],
        [sealed(A, 3, intact=False, uncertain=True), sealed(B, 3, uncertain=True), sealed(C, 3, uncertain=True)],
        [sealed(A, 1, uncertain=True), sealed(B, 2, uncertain=True), Rejected(C, 0, Reason.MISMATCH, 2)],
        [sealed(A, 1, uncertain=True), sealed(B, 1, uncertain=True), Rejected(C, 0, Reason.GONE)],
        [sealed(A, 1, intact=False), sealed(B, 1, intact=False), sealed(C, 1, intact=False)],
    ],
)
def test_r2_a_group_without_an_authority_blocks_the_ending_and_this_is_announced(answers: list[Message]) -> None:
    client = Client()
    client.sealing()
    effects = [effect for answer in answers for effect in client.deliver(answer)]
    effects += client.fire() if client.role.phase == "sealing" else []
    assert announced(effects) == [ReconfigurationBlocked(LOG, 0)]
    assert sent(effects) == [("self.appender", seen(VIEW, NODES))]  # R8: given back as it is
    assert client.role.phase == "idle"


def test_r2_each_group_needs_an_authority_and_r3_the_end_is_the_largest_over_groups() -> None:
    view = chain_log(CHAIN3, "a b", "b c", sequencer="a")
    (a0, b0), (b1, c1) = [[member.stream for member in group] for group in view.last.groups]
    client = Client()
    client.sealing(view)
    client.deliver(sealed(a0, 9))
    client.deliver(sealed(b0, 5))
    assert ReconfigurationBlocked(LOG, 0) in announced(client.fire())
    client.sealing(view)
    for stream, next_ in ((a0, 9), (b0, 5), (b1, 8)):
        client.deliver(sealed(stream, next_))
    assert outcome(client.deliver(sealed(c1, 7))) == (7, ["a", "b", "b", "c"])


def test_silent_members_have_no_place_in_the_next_segment_and_suspects_come_last() -> None:
    client = Client()
    client.sealing(job=EndOpenSegment(LOG, 0, ("b",)))
    client.deliver(sealed(A, 3))
    client.deliver(sealed(B, 3))
    following = proposal(client.fire()).last
    assert [member.node for member in following.members()] == ["a", "d", "b"]
    assert following.owner == Owner("a", 1)


def test_a_seal_without_a_following_segment_leaves_the_log_read_only() -> None:
    client = Client()
    client.sealing(job=EndOpenSegment(LOG, 0, reopen=False))
    client.deliver(sealed(A, 3))
    after = proposal(client.fire())
    assert (len(after.segments), after.last.end) == (1, 3)


def test_r8_without_a_node_for_the_next_segment_the_job_is_given_back() -> None:
    client = Client()
    client.job(END)
    effects = client.got(VIEW, ())  # and nothing is sealed: a seal would only take away what is left
    assert announced(effects) == [ReconfigurationBlocked(LOG, 0)]
    assert sent(effects) == [("self.appender", seen(VIEW))]


def test_a_full_member_is_left_only_if_there_are_enough_others() -> None:
    job = EndOpenSegment(LOG, 0, ("a",), only_to_spares=True)
    assert all(isinstance(message, Seal) for message in messages(Client().sealing(job=job)))
    client = Client()
    client.job(job)
    assert sent(client.got(VIEW, registered("a b c"))) == [("self.appender", seen(VIEW, registered("a b c")))]


def test_a_segment_narrower_than_wanted_is_warned_of() -> None:
    client = Client()
    client.job(END)
    following = Opening(((Seat("d", 1),),), Owner("d", 1))
    after = apply(VIEW, EndSegment(0, 3, VIEW.last.groups, following))
    assert announced(client.got(after)) == [NoRedundancy(LOG, 1, 1, 3)]


# --------------------------------------------------------------------------------------------- which answers count


@pytest.mark.parametrize("answer", [Swapped(LOG, 2), SwapLost(LOG, 1), None], ids=["swapped", "lost", "no answer"])
def test_r5_after_a_swap_only_what_is_read_counts(answer: Message | None) -> None:
    client = Client()
    client.sealing()
    client.deliver(sealed(A, 3))
    client.fire()
    effects = client.deliver(answer) if answer is not None else client.fire()
    assert sent(effects) == [("meta.register", Get(LOG, known=1))]


def test_r5_a_lost_swap_begins_again_if_the_segment_is_still_open() -> None:
    client = Client()
    client.sealing()
    client.deliver(sealed(A, 3))
    client.fire()
    client.deliver(SwapLost(LOG, 1))
    trimmed = apply(VIEW, RaiseTrim(1))
    assert all(isinstance(message, Seal) for message in messages(client.got(trimmed)))
    client.deliver(sealed(B, 3))
    assert proposal(client.fire()).epoch == 3


def test_an_older_projection_than_the_known_one_is_a_late_answer() -> None:
    client = Client()
    client.job(Refresh(LOG))
    client.got(apply(VIEW, RaiseTrim(1)))
    client.job(Refresh(LOG))
    assert client.got(VIEW) == []
    assert client.got(None) == []
    assert client.role.phase == "reading"


def test_a_projection_older_than_that_of_the_requester_is_read_again() -> None:
    client = Client()
    client.job(EndOpenSegment(LOG, 1))
    effects = client.got(VIEW)
    assert (messages(effects), timers(effects)) == ([], ["wait"])
    assert messages(client.fire()) == [Get(LOG, known=1)]


def test_answers_of_an_earlier_round_change_nothing() -> None:
    client = Client()
    assert client.deliver(sealed(A, 3)) == []
    assert client.deliver(Swapped(LOG, 2)) == []
    assert client.got(VIEW) == []
    client.sealing()
    assert client.deliver(sealed("9.9.9", 3)) == []
    assert client.role.answers == {}


# ------------------------------------------------------------------------------------------------------------- jobs


def test_a_segment_that_has_ended_already_needs_nothing() -> None:
    client = Client()
    client.job(END)
    following = Opening((tuple(Seat(node, 1) for node in "bcd"),), Owner("b", 1))
    after = apply(VIEW, EndSegment(0, 3, VIEW.last.groups, following))
    assert sent(client.got(after)) == [("self.appender", seen(after, NODES))]


def test_jobs_are_done_one_after_the_other_and_each_requester_gets_an_answer() -> None:
    client = Client()
    client.job(Refresh(LOG), "appender")
    assert client.job(Refresh(LOG), "reader") == []
    assert client.job(Refresh(LOG), "reader") == []  # asked twice, done once
    assert sent(client.got(VIEW)) == [("self.appender", seen(VIEW, NODES)), ("meta.register", Get(LOG, known=1))]
    assert sent(client.got(VIEW)) == [("self.reader", seen(VIEW, NODES))]


def test_another_change_is_tried_only_against_the_epoch_it_was_computed_from() -> None:
    trimmed = apply(VIEW, RaiseTrim(1))
    client = Client()
    client.job(ChangeProjection(1, trimmed))
    assert proposal(client.got(VIEW)) == trimmed
    client = Client()
    client.job(ChangeProjection(1, trimmed))
    moved = apply(VIEW, RaiseTrim(2))
    assert sent(client.got(moved)) == [("self.appender", seen(moved, NODES))]


def test_r6_a_roll_needs_no_seal_and_keeps_all_members() -> None:
    job = EndOpenSegment(LOG, 0, ("a",), owner=Owner("w", 1), end=4)
    client = Client()
    after = proposal(client.sealing(OWNED, job))
    assert after.segments[0].groups == OWNED.last.groups
    assert (after.segments[0].end, after.last.owner) == (4, Owner("w", 1))
    client.deliver(SwapLost(LOG, 1))
    assert proposal(client.got(apply(OWNED, RaiseTrim(1)))).segments[0].end == 4  # the same count again


def test_r6_a_roll_of_another_owners_segment_does_nothing() -> None:
    client = Client()
    effects = client.sealing(OWNED, EndOpenSegment(LOG, 0, owner=Owner("w", 2), end=4))
    assert sent(effects) == [("self.appender", seen(OWNED, NODES))]


def test_w5_a_takeover_seals_and_gives_the_next_segment_to_the_taker() -> None:
    client = Client()
    effects = client.sealing(OWNED, EndOpenSegment(LOG, 0, owner=Owner("y", 3)))
    assert all(isinstance(message, Seal) for message in messages(effects))
    client.deliver(sealed(OWNED.last.members()[0].stream, 4))
    after = proposal(client.fire())
    assert (after.segments[0].end, after.last.owner) == (4, Owner("y", 3))


def test_d7_a_broadcast_segment_that_no_writer_takes_keeps_its_owner() -> None:
    client = Client()
    client.sealing(OWNED)
    client.deliver(sealed(OWNED.last.members()[0].stream, 4))
    assert proposal(client.fire()).last.owner == Owner("w", 1)


def test_r7_a_closed_log_is_opened_only_by_an_operator() -> None:
    closed = apply(VIEW, EndSegment(0, 3, VIEW.last.groups, None))
    client = Client()
    client.job(END)
    assert sent(client.got(closed)) == [("self.appender", seen(closed, NODES))]
    client.job(OpenClosedLog(LOG), "administrator")
    assert proposal(client.got(closed)).last.base == 3


def test_r8_a_blocked_ending_is_not_tried_again_by_itself() -> None:
    view = chain_log(CHAIN3, "a", sequencer="a")
    client = Client()
    client.sealing(view)
    effects = client.deliver(sealed(A, 1, intact=False))
    assert sent(effects) == [("self.appender", seen(view, NODES))]
    assert (timers(effects), client.role.phase) == ([], "idle")


# ----------------------------------------------------------------------------------------------------- declared loss


@pytest.mark.parametrize(
    "answers",
    [[], [sealed(A, 4, intact=False)], [Rejected(A, 0, Reason.MISMATCH, 2), Rejected(B, 0, Reason.GONE)]],
    ids=["silence", "lost data", "other disks"],
)
def test_r9_without_an_intact_member_an_operator_ends_the_segment_with_a_gap(
    answers: list[Message],
) -> None:
    client = Client()
    client.sealing(job=EndOpenSegment(LOG, 0, declared_end=5))
    for answer in answers:
        client.deliver(answer)
    after = proposal(client.fire())
    assert outcome_of(after) == (5, [])
    assert after.gaps == (Gap(1, 5),)
    assert after.last.base == 5


def test_r9_a_lost_segment_may_be_left_closed() -> None:
    client = Client()
    client.sealing(job=EndOpenSegment(LOG, 0, reopen=False, declared_end=5))
    after = proposal(client.fire())
    assert (len(after.segments), after.last.end, after.gaps) == (1, 5, (Gap(1, 5),))


def test_r9_an_intact_member_knows_better_than_the_operator() -> None:
    client = Client()
    client.sealing(job=EndOpenSegment(LOG, 0, declared_end=5))
    client.deliver(sealed(B, 3))
    after = proposal(client.fire())
    assert outcome_of(after) == (3, ["b"])
    assert after.gaps == ()


def test_r9_a_group_without_an_intact_member_loses_the_whole_segment() -> None:
    view = chain_log(CHAIN3, "a b", "b c", sequencer="a")
    client = Client()
    client.sealing(view, EndOpenSegment(LOG, 0, declared_end=9))
    for member in view.last.groups[0]:
        client.deliver(sealed(member.stream, 5))
    after = proposal(client.fire())
    assert after.segments[0].groups == ((), ())
    assert after.gaps == (Gap(1, 9),)


def test_r9_a_declared_end_is_never_below_the_base() -> None:
    client = Client()
    moved = apply(VIEW, EndSegment(0, 3, VIEW.last.groups, Opening(((Seat("a", 1),),), Owner("a", 1))))
    client.sealing(moved, EndOpenSegment(LOG, 1, reopen=False, declared_end=2))
    assert proposal(client.fire()).last.end == 3


# ------------------------------------------------------------------------------------------------ what is known


def test_r10_that_the_known_projection_is_unchanged_is_as_good_as_reading_it() -> None:
    client = Client()
    client.job(Refresh(LOG))
    client.got(VIEW)
    assert messages(client.job(Refresh(LOG))) == [Get(LOG, known=VIEW.epoch)]
    fewer = registered("a b")
    assert messages(client.deliver(Got(LOG, 0, None, fewer, unchanged=VIEW.epoch))) == [seen(VIEW, fewer)]


@pytest.mark.parametrize("unchanged", [1, 3], ids=["older", "newer"])
def test_r10_that_another_epoch_is_unchanged_is_a_late_answer(unchanged: int) -> None:
    client = Client()
    client.job(Refresh(LOG))
    client.got(second := apply(VIEW, RaiseTrim(1)))
    client.job(Refresh(LOG))
    assert client.deliver(Got(LOG, 0, None, NODES, unchanged=unchanged)) == []
    assert messages(client.got(second)) == [seen(second, NODES)]


def test_r10_unchanged_does_not_mean_no_such_log_to_a_role_without_a_projection() -> None:
    client = Client()
    client.job(Refresh(LOG))  # restarted: the answer is for the process before
    assert client.deliver(Got(LOG, 0, None, NODES, unchanged=1)) == []
    assert messages(client.got(None)) == [seen(None, NODES)]
