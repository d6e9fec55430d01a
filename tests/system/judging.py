"""The result of a run of real processes: verdicts, and figures from its histories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from trunkline.check.history import HistoryVerdict, judge_histories
from trunkline.check.history_file import HistoryLine, read_lines
from trunkline.check.recording import open_recording
from trunkline.check.recording_judge import LogVerdict, RecordingVerdict, judge_recording

NS_PER_S = 1_000_000_000


@dataclass(frozen=True)
class Appends:
    acknowledged: int  # appends; one has several entries
    refused: int
    unknown: int  # reported as unknown, or the client was killed before the answer
    longest_stall_s: float  # between two acknowledgements, of whichever client
    reasons: tuple[tuple[str, int], ...]  # of refusals and unknown outcomes, most frequent first

    def text(self) -> str:
        counts = f"{self.acknowledged:,} acknowledged, {self.refused:,} refused, {self.unknown:,} unknown"
        reasons = (f"  {count:,} times: {reason}" for reason, count in self.reasons)
        return "\n".join([f"appends: {counts}; longest stall {self.longest_stall_s:.1f} s", *reasons])


@dataclass(frozen=True)
class Judgement:
    appends: Appends
    histories: tuple[HistoryVerdict, ...]
    recording: RecordingVerdict

    @property
    def broken(self) -> list[str]:
        """What was found, beginning with the rule or the monitor."""
        rules = [f"{each.rule}: {each.text}" for verdict in self.histories for each in verdict.broken]
        findings = [(log.finding, log.place) for log in self.recording.logs]
        return rules + [f"{found.monitor}: {found.text} ({place})" for found, place in findings if found is not None]

    @property
    def complete(self) -> bool:
        """Whether there was enough to judge: acknowledged appends, reads and a final reading."""
        complete = all(verdict.acknowledged and verdict.read and verdict.final for verdict in self.histories)
        return complete and bool(self.recording.logs) and all(log.committed for log in self.recording.logs)

    def text(self) -> str:
        return "\n".join(
            [
                self.appends.text(),
                *map(_history_text, self.histories),
                *map(_recording_text, self.recording.logs),
                *self.broken,
            ]
        )


def _history_text(verdict: HistoryVerdict) -> str:
    seen = f"{verdict.operations:,} operations, {verdict.acknowledged:,} entries acknowledged, {verdict.read:,} read"
    return f"history of {verdict.log}: {seen}: {'VIOLATION' if verdict.broken else 'no violation'}"


def _recording_text(verdict: LogVerdict) -> str:
    seen = f"{verdict.events:,} events, {verdict.committed:,} batches committed, {verdict.read:,} read"
    return f"recording of {verdict.log}: {seen}: {'VIOLATION' if verdict.finding else 'no violation'}"


def judge(histories: Path, recordings: Path) -> Judgement:
    return Judgement(appends(histories), judge_histories(histories), judge_recording(open_recording(recordings)))


def appends(histories: Path) -> Appends:
    acknowledged: list[int] = []
    refused = unknown = 0
    reasons: Counter[str] = Counter()
    for end in _ends(histories):
        if end is None:
            unknown += 1
        elif end.glsn is not None:
            acknowledged.append(end.at)
        else:
            refused += end.refused is not None
            unknown += end.unknown is not None
            reasons[end.refused or end.unknown or ""] += 1
    acknowledged.sort()
    stall_ns = max((b - a for a, b in pairwise(acknowledged)), default=0)
    return Appends(len(acknowledged), refused, unknown, stall_ns / NS_PER_S, tuple(reasons.most_common(5)))


def appends_of(histories: Path, client: str) -> int:
    """How many appends of one client were acknowledged so far."""
    return sum(end is not None and end.glsn is not None for end in _ends(histories, client))


def _ends(histories: Path, client: str = "*") -> Iterator[HistoryLine | None]:
    """How each append of each client ended; None without an answer."""
    for path in sorted(histories.glob(f"{client}-*.history")):
        if path.stat().st_size == 0:
            continue
        begun: dict[int, HistoryLine | None] = {}
        for _, line in read_lines(path)[1]:
            if line.begin is not None and line.op == "append":
                begun[line.begin] = None
            elif line.end in begun:
                begun[line.end] = line
        yield from begun.values()
