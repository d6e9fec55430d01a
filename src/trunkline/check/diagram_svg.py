"""Draws a run as a sequence diagram in SVG: time runs down, one row per step, one life line per process.

                n1                 n2
                │                  │
             ┌──┤ row.top          │        a step is a bar on its life line: the message it handles arrives at the top,
             └──┤ row.bottom       │        messages it sends leave at the bottom, its pills are beside it
                │╲                 │
                │  ╲───Write 3────▶┤        a label is under the head of its arrow, in the row of the arrival,
                │                  │        so that labels never overlap

The style sheet of the page has colours and fonts; all text from the run is escaped here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from trunkline.check.diagram_arrows import Arrow, MessageFate, trace_arrows
from trunkline.check.views import Finding, RoleView, StateView, StepView

FIRST = 108  # x of the first life line: room for step numbers and half a name
LAST = 212  # right of the last life line: room for its pills
COLUMNS = ((4, 190), (6, 142))  # up to so many processes: this distance
COLUMN_OF_MANY = 124
GAP = 30  # between two rows: the height of an arrow to the next step
BAR = 18  # a step's height without pills
PILL = 20
CAPTION = 21
CHARACTER = 6.3  # the mean width of one character of a label
LABEL_MAX = 30  # characters of a pill or a label; the panel shows the rest
HUES = 7  # colours of messages in the style sheet
STUB = 52  # the length of an arrow that never ended
STUB_GAP = 15  # between several of them

ICONS = {  # kind of step: (class, path around 0,0)
    "crash": ("bad", "M-6-6L6 6M6-6L-6 6"),
    "crash_in": ("bad", "M-6-6L6 6M6-6L-6 6"),
    "restart": ("good", "M5-3.5A6 6 0 1 0 6 1M6-7V-3H2"),
    "wipe": ("warn", "M5-3.5A6 6 0 1 0 6 1M6-7V-3H2M-2-1L2 3M2-1L-2 3"),
    "rot": ("warn", "M0-7L7 0L0 7L-7 0ZM-2-2L2 2M2-2L-2 2"),
    "timer": ("soft", "M0-7A7 7 0 1 0 .01-7ZM0-4V0L3 2"),
    "early_timer": ("warn", "M0-7A7 7 0 1 0 .01-7ZM0-4V0L3 2"),
    "free_timer": ("good", "M0-7A7 7 0 1 0 .01-7ZM0-4V0L3 2"),
    "sync": ("disk", "M-6-4A6 2.5 0 1 0 6-4A6 2.5 0 1 0-6-4V4A6 2.5 0 0 0 6 4V-4"),
    "operate": ("soft", "M-4-6L6 0L-4 6Z"),
}
BANDS = {"power_cut": "bad", "cut": "warn", "heal": "good"}  # actions of the whole world cross all life lines
UNCAPTIONED = ("deliver", "duplicate", "lose", "drop")  # the label of the message is enough
SYMBOLS = {"power_cut": "⚡ ", "cut": "✂ ", "heal": "✓ "}


@dataclass(frozen=True)
class Pill:
    kind: str
    text: str


@dataclass(frozen=True)
class DiagramRow:
    step: StepView | None  # None: the initial state
    top: float
    bottom: float
    texts: float  # where caption and pills begin: below the label of a message from that side
    pills: tuple[Pill, ...]


@dataclass(frozen=True)
class Drawing:
    svg: str
    width: int
    lines: tuple[tuple[str, float], ...]  # each process and the x of its life line


def draw(finding: Finding, steps: Sequence[StepView], states: Sequence[StateView]) -> Drawing:
    return _Canvas(finding, steps, states).drawing()


def icon(kind: str, x: float, y: float) -> str:
    style, path = ICONS[kind]
    return (
        f'<g transform="translate({x:g} {y:g})"><circle class="backing" r="10.5"/>'
        f'<path class="icon {style}" d="{path}"/></g>'
    )


class _Canvas:
    def __init__(self, finding: Finding, steps: Sequence[StepView], states: Sequence[StateView]) -> None:
        self.finding = finding
        self.steps = steps
        self.states = states
        names = [process.name for process in states[0].processes]
        column = next((width for limit, width in COLUMNS if len(names) <= limit), COLUMN_OF_MANY)
        self.x: dict[str, float] = {name: FIRST + column * at for at, name in enumerate(names)}
        self.width = FIRST + column * (len(names) - 1) + LAST
        self.arrows = trace_arrows(steps, states)
        self.stubs = [arrow for arrow in self.arrows if arrow.ended_at is None]
        self.arrived = {arrow.ended_at: arrow for arrow in self.arrows if arrow.ended_at is not None}
        self.rows = self._rows()
        self.height = self.rows[-1].bottom + GAP + 12
        kinds = dict.fromkeys(_message_kind(arrow.message.label) for arrow in self.arrows)
        self.hue = {kind: at % HUES for at, kind in enumerate(kinds)}

    def drawing(self) -> Drawing:
        parts = [
            *(self._background(row) for row in self.rows),
            *self._life_lines(),
            *(self._arrow(arrow) for arrow in self.arrows),
            *(self._mark(row) for row in self.rows),
        ]
        svg = (
            f'<svg class="sequence" role="listbox" aria-label="steps" width="{self.width}" height="{self.height:g}" '
            f'viewBox="0 0 {self.width} {self.height:g}">{"".join(parts)}</svg>'
        )
        return Drawing(svg, self.width, tuple(self.x.items()))

    # layout

    def _rows(self) -> list[DiagramRow]:
        rows = [DiagramRow(None, 14, 14 + BAR, 14, ())]
        for at, step in enumerate(self.steps):
            pills = tuple(self._pills(step, self.states[at], self.states[at + 1]))
            stubs = len([arrow for arrow in self.stubs if arrow.sent_at == at])
            top = rows[-1].bottom + GAP + STUB_GAP * max(0, stubs - 1)
            texts = top + CAPTION * self._label_is_right(step)
            bottom = texts + CAPTION * (step.kind not in UNCAPTIONED) + PILL * len(pills)
            rows.append(DiagramRow(step, top, max(top + BAR, bottom), texts, pills))
        return rows

    def _pills(self, step: StepView, before: StateView, after: StateView) -> Iterator[Pill]:
        yield from (Pill("phase", text) for text in _phase_changes(step.process, before, after))
        yield from (Pill("disk", text) for text in step.persisted)
        yield from (Pill("event", text) for text in step.announced)
        yield from (Pill("done", text) for text in step.completed)
        if step is self.steps[-1]:
            yield Pill("bad", f"✗ {self.finding.monitor}")

    def _label_is_right(self, step: StepView) -> bool:
        """Whether the message comes from the right, so that its label is where the pills would be."""
        arrow = self.arrived.get(step.index)
        return arrow is not None and arrow.fate is not MessageFate.LOST and self._from(arrow) > self._to(arrow)

    def _from(self, arrow: Arrow) -> float:
        return self.x.get(arrow.message.source, 0.0)

    def _to(self, arrow: Arrow) -> float:
        return self.x.get(arrow.message.target, 0.0)

    # drawing

    def _background(self, row: DiagramRow) -> str:
        index = row.step.index if row.step else 0
        styles = ["row"]
        if row.step and row.step.kind in BANDS:
            styles.append(f"band-{BANDS[row.step.kind]}")
        if row.step and row.step is self.steps[-1]:
            styles.append("violated")
        label = f"step {index}: {row.step.action}" if row.step else "initial state"
        top, height = row.top - GAP / 2 + 3, row.bottom - row.top + GAP - 6
        return (
            f'<rect class="{" ".join(styles)}" data-step="{index}" role="option" aria-selected="false" '
            f'aria-label="{escape(label)}" x="4" y="{top:g}" width="{self.width - 8}" height="{height:g}" rx="6"/>'
            f'<text class="number" data-step="{index}" x="40" y="{row.top + 13:g}">{index or "start"}</text>'
        )

    def _life_lines(self) -> Iterator[str]:
        """A line from each row to the next, dotted while its process is down."""
        for at, row in enumerate(self.rows):
            end = self.rows[at + 1].top if at + 1 < len(self.rows) else self.height
            for process in self.states[at].processes:
                x = self.x[process.name]
                style = "life" if process.up else "life down"
                yield f'<line class="{style}" x1="{x:g}" x2="{x:g}" y1="{row.top:g}" y2="{end:g}"/>'

    def _arrow(self, arrow: Arrow) -> str:
        start_x, target_x = self._from(arrow), self._to(arrow)
        side = 1 if target_x > start_x else -1
        end_x, end_y = target_x - side * 6, 0.0
        if arrow.ended_at is not None:
            end_y = self.rows[arrow.ended_at].top + 4
        start_y = end_y if arrow.sent_at is None else self.rows[arrow.sent_at].bottom
        if arrow.ended_at is None:
            nth = [other for other in self.stubs if other.sent_at == arrow.sent_at].index(arrow)
            end_x, end_y = start_x + side * STUB, start_y + 10 + STUB_GAP * nth
        if arrow.fate is MessageFate.LOST:
            end_x = start_x + (target_x - start_x) * 0.62
        label = f"{arrow.message.label} ×2" if arrow.fate is MessageFate.DOUBLED else arrow.message.label
        hue = self.hue[_message_kind(arrow.message.label)]
        return (
            f'<g class="message m{hue} {arrow.fate.value}" data-from="{_index(arrow.sent_at)}" '
            f'data-to="{_index(arrow.ended_at)}"><title>{escape(arrow.message.detail)}</title>'
            f'<path class="line" d="M{start_x:g} {start_y:g}L{end_x:g} {end_y:g}"/>'
            f"{_arrow_end(arrow.fate, (start_x, start_y), (end_x, end_y))}"
            f"{_label(arrow, label, end_x, end_y, side)}</g>"
        )

    def _mark(self, row: DiagramRow) -> str:
        """What one step draws on life lines: its bar, icons and texts."""
        step = row.step
        if step is None:
            return ""
        x = self.x.get(step.process or "")
        parts = [f"<title>{escape(step.action)}</title>"]
        if x is not None and step.kind not in ("lose", "drop"):
            parts.append(_bar(row, x, step.kind))
        parts.extend(icon(kind, self.x[name], row.top + BAR / 2) for name, kind in self._others_changed(step))
        x = FIRST / 2 if x is None else x
        pills_top = row.texts
        if step.kind not in UNCAPTIONED:
            parts.append(_caption(step, x + 13, row.texts + 13))
            pills_top += CAPTION
        parts.extend(_pill(pill, x + 12, pills_top + at * PILL) for at, pill in enumerate(row.pills))
        return f'<g class="mark" data-step="{step.index}">{"".join(parts)}</g>'

    def _others_changed(self, step: StepView) -> Iterator[tuple[str, str]]:
        """Other processes that stopped or started in a step."""
        before, after = self.states[step.index - 1], self.states[step.index]
        for old, new in zip(before.processes, after.processes, strict=True):
            if old.up != new.up and new.name != step.process:
                yield new.name, "restart" if new.up else "crash"


def _bar(row: DiagramRow, x: float, kind: str) -> str:
    height = row.bottom - row.top
    bar = f'<rect class="active" x="{x - 5:g}" y="{row.top:g}" width="10" height="{height:g}" rx="4"/>'
    if kind not in ICONS:
        return bar
    drawn = icon(kind, x, row.bottom if kind == "crash_in" else row.top + BAR / 2)
    return bar + drawn if row.pills or kind == "crash_in" else drawn


def _caption(step: StepView, x: float, y: float) -> str:
    if step.kind in BANDS:
        style, text = f"band {BANDS[step.kind]}", escape(SYMBOLS[step.kind] + step.action)
    else:
        caption = "crash inside this step" if step.kind == "crash_in" else step.action
        style, text = ICONS.get(step.kind, ("soft", ""))[0], _shortened(caption)
    return f'<text class="caption {style}" x="{x:g}" y="{y:g}">{text}</text>'


def _pill(pill: Pill, x: float, y: float) -> str:
    width = min(len(pill.text), LABEL_MAX) * CHARACTER + 12
    return (
        f'<g class="pill {pill.kind}"><title>{escape(pill.text)}</title>'
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{PILL - 3}" rx="8"/>'
        f'<text x="{x + 6:g}" y="{y + 12.5:g}" textLength="{width - 12:g}" lengthAdjust="spacingAndGlyphs">'
        f"{_shortened(pill.text)}</text></g>"
    )


def _label(arrow: Arrow, label: str, end_x: float, end_y: float, side: int) -> str:
    """Beside the head, on the arrow's side of the life line; after the end of an arrow that did not arrive."""
    if arrow.fate in (MessageFate.ARRIVED, MessageFate.DOUBLED):
        x, y, anchor = end_x - side * 8, end_y + 12, "end" if side > 0 else "start"
    else:
        x, y, anchor = end_x + side * 9, end_y + 4, "start" if side > 0 else "end"
        label = f"{label} lost" if arrow.fate is MessageFate.LOST else f"{label} → {arrow.message.target}"
    return f'<text class="label" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{_shortened(label)}</text>'


def _arrow_end(fate: MessageFate, start: tuple[float, float], end: tuple[float, float]) -> str:
    x, y = end
    if fate is MessageFate.LOST:
        return f'<path class="cross" d="M{x - 5:g} {y - 5:g}l10 10m0-10l-10 10"/>'
    if fate is MessageFate.PENDING:
        return f'<circle class="end" cx="{x:g}" cy="{y:g}" r="3.5"/>'
    if fate is MessageFate.DROPPED:
        return f'<path d="M{x:g} {y - 5:g}v10"/>'
    length = ((x - start[0]) ** 2 + (y - start[1]) ** 2) ** 0.5 or 1.0
    along_x, along_y = (x - start[0]) / length, (y - start[1]) / length
    back_x, back_y = x - 9 * along_x, y - 9 * along_y
    return (
        f'<path class="head" d="M{x:.1f} {y:.1f}L{back_x - 4 * along_y:.1f} {back_y + 4 * along_x:.1f}'
        f'L{back_x + 4 * along_y:.1f} {back_y - 4 * along_x:.1f}Z"/>'
    )


def _phase_changes(process: str | None, before: StateView, after: StateView) -> Iterator[str]:
    if process is None:
        return
    old = {role.name: role.phase for role in _roles(process, before)}
    for role in _roles(process, after):
        was = old.get(role.name, role.phase)
        if was != role.phase:
            yield f"{role.name}: {was} → {role.phase}"


def _roles(name: str, state: StateView) -> Iterator[RoleView]:
    for process in state.processes:
        if process.name == name:
            yield from process.roles


def _shortened(text: str) -> str:
    return escape(text if len(text) <= LABEL_MAX else text[: LABEL_MAX - 1] + "…")


def _message_kind(label: str) -> str:
    return label.split(" ", 1)[0].split("(", 1)[0]


def _index(step: int | None) -> str:
    return "" if step is None else str(step)
