"""Actions: what may happen next in a world, as values with a text form that parses back to the same value.

    deliver c1.appender>n1.storage Write(position=3)     the message arrives
    duplicate c1.appender>n1.storage Write(position=3)   it arrives and stays in flight
    lose c1.appender>n1.storage Write(position=3)        it vanishes
    drop c1.appender>n1.storage Write(position=3)        its sender's host drops it
    timer c1.appender retry                              the timer fires when nothing else can happen
    early_timer c1.appender retry                        the timer fires although something else could happen
    free_timer c1.appender retry                         the same, for a free timer of the scenario
    operate c1                                           the process begins its next operation
    sync n1                                              the disk is synced and withheld effects are released
    crash n1                                             the process ends
    crash_in n1 2 deliver c1.appender>n1.storage Write() the process ends after 2 effects of that step
    restart n1                                           the process starts on the disk as it is
    wipe n1                                              the process starts on an empty disk, as a new incarnation
    power_cut n1: lost 4; n2: kept                       the processes end; each disk keeps what is named
    rot n1 entry 3                                       synced data goes bad
    cut left-right, heal                                 a network cut begins, ends

A kind may carry the options chosen at each ``Choose`` of the step: ``deliver[0,2] ...``.
"""

from __future__ import annotations

from typing import NamedTuple

FAULTS = frozenset(
    {"lose", "drop", "duplicate", "crash", "crash_in", "wipe", "power_cut", "rot", "cut", "early_timer"},
)
KINDS = FAULTS | {"deliver", "timer", "free_timer", "operate", "sync", "restart", "heal"}
_OF_WORLD = frozenset({"power_cut", "cut", "heal"})
OF_MESSAGE = frozenset({"deliver", "duplicate", "lose", "drop"})
OF_TIMER = frozenset({"timer", "early_timer", "free_timer"})


class Action(NamedTuple):
    """``actor`` is the process where it happens; empty for an action of the whole world.

    ``subject`` is the rest of the text: the message, the timer, the data that rots, the name of the cut.
    """

    kind: str
    actor: str = ""
    subject: str = ""
    choice: tuple[int, ...] = ()
    effects: int = 0  # crash_in only: effects carried out before the crash
    cause: Action | None = None  # crash_in only: the step in which the process crashes

    def text(self) -> str:
        head = self.kind + (f"[{','.join(map(str, self.choice))}]" if self.choice else "")
        if self.cause is not None:
            return f"{head} {self.actor} {self.effects} {self.cause.text()}"
        if self.kind in _OF_WORLD or self.kind in OF_MESSAGE:
            return f"{head} {self.subject}".rstrip()
        joint = "." if self.kind in OF_TIMER else " "
        return f"{head} {self.actor}" + (f"{joint}{self.subject}" if self.subject else "")

    def without_choice(self) -> Action:
        return self._replace(choice=())


def is_fault(action: Action) -> bool:
    return action.kind in FAULTS


def parse(line: str) -> Action:
    """The action whose ``text`` is ``line``; raises ValueError if there is none."""
    head, _, rest = line.strip().partition(" ")
    kind, choice = _parse_head(head)
    if kind == "crash_in":
        return _parse_crash_in(rest, choice)
    if kind in _OF_WORLD:
        action = Action(kind, "", rest, choice)
    elif kind in OF_MESSAGE:
        action = Action(kind, _target_process(rest), rest, choice)
    elif kind in OF_TIMER:
        actor, dot, timer = rest.partition(".")
        if not dot:
            raise ValueError(f"expected PROCESS.ROLE KEY after {kind}: {line!r}")
        action = Action(kind, actor, timer, choice)
    else:
        actor, _, subject = rest.partition(" ")
        action = Action(kind, actor, subject, choice)
    if not rest and kind != "heal":
        raise ValueError(f"nothing follows {kind}: {line!r}")
    return action


def _parse_head(head: str) -> tuple[str, tuple[int, ...]]:
    kind, bracket, inside = head.partition("[")
    if kind not in KINDS:
        raise ValueError(f"unknown action {kind!r}")
    if not bracket:
        return kind, ()
    try:
        return kind, tuple(int(each) for each in inside.removesuffix("]").split(","))
    except ValueError:
        raise ValueError(f"expected numbers in the brackets of {head!r}") from None


def _parse_crash_in(rest: str, choice: tuple[int, ...]) -> Action:
    parts = rest.split(" ", 2)
    if len(parts) < 3 or not parts[1].isdigit():
        raise ValueError(f"expected PROCESS NUMBER ACTION after crash_in: {rest!r}")
    return Action("crash_in", parts[0], "", choice, int(parts[1]), parse(parts[2]))


def _target_process(message: str) -> str:
    path, _, _ = message.partition(" ")
    _, arrow, target = path.partition(">")
    if not arrow or "." not in target:
        raise ValueError(f"expected PROCESS.ROLE>PROCESS.ROLE MESSAGE: {message!r}")
    return target.partition(".")[0]
