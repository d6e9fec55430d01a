"""What a task collects for each member, table by table, before a place writes it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from msgspec.structs import replace

from trunkline.core.delivery_messages import JobMember
from trunkline.delivery.config.address_rules import address_of, commits_alone, home_of, kind_of, lacks
from trunkline.delivery.config.addresses import Address
from trunkline.delivery.destinations.contract import Batches, LeavingTable, MemberStep, MemberWrite, TableStep
from trunkline.delivery.job.work import FlushWork, SeedWork, TableWork, TaskDestination, TaskPipeline, Work
from trunkline.errors import DuplicateKey, SchemaMismatch, TrunklineError
from trunkline.plural import plural


class MemberDraft:
    """One member of a flush or a seed."""

    def __init__(self, target: TaskDestination, member: JobMember) -> None:
        self.target = target
        self.member = member
        self.duplicates = 0  # rows that lost against another of their key, over all tables
        self.error: TrunklineError | None = None  # of its rows: it is not written
        self._steps: dict[str, TableStep] = {}
        self._rows: dict[str, Batches] = {}

    @property
    def empty(self) -> bool:
        return not self._steps and self.error is None

    def add(
        self, table: TableWork, rows: Batches | None, duplicates: int = 0, *, whole: bool, exact: bool = True
    ) -> None:
        """Its rows of one table; ``whole``: they are all rows, else the net changes."""
        step = self._followed(self.target.step(table, whole=whole, exact=exact))
        self._steps[table.name] = step
        self.duplicates += duplicates
        if rows is not None:
            self._rows[table.name] = rows
        if duplicates and step.duplicates == "halt" and step.mode != "append":
            self.error = self.error or _shared_keys(self.target.name, step, duplicates)

    def goes_back(self, through: int) -> bool:
        """Whether a seed of this version comes before versions that its histories have: they would end before they
        began, and those that follow would be there twice."""
        histories = any(step.mode == "history" for step in self._steps.values())
        return histories and not self.member.discards and self.member.expected > through

    def _followed(self, step: TableStep) -> TableStep:
        """A kind that follows no steps compares columns by name: it takes those that were added or widened."""
        if step.steps is None or not lacks(step.address, "column_steps"):
            return step
        if step.steps.renamed or step.steps.dropped or step.steps.defaults:
            self.error = self.error or _cannot_follow(self.target.name, step)
        return replace(step, steps=None)

    def follow(self, table: TableWork, *, whole: bool) -> None:
        """Without rows it follows the table's columns, or loses its rows."""
        if table.name not in self._steps:
            self.add(table, None, whole=whole)

    def _listed(self, work: Work) -> Iterator[TableStep]:
        """Those with anything to do. Where tables commit alone, all: one of them leads (T10)."""
        alone = commits_alone(self.target.address) and isinstance(work, FlushWork)
        quiet = work.quiet if isinstance(work, FlushWork) else ()
        for table in (*work.tables, *quiet):
            if (step := self._steps.get(table.name)) is not None:
                yield replace(step, discards=isinstance(work, SeedWork) and self.member.discards)
            elif alone:
                yield self.target.step(table, whole=False)

    def write(self, pipeline: TaskPipeline, work: Work) -> MemberWrite:
        """Its tables in the order of the work: every member in the same one."""
        target, member = self.target, self.member
        flush, seed = isinstance(work, FlushWork), isinstance(work, SeedWork)
        step = MemberStep(
            member=pipeline.member(target),
            home=home_of(target.address),
            expected=member.expected,
            through=work.window.through if isinstance(work, FlushWork) else work.through,
            token=member.token,
            source=work.identity,
            tables=tuple(self._listed(work)),
            leaving=_leaving(target, work) if isinstance(work, FlushWork) else (),
            mark=member.mark,
            through_mark=work.mark,
            ahead=member.ahead if flush else 0,
            seeds=seed,
            replace_existing=target.replace_existing,
            known=self._known(work),
            living=pipeline.living,
        )
        return MemberWrite(step, self._rows)

    def _known(self, work: Work) -> tuple[Address, ...]:
        """A table that it has, if no step says so: a stamp finds the record of a destination that was renamed, too."""
        if not isinstance(work, FlushWork) or any(not step.replaces for step in self._steps.values()):
            return ()
        names = [table.name for table in (*work.tables, *work.quiet) if table.name not in self._steps]
        return tuple(address_of(self.target.address, name) for name in names[:1])


def _leaving(target: TaskDestination, work: FlushWork) -> tuple[LeavingTable, ...]:
    return tuple(LeavingTable(name, address_of(target.address, name), work.drops) for name in work.left)


def in_memory(rows: pa.Table) -> Batches:
    """Rows that can be read again."""
    return lambda: iter(rows.to_batches())


def _shared_keys(name: str, step: TableStep, count: int) -> DuplicateKey:
    of = f"{step.table}: " if step.table else ""
    sharing = plural(count, "row of the source shares", "rows of the source share")
    return DuplicateKey(
        f"{of}{sharing} a key ({', '.join(step.key)}) with another row of {name}; make the key unique, or set "
        "duplicates: warn, and resume the destination"
    )


def _cannot_follow(name: str, step: TableStep) -> SchemaMismatch:
    changed = "" if step.steps is None else step.steps.spelled()
    of = f"table {step.table}: " if step.table else ""
    return SchemaMismatch(
        f"{of}the columns of the source changed ({changed}), which destinations of type "
        f"{kind_of(step.address)} do not follow; reseed {name}"
    )
