"""The administrator: creates, trims, seals, reopens and deletes a log.

States
    idle --create--> viewing --no such log--> choosing --placement--> changing --accepted--> idle
    idle --trim--> settling --everything up to the point read or filled--> viewing --> changing --> idle
    idle --seal--> ending --> idle
    idle --delete--> ending --closed--> changing --> idle
    ending --not possible now--> waiting --after a while--> viewing --> ending

Rules
 B1  Creating again with the same settings is a no-op; with others it is refused. Of two at once one wins.
 B2  A trim point is below the tail and settled: everything up to it was read or filled first. It never cuts a batch: it
     is lowered to the last entry before a batch that it would cut.
 B3  A trim is a swap on the projection; nodes follow later.
 B4  A sealed log stays read-only until an operator reopens it.
 B5  A log is closed before it is deleted; then every operation on it is refused, and its name is never used again.
 B6  An ending that is not possible now is retried, each time after a longer wait: busy nodes answer late. It is refused
     only after the last attempt.
"""

from __future__ import annotations

import enum

from msgspec import Struct

from trunkline.core.calls import CreateLog, DeleteRequested, SealRequested, SubscribeRequested, TrimRequested
from trunkline.core.effects import SELF, Address, Announce, Choose, Complete, Effects, Event, Message, Send, SetTimer
from trunkline.core.events import (
    Created,
    CreateRefused,
    Deleted,
    ReopenRequested,
    RequestRefused,
    SegmentEnded,
    Trimmed,
)
from trunkline.core.messages import NodeInfo, Reason
from trunkline.core.placement import openings
from trunkline.core.projection import DeleteLog, Opening, Owner, Projection, RaiseTrim, Settings, apply, create
from trunkline.core.reader import ReadThrough
from trunkline.core.refusals import NO_SUCH_LOG, other_settings
from trunkline.core.siblings import ChangeProjection, EndOpenSegment, OpenClosedLog, Refresh, ViewChanged

NO_OWNER = Owner("", 0)  # owns a broadcast log until its first writer


class AdministratorState(enum.Enum):
    IDLE = "idle"
    VIEWING = "viewing"
    CHOOSING = "choosing"
    SETTLING = "settling"
    ENDING = "ending"
    WAITING = "waiting"
    CHANGING = "changing"


class AdministratorConfig(Struct, frozen=True):
    cluster: str
    log: str
    tries: int = 8  # too small: refused while nodes are busy; too big: refused late (here: 10 s)
    retry_ms: int = 200  # before the second attempt; grows by this before each later one


Task = CreateLog | TrimRequested | SealRequested | DeleteRequested

NEVER_AGAIN = "the log was deleted; its name cannot be used again"


class Administrator:
    def __init__(self, config: AdministratorConfig) -> None:
        self.config = config
        self.state = AdministratorState.IDLE
        self.task: Task | None = None
        self.reached = 0  # the log was read up to here for a trim
        self.asked = -1  # the segment to end
        self.tried = 0  # failed attempts
        self.point: int | None = None  # of a trim, once everything up to it is settled

    @property
    def phase(self) -> str:
        return self.state.value

    def on_start(self) -> Effects:
        return []

    def on_timer(self, key: str) -> Effects:
        return self._refresh()

    def on_message(self, source: Address, message: Message) -> Effects:
        match message:
            case CreateLog() | SealRequested() | TrimRequested() | DeleteRequested():
                self.task, self.point, self.tried = message, None, 0
                return self._refresh()
            case ReadThrough(settled, reached):
                self.point, self.reached = settled, reached
                return self._refresh()
            case ViewChanged(_, view, nodes):
                return self._on_view(view, nodes)
        raise AssertionError(f"an administrator does not accept {message}")

    def on_choice(self, key: str, option: object) -> Effects:
        assert isinstance(option, Opening) and isinstance(self.task, CreateLog)
        self.state = AdministratorState.CHANGING
        first = create(self.config.cluster, self.config.log, self.task.settings, option)
        return [Send(Address(SELF, "reconfigurer"), ChangeProjection(0, first))]

    def _refresh(self) -> Effects:
        self.state = AdministratorState.VIEWING
        return [Send(Address(SELF, "reconfigurer"), Refresh(self.config.log))]

    def _on_view(self, view: Projection | None, nodes: tuple[NodeInfo, ...]) -> Effects:
        if view is not None and view.deleted and self.task is not None:  # B5
            return self._on_deleted_view(view)
        match self.task:
            case CreateLog(settings=settings):
                return self._on_create_view(view, nodes, settings)
            case TrimRequested():
                return self._on_trim_view(view, self.task)
            case SealRequested():
                return self._on_seal_view(view, self.task)
            case DeleteRequested():
                return self._on_delete_view(view)
        return []

    def _on_deleted_view(self, view: Projection) -> Effects:
        match self.task:
            case DeleteRequested():
                return self._done(Deleted(view.epoch))
            case CreateLog():
                return self._done(CreateRefused(NEVER_AGAIN))
        return self._done(RequestRefused(NEVER_AGAIN, Reason.NO_SUCH_LOG))

    def _on_delete_view(self, view: Projection | None) -> Effects:
        if view is None:
            return self._done(NO_SUCH_LOG)
        if not view.last.is_open:
            self.state = AdministratorState.CHANGING
            change = ChangeProjection(view.epoch, apply(view, DeleteLog()))
            return [Send(Address(SELF, "reconfigurer"), change)]
        if self.state is AdministratorState.ENDING and self.asked == view.last.index:
            return self._try_again("the log cannot be closed: no intact member of a group is reachable")
        self.state, self.asked = AdministratorState.ENDING, view.last.index
        job = EndOpenSegment(self.config.log, view.last.index, reopen=False)
        return [Send(Address(SELF, "reconfigurer"), job)]

    def _on_create_view(self, view: Projection | None, nodes: tuple[NodeInfo, ...], settings: Settings) -> Effects:
        if view is not None:  # B1
            same = view.settings == settings
            return self._done(Created(view.epoch) if same else CreateRefused(other_settings(view.settings, settings)))
        options = openings(settings, nodes, owner=NO_OWNER)
        if not options:
            return self._done(CreateRefused("too few nodes are registered; start nodes first"))
        self.state = AdministratorState.CHOOSING
        return [Choose("opening", options)]

    def _on_trim_view(self, view: Projection | None, task: TrimRequested) -> Effects:
        if view is None:
            return self._done(NO_SUCH_LOG)
        beyond = self.point is not None and self.reached < task.point
        enough = task.point if self.point is None or beyond else self.point
        if view.trim >= enough:
            return self._done(Trimmed(view.trim))
        if self.point is None:  # B2
            self.state = AdministratorState.SETTLING
            read = SubscribeRequested(task.operation, task.log, view.trim + 1, until=task.point, to_tail=True)
            return [Send(Address(SELF, "reader"), read)]
        if beyond:
            return self._done(RequestRefused(f"{task.point} is not below the tail, {self.reached + 1}"))
        self.state = AdministratorState.CHANGING
        change = ChangeProjection(view.epoch, apply(view, RaiseTrim(self.point)))
        return [Send(Address(SELF, "reconfigurer"), change)]

    def _on_seal_view(self, view: Projection | None, task: SealRequested) -> Effects:
        if view is None:
            return self._done(NO_SUCH_LOG)
        if self.state is AdministratorState.ENDING and self._is_so(view, task):
            end = view.last.base if view.last.end is None else view.last.end
            return self._done(SegmentEnded(self.asked, end))
        if self.state is AdministratorState.ENDING and self.asked == view.last.index:
            return self._try_again("no intact member of a group is reachable, or no node is left")
        self.state, self.asked = AdministratorState.ENDING, view.last.index  # also if another process changed it
        if view.last.is_open or not task.reopen:
            declared = task.declared_end
            job = EndOpenSegment(self.config.log, view.last.index, reopen=task.reopen, declared_end=declared)
            return [Send(Address(SELF, "reconfigurer"), job)]
        announced = Announce(ReopenRequested(self.config.log))  # B4
        return [announced, Send(Address(SELF, "reconfigurer"), OpenClosedLog(self.config.log))]

    def _is_so(self, view: Projection, task: SealRequested) -> bool:
        if task.reopen:
            return view.last.is_open and view.last.index > self.asked
        return not view.last.is_open

    def _try_again(self, why: str) -> Effects:
        """It is not possible now (R8)."""
        self.tried += 1
        if self.tried >= self.config.tries:  # B6
            return self._done(RequestRefused(f"{why}; see `trunkline status`"))
        self.state = AdministratorState.WAITING
        return [SetTimer("again", self.config.retry_ms * self.tried)]

    def _done(self, result: Event) -> Effects:
        assert self.task is not None
        operation, self.task, self.state = self.task.operation, None, AdministratorState.IDLE
        return [Complete(operation, result)]
