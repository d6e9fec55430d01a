"""A place of the checked world: the tables of one or several members, and one transaction for all of them.

The place reads, writes and commits; ``core/group_commit.py`` decides, as in every real place. It may go wrong in every
way that it counts: a member fails by an error of its own, a transaction that has read is overtaken by another one, and
the outcome of a commit is unknown, with and without effect.

Tables that commit alone are in ``delivery_lone.py``.
"""

from __future__ import annotations

import enum

from msgspec import Struct
from msgspec.structs import replace

from trunkline.check.delivery_rows import Edit, Rows
from trunkline.check.monitors.delivery import TableWritten
from trunkline.check.monitors.places import GroupEnded, MemberEnd
from trunkline.check.scenarios.hosts import PassiveRole
from trunkline.core.delivery_messages import JobMember, Outcome, Result
from trunkline.core.effects import Address, Announce, CancelTimer, Choose, Effects, Message, Send, SetTimer
from trunkline.core.fence import PlannedWrite, StoredPosition
from trunkline.core.group_commit import GroupCommit, GroupStage, MemberFate

REPORTED = {
    MemberFate.APPLIED: Outcome.APPLIED,
    MemberFate.ALREADY: Outcome.ALREADY,
    MemberFate.FENCED: Outcome.FENCED,
    MemberFate.MOVED: Outcome.MOVED,
    MemberFate.BUSY: Outcome.TRANSIENT,
    MemberFate.UNKNOWN: Outcome.UNKNOWN,
}


class StagedWrite(Struct, frozen=True):
    """A flush of one member, a repair, or a seed of these rows."""

    member: JobMember
    through: int
    edits: tuple[Edit, ...] = ()
    seed: Rows | None = None
    mark: str = ""  # of `through`
    repairs: bool = False

    @property
    def name(self) -> str:
        return self.member.destination

    @property
    def planned(self) -> PlannedWrite:
        """The checked world has one source, whose name is empty."""
        member, source = self.member, "" if self.seed is None else None
        return PlannedWrite(member.expected, member.mark, self.through, self.mark, member.token, source, self.repairs)


class Apply(Message, frozen=True):
    """One transaction for these members."""

    start: int
    job: int
    writes: tuple[StagedWrite, ...]


class ReadPositions(Message, frozen=True):
    start: int
    job: int
    members: tuple[str, ...]


class Answered(Message, frozen=True):
    start: int
    job: int
    results: tuple[Result, ...]


class Restore(Message, frozen=True):
    """An operator restores the table of a member to its initial state."""

    member: str


class Restored(Message, frozen=True):
    """The table is restored."""


class TableImage(Struct, frozen=True):
    rows: Rows = ()
    position: int = 0  # 0: no record
    token: int = 0
    seeded: int = 0  # the version of its last seed; 0: its rows are not from this pipeline
    mark: str = ""  # of the position

    @property
    def stored(self) -> StoredPosition:
        return StoredPosition(self.position, self.token, self.mark)


class PlaceKind(Struct, frozen=True):
    """What a place is like, and how often what may go wrong there."""

    append: bool = False
    savepoints: bool = False  # a member that fails is undone alone, else with the whole transaction
    troubles: tuple[tuple[str, int], ...] = ()  # by member: how often it may fail by itself
    broken: tuple[tuple[str, Outcome], ...] = ()  # by member: the outcome of every write
    races: int = 0  # how often a transaction waits between reading and its commit, so that another is faster
    unknowns: int = 0  # how often the outcome of a commit is unknown


class CommitEnd(enum.Enum):
    """How the commit of a transaction ends."""

    KNOWN = "known"
    LATE = "late"  # others may commit before it does
    KEPT = "kept"  # unknown: it has taken effect
    LOST = "lost"  # unknown: it has not


class Transaction:
    """One ``Apply`` under way."""

    def __init__(self, source: Address, apply: Apply) -> None:
        self.source = source
        self.apply = apply
        self.group = GroupCommit({write.name: write.planned for write in apply.writes})
        self.draft: dict[str, TableImage] = {}  # what it commits
        self.errors: dict[str, tuple[Outcome, str]] = {}  # of members that failed by themselves
        self.troubled = ""  # a member that fails this time
        self.overtaken = False  # another transaction has committed since it read


class Place(PassiveRole):
    def __init__(self, images: dict[str, TableImage], kind: PlaceKind) -> None:
        self.images = images
        self.backup = dict(images)
        self.kind = kind
        self.troubles = dict(kind.troubles)
        self.races, self.unknowns = kind.races, kind.unknowns
        self.choosing: Transaction | None = None
        self.open: Transaction | None = None  # it has read, and has not committed

    def on_message(self, source: Address, message: Message) -> Effects:
        match message:
            case ReadPositions(start, job, members):
                return [Send(source, Answered(start, job, tuple(map(self._standing, members))))]
            case Restore(member):
                self.images[member] = self.backup[member]
                return [self._announce(member, restored=True), Send(source, Restored())]
            case Apply():
                self.choosing = Transaction(source, message)
                ends = self._ends(message)
                return [Choose("end", ends)] if len(ends) > 1 else self._run(ends[0])
        return super().on_message(source, message)

    def on_choice(self, key: str, option: object) -> Effects:
        assert isinstance(option, CommitEnd | str)
        return self._run(option)

    def on_timer(self, key: str) -> Effects:
        """No other transaction was faster."""
        assert self.open is not None, f"nothing is open, but {key} was set"
        transaction, self.open = self.open, None
        return self._finish(transaction, CommitEnd.KNOWN)

    def _standing(self, member: str) -> Result:
        image = self.images[member]
        return Result(member, Outcome.STANDS, image.position, image.token, mark=image.mark)

    def _ends(self, apply: Apply) -> tuple[CommitEnd | str, ...]:
        """What may become of a transaction; a name: this member fails."""
        troubled = [write.name for write in apply.writes if self.troubles.get(write.name, 0)]
        late = [CommitEnd.LATE] if self.races and self.open is None else []
        unknown = [CommitEnd.KEPT, CommitEnd.LOST] if self.unknowns else []
        return (CommitEnd.KNOWN, *troubled, *late, *unknown)

    # ------------------------------------------------------------------------------------------------ a transaction

    def _run(self, end: CommitEnd | str) -> Effects:
        assert self.choosing is not None
        transaction, self.choosing = self.choosing, None
        if isinstance(end, str):
            self.troubles[end] -= 1
            transaction.troubled, end = end, CommitEnd.KNOWN
        self._prepare(transaction)
        if end is CommitEnd.LATE:
            self.races -= 1
            self.open = transaction
            return [SetTimer("commit", 1)]
        self.unknowns -= end is not CommitEnd.KNOWN
        effects = self._finish(transaction, end)
        return effects + self._overtake(transaction)

    def _overtake(self, faster: Transaction) -> Effects:
        """The open transaction ends as well: it lost the race, if the faster one has committed anything."""
        if self.open is None:
            return []
        slower, self.open = self.open, None
        slower.overtaken = bool(faster.draft)
        return [CancelTimer("commit"), *self._finish(slower, CommitEnd.KNOWN)]

    def _prepare(self, transaction: Transaction) -> None:
        """Read, judge and write, until no member of the transaction fails."""
        group = transaction.group
        writes = {write.name: write for write in transaction.apply.writes}
        while group.stage is GroupStage.READING:
            transaction.draft = {}
            for name in group.judge({each: self.images[each].stored for each in group.waiting}):
                transaction.draft[name] = self._written(writes[name])
                if error := self._error(writes[name], transaction):
                    transaction.errors[name] = error
                    self._undo(transaction, name)
                    group.leave_out(name, undone_alone=self.kind.savepoints)
                    if not self.kind.savepoints:
                        break

    def _undo(self, transaction: Transaction, name: str) -> None:
        if self.kind.savepoints:
            del transaction.draft[name]
        else:
            transaction.draft = {}

    def _error(self, write: StagedWrite, transaction: Transaction) -> tuple[Outcome, str] | None:
        broken = dict(self.kind.broken).get(write.name)
        held = {row.key for row in self.images[write.name].rows}
        twice = [edit.key for edit in write.edits if edit.row and not edit.replaces and edit.key in held]
        if broken is not None:
            return broken, "broken"
        if transaction.troubled == write.name:
            return Outcome.TRANSIENT, "unreachable"
        return (Outcome.PERMANENT, f"{twice[0]} is there") if twice and not self.kind.append else None

    def _finish(self, transaction: Transaction, end: CommitEnd) -> Effects:
        """Commit, and answer."""
        group, before = transaction.group, dict(self.images)
        if transaction.overtaken and group.stage is GroupStage.WRITING:
            group.lost_race()
            self._prepare(transaction)
        if group.stage is GroupStage.WRITING:
            if end is not CommitEnd.LOST:
                self._commit(transaction)
            group.committed() if end is CommitEnd.KNOWN else group.unknown()
        written = [name for name, image in self.images.items() if image is not before[name]]
        results = tuple(self._result(write, transaction) for write in transaction.apply.writes)
        reported = [(each.destination, each.outcome) for each in results]
        members = tuple(MemberEnd(name, each, name in written, name in transaction.errors) for name, each in reported)
        strangers = tuple(name for name in written if name not in group.verdicts)
        answer = Send(transaction.source, Answered(transaction.apply.start, transaction.apply.job, results))
        return [*map(self._announce, written), Announce(GroupEnded(members, strangers)), answer]

    def _commit(self, transaction: Transaction) -> None:
        """Rows, position and token of every member change in one transaction."""
        self.images |= transaction.draft

    def _result(self, write: StagedWrite, transaction: Transaction) -> Result:
        verdict = transaction.group.verdicts[write.name]
        if verdict.fate is MemberFate.FAILED:
            outcome, error = transaction.errors[write.name]
            return Result(write.name, outcome, error=error)
        held = (write.through, write.member.token)
        if verdict.fate is not MemberFate.APPLIED:
            held = (verdict.held.position, verdict.held.token)
        return Result(write.name, REPORTED[verdict.fate], *held)

    # --------------------------------------------------------------------------------------------------------- tables

    def _written(self, write: StagedWrite) -> TableImage:
        """A member's table after a write: rows, position and token."""
        image, token, through = self.images[write.name], write.member.token, write.through
        if write.seed is not None:
            return TableImage(write.seed, through, token, through, write.mark)
        rows = edited(image.rows, write.edits, append=self.kind.append)
        if write.repairs:
            return TableImage(rows, through, token, through, write.mark)
        return replace(image, rows=rows, position=through, token=token, mark=write.mark)

    def _announce(self, name: str, *, restored: bool = False) -> Announce:
        image = self.images[name]
        return Announce(TableWritten(name, image.rows, image.position, image.token, image.seeded, restored, image.mark))


def edited(rows: Rows, edits: tuple[Edit, ...], *, append: bool) -> Rows:
    """The rows of a table after a flush."""
    touched = set() if append else {edit.key for edit in edits}
    kept = [row for row in rows if row.key not in touched]
    return tuple(sorted([*kept, *(edit.row for edit in edits if edit.row is not None)]))
