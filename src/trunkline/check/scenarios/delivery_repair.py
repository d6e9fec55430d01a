"""A repairer of the checked world: it seizes a destination, and rewrites its rows at the position that they have.

A repair takes several steps, and anything may happen between them: its lease expires, a flush of the former owner lands
late, the outcome of its commit is unknown. It begins again until its rows are written under its own token.
"""

from __future__ import annotations

from collections.abc import Mapping

from trunkline.check.delivery_rows import Edit, SourceScript
from trunkline.check.disks import NoDisk
from trunkline.check.scenario import Boot, ProcessSpec
from trunkline.check.scenarios.delivery_place import Answered, Apply, ReadPositions, StagedWrite
from trunkline.check.scenarios.delivery_world import CONTROL, Seize, Seized
from trunkline.check.scenarios.hosts import PassiveRole
from trunkline.core.delivery_messages import JobMember, LeasesLost, Outcome, Released, ReleaseLeases, Result
from trunkline.core.effects import Address, Announce, Effects, Event, Message, Send
from trunkline.core.role import Role

REPAIRER = "r"
READ, WRITE = 1, 2  # what it waits for, as a job


class Repaired(Event, frozen=True):
    """The rows of a destination were rewritten."""

    destination: str
    position: int


class Repairer(PassiveRole):
    def __init__(self, destination: str, tenants: tuple[int, ...], keys: tuple[str, ...], script: SourceScript) -> None:
        """``keys``: all that the table may hold."""
        self.destination, self.tenants, self.keys, self.script = destination, tenants, keys, script
        self.token = 0

    def on_start(self) -> Effects:
        return [Send(CONTROL, Seize(self.destination))]

    def on_message(self, source: Address, message: Message) -> Effects:
        match message:
            case Seized(_, token):
                self.token = token
                return self._read()
            case Answered(job=job, results=(result,)) if job == READ:
                return self._write(result)
            case Answered(results=(result,)):
                return self._on_written(result)
            case LeasesLost():
                return []  # it does not hear of it in time
        return super().on_message(source, message)

    def _read(self) -> Effects:
        return [Send(Address(self.destination, "place"), ReadPositions(0, READ, (self.destination,)))]

    def _write(self, read: Result) -> Effects:
        rows = {row.key: row for row in self.script.part(self.tenants, read.position)}
        edits = tuple(Edit(key, rows.get(key), replaces=True) for key in self.keys)
        member = JobMember(self.destination, read.position, self.token, mark=read.mark)
        write = StagedWrite(member, read.position, edits, mark=read.mark, repairs=True)
        return [Send(Address(self.destination, "place"), Apply(0, WRITE, (write,)))]

    def _on_written(self, result: Result) -> Effects:
        match result.outcome:
            case Outcome.APPLIED | Outcome.ALREADY:
                left = ReleaseLeases((Released(self.destination, self.token, settled=False),))
                return [Announce(Repaired(self.destination, result.position)), Send(CONTROL, left)]
            case Outcome.FENCED:
                return [Send(CONTROL, Seize(self.destination))]
        return self._read()


def repairer(destination: str, tenants: tuple[int, ...], keys: str, script: SourceScript) -> ProcessSpec:
    def start(boot: Boot) -> Mapping[str, Role]:
        return {"planner": Repairer(destination, tenants, tuple(keys.split()), script)}

    return ProcessSpec(REPAIRER, start, NoDisk(), None)
