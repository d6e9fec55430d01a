"""Tables of one member that commit alone, and the step of a worker that writes them: the rules E1 to E6 of Delta places
(``delivery/destinations/delta.py``) in the checked world.

The first table leads. Each commit is on the image that was read; one that finds another image is lost.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from trunkline.check.monitors.delivery import TableWritten
from trunkline.check.scenarios.delivery_place import REPORTED, StagedWrite, TableImage, edited
from trunkline.check.scenarios.hosts import PassiveRole
from trunkline.core.delivery_messages import Outcome, Result
from trunkline.core.effects import Address, Announce, Choose, Effects, Message, Send
from trunkline.core.fence import StoredPosition
from trunkline.core.group_commit import GroupCommit, MemberFate

TRIES = 2  # of a step whose commits are lost; more only repeats what two show


class LoneImage(Struct, frozen=True):
    """A table, and where the member's tables are going if it leads; 0: nowhere."""

    table: TableImage = TableImage()
    going: int = 0


class ReadTables(Message, frozen=True):
    start: int
    job: int
    member: str
    attempt: int = 0


class TablesRead(Message, frozen=True):
    request: ReadTables
    images: tuple[LoneImage, ...]


class CommitTable(Message, frozen=True):
    start: int
    job: int
    member: str
    table: int  # its number; 0 leads
    base: LoneImage
    image: LoneImage


class TableCommitted(Message, frozen=True):
    """``now``: what the table holds; the commit was lost unless that is its image. ``reached``: False, it failed."""

    request: CommitTable
    now: LoneImage
    reached: bool = True


class LoneTables(PassiveRole):
    """The storage of one member. ``troubles``: how often a commit may fail without effect."""

    def __init__(self, name: str, images: tuple[LoneImage, ...], troubles: int = 0) -> None:
        self.name = name
        self.images = images
        self.troubles = troubles
        self.asked: tuple[Address, CommitTable] | None = None

    def on_message(self, source: Address, message: Message) -> Effects:
        match message:
            case ReadTables():
                return [Send(source, TablesRead(message, self.images))]
            case CommitTable() if self.troubles:
                self.asked = (source, message)
                return [Choose("reached", (True, False))]
            case CommitTable():
                return self._commit(source, message)
        return super().on_message(source, message)

    def on_choice(self, key: str, option: object) -> Effects:
        assert self.asked is not None
        (source, commit), self.asked = self.asked, None
        if option is True:
            return self._commit(source, commit)
        self.troubles -= 1
        return [Send(source, TableCommitted(commit, self.images[commit.table], reached=False))]

    def _commit(self, source: Address, commit: CommitTable) -> Effects:
        if self.images[commit.table] != commit.base:
            return [Send(source, TableCommitted(commit, self.images[commit.table]))]
        images = list(self.images)
        images[commit.table] = commit.image
        self.images = tuple(images)
        return [*self._announce(), Send(source, TableCommitted(commit, commit.image))]

    def _announce(self) -> Effects:
        """While the lead is at a position and going nowhere, all tables together are a state of the member."""
        lead = self.images[0].table
        if self.images[0].going or not lead.position:
            return []
        rows = tuple(sorted(row for image in self.images for row in image.table.rows))
        written = TableWritten(self.name, rows, lead.position, lead.token, lead.seeded, mark=lead.mark)
        return [Announce(written)]


def standing_of(member: str, images: tuple[LoneImage, ...]) -> Result:
    lead, token = images[0], max(image.table.token for image in images)
    position, going = lead.table.position, lead.going
    later = [each for each in (*(image.table.position for image in images), going) if each > position]
    ahead = min(later, default=0) if position else 0
    return Result(member, Outcome.STANDS, position, token, mark=lead.table.mark, ahead=ahead)


class LoneStep:
    """One step of one member (E1 to E6). ``keys``: of each table."""

    def __init__(self, start: int, job: int, write: StagedWrite, keys: tuple[str, ...], *, append: bool) -> None:
        self.start = start
        self.job = job
        self.write = write
        self.keys = keys
        self.append = append
        self.attempt = 0
        self.wrote = False  # a table was committed
        self.images: tuple[LoneImage, ...] = ()
        self.following: tuple[tuple[int, LoneImage], ...] = ()  # commits to come: table and image
        self.awaited: Message | None = None

    def read(self) -> Message:
        """The next request: read all tables (E1)."""
        self.attempt += 1
        self.awaited = ReadTables(self.start, self.job, self.write.name, self.attempt)
        return self.awaited

    def on_read(self, images: tuple[LoneImage, ...]) -> Message | Result:
        self.images = images
        if (refused := self._judged(self._held())) is not None:
            return refused
        for image in images[1:]:
            held = self._held_by_table(image.table.stored)
            if (refused := self._judged(held)) is not None and refused.outcome is not Outcome.ALREADY:
                return refused
        self.following = self._plan()
        return self._next()

    def on_committed(self, answer: TableCommitted) -> Message | Result:
        number, now = answer.request.table, answer.now
        if not answer.reached:
            return self._failed("unreachable")
        if now == answer.request.image:
            self.wrote = True
            self.images = tuple(now if each == number else image for each, image in enumerate(self.images))
            return self._next()
        held = now.table.stored if number == 0 else self._held_by_table(now.table.stored)
        refused = self._judged(held)
        if refused is not None and (number == 0 or refused.outcome is not Outcome.ALREADY):
            return refused
        if number and self.write.seed is None and now.table.position >= self.write.through:
            return self._next()  # by another process
        return self.read() if self.attempt < TRIES else self._failed("others are faster")

    def _failed(self, why: str) -> Result:
        return Result(self.write.name, Outcome.UNKNOWN if self.wrote else Outcome.TRANSIENT, error=why)

    def _next(self) -> Message | Result:
        if not self.following:
            return Result(self.write.name, Outcome.APPLIED, self.write.through, self.write.member.token)
        (number, image), *following = self.following
        self.following = tuple(following)
        self.awaited = CommitTable(self.start, self.job, self.write.name, number, self.images[number], image)
        return self.awaited

    # ------------------------------------------------------------------------------------------------------- judging

    def _judged(self, held: StoredPosition) -> Result | None:
        """``None`` if the step may proceed."""
        group, name = GroupCommit({self.write.name: self.write.planned}), self.write.name
        if group.judge({name: held}):
            return None
        fate = group.verdicts[name].fate
        assert fate is not MemberFate.FAILED
        return Result(name, REPORTED[fate], held.position, held.token)

    def _held(self) -> StoredPosition:
        standing, going = standing_of(self.write.name, self.images), self.images[0].going
        position = standing.position
        if self.write.seed is None and position == self.write.member.expected and going > position:
            position = position if going == self.write.through else going  # E3
        return StoredPosition(position, standing.token, standing.mark)

    def _held_by_table(self, held: StoredPosition) -> StoredPosition:
        """A table that does not lead: at or before P counts as P, later than Q as Q (E3)."""
        member, write = self.write.member, self.write
        if write.seed is not None or held.position <= member.expected:
            return held._replace(position=member.expected, mark=member.mark)
        return held._replace(position=write.through, mark=write.mark) if held.position > write.through else held

    # ------------------------------------------------------------------------------------------------------ planning

    def _plan(self) -> tuple[tuple[int, LoneImage], ...]:
        """The commits of this step, in order (E2, E4)."""
        lead, others = self.images[0], self._others()
        first = self._first(lead) if others else lead
        begins = [(0, first)] if first != lead else []
        ends = LoneImage(self._written(first.table, self.keys[0]))
        return (*begins, *others, (0, ends))

    def _first(self, lead: LoneImage) -> LoneImage:
        """The lead while the other tables are written."""
        token = self.write.member.token
        if self.write.seed is not None:
            return LoneImage(replace(lead.table, position=0, token=token), self.write.through)
        return LoneImage(replace(lead.table, token=token), self.write.through) if self._unannounced(lead) else lead

    def _unannounced(self, lead: LoneImage) -> bool:
        return lead.going != self.write.through

    def _others(self) -> list[tuple[int, LoneImage]]:
        tables = [(number, image.table) for number, image in enumerate(self.images) if number]
        return [
            (number, LoneImage(self._written(table, self.keys[number])))
            for number, table in tables
            if self.write.seed is not None or (self._is_behind(table) and self._edits(self.keys[number]))
        ]

    def _is_behind(self, table: TableImage) -> bool:
        return table.position < self.write.through

    def _edits(self, keys: str) -> bool:
        return any(edit.key in keys for edit in self.write.edits)

    def _written(self, table: TableImage, keys: str) -> TableImage:
        write, token = self.write, self.write.member.token
        if write.seed is not None:
            rows = tuple(row for row in write.seed if row.key in keys)
            return TableImage(rows, write.through, token, write.through, write.mark)
        rows = edited(table.rows, tuple(edit for edit in write.edits if edit.key in keys), append=self.append)
        return replace(table, rows=rows, position=write.through, token=token, mark=write.mark)
