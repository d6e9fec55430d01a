"""The log of a capture in the checked world: it has one writer, and a host that keeps its appends in a chain."""

from __future__ import annotations

import enum

from trunkline.check.monitors.capture import EntryLogged, LogTakenOver
from trunkline.check.scenarios.capture_host import CatalogTaken
from trunkline.check.scenarios.hosts import PassiveRole
from trunkline.core.capture_messages import (
    AppendEnded,
    AppendEntry,
    AppendOutcome,
    EntryKind,
    Origin,
    ShapeChange,
    TableCursor,
    TakeOver,
    TakeOverFailed,
)
from trunkline.core.effects import Address, Announce, Choose, Effects, Message, Send

LOG = Address("log", "log")


class Fate(enum.Enum):
    """What becomes of an append."""

    COMMITTED = "committed"
    LANDED = "landed"  # it is committed, but the answer is lost
    VANISHED = "vanished"  # its outcome is unknown, and it never lands
    REFUSED = "refused"  # no node has space, for example


class OneWriterLog(PassiveRole):
    """``troubles``: how often an append may end in another way than committed.

    After that the host refuses the other entries of the session. Only if the append has landed, those that were in the
    same append have landed with it.
    """

    def __init__(self, troubles: int) -> None:
        self.troubles = troubles
        self.owner = ""
        self.session = 0
        self.fate = Fate.COMMITTED  # of the last append of the session
        self.position = 0
        self.origin: Origin | None = None
        self.epoch = 0
        self.tables: tuple[TableCursor, ...] = ()
        self.schemas: tuple[tuple[int, int], ...] = ()  # tables, and the units of their schemas
        self.asked: tuple[Address, AppendEntry] | None = None

    def on_message(self, source: Address, message: Message) -> Effects:
        match message:
            case TakeOver(session, force):
                if not force and self.owner != source.process:
                    return [Send(source, TakeOverFailed(session, True))]
                self.owner, self.session, self.fate = source.process, session, Fate.COMMITTED
                taken = CatalogTaken(session, self.position, self.origin, self.tables, self.epoch, self.schemas)
                return [Announce(LogTakenOver(source.process)), Send(source, taken)]
            case AppendEntry(session) if (self.owner, self.session) != (source.process, session):
                return [self._answer(source, message, AppendOutcome.FENCED)]
            case AppendEntry():
                fates = self._fates()
                if len(fates) == 1:
                    return self._carry_out(source, message, fates[0])
                self.asked = (source, message)
                return [Choose("fate", fates)]
        return super().on_message(source, message)

    def on_choice(self, key: str, option: object) -> Effects:
        assert self.asked is not None
        assert isinstance(option, Fate)
        (source, entry), self.asked = self.asked, None
        self.troubles -= option is not Fate.COMMITTED and self.fate is Fate.COMMITTED
        return self._carry_out(source, entry, option)

    def _fates(self) -> tuple[Fate, ...]:
        """Of the next entry."""
        match self.fate:
            case Fate.COMMITTED:
                return tuple(Fate) if self.troubles else (Fate.COMMITTED,)
            case Fate.LANDED:
                return (Fate.LANDED, Fate.REFUSED)
        return (Fate.REFUSED,)

    def _carry_out(self, source: Address, entry: AppendEntry, fate: Fate) -> Effects:
        self.fate = fate
        match fate:
            case Fate.COMMITTED:
                return self._commit(source, entry, AppendOutcome.COMMITTED)
            case Fate.LANDED:
                return self._commit(source, entry, AppendOutcome.UNKNOWN)
            case Fate.VANISHED:
                return [self._answer(source, entry, AppendOutcome.UNKNOWN)]
        return [self._answer(source, entry, AppendOutcome.REFUSED)]

    def _commit(self, source: Address, entry: AppendEntry, outcome: AppendOutcome) -> Effects:
        if entry.last:
            self.position, self.origin, self.epoch = entry.position, entry.origin, entry.epoch
        before = () if entry.kind is EntryKind.CATALOG else self.tables
        tables = {cursor.table: cursor for cursor in (*before, *entry.tables)}
        schemas = dict(self.schemas)
        if entry.shape is not None:
            schemas[entry.shape.table] = entry.unit
            if entry.shape.change is ShapeChange.DROPPED:
                del tables[entry.shape.table], schemas[entry.shape.table]
        self.tables = tuple(cursor for _, cursor in sorted(tables.items()))
        self.schemas = tuple(sorted(schemas.items()))
        return [Announce(EntryLogged(entry)), self._answer(source, entry, outcome)]

    def _answer(self, source: Address, entry: AppendEntry, outcome: AppendOutcome) -> Send:
        return Send(source, AppendEnded(entry.session, entry.number, outcome))
