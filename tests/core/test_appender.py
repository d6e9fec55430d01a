"""The appender, led by hand through its walk-throughs on a chain of three."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from core.appending import END, HEAD, LAST, MIDDLE, ONE, VIEW, Client, ask, ended, frame, grant
from core.driver import (
    META,
    announced,
    messages,
    results,
    seen,
    sent,
    target,
    timers,
)
from trunkline.check.scenarios.cluster import LOG, appends, broadcast_log
from trunkline.core.appender import CALM_AFTER
from trunkline.core.effects import SetTimer
from trunkline.core.entries import junk
from trunkline.core.events import Appended, AppendRefused, Committed, OutcomeUnknown
from trunkline.core.messages import (
    Next,
    NotGranted,
    Open,
    Opened,
    Reason,
    Rejected,
    Stored,
    Write,
    Written,
    descriptor_of,
)
from trunkline.core.projection import (
    EndSegment,
    ForgetSegment,
    Gap,
    Policy,
    Projection,
    RaiseTrim,
    Settings,
    apply,
)
from trunkline.core.refusals import lost_condition
from trunkline.core.siblings import EndOpenSegment, Fill, FillDone, Refresh

# --------------------------------------------------------------------------------------------------- the good path


def test_a1_members_are_written_one_by_one_and_the_last_one_commits() -> None:
    client = Client()
    assert sent(client.deliver(ONE)) == [("a.sequencer", ask(VIEW, 1))]
    assert sent(client.deliver(grant(1, 1))) == [("a.storage", Write(target(VIEW, HEAD), frame()))]
    assert sent(client.deliver(Stored(HEAD, frame()))) == [("b.storage", Write(target(VIEW, MIDDLE), frame()))]
    assert client.deliver(Stored(LAST, frame())) == []  # not asked yet
    assert client.deliver(Stored(HEAD, frame())) == []  # doubled
    assert sent(client.deliver(Stored(MIDDLE, frame()))) == [("c.storage", Write(target(VIEW, LAST), frame()))]
    effects = client.deliver(Stored(LAST, frame()))
    assert announced(effects) == [Committed(LOG, 0, None, frame())]
    assert results(effects) == [(1, Appended(1))]
    assert client.role.phase == "idle"


def test_an_appender_without_a_projection_reads_it_first() -> None:
    client = Client(None)
    assert sent(client.deliver(ONE)) == [("self.reconfigurer", Refresh(LOG))]
    assert messages(client.deliver(seen(VIEW))) == [ask(VIEW, 1)]


@pytest.mark.parametrize(
    ("view", "why", "cause"),
    [
        (None, "no such log", Reason.NO_SUCH_LOG),
        (apply(VIEW, EndSegment(0, 1, VIEW.last.groups, None)), "sealed", Reason.SEALED),
        (broadcast_log(Settings(Policy.BROADCAST), "a", owner="w"), "one writer", Reason.OTHER),
    ],
)
def test_an_append_to_a_log_that_takes_none_is_refused(view: Projection | None, why: str, cause: Reason) -> None:
    client = Client(None)
    client.deliver(ONE)
    [(operation, result)] = results(client.deliver(seen(view)))
    assert operation == 1
    assert isinstance(result, AppendRefused)
    assert why in result.why
    assert result.cause is cause


def test_a_stream_that_a_member_lacks_is_opened_with_those_behind_it_and_then_written() -> None:
    client = Client()
    client.begin()
    asked = client.deliver(Rejected(HEAD, 1, Reason.UNKNOWN))
    assert sent(asked) == [
        (f"{member.node}.storage", Open(descriptor_of(VIEW, VIEW.last, member))) for member in VIEW.last.members()
    ]
    behind = VIEW.last.members()[1].stream
    assert client.deliver(Opened(behind)) == []
    assert client.deliver(Rejected(behind, 0, Reason.GONE)) == []  # its own turn to say so comes with the write
    assert messages(client.deliver(Opened(HEAD))) == [Write(target(VIEW, HEAD), frame())]


def test_a6_a_grant_serves_only_the_append_that_requested_it() -> None:
    client = Client()
    client.deliver(ONE)
    assert client.deliver(grant(99, 5)) == []
    client.deliver(grant(1, 1))
    assert client.deliver(grant(1, 2)) == []  # a second grant for one question: its position is left to the readers
    assert client.role.ignores(META, grant(1, 2))


def test_a7_positions_that_a_grant_skips_are_filled_at_once() -> None:
    client = Client()
    client.deliver(replace(ONE, count=2))
    effects = client.deliver(grant(1, 5, skipped=3))
    assert sent(effects)[0] == ("self.filler", Fill(VIEW, 0, 3, 5, whole=True))
    assert messages(effects)[1] == Write(target(VIEW, HEAD), frame(5, 1, 2))
    assert client.deliver(FillDone(0, 3, (junk(3),))) == []


def test_a8_later_appends_wait_for_a_settled_grant() -> None:
    client = Client(in_flight_max=1)
    first, second = appends(7, 7)
    client.begin(first, stored=2)
    assert client.deliver(second) == []
    assert messages(client.deliver(Stored(LAST, frame()))) == [ask(VIEW, 2)]


# ------------------------------------------------------------------------------------------------------ bad paths


@pytest.mark.parametrize("stored", [0, 1, 2])
def test_a2_another_frame_on_any_member_means_a_new_position_under_a_new_seq(stored: int) -> None:
    client = Client()
    client.begin(stored=stored)
    stream = (HEAD, MIDDLE, LAST)[stored]
    assert messages(client.deliver(Written(stream, frame(), junk(1)))) == [ask(VIEW, 2, beaten=1)]


def test_a7_a_batch_that_lost_its_place_has_all_of_it_filled() -> None:
    client = Client()
    client.begin(replace(ONE, count=2))
    effects = client.deliver(Written(HEAD, frame(1, 1, 2), junk(2)))
    assert messages(effects) == [Fill(VIEW, 0, 1, 3, whole=True), ask(VIEW, 2, count=2, beaten=1)]


@pytest.mark.parametrize("count", [1, 1000])
def test_a9_a_refused_batch_leaves_no_hole_behind(count: int) -> None:
    client = Client()
    client.begin(replace(ONE, count=count))
    client.deliver(Rejected(HEAD, 1, Reason.NO_SPACE))
    client.deliver(seen(VIEW))
    effects = client.deliver(FillDone(0, 1, (junk(1),)))
    assert messages(effects) == ([Fill(VIEW, 0, 1, 1001, whole=True)] if count > 1 else [])  # A7
    assert isinstance(results(effects)[0][1], AppendRefused)


def test_a11_a_beaten_append_reports_it_for_a_while() -> None:
    client = Client()
    client.begin()
    assert messages(client.deliver(Written(HEAD, frame(), junk(1)))) == [ask(VIEW, 2, beaten=1)]
    client.deliver(grant(2, 2))
    assert messages(client.deliver(Written(HEAD, frame(2, 2), junk(2)))) == [ask(VIEW, 3, beaten=2)]
    client.deliver(grant(3, 3))
    for stream in (HEAD, MIDDLE, LAST):
        client.deliver(Stored(stream, frame(3, 3)))
    asked = [client.commit(replace(ONE, operation=operation)) for operation in range(2, 2 * CALM_AFTER + 2)]
    assert [ask.beaten for ask in asked] == [2] * (CALM_AFTER - 1) + [1] * CALM_AFTER + [0]


def test_a_conditional_append_is_refused_where_its_position_is_not_the_next() -> None:
    client = Client()
    assert messages(client.deliver(replace(ONE, expect=5))) == [ask(VIEW, 1, expect=5)]
    refused = client.deliver(NotGranted(LOG, 0, "w", 1, Reason.GAP, 3))
    assert results(refused) == [(1, AppendRefused("the next position is 3", Reason.CONDITION, next=3))]


def test_a_conditional_append_that_loses_its_position_does_not_take_another() -> None:
    client = Client()
    client.begin(replace(ONE, expect=1))
    effects = client.deliver(Written(HEAD, frame(), junk(1)))
    assert messages(effects) == []
    assert results(effects) == [(1, lost_condition())]


@pytest.mark.parametrize(
    ("stored", "suspect"), [(None, "a"), (0, "a"), (1, "b"), (2, "c")], ids=["asking", "head", "middle", "last"]
)
def test_a3_silence_ends_the_segment_and_names_the_silent_node(stored: int | None, suspect: str) -> None:
    client = Client()
    effects = client.deliver(ONE) if stored is None else client.begin(stored=stored)
    assert timers(effects) == ["append:1"]
    assert sent(client.role.on_timer("append:1")) == [
        ("self.reconfigurer", EndOpenSegment(LOG, 0, (suspect,))),
    ]


@pytest.mark.parametrize(
    ("reason", "suspects"),
    [
        (Reason.SEALED, ()),
        (Reason.CORRUPT, ("a",)),
        (Reason.GONE, ("a",)),
        (Reason.MISMATCH, ("a",)),
    ],
)
def test_a3_a_refused_write_ends_the_segment(reason: Reason, suspects: tuple[str, ...]) -> None:
    client = Client()
    client.begin()
    assert messages(client.deliver(Rejected(HEAD, 1, reason))) == [EndOpenSegment(LOG, 0, suspects)]


def test_a10_an_appender_that_meets_a_seal_waits_some_times_for_another_to_end_it() -> None:
    client = Client(seal_checks=2)
    client.begin()
    assert timers(client.deliver(Rejected(HEAD, 1, Reason.SEALED))) == ["append:1"]
    assert messages(client.role.on_timer("append:1")) == [Refresh(LOG)]
    assert timers(client.deliver(seen(VIEW))) == ["append:1"]
    assert messages(client.role.on_timer("append:1")) == [Refresh(LOG)]
    assert messages(client.deliver(seen(VIEW))) == [EndOpenSegment(LOG, 0, ())]


def test_a10_the_end_that_another_decided_is_taken_at_once() -> None:
    client = Client(seal_checks=2)
    client.begin()
    client.deliver(Rejected(HEAD, 1, Reason.SEALED))
    assert messages(client.deliver(seen(VIEW))) == []
    view = ended(1)
    assert [type(message) for message in messages(client.deliver(seen(view)))] == [Next]


@pytest.mark.parametrize("stored", [0, 1, 2])
def test_a3_a_sealed_member_anywhere_in_the_chain_leaves_the_outcome_open(stored: int) -> None:
    client = Client()
    client.begin(stored=stored)
    effects = client.deliver(Rejected((HEAD, MIDDLE, LAST)[stored], 1, Reason.SEALED))
    assert (results(effects), messages(effects)) == ([], [END])


def test_a3_a_sequencer_that_refuses_ends_the_segment() -> None:
    client = Client()
    client.deliver(ONE)
    effects = client.deliver(NotGranted(LOG, 0, "w", 1, Reason.NOT_OWNER))
    assert messages(effects) == [EndOpenSegment(LOG, 0, ("a",))]


def test_a3_nothing_is_sent_anywhere_else_before_the_old_position_is_settled() -> None:
    client = Client()
    client.begin(stored=1)
    client.role.on_timer("append:1")
    assert client.deliver(Stored(MIDDLE, frame())) == []  # too late to count
    assert messages(client.deliver(seen(VIEW))) == []  # still open
    assert messages(client.deliver(seen(ended(2)))) == [Fill(ended(2), 0, 1, 2)]


def test_a4_below_the_end_the_own_frame_is_committed() -> None:
    client = Client()
    client.begin(stored=1)
    client.role.on_timer("append:1")
    client.deliver(seen(ended(2)))
    effects = client.deliver(FillDone(0, 1, (frame(),)))
    assert results(effects) == [(1, Appended(1))]
    assert announced(effects) == [Committed(LOG, 0, None, frame())]


def test_a4_below_the_end_another_frame_means_append_again() -> None:
    client = Client()
    client.begin(stored=1)
    client.role.on_timer("append:1")
    client.deliver(seen(ended(2)))
    assert sent(client.deliver(FillDone(0, 1, (junk(1),)))) == [("d.sequencer", ask(ended(2), 2))]


def test_a4_at_or_past_the_end_it_was_not_committed() -> None:
    client = Client()
    client.begin(stored=1)
    client.role.on_timer("append:1")
    assert sent(client.deliver(seen(ended(1)))) == [("d.sequencer", ask(ended(1), 2))]


@pytest.mark.parametrize("why", [Reason.SILENT, Reason.STALE])
def test_a3_a_position_that_cannot_be_settled_now_is_retried(why: Reason) -> None:
    client = Client()
    client.begin()
    client.role.on_timer("append:1")
    client.deliver(seen(ended(2)))
    effects = client.deliver(FillDone(0, 1, (), why))
    if why is Reason.SILENT:
        assert (messages(effects), timers(effects)) == ([], ["append:1"])
        effects = client.role.on_timer("append:1")
    assert messages(effects) == [Refresh(LOG)]
    assert messages(client.deliver(seen(ended(2)))) == [Fill(ended(2), 0, 1, 2)]


@pytest.mark.parametrize(
    "view",
    [
        apply(ended(2), RaiseTrim(1)),
        apply(apply(ended(2), RaiseTrim(1)), ForgetSegment(0)),
        apply(VIEW, EndSegment(0, 2, ((),), None, Gap(1, 2))),
    ],
    ids=["trimmed", "forgotten", "declared lost"],
)
def test_a5_what_was_trimmed_or_declared_lost_has_an_unknown_outcome(view: Projection) -> None:
    client = Client()
    client.begin(stored=1)
    client.role.on_timer("append:1")
    assert results(client.deliver(seen(view))) == [(1, OutcomeUnknown(1))]


def test_a5_a_write_to_a_trimmed_position_reads_the_projection() -> None:
    client = Client()
    client.begin()
    assert messages(client.deliver(Rejected(HEAD, 1, Reason.TRIMMED, 1))) == [Refresh(LOG)]
    trimmed = apply(VIEW, RaiseTrim(1))
    assert results(client.deliver(seen(trimmed))) == [(1, OutcomeUnknown(1))]


def test_an_older_projection_does_not_count() -> None:
    client = Client(ended(1))
    assert client.deliver(seen(VIEW)) == []
    assert messages(client.deliver(ONE)) == [ask(ended(1), 1)]


# --------------------------------------------------------------------------------------- two appends, one fail-over


def two_in_flight(survivors: str) -> Client:
    """Append 1 waits for the last member at position 1; append 2 found the segment ended with these survivors."""
    client = Client()
    first, second = appends(7, 7)
    client.begin(first, 1, stored=2)
    client.begin(second, 2)
    client.role.on_timer("append:2")
    client.deliver(seen(ended(2, survivors)))
    return client


def test_a1_a_write_in_flight_outlives_an_ending_that_another_append_saw() -> None:
    client = two_in_flight("a b c")
    assert results(client.deliver(Stored(LAST, frame()))) == [(1, Appended(1))]


@pytest.mark.parametrize("event", ["answer", "timer"])
def test_a1_a_write_in_flight_outlives_the_loss_of_a_member_in_an_ending_that_another_append_saw(event: str) -> None:
    client = two_in_flight("b c")
    if event == "answer":
        assert results(client.deliver(Stored(LAST, frame()))) == [(1, Appended(1))]
    else:
        assert messages(client.role.on_timer("append:1")) == [EndOpenSegment(LOG, 0, ("c",))]


def test_a5_a_write_in_flight_outlives_its_segment() -> None:
    client = two_in_flight("a b c")
    forgotten = apply(apply(ended(2), RaiseTrim(1)), ForgetSegment(0))
    client.deliver(seen(forgotten))
    client.role.on_timer("append:1")
    assert results(client.deliver(seen(forgotten))) == [(1, OutcomeUnknown(1))]


def test_a12_appends_that_time_out_together_are_one_suspicion_and_tries_do_not_slow_down() -> None:
    client = Client()
    requests = [replace(ONE, operation=number) for number in range(1, 4)]
    for request in requests:
        client.begin(request, first=request.operation)
    for request in requests:
        client.role.on_timer(f"append:{request.operation}")
    assert client.role.doubts == 1
    effects = client.deliver(seen(VIEW))  # it could not be ended now
    assert [effect.after_ms for effect in effects if isinstance(effect, SetTimer)] == [1000] * 3
    effects = client.deliver(seen(ended(1)))  # all of them ask again, and wait longer
    assert [effect.after_ms for effect in effects if isinstance(effect, SetTimer)] == [2000] * 3
