"""Places: one transaction for several members.

A place of the checked world announces the end of each transaction; most properties are judged by that alone.
"""

from __future__ import annotations

from msgspec import Struct

from trunkline.check.scenario import Monitor, ObservedEvent, SafetyMonitor, Violation
from trunkline.core.delivery_messages import Outcome
from trunkline.core.effects import Event


class MemberEnd(Struct, frozen=True):
    """What became of one member of a transaction."""

    name: str
    outcome: Outcome  # as reported to its deliverer
    written: bool  # its table was written, whatever is reported
    failed: bool  # it had an error of its own


class GroupEnded(Event, frozen=True):
    """A transaction of a place has ended."""

    members: tuple[MemberEnd, ...]
    strangers: tuple[str, ...] = ()  # members that were written without being in the transaction


class GroupMonitor(SafetyMonitor):
    """A property of one transaction alone."""

    def initial(self) -> tuple[()]:
        return ()

    def observe(self, state: tuple[()], observed: ObservedEvent) -> tuple[()]:
        if isinstance(observed.event, GroupEnded):
            self.judge(observed.event)
        return state

    def judge(self, group: GroupEnded) -> None:
        raise NotImplementedError


class NotTorn(GroupMonitor):
    """The members that a transaction commits are all written, or none is."""

    name = "NotTorn"

    def judge(self, group: GroupEnded) -> None:
        committed = [each for each in group.members if each.outcome in (Outcome.APPLIED, Outcome.UNKNOWN)]
        missing = [each.name for each in committed if not each.written]
        if missing and len(missing) < len(committed):
            raise Violation(f"a transaction was committed without its member {missing[0]}")


class LeftOut(GroupMonitor):
    """A member that is reported as not written was not: neither its rows nor its position."""

    name = "LeftOut"

    def judge(self, group: GroupEnded) -> None:
        if group.strangers:
            raise Violation(f"{group.strangers[0]} was written, and is not in the transaction")
        for each in group.members:
            if each.written and each.outcome not in (Outcome.APPLIED, Outcome.UNKNOWN):
                raise Violation(f"{each.name} was written, and is reported as {each.outcome.value}")


class AppliedCommitted(GroupMonitor):
    """A member is reported as applied only if it was."""

    name = "AppliedCommitted"

    def judge(self, group: GroupEnded) -> None:
        for each in group.members:
            if each.outcome is Outcome.APPLIED and not each.written:
                raise Violation(f"{each.name} was not written, and is reported as applied")


class FailsAlone(GroupMonitor):
    """The failure of a member does not fail another, and keeps no other from its commit."""

    name = "FailsAlone"

    def judge(self, group: GroupEnded) -> None:
        for each in group.members:
            if each.outcome in (Outcome.TRANSIENT, Outcome.PERMANENT) and not each.failed:
                raise Violation(f"{each.name} is reported as {each.outcome.value}, and had no error of its own")


def place_safety() -> tuple[Monitor, ...]:
    """The safety properties of every place."""
    return (NotTorn(), LeftOut(), AppliedCommitted(), FailsAlone())
