"""Judges what clients were told, knowing positions and nothing of the protocol. Time grows as n log n.

Rules
 H1  A position holds one value: appends that were acknowledged, reads, subscriptions and the final reading agree.
 H2  A payload stands at one position.
 H3  What was refused appears nowhere.
 H4  What is read was appended by somebody, who had begun by then.
 H5  An append that began after something ended comes after it: after positions that were acknowledged or read, and
     below a tail that was told.
 H6  A tail is above everything that was acknowledged, read or below a tail before the call began. So is every read:
     what was acknowledged before it began is not unwritten.
 H7  A subscription goes forward, from its start, and passes over nothing that holds an entry.
 H8  Only what somebody asked to trim is gone.
 H9  The final reading has every position up to its tail, each of them DATA, JUNK or trimmed; no tail that was told and
     no acknowledged append is above it.

Two parts: ``_Evidence`` collects what stands where (H1, H2), then each rule looks at all operations.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from trunkline.check.history_file import JUNK, LOST, NOT_DATA, TRIMMED, UNWRITTEN, HistoryError, Line, read_lines

FINDINGS_MAX = 10  # that are kept of each rule: the first ones tell enough


class Broken(NamedTuple):
    rule: str
    text: str


class Piece(NamedTuple):
    """What a read, a subscription or the final reading was given."""

    at_ns: int
    first: int
    values: tuple[str, ...]


@dataclass
class Done:
    """One operation of a client."""

    client: str
    begin: Line
    end: Line | None = None
    pieces: list[Piece] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.begin.op} {self.begin.begin} of {self.client}"

    @property
    def glsn(self) -> int | None:
        """The answer, where it is a position."""
        return self.end.glsn if self.end is not None else None


@dataclass(frozen=True)
class HistoryVerdict:
    log: str
    operations: int
    acknowledged: int  # payloads
    read: int  # values, as often as one was returned
    final: bool  # False: nothing says what was there in the end, so a loss may have gone unseen
    broken: tuple[Broken, ...]


def judge_histories(directory: Path) -> tuple[HistoryVerdict, ...]:
    """One verdict for each log that ``*.history`` files speak of. Raises ``HistoryError`` or OSError."""
    logs: dict[str, list[Done]] = {}
    for path in sorted(directory.glob("*.history")):
        header, lines = read_lines(path)
        logs.setdefault(header.log, []).extend(_operations(path, header.client, lines))
    if not logs:
        raise HistoryError("no *.history file is in this directory: let the clients write there")
    return tuple(judge_operations(log, logs[log]) for log in sorted(logs))


def judge_operations(log: str, operations: list[Done]) -> HistoryVerdict:
    evidence = _Evidence(operations)
    rules = (_refused, _asked, _real_time, _subscriptions, _trims, _finals)
    broken = chain(evidence.broken, *(islice(rule(operations, evidence), FINDINGS_MAX) for rule in rules))
    acknowledged = sum(len(each.begin.payloads) for each in operations if each.begin.op == "append" and each.glsn)
    read = sum(len(piece.values) for each in operations for piece in each.pieces)
    final = any(each.begin.op == "final" and each.glsn is not None for each in operations)
    return HistoryVerdict(log, len(operations), acknowledged, read, final, tuple(broken))


def _operations(path: Path, client: str, lines: Iterable[tuple[int, Line]]) -> list[Done]:
    done: dict[int, Done] = {}
    for number, line in lines:
        if line.begin is not None:
            done[line.begin] = Done(client, line)
            continue
        known = done.get(line.end if line.end is not None else line.got or 0)
        if known is None or known.end is not None:
            raise HistoryError(f"{path.name} line {number}: tells of an operation that is not under way")
        if line.got is not None:
            known.pieces.append(Piece(line.at, line.first or 0, line.values))
            continue
        known.end = line
        if line.value is not None:
            known.pieces.append(Piece(line.at, known.begin.glsn or 0, (line.value,)))
    return list(done.values())


class _Evidence:
    """What stands where, by all that anybody was told."""

    def __init__(self, operations: list[Done]) -> None:
        self.broken: list[Broken] = []
        self.at: dict[int, str] = {}  # position: payload or JUNK
        self.of: dict[str, int] = {}  # payload: position
        for each in operations:
            if each.begin.op == "append" and each.glsn is not None:
                self._stands(each, each.glsn, each.begin.payloads)
            for piece in each.pieces:
                self._stands(each, piece.first, piece.values)
        self.data = sorted(self.of.values())
        trims = [each.begin.point or 0 for each in operations if each.begin.op == "trim" and not _was_refused(each)]
        self.trim = max(trims, default=0)  # the highest that was ever asked for

    def _stands(self, by: Done, first: int, values: Iterable[str]) -> None:
        for glsn, value in enumerate(values, start=first):
            if value in (TRIMMED, LOST, UNWRITTEN):
                continue
            known = self.at.setdefault(glsn, value)
            if known != value:
                self._broken("H1", f"position {glsn} holds {value} for {by.name}, and {known} for another")
            elif value != JUNK and self.of.setdefault(value, glsn) != glsn:
                self._broken("H2", f"{value} stands at {self.of[value]} and at {glsn} ({by.name})")

    def _broken(self, rule: str, text: str) -> None:
        if len(self.broken) < FINDINGS_MAX:
            self.broken.append(Broken(rule, text))


def _refused(operations: list[Done], evidence: _Evidence) -> Iterator[Broken]:
    for each in operations:
        if each.begin.op == "append" and _was_refused(each):
            for payload in each.begin.payloads:
                if payload in evidence.of:
                    yield Broken("H3", f"{payload} was refused ({each.name}), but stands at {evidence.of[payload]}")


def _asked(operations: list[Done], evidence: _Evidence) -> Iterator[Broken]:
    begun = {payload: each.begin.at for each in operations for payload in each.begin.payloads}
    for each in operations:
        for piece in each.pieces:
            for value in piece.values:
                if value not in NOT_DATA and begun.get(value, piece.at_ns + 1) > piece.at_ns:
                    yield Broken("H4", f"{value} was given to {each.name}, but nobody had begun to append it")


def _real_time(operations: list[Done], evidence: _Evidence) -> Iterator[Broken]:
    """A sweep over beginnings and ends in the order of time; what ends at a moment comes before what begins at it."""
    moments: list[tuple[int, int, int]] = []  # at, 0 for an end, position or number of the operation
    for number, each in enumerate(operations):
        moments.append((each.begin.at, 1, number))
        if each.end is not None and each.glsn is not None:
            last = each.glsn + len(each.begin.payloads) - 1  # of a tail: the position before it
            moments.append((each.end.at, 0, last))
        for piece in each.pieces:
            data = [glsn for glsn, value in enumerate(piece.values, start=piece.first) if value not in NOT_DATA]
            if data:
                moments.append((piece.at_ns, 0, data[-1]))
    floor = 0
    for _, is_begin, number in sorted(moments):
        if is_begin:
            yield from _above(operations[number], floor, evidence)
        else:
            floor = max(floor, number)


def _above(each: Done, floor: int, evidence: _Evidence) -> Iterator[Broken]:
    if each.begin.op == "append" and each.glsn is not None and each.glsn <= floor:
        yield Broken("H5", f"{each.name} came to {each.glsn}, but {floor} was known before it began")
    if each.begin.op in ("tail", "final") and each.glsn is not None and each.glsn <= floor:
        yield Broken("H6", f"{each.name} was told {each.glsn}, but {floor} was known before it began")
    if each.begin.op == "read" and each.pieces and each.pieces[0].values == (UNWRITTEN,):
        glsn = each.pieces[0].first
        if glsn <= floor and glsn in evidence.at:
            yield Broken("H6", f"{each.name} found nothing at {glsn}, but {floor} was known before it began")


def _subscriptions(operations: list[Done], evidence: _Evidence) -> Iterator[Broken]:
    for each in operations:
        if each.begin.op != "subscribe":
            continue
        expected = each.begin.start or 1
        for piece in each.pieces:
            if piece.first < expected:
                yield Broken("H7", f"{each.name} was given {piece.first} when it was at {expected}")
            at = bisect_left(evidence.data, max(expected, evidence.trim + 1))
            if at < len(evidence.data) and evidence.data[at] < piece.first:
                passed = evidence.data[at]
                yield Broken("H7", f"{each.name} passed over {passed}, which holds {evidence.at[passed]}")
            expected = max(expected, piece.first + len(piece.values))


def _trims(operations: list[Done], evidence: _Evidence) -> Iterator[Broken]:
    for each in operations:
        for piece in each.pieces:
            for glsn, value in enumerate(piece.values, start=piece.first):
                if value == TRIMMED and glsn > evidence.trim:
                    yield Broken("H8", f"{each.name} was told that {glsn} is trimmed, but nobody asked for that")


def _finals(operations: list[Done], evidence: _Evidence) -> Iterator[Broken]:
    for each in operations:
        if each.begin.op == "final" and each.glsn is not None:
            yield from _final(each, each.glsn, operations, evidence)


def _final(final: Done, tail: int, operations: list[Done], evidence: _Evidence) -> Iterator[Broken]:
    read = {glsn: value for piece in final.pieces for glsn, value in enumerate(piece.values, start=piece.first)}
    for glsn in range(evidence.trim + 1, tail):
        if read.get(glsn, UNWRITTEN) in (UNWRITTEN, LOST):
            yield Broken("H9", f"{glsn} is below the tail {tail}, but {read.get(glsn, 'was not returned')}")
    for each in operations:
        if each.begin.op != "append" or each.glsn is None:
            continue
        for glsn, payload in enumerate(each.begin.payloads, start=each.glsn):
            found = read.get(glsn)
            if found != payload and not (glsn <= evidence.trim and found in (None, TRIMMED)):
                yield Broken("H9", f"{payload} was acknowledged at {glsn}; in the end there is {found or 'nothing'}")
    tails = [each.glsn for each in operations if each.begin.op == "tail" and each.glsn is not None]
    if max(tails, default=0) > tail:
        yield Broken("H9", f"a tail of {max(tails)} was told, but in the end it is {tail}")


def _was_refused(each: Done) -> bool:
    return each.end is not None and each.end.refused is not None
