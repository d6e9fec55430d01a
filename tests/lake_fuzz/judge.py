"""Compares the read of every window of a history with the states at its ends, and checks the rule with these states.

Checks of a window (after, through]:

    expiry    it is refused as expired if and only if one of its ends was expired
    rows      arrived - removed, as multisets of whole rows, is the difference of the two states
    arrivals  arrived are the rows at `through` that were written since `after`, as the lake recorded at the time; if
              files were rewritten in between, or may have been because versions were expired, those of them that do
              not equal a removed row
    rule      the settled window, applied to what destinations hold at `after`, gives what they hold at `through`
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final, Literal

from msgspec import Struct

from lake_fuzz.histories import History
from lake_fuzz.readers import ExactReader, HistoryReader
from lake_fuzz.shapes import routes
from lake_fuzz.truth import PlainRow, Truth, plain_rows
from trunkline.delivery.changes.columns import Column
from trunkline.delivery.changes.net import Routes, Settled, settle, settle_live, touched_keys
from trunkline.delivery.changes.rows import DESTINATION_COLUMN, OP_COLUMN, NetChanges, Op
from trunkline.delivery.changes.versions import BEFORE_ALL, Window
from trunkline.delivery.sources.contract import ReadRequest
from trunkline.errors import SourceExpired

Rule = Callable[[NetChanges, Routes, tuple[str, ...]], Settled]
Check = Literal["expiry", "rows", "arrivals", "rule"]
SHOWN: Final = 3  # rows of a finding in its text


class Wrong(Struct, frozen=True):
    """A window that was not read or settled exactly."""

    seed: int
    window: Window
    check: Check
    what: str


class Suspect(Struct, frozen=True):
    """What is judged: a reader of a history, and a rule."""

    read: Callable[[History], AbstractContextManager[HistoryReader]] = ExactReader.opened
    rule: Rule = settle


SHIPPED: Final = Suspect()


def judge(history: History, suspect: Suspect = SHIPPED) -> Generator[tuple[Window, Wrong | None]]:
    """Every window of a history, from any version to any later one, with its finding."""
    truth = Truth(history)
    with suspect.read(history) as reader:
        for window in windows(history):
            found = _Case(history, truth, window, reader, suspect.rule).wrong()
            yield window, None if found is None else Wrong(history.seed, window, *found)


def windows(history: History) -> Iterator[Window]:
    """Short windows first: their findings are the most readable."""
    versions = sorted(history.states)
    for length in range(1, len(versions)):
        for after, through in zip(versions, versions[length:], strict=False):
            yield Window(after, through)
    yield from (Window(BEFORE_ALL, version) for version in versions)


class _Case:
    """One window before the judge."""

    def __init__(self, history: History, truth: Truth, window: Window, reader: HistoryReader, rule: Rule) -> None:
        self._history = history
        self._truth = truth
        self._window = window
        self._reader = reader
        self._rule = rule
        self._layout = history.layouts[window.through]
        self._columns = tuple(Column(field.name, field.type) for field in self._layout)
        self._names = tuple(field.name for field in self._layout)

    def wrong(self) -> tuple[Check, str] | None:
        """The first check that fails, and how."""
        gone = self._history.expired.intersection((self._window.after, self._window.through))
        try:
            net = self._reader.net(self._window, ReadRequest(self._columns, self._names, "tenant"))
        except SourceExpired:
            return None if gone else ("expiry", "the window is refused as expired, but both its ends exist")
        if gone:
            return "expiry", f"the window is read, but version {min(gone)} was expired"
        checks: tuple[tuple[Check, Callable[[NetChanges], str | None]], ...] = (
            ("rows", self._wrong_rows),
            ("arrivals", self._wrong_arrivals),
            ("rule", self._wrong_rule),
        )
        found = ((check, judged(net)) for check, judged in checks)
        return next(((check, what) for check, what in found if what is not None), None)

    # --- the read ---

    def _wrong_rows(self, net: NetChanges) -> str | None:
        before, after = (self._truth.rows(end, self._layout) for end in (self._window.after, self._window.through))
        wanted = Counter(after)
        wanted.subtract(before)
        found = Counter(plain_rows(net.arrived))
        found.subtract(plain_rows(net.removed))
        found.subtract(wanted)
        return _difference("arrived less removed is not the difference of the states", found)

    def _wrong_arrivals(self, net: NetChanges) -> str | None:
        found = Counter(plain_rows(net.arrived))
        if self._truth.lost_lineage(self._window):
            return _difference("rows that were only moved arrived", found & Counter(plain_rows(net.removed)))
        found.subtract(self._truth.written(self._window))
        return _difference("arrived are not the rows that were written in the window", found)

    # --- the rule ---

    def _wrong_rule(self, net: NetChanges) -> str | None:
        key = self._history.shape.key
        routed = routes(self._history.shape)
        narrow = ReadRequest(self._columns, key, "tenant")
        if (self._window.after + self._window.through) % 4 == 0:
            net = self._reader.net(self._window, narrow)  # as a flush reads it; else a part of the rows read above
        else:
            net = NetChanges(net.removed.select([net.removed.column_names[0], *key]), net.arrived)
        held = self._held(self._window.after, routed)
        wanted = self._held(self._window.through, routed)
        if self._history.shape.duplicates:
            live = self._reader.live(self._window.through, narrow, touched_keys(net, key, routed))
            return self._wrong_state(held, wanted, settle_live(net, live, routed, key), strict=False)
        return self._wrong_state(held, wanted, self._rule(net, routed, key), strict=True)

    def _held(self, version: int, routed: Routes) -> dict[tuple[int, PlainRow], PlainRow]:
        """The destinations at a version: (destination, key) -> row."""
        found: dict[tuple[int, PlainRow], PlainRow] = {}
        for route, *row in sorted(self._truth.rows(version, self._layout), key=_order):
            for destination in routed.of(route):
                found[destination, self._key_of(row)] = tuple(row)
        return found

    def _key_of(self, row: Any) -> PlainRow:
        return tuple(row[self._names.index(name)] for name in self._history.shape.key)

    def _wrong_state(
        self,
        held: dict[tuple[int, PlainRow], PlainRow],
        wanted: dict[tuple[int, PlainRow], PlainRow],
        settled: Settled,
        *,
        strict: bool,
    ) -> str | None:
        staged = settled.staged
        rows = plain_rows(staged.select(self._names))
        marks = zip(staged.column(DESTINATION_COLUMN).to_pylist(), staged.column(OP_COLUMN).to_pylist(), strict=True)
        for (destination, op), row in zip(marks, rows, strict=True):
            place = destination, self._key_of(row)
            if strict and (place in held) != (op != Op.INSERT):
                holds = "holds" if place in held else "lacks"
                return f"{Op(op).name} of key {place[1]} at destination {destination}, which {holds} it"
            held.pop(place, None)
            if op != Op.REMOVE:
                held[place] = row
        wrong = {place for place in held.keys() | wanted.keys() if held.get(place) != wanted.get(place)}
        if not wrong:
            return None
        return f"the settled window leaves other rows than the state has at {sorted(wrong, key=repr)[:SHOWN]}"


def _difference(what: str, counts: Counter[PlainRow]) -> str | None:
    wrong = [f"{count:+d} {row}" for row, count in counts.items() if count]
    return f"{what}: {'; '.join(wrong[:SHOWN])}" if wrong else None


def _order(row: PlainRow) -> tuple[Any, ...]:
    """The order of R3: column by column after the routing value, NULL last."""
    return tuple((value is None, value) for value in row[1:])
