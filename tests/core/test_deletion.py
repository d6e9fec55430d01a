"""Deleting a log (B5, P8): it is closed first, and afterwards every role refuses it."""

from __future__ import annotations

import pytest

from core.driver import APPLICATION, META, RECONFIGURER, messages, results, seen, storage
from trunkline.check.scenarios.cluster import BROADCAST2, CHAIN2, CHAIN3, CLUSTER, LOG, broadcast_log, chain_log
from trunkline.core.administrator import NEVER_AGAIN, Administrator, AdministratorConfig
from trunkline.core.appender import Appender, AppenderConfig
from trunkline.core.calls import (
    AppendRequested,
    CreateLog,
    DeleteRequested,
    SealRequested,
    SubscribeRequested,
    TailRequested,
    TrimRequested,
)
from trunkline.core.effects import Address, Event, Message
from trunkline.core.events import CreateRefused, Deleted, OutcomeUnknown, RequestRefused
from trunkline.core.messages import (
    Got,
    Granted,
    Reason,
    Rejected,
)
from trunkline.core.projection import (
    Change,
    DeleteLog,
    EndSegment,
    IllegalChange,
    MarkRepaired,
    Opening,
    Owner,
    RaiseTrim,
    Reopen,
    Seat,
    apply,
)
from trunkline.core.reader import Reader, ReaderConfig
from trunkline.core.reconfigurer import Reconfigurer, ReconfigurerConfig
from trunkline.core.refusals import DELETED, NO_SUCH_LOG, append_refused
from trunkline.core.siblings import ChangeProjection, EndOpenSegment, OpenClosedLog, ViewChanged
from trunkline.core.tail import TailConfig, TailFinder
from trunkline.core.writer import Writer, WriterConfig

VIEW = chain_log(CHAIN2, "a b", sequencer="a")
NEXT = Opening(((Seat("a", 1), Seat("b", 1)),), Owner("a", 1))
CLOSED = apply(VIEW, EndSegment(0, 4, VIEW.last.groups, None))
GONE = apply(CLOSED, DeleteLog())


@pytest.mark.parametrize("change", [Reopen(NEXT), MarkRepaired(0), RaiseTrim(2), DeleteLog()], ids=str)
def test_p8_a_deleted_log_never_changes_again(change: Change) -> None:
    with pytest.raises(IllegalChange, match="deleted"):
        apply(GONE, change)


def test_p8_only_a_closed_log_is_deleted_and_then_it_names_no_stream() -> None:
    with pytest.raises(IllegalChange, match="closed"):
        apply(VIEW, DeleteLog())
    assert (CLOSED.streams(), GONE.streams()) == (("1.0.0", "1.0.1"), ())
    assert GONE.epoch == CLOSED.epoch + 1


# ----------------------------------------------------------------------------------------------------- administrator


def administrator(request: Message) -> Administrator:
    role = Administrator(AdministratorConfig(CLUSTER, LOG))
    role.on_message(APPLICATION, request)
    return role


def test_b5_a_log_is_closed_and_then_deleted() -> None:
    role = administrator(DeleteRequested(5, LOG))
    assert messages(role.on_message(RECONFIGURER, seen(VIEW))) == [EndOpenSegment(LOG, 0, reopen=False)]
    assert messages(role.on_message(RECONFIGURER, seen(CLOSED))) == [ChangeProjection(2, GONE)]
    assert results(role.on_message(RECONFIGURER, seen(GONE))) == [(5, Deleted(3))]


def test_b5_a_deletion_that_another_ending_overtook_closes_the_next_segment() -> None:
    role = administrator(DeleteRequested(5, LOG))
    role.on_message(RECONFIGURER, seen(VIEW))
    moved = apply(VIEW, EndSegment(0, 4, VIEW.last.groups, NEXT))
    assert messages(role.on_message(RECONFIGURER, seen(moved))) == [EndOpenSegment(LOG, 1, reopen=False)]


def test_a_log_that_cannot_be_closed_or_does_not_exist_is_not_deleted() -> None:
    role = administrator(DeleteRequested(5, LOG))
    for _ in range(role.config.tries - 1):  # B6
        role.on_message(RECONFIGURER, seen(VIEW))
        assert results(role.on_message(RECONFIGURER, seen(VIEW))) == []
        role.on_timer("again")
    role.on_message(RECONFIGURER, seen(VIEW))
    [(_, refused)] = results(role.on_message(RECONFIGURER, seen(VIEW)))
    assert isinstance(refused, RequestRefused)
    role = administrator(DeleteRequested(6, LOG))
    assert results(role.on_message(RECONFIGURER, seen(None))) == [(6, NO_SUCH_LOG)]


@pytest.mark.parametrize(
    ("request_", "result"),
    [
        (DeleteRequested(5, LOG), Deleted(3)),
        (CreateLog(5, LOG, CHAIN2), CreateRefused(NEVER_AGAIN)),
        (CreateLog(5, LOG, CHAIN3), CreateRefused(NEVER_AGAIN)),
        (TrimRequested(5, LOG, 1), RequestRefused(NEVER_AGAIN, Reason.NO_SUCH_LOG)),
        (SealRequested(5, LOG, reopen=True), RequestRefused(NEVER_AGAIN, Reason.NO_SUCH_LOG)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_b5_nothing_can_be_done_with_a_deleted_log(request_: Message, result: Event) -> None:
    role = administrator(request_)
    effects = role.on_message(RECONFIGURER, seen(GONE))
    assert (messages(effects), results(effects)) == ([], [(5, result)])


def test_b5_a_deleted_log_is_not_opened_again() -> None:
    role = Reconfigurer(ReconfigurerConfig(META, LOG))
    role.on_message(Address("client", "administrator"), OpenClosedLog(LOG))
    effects = role.on_message(META, Got(LOG, 0, GONE, ()))
    assert messages(effects) == [ViewChanged(LOG, GONE, ())]


# ----------------------------------------------------------------------------------------------------------- clients


@pytest.mark.parametrize(("first", "result"), [(1, OutcomeUnknown(1)), (4, append_refused(DELETED))])
def test_a5_what_was_in_flight_below_the_end_of_a_deleted_log_is_unknown(first: int, result: Event) -> None:
    role = Appender(AppenderConfig(LOG, "w"), VIEW)
    role.on_message(APPLICATION, AppendRequested(1, LOG, 1, 7))
    role.on_message(Address("a", "sequencer"), Granted(LOG, 0, "w", 1, first, first))
    role.on_message(storage("a"), Rejected("1.0.0", first, Reason.GONE))
    assert results(role.on_message(RECONFIGURER, seen(GONE))) == [(1, result)]


def test_a_deleted_log_accepts_no_writer() -> None:
    view = broadcast_log(BROADCAST2, "a b", owner="w")
    deleted = apply(apply(view, EndSegment(0, 4, view.last.groups, None)), DeleteLog())
    role = Writer(WriterConfig(LOG, Owner("v", 1)))
    role.on_message(APPLICATION, AppendRequested(1, LOG, 1, 7))
    assert results(role.on_message(RECONFIGURER, seen(deleted))) == [(1, append_refused(DELETED))]


def test_a_deleted_log_is_neither_read_nor_asked_for_its_tail() -> None:
    refused = DELETED
    reader = Reader(ReaderConfig(META, LOG), VIEW)
    reader.on_message(APPLICATION, SubscribeRequested(2, LOG, 1))
    reader.on_message(storage("b"), Rejected("1.0.1", 1, Reason.TRIMMED))
    assert results(reader.on_message(RECONFIGURER, seen(GONE))) == [(2, refused)]
    finder = TailFinder(TailConfig(META, LOG))
    finder.on_message(APPLICATION, TailRequested(3, LOG))
    assert results(finder.on_message(META, Got(LOG, 3, GONE, ()))) == [(3, refused)]
