"""The writer of a broadcast log, led by hand through appends, rolls and takeovers on three replicas."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from core.driver import APPLICATION, announced, data, messages, results, seen, sent, target, timers
from trunkline.check.scenarios.cluster import BROADCAST3, LOG, appends, broadcast_log
from trunkline.core.administrator import NO_OWNER
from trunkline.core.calls import AppendRequested
from trunkline.core.effects import Effects, Message, SetTimer
from trunkline.core.entries import Frame
from trunkline.core.events import Appended, AppendRefused, Committed, OutcomeUnknown
from trunkline.core.messages import (
    Append,
    NodeInfo,
    NodeState,
    Open,
    Opened,
    Reason,
    Rejected,
    Release,
    Stored,
    descriptor_of,
)
from trunkline.core.projection import EndSegment, ForgetSegment, Opening, Owner, Projection, RaiseTrim, Seat, apply
from trunkline.core.refusals import NO_SUCH_LOG, append_refused, no_space, owned
from trunkline.core.siblings import EndOpenSegment, Refresh
from trunkline.core.writer import Writer, WriterConfig

ME = Owner("w", 1)
OTHER = Owner("x", 1)
MINE = broadcast_log(BROADCAST3, "a b c", owner="w")
THEIRS = broadcast_log(BROADCAST3, "a b c", owner="x")
NEW = broadcast_log(BROADCAST3, "a b c", owner="")
STREAMS = tuple(member.stream for member in MINE.last.members())
A, B, C = STREAMS
ONE, TWO = appends(7, 7)
FIRST, SECOND = data(1, writer="w#1", seq=1), data(2, writer="w#1", seq=2)


def ended(view: Projection, end: int, owner: Owner) -> Projection:
    following = Opening((tuple(Seat(node, 1) for node in "bcd"),), owner)
    return apply(view, EndSegment(view.last.index, end, view.last.groups, following))


class Client:
    def __init__(self, view: Projection | None = MINE, in_flight_max: int = 64) -> None:
        self.role = Writer(WriterConfig(LOG, ME, in_flight_max=in_flight_max), view)

    def deliver(self, message: Message) -> Effects:
        return self.role.on_message(APPLICATION, message)

    def stored(self, frame: Frame, *streams: str) -> Effects:
        return [effect for stream in streams for effect in self.deliver(Stored(stream, frame))]


def append(frame: Frame, lac: int, stream: str, view: Projection = MINE) -> Append:
    return Append(target(view, stream), ME, frame, lac)


def roll(end: int, *suspects: str) -> EndOpenSegment:
    return EndOpenSegment(LOG, 0, suspects, owner=ME, end=end)


def test_w1_a_batch_goes_to_all_at_once_and_is_committed_when_all_have_it() -> None:
    client = Client()
    assert sent(client.deliver(ONE)) == [
        ("a.storage", append(FIRST, 0, A)),
        ("b.storage", append(FIRST, 0, B)),
        ("c.storage", append(FIRST, 0, C)),
    ]
    assert client.stored(FIRST, A, C, A) == []  # a doubled answer is not another replica's
    effects = client.stored(FIRST, B)
    assert announced(effects) == [Committed(LOG, 0, ME, FIRST)]
    assert results(effects) == [(1, Appended(1))]


def test_w1_entries_commit_in_order() -> None:
    client = Client()
    client.deliver(ONE)
    client.deliver(TWO)
    assert results(client.stored(SECOND, A, B, C)) == []
    assert results(client.stored(FIRST, A, B, C)) == [(1, Appended(1)), (2, Appended(2))]


def test_w6_the_lac_rides_on_the_next_batch_or_on_a_release() -> None:
    client = Client()
    client.deliver(ONE)
    committed = client.stored(FIRST, A, B, C)
    assert messages(committed) == [Release(target(MINE, stream), ME, 1) for stream in STREAMS]
    assert timers(committed) == []
    assert messages(client.deliver(TWO)) == [append(SECOND, 1, stream) for stream in STREAMS]


def test_w6_the_lac_does_not_run_ahead_of_what_is_committed() -> None:
    client = Client()
    client.deliver(ONE)
    client.stored(FIRST, A, B)
    assert messages(client.deliver(TWO)) == [append(SECOND, 0, stream) for stream in STREAMS]


def test_a_full_pipeline_makes_later_appends_wait() -> None:
    client = Client(in_flight_max=1)
    client.deliver(ONE)
    assert client.deliver(TWO) == []
    assert messages(client.stored(FIRST, A, B, C)) == [append(SECOND, 1, stream) for stream in STREAMS]


def test_a_replica_that_lacks_the_stream_opens_it_and_gets_everything() -> None:
    client = Client()
    client.deliver(ONE)
    client.deliver(TWO)
    member = MINE.last.members()[1]
    assert messages(client.deliver(Rejected(B, 1, Reason.UNKNOWN))) == [Open(descriptor_of(MINE, MINE.last, member))]
    assert messages(client.deliver(Opened(B))) == [append(FIRST, 0, B), append(SECOND, 0, B)]


def test_a_replica_with_a_gap_gets_what_it_lacks_again() -> None:
    client = Client()
    client.deliver(ONE)
    client.deliver(TWO)
    assert messages(client.deliver(Rejected(B, 2, Reason.GAP, 1))) == [append(FIRST, 0, B), append(SECOND, 0, B)]


# ----------------------------------------------------------------------------------------------------------- rolling


@pytest.mark.parametrize(
    ("reason", "suspects"),
    [(Reason.SEALED, ()), (Reason.CORRUPT, ("b",)), (Reason.MISMATCH, ("b",))],
)
def test_a_refused_batch_rolls_the_segment_at_the_exact_count(reason: Reason, suspects: tuple[str, ...]) -> None:
    client = Client()
    client.deliver(ONE)
    client.stored(FIRST, A, B, C)
    client.deliver(TWO)
    assert sent(client.deliver(Rejected(B, 2, reason))) == [("self.reconfigurer", roll(2, *suspects))]


def test_a_full_replica_is_left_out_of_the_roll_that_the_timer_triggers() -> None:
    client = Client()
    client.deliver(ONE)
    client.stored(FIRST, A, C)
    assert client.deliver(Rejected(B, 1, Reason.NO_SPACE)) == []
    assert messages(client.role.on_timer("ack")) == [replace(roll(1, "b"), only_to_spares=True)]


def test_w7_an_append_without_space_is_refused_if_the_next_segment_has_none_either() -> None:
    client = Client()
    client.deliver(ONE)
    client.stored(FIRST, A, C)
    client.deliver(Rejected(B, 1, Reason.NO_SPACE))
    client.role.on_timer("ack")
    effects = client.deliver(seen(ended(MINE, 1, ME)))
    assert results(effects) == [(1, no_space(["b"]))]
    assert client.role.phase == "owning"


def test_silence_rolls_the_segment_and_names_the_silent_nodes() -> None:
    client = Client()
    assert timers(client.deliver(ONE)) == ["ack"]
    client.stored(FIRST, B)
    assert messages(client.role.on_timer("ack")) == [roll(1, "a", "c")]


def test_w8_silence_counts_from_the_oldest_batch_and_later_ones_do_not_move_it() -> None:
    client = Client()
    assert timers(client.deliver(ONE)) == ["ack"]
    assert timers(client.deliver(TWO)) == []
    assert timers(client.stored(FIRST, A, B)) == []
    assert timers(client.stored(FIRST, C)) == ["ack"]  # now the second one is the oldest


def test_w8_after_a_suspicion_the_time_of_silence_doubles_until_something_is_committed() -> None:
    client = Client()
    waits: list[int] = []
    view = MINE
    effects = client.deliver(ONE)
    for _ in range(7):
        waits += [effect.after_ms for effect in effects if isinstance(effect, SetTimer)]
        client.role.on_timer("ack")
        view = ended(view, 1, ME)
        effects = client.deliver(seen(view))
    assert waits == [1000, 2000, 4000, 8000, 8000, 8000, 8000]
    [sending] = client.role.in_flight
    client.stored(sending.frame, *sending.missing)
    assert [e.after_ms for e in client.deliver(TWO) if isinstance(e, SetTimer)] == [1000]


def test_w8_only_nodes_without_progress_are_suspected() -> None:
    client = Client()
    client.deliver(ONE)
    client.stored(FIRST, B)
    assert client.role.awaits("ack") == ("a", "c")
    assert messages(client.role.on_silence("ack", ("c",))) == [roll(1, "c")]


def test_w2_a_frozen_writer_acknowledges_nothing_more_in_its_segment() -> None:
    client = Client()
    client.deliver(ONE)
    client.role.on_timer("ack")
    assert client.stored(FIRST, A, B, C) == []
    assert client.deliver(TWO) == []


def test_w3_w4_after_a_roll_what_was_in_flight_is_sent_again_under_a_new_seq() -> None:
    client = Client()
    client.deliver(ONE)
    client.role.on_timer("ack")
    client.stored(FIRST, A, B, C)
    client.deliver(TWO)
    rolled = ended(MINE, 1, ME)
    effects = client.deliver(seen(rolled))
    again = [data(1, writer="w#1", seq=2), data(2, writer="w#1", seq=3)]
    streams = [member.stream for member in rolled.last.members()]
    assert messages(effects) == [append(frame, 0, stream, rolled) for frame in again for stream in streams]
    assert results(effects) == []


@pytest.mark.parametrize(("end", "first"), [(2, Appended(1)), (1, owned(Owner("x", 1)))])
def test_w3_the_end_that_another_decided_settles_what_was_in_flight(end: int, first: object) -> None:
    client = Client()
    client.deliver(ONE)
    client.deliver(TWO)
    client.deliver(Rejected(A, 1, Reason.SEALED))
    effects = client.deliver(seen(ended(MINE, end, OTHER)))
    assert results(effects) == [(1, first), (2, owned(Owner("x", 1)))]
    assert messages(effects) == []


def test_w3_if_the_segment_is_forgotten_the_outcome_is_unknown() -> None:
    client = Client()
    client.deliver(ONE)
    client.role.on_timer("ack")
    forgotten = apply(apply(ended(MINE, 2, OTHER), RaiseTrim(1)), ForgetSegment(0))
    assert results(client.deliver(seen(forgotten))) == [(1, OutcomeUnknown(1))]


def test_r6_a_segment_that_is_still_open_is_rolled_at_the_same_count_again() -> None:
    client = Client()
    client.deliver(ONE)
    client.role.on_timer("ack")
    effects = client.deliver(seen(apply(MINE, RaiseTrim(1))))
    assert (messages(effects), timers(effects)) == ([], ["ack"])
    assert client.stored(FIRST, A, B, C) == []  # W2: still frozen
    assert messages(client.role.on_timer("ack")) == [roll(1)]


# ------------------------------------------------------------------------------------------------------- taking a log


def refreshed(view: Projection, *, takeover: bool = False, me: Owner = ME) -> tuple[Writer, Effects]:
    """A writer that was asked to append, and has read this projection."""
    writer = Writer(WriterConfig(LOG, me), view)
    [request] = appends(7, takeover=takeover)
    assert sent(writer.on_message(APPLICATION, request)) == [("self.reconfigurer", Refresh(LOG))]
    return writer, writer.on_message(APPLICATION, seen(view))


def test_w5_another_owners_log_is_refused() -> None:
    assert results(refreshed(THEIRS)[1]) == [(1, owned(Owner("x", 1)))]


def test_w5_a_restarted_process_is_another_owner() -> None:
    assert results(refreshed(MINE, me=Owner("w", 2))[1]) == [(1, owned(Owner("w", 1)))]


def test_w5_a_new_log_has_no_owner_and_needs_no_takeover() -> None:
    assert NEW.last.owner.process == NO_OWNER.process
    writer, effects = refreshed(NEW)
    assert messages(effects) == [EndOpenSegment(LOG, 0, owner=ME)]
    taken = ended(NEW, 1, ME)
    streams = [member.stream for member in taken.last.members()]
    assert messages(writer.on_message(APPLICATION, seen(taken))) == [append(FIRST, 0, s, taken) for s in streams]


def test_w5_of_two_that_want_a_new_log_the_one_that_comes_second_is_refused() -> None:
    writer, _ = refreshed(NEW)
    assert results(writer.on_message(APPLICATION, seen(ended(NEW, 1, OTHER)))) == [(1, owned(Owner("x", 1)))]


def lease(process: str, start: int = 1) -> NodeInfo:
    return NodeInfo(process, 0, start, NodeState.CLIENT)


@pytest.mark.parametrize(
    ("leases", "taken"),
    [
        ((lease("w"), lease("x")), False),
        ((lease("w"),), True),
        ((lease("w"), replace(lease("x"), live=False)), True),
        ((lease("w"), lease("x", 2)), True),
        ((), False),
        ((lease("w", 2),), False),
        ((replace(lease("w"), live=False),), False),
    ],
    ids=["both", "mine", "theirs ran out", "they restarted", "none", "mine of another start", "mine ran out"],
)
def test_w5_a_writer_with_a_lease_takes_the_log_of_an_owner_without_one(
    leases: tuple[NodeInfo, ...], taken: bool
) -> None:
    writer = Writer(WriterConfig(LOG, ME), THEIRS)
    writer.on_message(APPLICATION, appends(7)[0])
    effects = writer.on_message(APPLICATION, seen(THEIRS, leases))
    if taken:
        assert messages(effects) == [EndOpenSegment(LOG, 0, owner=ME)]
    else:
        assert results(effects) == [(1, owned(Owner("x", 1)))]


def test_b4_a_closed_log_accepts_no_writer() -> None:
    closed = apply(THEIRS, EndSegment(0, 4, THEIRS.last.groups, None))
    [(_, result)] = results(refreshed(closed, takeover=True)[1])
    assert isinstance(result, AppendRefused)
    assert "sealed" in result.why


def test_w5_a_takeover_ends_the_owners_segment_and_goes_on_in_its_own() -> None:
    writer, effects = refreshed(THEIRS, takeover=True)
    assert sent(effects) == [("self.reconfigurer", EndOpenSegment(LOG, 0, owner=ME))]
    taken = ended(THEIRS, 4, ME)
    frame = data(4, writer="w#1", seq=1)
    streams = [member.stream for member in taken.last.members()]
    effects = writer.on_message(APPLICATION, seen(taken))
    assert messages(effects) == [append(frame, 3, stream, taken) for stream in streams]


def test_w5_a_takeover_that_another_won_is_refused() -> None:
    writer, _ = refreshed(THEIRS, takeover=True)
    lost = writer.on_message(APPLICATION, seen(ended(THEIRS, 4, Owner("y", 1))))
    assert results(lost) == [(1, owned(Owner("y", 1)))]


def test_w5_a_former_owner_takes_its_log_back_with_the_append_that_asks_for_it() -> None:
    client = Client()
    plain, taking = appends(7)[0], replace(TWO, takeover=True)
    client.deliver(plain)
    client.deliver(taking)
    client.deliver(Rejected(A, 1, Reason.SEALED))
    lost = ended(MINE, 1, OTHER)
    effects = client.deliver(seen(lost))
    assert results(effects) == [(1, owned(Owner("x", 1)))]  # it did not ask
    assert messages(effects) == [Refresh(LOG)]
    assert messages(client.deliver(seen(lost))) == [EndOpenSegment(LOG, 1, owner=ME)]
    mine = ended(lost, 1, ME)
    effects = client.deliver(seen(mine))
    again = data(1, writer="w#1", seq=3)
    assert messages(effects) == [append(again, 0, m.stream, mine) for m in mine.last.members()]


def test_w5_an_append_takes_a_log_at_most_once() -> None:
    writer, _ = refreshed(THEIRS, takeover=True)
    mine = ended(THEIRS, 1, ME)
    writer.on_message(APPLICATION, seen(mine))
    writer.on_message(APPLICATION, Rejected(mine.last.members()[0].stream, 1, Reason.SEALED))
    assert results(writer.on_message(APPLICATION, seen(ended(mine, 1, OTHER)))) == [(1, owned(Owner("x", 1)))]


def test_w5_appends_that_wait_are_judged_each_by_itself() -> None:
    writer = Writer(WriterConfig(LOG, ME), THEIRS)
    first, second, third = appends(7, 8, 9)
    writer.on_message(APPLICATION, first)
    writer.on_message(APPLICATION, replace(second, takeover=True))
    effects = writer.on_message(APPLICATION, seen(THEIRS))
    assert results(effects) == [(1, owned(Owner("x", 1)))]
    assert messages(effects) == [EndOpenSegment(LOG, 0, owner=ME)]
    writer.on_message(APPLICATION, third)
    writer.on_message(APPLICATION, AppendRequested(4, LOG, 1, 10, takeover=True))
    effects = writer.on_message(APPLICATION, seen(ended(THEIRS, 1, Owner("y", 1))))
    assert results(effects) == [(2, owned(Owner("y", 1))), (3, owned(Owner("y", 1)))]
    assert messages(effects) == [EndOpenSegment(LOG, 1, owner=ME)]  # the fourth came later: it takes it from y


def test_w5_a_log_without_an_owner_does_not_use_up_a_takeover() -> None:
    writer, _ = refreshed(NEW, takeover=True)
    effects = writer.on_message(APPLICATION, seen(ended(NEW, 1, OTHER)))
    assert messages(effects) == [EndOpenSegment(LOG, 1, owner=ME)]


@pytest.mark.parametrize(("view", "takeover"), [(THEIRS, True), (NEW, False)], ids=["another's log", "a new log"])
def test_w5_a_takeover_goes_on_when_the_segment_was_ended_for_its_old_owner(view: Projection, takeover: bool) -> None:
    writer, _ = refreshed(view, takeover=takeover)
    moved = ended(view, 4, view.last.owner)  # a reader ended it, and wants nothing (D7)
    effects = writer.on_message(APPLICATION, seen(moved))
    assert (results(effects), timers(effects)) == ([], ["ack"])
    assert messages(writer.on_timer("ack")) == [Refresh(LOG)]
    assert messages(writer.on_message(APPLICATION, seen(moved))) == [EndOpenSegment(LOG, 1, owner=ME)]


def test_r8_a_takeover_that_could_not_be_done_now_is_tried_again() -> None:
    writer, _ = refreshed(THEIRS, takeover=True)
    effects = writer.on_message(APPLICATION, seen(THEIRS))
    assert (results(effects), timers(effects)) == ([], ["ack"])
    assert messages(writer.on_timer("ack")) == [Refresh(LOG)]


def test_a_writer_without_a_projection_reads_it_first() -> None:
    client = Client(None)
    assert messages(client.deliver(ONE)) == [Refresh(LOG)]
    assert messages(client.deliver(seen(MINE))) == [append(FIRST, 0, stream) for stream in STREAMS]
    unknown = Client(None)
    unknown.deliver(ONE)
    assert results(unknown.deliver(seen(None))) == [(1, append_refused(NO_SUCH_LOG))]
