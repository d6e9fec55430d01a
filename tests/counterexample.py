"""A made-up run with one of everything that a diagram can show: a restarted sequencer gives out a position twice."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from trunkline.check.views import Finding, MessageView, NamedTexts, ProcessView, RoleView, StateView, StepView

HOSTILE = '<script>document.title="owned"</script><img src=x onerror=alert(1)>'
FINDING = Finding("TotalOrder", f"position 3 holds 'b' at n2 but reader r1 was given 'a' & {HOSTILE}")
REPLAY = "trunkline check takeover --actions check-out/takeover-TotalOrder.actions"


def _process(name: str, role: RoleView, disk: NamedTexts = ()) -> ProcessView:
    return ProcessView(name, True, 1, 1, (role,), (), disk)


@dataclass
class Story:
    """Builds a run step by step, with the state of the world after each."""

    state: StateView
    steps: list[StepView] = field(default_factory=list)
    states: list[StateView] = field(default_factory=list)
    sends: int = 0

    def __post_init__(self) -> None:
        self.states.append(self.state)

    def message(self, way: str, label: str, detail: str = "") -> MessageView:
        source, target = way.split(">")
        roles = {process.name: process.roles[0].name for process in self.state.processes}
        self.sends += 1
        return MessageView(
            self.sends, source, roles[source], target, roles[target], label, detail or f"{label}(epoch=1)"
        )

    def step(
        self,
        action: str,
        *sent: MessageView,
        at: str | None = None,
        handled: MessageView | None = None,
        announced: tuple[str, ...] = (),
        completed: tuple[str, ...] = (),
        persisted: tuple[str, ...] = (),
    ) -> None:
        kind = action.split(" ")[0]
        role = next((process.roles[0].name for process in self.state.processes if process.name == at), None)
        made = StepView(len(self.steps) + 1, action, kind, at, role, handled, sent, announced, completed, persisted)
        kept = tuple(message for message in self.state.network if message is not handled or kind == "duplicate")
        self.state = replace(self.state, network=kept + sent)
        self.steps.append(made)
        self.states.append(self.state)

    def deliver(
        self,
        message: MessageView,
        *sent: MessageView,
        kind: str = "deliver",
        announced: tuple[str, ...] = (),
        completed: tuple[str, ...] = (),
        persisted: tuple[str, ...] = (),
    ) -> None:
        way = f"{message.source}.{message.source_role}>{message.target}.{message.target_role}"
        self.step(
            f"{kind} {way} {message.detail}",
            *sent,
            at=message.target,
            handled=message,
            announced=announced,
            completed=completed,
            persisted=persisted,
        )

    def becomes(self, name: str, up: bool = True, phase: str | None = None, **fields: str) -> None:
        """Change the state after the last step."""
        processes = tuple(self._changed(p, up, phase, fields) if p.name == name else p for p in self.state.processes)
        self.state = replace(self.state, processes=processes)
        self.states[-1] = self.state

    def _changed(self, process: ProcessView, up: bool, phase: str | None, fields: dict[str, str]) -> ProcessView:
        role = process.roles[0]
        shown = tuple((name, fields.get(name, text)) for name, text in role.fields)
        disk = tuple((name, fields.get(f"disk_{name}", text)) for name, text in process.disk)
        start = process.start + (up and not process.up)
        changed = replace(role, phase=phase or role.phase, fields=shown)
        return replace(process, up=up, start=start, roles=(changed,), disk=disk)


def _world() -> StateView:
    def appender(payload: str) -> RoleView:
        return RoleView(
            "appender", "ChainAppender", "Idle", (("payload", payload), ("position", "None"), ("tries", "0"))
        )

    def storage() -> RoleView:
        return RoleView("storage", "Storage", "Open", (("written", "[1, 2]"), ("sealed", "False")))

    sequencer = RoleView("sequencer", "Sequencer", "Serving", (("next", "3"), ("start", "1")))
    reader = RoleView("reader", "Reader", "Following", (("position", "3"), ("seen", "['x', 'y']")))
    disk = (("frames", "1:'x' 2:'y'"), ("synced", "2"))
    return StateView(
        (
            _process("c1", appender(f"'a{HOSTILE}'")),
            _process("c2", appender("'b'")),
            _process("q", sequencer),
            _process("n1", storage(), disk),
            _process("n2", storage(), disk),
            _process("r1", reader),
        ),
        (),
        (("crash", "1"), ("restart", "1"), ("loss", "1"), ("cut", "1")),
        (("TotalOrder", "{1: 'x', 2: 'y'}"), ("CommitDurability", "()")),
    )


def example() -> tuple[list[StepView], list[StateView]]:
    """The steps, and the states before the first and after each."""
    story = Story(_world())
    ask, ask_again, ask_late = (story.message(way, "Next") for way in ("c1>q", "c1>q", "c2>q"))
    granted, granted_twice = story.message("q>c1", "Granted 3"), story.message("q>c2", "Granted 3")
    write = story.message("c1>n1", "Write 3", f"Write(first=3, payload='a{HOSTILE}')")
    pass_on, stored_head, stored = (
        story.message("c1>n2", "Write 3", f"Write(first=3, payload='a{HOSTILE}')"),
        story.message("n1>c1", "Stored"),
        story.message("n2>c1", "Stored"),
    )
    rival, rival_tail = (story.message(way, "Write 3", "Write(first=3, payload='b')") for way in ("c2>n1", "c2>n2"))
    read, value = story.message("r1>n2", "Read 3"), story.message("n2>r1", "Entries 3")
    late_read = story.message("r1>n2", "Read 3", "Read(first=3, again=True)")

    story.step("operate c1", ask, at="c1", announced=("AppendBegan(writer=1, seq=1)",))
    story.becomes("c1", phase="Asking")
    story.step(f"lose c1.appender>q.sequencer {ask.detail}", at="c1", handled=ask)
    story.step("timer c1 appender retry", ask_again, at="c1")
    story.becomes("c1", tries="1")
    story.deliver(ask_again, granted, kind="duplicate", announced=("GrantIssued(first=3, count=1)",))
    story.becomes("q", next="4")
    story.deliver(granted, write)
    story.becomes("c1", phase="Writing", position="3")
    story.deliver(write, stored_head, persisted=("Frame(first=3, count=1, kind=DATA)",))
    story.becomes("n1", written="[1, 2, 3]", disk_frames="1:'x' 2:'y' 3:'a'", disk_synced="3")
    story.step("crash q", at="q")
    story.becomes("q", up=False)
    story.step("operate c2", ask_late, at="c2", announced=("AppendBegan(writer=2, seq=1)",))
    story.becomes("c2", phase="Asking")
    story.deliver(stored_head, pass_on)
    story.step("cut n2-from-clients")
    story.step("restart q", at="q", announced=("SequencerStarted(start=2)",))
    story.becomes("q", next="3", start="2")
    story.deliver(ask_late, granted_twice, announced=("GrantIssued(first=3, count=1)",))
    story.becomes("q", next="4")
    story.deliver(granted_twice, rival, rival_tail)
    story.becomes("c2", phase="Writing", position="3")
    story.step("heal")
    story.step("timer r1 reader poll", read, at="r1")
    story.deliver(pass_on, stored, persisted=("Frame(first=3, count=1, kind=DATA)",))
    story.becomes("n2", written="[1, 2, 3]", disk_frames="1:'x' 2:'y' 3:'a'", disk_synced="3")
    story.deliver(read, value, announced=(f"ReadAnswered(first=3, payload='a{HOSTILE}')",))
    story.deliver(value, late_read, completed=("Read 3 → 'a'",))
    story.becomes("r1", seen="['x', 'y', 'a']", position="4")
    story.deliver(stored, completed=("Appended(first=3)",), announced=("AppendCommitted(first=3, writer=1)",))
    story.becomes("c1", phase="Idle")
    story.deliver(rival_tail, persisted=("Frame(first=3, count=1, kind=DATA)",), announced=("Overwritten(first=3)",))
    story.becomes("n2", written="[1, 2, 3]", disk_frames="1:'x' 2:'y' 3:'b'")
    return story.steps, story.states
