"""The administrator: create, trim, seal and reopen, led by hand."""

from __future__ import annotations

import pytest

from core.driver import APPLICATION, announced, messages, registered, results, seen, sent
from trunkline.check.scenarios.cluster import CHAIN2, CHAIN3, CLUSTER, LOG, chain_log
from trunkline.core.administrator import NO_OWNER, Administrator, AdministratorConfig
from trunkline.core.calls import CreateLog, DeleteRequested, SealRequested, SubscribeRequested, TrimRequested
from trunkline.core.effects import Choose, Effects, Message, SetTimer
from trunkline.core.events import Created, CreateRefused, ReopenRequested, RequestRefused, SegmentEnded, Trimmed
from trunkline.core.projection import (
    DeleteLog,
    EndSegment,
    ForgetSegment,
    Gap,
    Opening,
    Owner,
    Policy,
    Projection,
    RaiseTrim,
    Reopen,
    Seat,
    Settings,
    apply,
)
from trunkline.core.reader import ReadThrough
from trunkline.core.refusals import NO_SUCH_LOG
from trunkline.core.siblings import ChangeProjection, EndOpenSegment, OpenClosedLog, Refresh

VIEW = chain_log(CHAIN2, "a b", sequencer="a")
NODES = registered("a b")
NEXT = Opening(((Seat("a", 1), Seat("b", 1)),), Owner("a", 1))
CLOSED = apply(VIEW, EndSegment(0, 4, VIEW.last.groups, None))
MOVED = apply(VIEW, EndSegment(0, 4, VIEW.last.groups, NEXT))


class Client:
    def __init__(self) -> None:
        self.role = Administrator(AdministratorConfig(CLUSTER, LOG))

    def deliver(self, message: Message) -> Effects:
        return self.role.on_message(APPLICATION, message)

    def view(self, view: Projection | None) -> Effects:
        return self.deliver(seen(view, NODES))


# ------------------------------------------------------------------------------------------------------------ create


def test_b1_a_log_is_created_by_a_swap_from_nothing() -> None:
    client = Client()
    assert sent(client.deliver(CreateLog(3, LOG, CHAIN2))) == [("self.reconfigurer", Refresh(LOG))]
    [choose] = client.view(None)
    assert isinstance(choose, Choose)
    assert choose.options[0] == NEXT
    assert messages(client.role.on_choice(choose.key, choose.options[0])) == [ChangeProjection(0, VIEW)]
    assert results(client.view(VIEW)) == [(3, Created(1))]


def test_b1_creating_again_is_a_no_op_with_the_same_settings_and_refused_with_others() -> None:
    for settings, expected in (
        (CHAIN2, Created(1)),
        (CHAIN3, CreateRefused("the log exists with other settings: replicas is 2 (requested: 3)")),
    ):
        client = Client()
        client.deliver(CreateLog(3, LOG, settings))
        assert results(client.view(VIEW)) == [(3, expected)]


def test_b1_of_two_that_create_at_once_the_one_with_other_settings_loses() -> None:
    client = Client()
    client.deliver(CreateLog(3, LOG, CHAIN3))
    [choose] = client.view(None)
    assert isinstance(choose, Choose)
    client.role.on_choice(choose.key, choose.options[0])
    [(_, result)] = results(client.view(VIEW))  # the other's projection is there
    assert isinstance(result, CreateRefused)


def test_a_log_is_not_created_on_too_few_nodes() -> None:
    client = Client()
    client.deliver(CreateLog(3, LOG, Settings(replicas=3, min_replicas=3)))
    [(_, result)] = results(client.view(None))
    assert isinstance(result, CreateRefused)


def test_a_new_broadcast_log_has_no_owner() -> None:
    client = Client()
    client.deliver(CreateLog(3, LOG, Settings(Policy.BROADCAST)))
    [choose] = client.view(None)
    assert isinstance(choose, Choose)
    [change] = messages(client.role.on_choice(choose.key, choose.options[0]))
    assert isinstance(change, ChangeProjection)
    assert change.projection.last.owner == NO_OWNER


# -------------------------------------------------------------------------------------------------------------- trim


def test_b2_b3_everything_up_to_the_point_is_read_before_the_trim_is_swapped_in() -> None:
    client = Client()
    assert messages(client.deliver(TrimRequested(3, LOG, 2))) == [Refresh(LOG)]
    assert sent(client.view(VIEW)) == [("self.reader", SubscribeRequested(3, LOG, 1, until=2, to_tail=True))]
    assert messages(client.deliver(ReadThrough(2, 2))) == [Refresh(LOG)]
    trimmed = apply(VIEW, RaiseTrim(2))
    assert messages(client.view(VIEW)) == [ChangeProjection(1, trimmed)]
    assert results(client.view(trimmed)) == [(3, Trimmed(2))]


def test_b2_a_point_that_would_cut_a_batch_is_lowered_to_what_the_reader_settled() -> None:
    client = Client()
    client.deliver(TrimRequested(3, LOG, 5))
    client.view(VIEW)
    client.deliver(ReadThrough(3, 6))  # a batch begins at 4 and goes on to 6
    trimmed = apply(VIEW, RaiseTrim(3))
    assert messages(client.view(VIEW)) == [ChangeProjection(1, trimmed)]
    assert results(client.view(trimmed)) == [(3, Trimmed(3))]


def test_b2_a_point_inside_the_first_batch_trims_nothing() -> None:
    client = Client()
    client.deliver(TrimRequested(3, LOG, 2))
    client.view(VIEW)
    client.deliver(ReadThrough(0, 3))
    assert results(client.view(VIEW)) == [(3, Trimmed(0))]


@pytest.mark.parametrize("view", [VIEW, CLOSED, MOVED], ids=["open", "closed", "moved on"])
@pytest.mark.parametrize("reached", [0, 3])
def test_b2_a_point_that_is_not_below_the_tail_is_refused(view: Projection, reached: int) -> None:
    client = Client()
    client.deliver(TrimRequested(3, LOG, 4))
    client.view(VIEW)
    client.deliver(ReadThrough(reached, reached))  # the reader came to the tail first
    effects = client.view(view)
    refused = RequestRefused(f"4 is not below the tail, {reached + 1}")
    assert (results(effects), messages(effects)) == ([(3, refused)], [])


def test_b2_the_last_entry_is_below_the_tail() -> None:
    client = Client()
    client.deliver(TrimRequested(3, LOG, 3))
    client.view(VIEW)
    client.deliver(ReadThrough(3, 3))
    assert messages(client.view(VIEW)) == [ChangeProjection(1, apply(VIEW, RaiseTrim(3)))]


def test_b2_the_result_of_an_earlier_trim_does_not_affect_the_next_one() -> None:
    client = Client()
    client.deliver(TrimRequested(3, LOG, 4))
    client.view(VIEW)
    client.deliver(ReadThrough(2, 2))
    client.view(VIEW)
    client.deliver(TrimRequested(4, LOG, 4))  # two more entries have come since
    read = SubscribeRequested(4, LOG, 1, until=4, to_tail=True)
    assert messages(client.view(VIEW)) == [read]
    client.deliver(ReadThrough(4, 4))
    assert messages(client.view(VIEW)) == [ChangeProjection(1, apply(VIEW, RaiseTrim(4)))]


def test_b3_a_trim_that_lost_its_swap_is_tried_again_at_the_new_epoch() -> None:
    client = Client()
    client.deliver(TrimRequested(3, LOG, 2))
    client.view(VIEW)
    client.deliver(ReadThrough(2, 2))
    client.view(VIEW)
    assert messages(client.view(MOVED)) == [ChangeProjection(2, apply(MOVED, RaiseTrim(2)))]


def test_b3_a_trim_below_the_point_that_is_reached_changes_nothing() -> None:
    client = Client()
    client.deliver(TrimRequested(3, LOG, 2))
    assert results(client.view(apply(VIEW, RaiseTrim(5)))) == [(3, Trimmed(5))]


@pytest.mark.parametrize(
    ("settled", "reached"), [(4, 4), (3, 6), (3, 3)], ids=["settled", "lowered", "at the tail of then"]
)
def test_b3_a_trim_that_another_trim_overtook_while_it_read_is_done(settled: int, reached: int) -> None:
    client = Client()
    client.deliver(TrimRequested(3, LOG, 4))
    client.view(VIEW)
    client.deliver(ReadThrough(settled, reached))
    effects = client.view(apply(VIEW, RaiseTrim(5)))
    assert (results(effects), messages(effects)) == ([(3, Trimmed(5))], [])


def test_b3_a_trim_that_lost_its_swap_to_a_further_trim_is_done() -> None:
    client = Client()
    client.deliver(TrimRequested(3, LOG, 2))
    client.view(VIEW)
    client.deliver(ReadThrough(2, 2))
    client.view(VIEW)
    effects = client.view(apply(VIEW, RaiseTrim(5)))
    assert (results(effects), messages(effects)) == ([(3, Trimmed(5))], [])


# ---------------------------------------------------------------------------------------------------- seal and reopen


def test_a_seal_ends_the_open_segment_and_leaves_the_log_closed() -> None:
    client = Client()
    assert messages(client.deliver(SealRequested(3, LOG))) == [Refresh(LOG)]
    assert messages(client.view(VIEW)) == [EndOpenSegment(LOG, 0, reopen=False)]
    assert results(client.view(CLOSED)) == [(3, SegmentEnded(0, 4))]


def test_a_seal_with_reopen_goes_on_in_another_segment() -> None:
    client = Client()
    client.deliver(SealRequested(3, LOG, reopen=True))
    assert messages(client.view(VIEW)) == [EndOpenSegment(LOG, 0, reopen=True)]
    assert results(client.view(MOVED)) == [(3, SegmentEnded(0, 4))]


def test_b4_a_closed_log_is_opened_again_on_request() -> None:
    client = Client()
    client.deliver(SealRequested(3, LOG, reopen=True))
    effects = client.view(CLOSED)
    assert messages(effects) == [OpenClosedLog(LOG)]
    assert announced(effects) == [ReopenRequested(LOG)]
    assert results(client.view(apply(CLOSED, Reopen(NEXT)))) == [(3, SegmentEnded(0, 4))]


def test_b4_a_seal_that_another_ending_overtook_is_tried_again() -> None:
    client = Client()
    client.deliver(SealRequested(3, LOG))
    client.view(VIEW)
    effects = client.view(MOVED)  # an appender was faster, and opened the next segment
    assert results(effects) == []
    assert messages(effects) == [EndOpenSegment(LOG, 1, reopen=False)]


@pytest.mark.parametrize("task", [SealRequested(3, LOG), SealRequested(3, LOG, reopen=True), DeleteRequested(3, LOG)])
def test_b6_an_ending_that_is_not_possible_now_is_retried_and_then_refused(task: Message) -> None:
    client = Client()
    client.deliver(task)
    waits: list[int] = []
    effects = client.view(VIEW)
    for _ in range(7):
        assert [type(message) for message in messages(effects)] == [EndOpenSegment]
        [timer] = client.view(VIEW)
        assert isinstance(timer, SetTimer)
        waits.append(timer.after_ms)
        assert messages(client.role.on_timer(timer.key)) == [Refresh(LOG)]
        effects = client.view(VIEW)
    assert waits == [200, 400, 600, 800, 1000, 1200, 1400]
    [(_, result)] = results(client.view(VIEW))
    assert isinstance(result, RequestRefused)
    client.deliver(SealRequested(4, LOG))
    client.view(VIEW)
    assert isinstance(client.view(VIEW)[0], SetTimer)  # the next one starts over


def test_b6_a_delete_goes_on_when_a_later_try_closes_the_log() -> None:
    client = Client()
    client.deliver(DeleteRequested(3, LOG))
    client.view(VIEW)
    client.view(VIEW)
    client.role.on_timer("again")
    client.view(VIEW)
    closed = apply(VIEW, EndSegment(0, 1, VIEW.last.groups, None))
    assert messages(client.view(closed)) == [ChangeProjection(2, apply(closed, DeleteLog()))]


@pytest.mark.parametrize("reopen", [False, True])
def test_r9_an_operator_may_declare_a_segment_lost(reopen: bool) -> None:
    client = Client()
    client.deliver(SealRequested(3, LOG, reopen=reopen, declared_end=6))
    assert messages(client.view(VIEW)) == [EndOpenSegment(LOG, 0, reopen=reopen, declared_end=6)]
    lost = apply(VIEW, EndSegment(0, 6, ((),), NEXT if reopen else None, Gap(1, 6)))
    assert results(client.view(lost)) == [(3, SegmentEnded(0, 6))]


def test_r9_a_declared_end_yields_to_what_an_intact_member_knows() -> None:
    client = Client()
    client.deliver(SealRequested(3, LOG, declared_end=6))
    client.view(VIEW)
    assert results(client.view(CLOSED)) == [(3, SegmentEnded(0, 4))]


@pytest.mark.parametrize("request_", [SealRequested(3, LOG), TrimRequested(3, LOG, 2)])
def test_a_log_that_does_not_exist_is_neither_sealed_nor_trimmed(request_: Message) -> None:
    client = Client()
    client.deliver(request_)
    assert results(client.view(None)) == [(3, NO_SUCH_LOG)]


# The segment that was ended may be forgotten (all of it was trimmed) before its end is read.
def test_a_seal_of_a_segment_that_is_forgotten_at_once_is_answered() -> None:
    client = Client()
    client.deliver(SealRequested(3, LOG, reopen=True))
    client.view(VIEW)
    assert len(results(client.view(apply(apply(MOVED, RaiseTrim(3)), ForgetSegment(0))))) == 1
