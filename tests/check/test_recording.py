"""Recordings of processes: merged into one order, and judged by the monitors that judge searches."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from check.histories import ENDED, FIRST, NEXT, SEQUENCER, A, B, C, committed, data, read, recovered
from check.recordings import busy_history, judged, write_recording
from trunkline.check.recording import RecordingError
from trunkline.check.recording_judge import RecordingVerdict
from trunkline.check.scenario import ObservedEvent
from trunkline.check.scenarios.cluster import LOG
from trunkline.core.calls import AppendRequested, SubscribeRequested, TailRequested, TrimRequested
from trunkline.core.effects import Event
from trunkline.core.entries import Frame
from trunkline.core.events import (
    Appended,
    AppendRefused,
    Completed,
    EntriesRead,
    FrameStored,
    Invoked,
    PositionsGranted,
    PositionsSkipped,
    ProcessEnded,
    Projected,
    StreamFinalized,
    SubscriptionEnded,
    TailIs,
)
from trunkline.core.messages import Reason
from trunkline.core.projection import EndSegment, RaiseTrim, apply
from trunkline.core.recording import encode_event, end_line, file_name, header_line

BUSY = list(busy_history(40))
CREATED = ObservedEvent("meta", "register", Projected(FIRST))
NODES = {A: "a", B: "b", C: "c"}


def stored(frame: Frame, *streams: str) -> list[ObservedEvent]:
    return [ObservedEvent(NODES[s], "storage", FrameStored(NODES[s], 1, LOG, 0, s, frame)) for s in streams]


def client(*events: Event, role: str = "appender", process: str = "x") -> list[ObservedEvent]:
    return [ObservedEvent(process, role, event) for event in events]


def append(operation: int, value: int) -> Invoked:
    return Invoked(operation, AppendRequested(operation, LOG, 1, value))


def verdict_of(directory: Path, history: Iterable[ObservedEvent]) -> RecordingVerdict:
    write_recording(directory, history)
    return judged(directory)


def reported(directory: Path, history: Iterable[ObservedEvent]) -> tuple[str, str]:
    """The monitor that reports a violation, and the file of the event."""
    (log,) = verdict_of(directory, history).logs
    if log.finding is None or log.place is None:
        return "", ""
    return log.finding.monitor, log.place.file


def test_a_correct_recording_passes_with_its_counts(tmp_path: Path) -> None:
    write_recording(tmp_path, BUSY, stopped=("meta", "a", "b", "c"))
    verdict = judged(tmp_path)
    (log,) = verdict.logs
    assert (log.log, log.finding, log.committed, log.read) == (LOG, None, 40, 80)
    assert (verdict.files, verdict.cut, verdict.events) == (6, 2, len(BUSY))


def _without(kind: type[Event], process: str, history: Sequence[ObservedEvent] = BUSY) -> list[ObservedEvent]:
    """Leave out the tenth event of this kind of a process."""
    found = [each for each in history if isinstance(each.event, kind) and each.process == process]
    return [each for each in history if each is not found[9]]


ALIEN = data(1, 7, 100)
BAD_END = apply(FIRST, EndSegment(0, 101, FIRST.last.groups, NEXT))

PLANTED = {
    "a member acknowledges before it has the frame": (_without(FrameStored, "b"), "CommitDurability", "w-1.trace"),
    "a reader returns what no member stored": (
        [*BUSY, ObservedEvent("r", "reader:1", read(data(4_001, 5)))],
        "ReadCommitted",
        "r-1.trace",
    ),
    "a reader misses a batch": (_without(EntriesRead, "r"), "Completeness", "r-1.trace"),
    "a reader goes back": ([*BUSY, BUSY[-1]], "Completeness", "r-1.trace"),
    "a reader returns another value": (
        [*BUSY, *stored(ALIEN, A, B, C), ObservedEvent("q", "reader:1", read(ALIEN))],
        "TotalOrder",
        "q-1.trace",
    ),
    "a position is granted twice": (
        [*BUSY, ObservedEvent("a", "sequencer", PositionsGranted(LOG, 0, SEQUENCER, 1, 100))],
        "SingleOwner",
        "a-1.trace",
    ),
    "a tail is behind": (
        [*BUSY, *client(Invoked(1, TailRequested(1, LOG)), Completed(1, TailIs(300)), role="tail")],
        "RealTimeOrder",
        "x-1.trace",
    ),
    "a segment ends below what was acknowledged": (
        [*BUSY, ObservedEvent("meta", "register", Projected(BAD_END))],
        "NoLostAck",
        "meta-1.trace",
    ),
    "a segment has two ends": (
        [
            CREATED,
            *(ObservedEvent("meta", "register", Projected(each)) for each in (ENDED, replace(BAD_END, epoch=3))),
        ],
        "BoundaryWrittenOnce",
        "meta-1.trace",
    ),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_recording_is_rejected_in_which(bug: str, tmp_path: Path) -> None:
    history, monitor, file = PLANTED[bug]
    assert reported(tmp_path, history) == (monitor, file)


def test_two_readers_of_one_process_are_distinguished(tmp_path: Path) -> None:
    assert reported(tmp_path, BUSY) == ("", "")
    as_one = [replace(each, role="reader:1") if isinstance(each.event, EntriesRead) else each for each in BUSY]
    assert reported(tmp_path, as_one) == ("Completeness", "r-1.trace")


def test_a_reader_is_forgotten_when_its_operation_ends(tmp_path: Path) -> None:
    once = client(
        Invoked(1, SubscribeRequested(1, LOG, 1, until=1)),
        read(data(1, 7)),
        Completed(1, SubscriptionEnded(2)),
        read(data(1, 7)),
        role="reader:1",
    )
    assert reported(tmp_path, [CREATED, *stored(data(1, 7), A, B, C), *once]) == ("", "")
    assert reported(tmp_path, [CREATED, *stored(data(1, 7), A, B, C), *once[:2], once[3]])[0] == "Completeness"


def test_two_roles_of_one_process_may_use_the_same_operation_numbers(tmp_path: Path) -> None:
    history = [
        CREATED,
        *client(append(1, 7)),
        *client(Invoked(1, TailRequested(1, LOG)), Completed(1, TailIs(1)), role="tail"),
        *stored(data(1, 7), A, B, C),
        *client(committed(data(1, 7)), Completed(1, Appended(1))),
    ]
    assert reported(tmp_path, history) == ("", "")


def test_a_killed_client_leaves_its_operations_open_and_restarts_their_numbers(tmp_path: Path) -> None:
    history = [
        CREATED,
        *client(append(1, 7)),
        *stored(data(1, 7), A, B, C),
        *client(ProcessEnded("kill"), append(1, 8)),
        *stored(data(2, 8), A, B, C),
        *client(committed(data(2, 8)), Completed(1, Appended(2))),
        *client(read(data(1, 7)), read(data(2, 8)), role="reader:1", process="r"),
    ]
    assert reported(tmp_path, history) == ("", "")


def test_a_frame_whose_line_a_kill_lost_is_announced_when_the_node_restarts(tmp_path: Path) -> None:
    frame = data(1, 7)
    before = [CREATED, *client(append(1, 7)), *stored(frame, A, B), ObservedEvent("c", "storage", recovered(C))]
    restart = [ObservedEvent("c", "", ProcessEnded("kill")), ObservedEvent("c", "storage", recovered(C, frame))]
    after = client(committed(frame), Completed(1, Appended(1)))
    assert reported(tmp_path, [*before, *restart, *after]) == ("", "")
    assert reported(tmp_path, [*before, *after]) == ("CommitDurability", "x-1.trace")


def test_a_batch_may_be_at_as_many_positions_as_it_was_appended(tmp_path: Path) -> None:
    frames = [data(first, 7) for first in (1, 2, 3)]
    asked = [CREATED, *client(append(1, 7), append(2, 7), append(3, 7))]
    done = [event for frame in frames for event in (*stored(frame, A, B, C), *client(committed(frame)))]
    assert reported(tmp_path, asked + done) == ("", "")
    assert reported(tmp_path, asked[:-1] + done) == ("NoLostAck", "x-1.trace")
    refused = client(Completed(3, AppendRefused("full")))
    assert reported(tmp_path, asked + refused + done) == ("NoLostAck", "x-1.trace")


def test_a_projection_counts_as_announced_when_an_event_acts_on_it(tmp_path: Path) -> None:
    """The coordinator that wrote it stopped before its line; another one announced it later, and the next one."""
    trimmed = apply(ENDED, RaiseTrim(3))
    settled = [event for n in (1, 2, 3) for event in (*stored(data(n, n), A, B, C), *client(committed(data(n, n))))]
    history = [
        CREATED,
        *settled,
        *client(Invoked(9, TrimRequested(9, LOG, 3))),
        ObservedEvent("b", "storage", StreamFinalized("b", LOG, 0, B, 4)),
        ObservedEvent("a", "sequencer", PositionsGranted(LOG, 1, SEQUENCER, 4, 1)),
        ObservedEvent("r", "reader:1", PositionsSkipped(LOG, 1, 4, Reason.TRIMMED)),
        ObservedEvent("meta2", "register", Projected(trimmed)),
        ObservedEvent("meta", "register", Projected(ENDED)),
        ObservedEvent("meta2", "register", Projected(trimmed)),
    ]
    assert reported(tmp_path, history) == ("", "")


def test_another_projection_of_the_same_epoch_is_a_fork(tmp_path: Path) -> None:
    fork = apply(FIRST, EndSegment(0, 5, FIRST.last.groups, NEXT))
    history = [CREATED, *(ObservedEvent("meta", "register", Projected(each)) for each in (ENDED, fork))]
    assert reported(tmp_path, history)[0] == "BoundaryWrittenOnce"


def test_a_recording_may_begin_after_the_log_was_created(tmp_path: Path) -> None:
    later = ObservedEvent("meta", "register", Projected(apply(FIRST, RaiseTrim(3))))
    assert reported(tmp_path, [later, *stored(data(4, 7), A, B, C), *client(committed(data(4, 7)))]) == ("", "")


def test_each_log_is_judged_alone(tmp_path: Path) -> None:
    other = replace(FIRST, log="other")
    events = [
        ObservedEvent("meta", "register", Projected(other)),
        *(replace(each, event=replace(each.event, log="other")) for each in stored(data(1, 9), A)),
        ObservedEvent("r", "reader:9", replace(read(data(1, 9)), log="other")),
    ]
    verdict = verdict_of(tmp_path, [*BUSY[:100], *events, *BUSY[100:]])
    found = {log.log: log.finding.monitor if log.finding else "" for log in verdict.logs}
    assert found == {LOG: "", "other": "ReadCommitted"}
    assert verdict.violated


def test_a_line_cut_by_a_kill_is_skipped(tmp_path: Path) -> None:
    write_recording(tmp_path, BUSY)
    for path in tmp_path.glob("*.trace"):
        with path.open("ab") as file:
            file.write(b'{"process":"n1","ro')
    assert judged(tmp_path).logs[0].finding is None


HEADER = header_line("n1", 1, "cluster", 5)
EVENT = encode_event("n1", "storage", 9, StreamFinalized("n1", LOG, 0, A, 4))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "no \\*.trace files in this directory"),
        ({"n1-1": b"noise\n"}, "n1-1.trace line 1: not a JSON object"),
        ({"n1-1": b'{"format":"trunkline-trace","version":1}\n'}, "line 1: not a recording"),
        ({"n1-1": HEADER.replace(b"cluster", b"c", 1)}, "line 1: the header lacks 'cluster'"),
        ({"n1-1": HEADER + b'{"torn\n' + EVENT}, "n1-1.trace line 2: not a JSON object"),
        ({"n1-1": HEADER + EVENT.replace(b"Finalized", b"Finished")}, "line 2: no Event type is called"),
        ({"n1-1": HEADER + EVENT.replace(b',"end":4', b"")}, "StreamFinalized lacks the field end"),
        ({"n1-1": HEADER + EVENT.replace(b'"end":4', b'"end":"x"')}, "Expected `int`"),
        ({"n1-1": HEADER + EVENT.replace(b'"end":4', b'"end":4,"x":1')}, "StreamFinalized has no field x"),
        ({"n1-1": HEADER + b'{"process":"n1","role":"r","at":9,"event":3}\n'}, "expected an object"),
        ({"n1-1": HEADER + EVENT.replace(b',"at":9', b"")}, "line 2: expected exactly process"),
        ({"n1-1": HEADER + EVENT.replace(b'"n1"', b'"n2"')}, "line 2: an event of n2 in a file of n1"),
        ({"n1-1": HEADER + EVENT.replace(b":9", b":3")}, "line 2: its time is before that of the previous line"),
        ({"n1-1": HEADER, "n2-1": HEADER}, "two files hold start 1 of n1"),
        ({"n1-1": HEADER, "n2-1": header_line("n2", 1, "another", 1)}, "files of 2 clusters"),
        ({"n1-1": HEADER + EVENT, "n1-2": header_line("n1", 2, "cluster", 7)}, "n1 has restarted since"),
        ({"n1-1": HEADER, "n1-2": header_line("n1", 2, "cluster", 4)}, "n1 started after its start 2"),
        (
            {"n1-1": HEADER + encode_event("n1", "tail", 9, Completed(4, TailIs(1)))},
            "operation 4 of n1 tail ended, but never began",
        ),
        (
            {"n1-1": HEADER + 2 * encode_event("n1", "tail", 9, Invoked(4, TailRequested(4, LOG)))},
            "operation 4 of n1 tail is under way already",
        ),
    ],
)
def test_an_invalid_recording_is_refused(files: dict[str, bytes], words: str, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / f"{name}.trace").write_bytes(content)
    with pytest.raises(RecordingError, match=words):
        judged(tmp_path)


def test_a_file_with_an_end_line_is_not_cut(tmp_path: Path) -> None:
    (tmp_path / file_name("n1", 1)).write_bytes(HEADER + EVENT + end_line(10))
    assert judged(tmp_path).cut == 0
    (tmp_path / file_name("n1", 1)).write_bytes(HEADER + EVENT)
    assert judged(tmp_path).cut == 1


def test_the_cost_of_an_event_hardly_grows_with_the_recording(tmp_path: Path) -> None:
    """Monitors that traverse their whole state would take fifteen times as long for each event."""
    seconds: list[float] = []
    for number, batches in enumerate((200, 3_000)):
        directory = tmp_path / str(number)
        directory.mkdir()
        write_recording(directory, busy_history(batches))
        began = time.process_time()
        assert not judged(directory).violated
        seconds.append((time.process_time() - began) / batches)
    assert seconds[1] < 4 * seconds[0]


def test_a_process_of_any_name_has_its_own_file() -> None:
    assert file_name("n1", 7) == "n1-7.trace"
    for name in ("c1." + "日" * 128, "c1.a/b", "x" * 600):
        assert len(file_name(name, 2**63).encode()) < 255
        assert "/" not in file_name(name, 1)
