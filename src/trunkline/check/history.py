"""Judges the answers that clients received, by positions alone, without knowing the protocol. Takes n log n time.

Rules
 H1  A position holds one value: acknowledged appends, reads, subscriptions and the final reading agree.
 H2  A payload is at one position.
 H3  A refused payload is nowhere.
 H4  A payload that is read belongs to an append that had begun.
 H5  An append that begins after another operation ended gets a higher position than any that was acknowledged, read or
     below a returned tail by then.
 H6  A tail is above every position that was acknowledged, read or below a returned tail before the call began. A read
     that begins after a position was acknowledged does not find it unwritten.
 H7  A subscription moves forward from its start and skips no entry.
 H8  Only positions that a client asked to trim are trimmed.
 H9  The final reading has every position up to its tail, each DATA, JUNK or trimmed; no returned tail and no
     acknowledged append is above it.

``_Evidence`` first collects the value of each position (H1, H2); then each rule goes through all operations.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from trunkline.check.history_file import JUNK, LOST, NOT_DATA, TRIMMED, UNWRITTEN, HistoryError, HistoryLine, read_lines

FINDINGS_MAX = 10  # of each rule: the first ones are enough


class RuleViolation(NamedTuple):
    rule: str
    text: str


class ReadPiece(NamedTuple):
    """Values that a read, a subscription or the final reading returned."""

    at_ns: int
    first: int
    values: tuple[str, ...]


@dataclass
class ClientOperation:
    """One operation of a client."""

    client: str
    begin: HistoryLine
    end: HistoryLine | None = None
    pieces: list[ReadPiece] = field(default_factory=list)

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
    final: bool  # False: no final reading, so a loss may have gone unnoticed
    broken: tuple[RuleViolation, ...]


def judge_histories(directory: Path) -> tuple[HistoryVerdict, ...]:
    """One verdict for each log in the ``*.history`` files. Raises ``HistoryError`` or OSError."""
    logs: dict[str, list[ClientOperation]] = {}
    for path in sorted(directory.glob("*.history")):
        header, lines = read_lines(path)
        logs.setdefault(header.log, []).extend(_operations(path, header.client, lines))
    if not logs:
        raise HistoryError("no *.history files in this directory: let the clients write there")
    return tuple(judge_operations(log, logs[log]) for log in sorted(logs))


def judge_operations(log: str, operations: list[ClientOperation]) -> HistoryVerdict:
    evidence = _Evidence(operations)
    rules = (_refused, _asked, _real_time, _subscriptions, _trims, _finals)
    broken = chain(evidence.broken, *(islice(rule(operations, evidence), FINDINGS_MAX) for rule in rules))
    acknowledged = sum(len(each.begin.payloads) for each in operations if each.begin.op == "append" and each.glsn)
    read = sum(len(piece.values) for each in operations for piece in each.pieces)
    final = any(each.begin.op == "final" and each.glsn is not None for each in operations)
    return HistoryVerdict(log, len(operations), acknowledged, read, final, tuple(broken))


def _operations(path: Path, client: str, lines: Iterable[tuple[int, HistoryLine]]) -> list[ClientOperation]:
    done: dict[int, ClientOperation] = {}
    for number, line in lines:
        if line.begin is not None:
            done[line.begin] = ClientOperation(client, line)
            continue
        known = done.get(line.end if line.end is not None else line.got or 0)
        if known is None or known.end is not None:
            raise HistoryError(f"{path.name} line {number}: the operation is not under way")
        if line.got is not None:
            known.pieces.append(ReadPiece(line.at, line.first or 0, line.values))
            continue
        known.end = line
        if line.value is not None:
            known.pieces.append(ReadPiece(line.at, known.begin.glsn or 0, (line.value,)))
    return list(done.values())


class _Evidence:
    """The value of each position, from all answers."""

    def __init__(self, operations: list[ClientOperation]) -> None:
        self.broken: list[RuleViolation] = []
        self.at: dict[int, str] = {}  # position: payload or JUNK
        self.of: dict[str, int] = {}  # payload: position
        for each in operations:
            if each.begin.op == "append" and each.glsn is not None:
                self._add(each, each.glsn, each.begin.payloads)
            for piece in each.pieces:
                self._add(each, piece.first, piece.values)
        self.data = sorted(self.of.values())
        trims = [each.begin.point or 0 for each in operations if each.begin.op == "trim" and not _was_refused(each)]
        self.trim = max(trims, default=0)  # the highest point of any request

    def _add(self, by: ClientOperation, first: int, values: Iterable[str]) -> None:
        for glsn, value in enumerate(values, start=first):
            if value in (TRIMMED, LOST, UNWRITTEN):
                continue
            known = self.at.setdefault(glsn, value)
            if known != value:
                self._broken("H1", f"position {glsn} holds {value} for {by.name}, and {known} for another client")
            elif value != JUNK and self.of.setdefault(value, glsn) != glsn:
                self._broken("H2", f"{value} is at {self.of[value]} and at {glsn} ({by.name})")

    def _broken(self, rule: str, text: str) -> None:
        if len(self.broken) < FINDINGS_MAX:
            self.broken.append(RuleViolation(rule, text))


def _refused(operations: list[ClientOperation], evidence: _Evidence) -> Iterator[RuleViolation]:
    for each in operations:
        if each.begin.op == "append" and _was_refused(each):
            for payload in each.begin.payloads:
                if payload in evidence.of:
                    yield RuleViolation("H3", f"{payload} was refused ({each.name}), but is at {evidence.of[payload]}")


def _asked(operations: list[ClientOperation], evidence: _Evidence) -> Iterator[RuleViolation]:
    begun = {payload: each.begin.at for each in operations for payload in each.begin.payloads}
    for each in operations:
        for piece in each.pieces:
            for value in piece.values:
                if value not in NOT_DATA and begun.get(value, piece.at_ns + 1) > piece.at_ns:
                    yield RuleViolation("H4", f"{each.name} returned {value}, but no append of it had begun")


def _real_time(operations: list[ClientOperation], evidence: _Evidence) -> Iterator[RuleViolation]:
    """A sweep over begins and ends in the order of time; at the same time, ends come first."""
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


def _above(each: ClientOperation, floor: int, evidence: _Evidence) -> Iterator[RuleViolation]:
    if each.begin.op == "append" and each.glsn is not None and each.glsn <= floor:
        yield RuleViolation("H5", f"{each.name} got {each.glsn}, but {floor} was known before it began")
    if each.begin.op in ("tail", "final") and each.glsn is not None and each.glsn <= floor:
        yield RuleViolation("H6", f"{each.name} returned {each.glsn}, but {floor} was known before it began")
    if each.begin.op == "read" and each.pieces and each.pieces[0].values == (UNWRITTEN,):
        glsn = each.pieces[0].first
        if glsn <= floor and glsn in evidence.at:
            yield RuleViolation("H6", f"{each.name} found nothing at {glsn}, but {floor} was known before it began")


def _subscriptions(operations: list[ClientOperation], evidence: _Evidence) -> Iterator[RuleViolation]:
    for each in operations:
        if each.begin.op != "subscribe":
            continue
        expected = each.begin.start or 1
        for piece in each.pieces:
            if piece.first < expected:
                yield RuleViolation("H7", f"{each.name} returned {piece.first} when it was at {expected}")
            at = bisect_left(evidence.data, max(expected, evidence.trim + 1))
            if at < len(evidence.data) and evidence.data[at] < piece.first:
                passed = evidence.data[at]
                yield RuleViolation("H7", f"{each.name} skipped {passed}, which holds {evidence.at[passed]}")
            expected = max(expected, piece.first + len(piece.values))


def _trims(operations: list[ClientOperation], evidence: _Evidence) -> Iterator[RuleViolation]:
    for each in operations:
        for piece in each.pieces:
            for glsn, value in enumerate(piece.values, start=piece.first):
                if value == TRIMMED and glsn > evidence.trim:
                    yield RuleViolation("H8", f"{each.name} found {glsn} trimmed, but no client asked to trim it")


def _finals(operations: list[ClientOperation], evidence: _Evidence) -> Iterator[RuleViolation]:
    for each in operations:
        if each.begin.op == "final" and each.glsn is not None:
            yield from _final(each, each.glsn, operations, evidence)


def _final(
    final: ClientOperation, tail: int, operations: list[ClientOperation], evidence: _Evidence
) -> Iterator[RuleViolation]:
    read = {glsn: value for piece in final.pieces for glsn, value in enumerate(piece.values, start=piece.first)}
    for glsn in range(evidence.trim + 1, tail):
        if read.get(glsn, UNWRITTEN) in (UNWRITTEN, LOST):
            yield RuleViolation("H9", f"{glsn} is below the tail {tail}, but {read.get(glsn, 'was not returned')}")
    for each in operations:
        if each.begin.op != "append" or each.glsn is None:
            continue
        for glsn, payload in enumerate(each.begin.payloads, start=each.glsn):
            found = read.get(glsn)
            if found != payload and not (glsn <= evidence.trim and found in (None, TRIMMED)):
                yield RuleViolation("H9", f"{payload} was acknowledged at {glsn}; the end has {found or 'nothing'}")
    tails = [each.glsn for each in operations if each.begin.op == "tail" and each.glsn is not None]
    if max(tails, default=0) > tail:
        yield RuleViolation("H9", f"a tail of {max(tails)} was returned, but the final tail is {tail}")


def _was_refused(each: ClientOperation) -> bool:
    return each.end is not None and each.end.refused is not None
