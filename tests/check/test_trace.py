"""Recorded runs: what a file must look like, and that the monitors which judge searches judge them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from toy_store import Acknowledged, Put, Recovered, Stored, catalogue
from trunkline.check.catalogue import UnknownName
from trunkline.check.scenario import Completed, Invoked, Observed
from trunkline.check.trace import Header, TraceError, Verdict, encode, judge

GOOD = (
    Observed("k", "keeper", Recovered(())),
    Observed("c1", "caller", Invoked(1, Put(1, 11))),
    Observed("k", "keeper", Stored(11)),
    Observed("c1", "caller", Completed(1, Acknowledged(11))),
    Observed("k", "keeper", Recovered((11,))),
)
PUT = Header("put")
LOST = (*GOOD[:4], Observed("k", "keeper", Recovered(())))


def judged(*observed: Observed, header: Header = PUT, quiet: bool = True) -> Verdict:
    return judge(encode(header, observed, quiet=quiet), catalogue().scenario)


def test_a_good_run_passes_with_its_events_counted() -> None:
    verdict = judged(*GOOD)
    assert (verdict.finding, verdict.events, verdict.hot) == (None, 5, ())
    assert verdict.monitors == ("NoLostAck", "Answered")


def test_a_broken_run_names_monitor_and_line() -> None:
    verdict = judged(*LOST)
    assert verdict.finding is not None
    assert (verdict.finding.monitor, verdict.line) == ("NoLostAck", 6)


def test_a_quiet_end_with_a_hot_monitor_is_a_violation_of_progress() -> None:
    verdict = judged(*GOOD[:3])
    assert verdict.finding is not None
    assert verdict.finding.monitor == "Progress"


def test_a_run_that_was_cut_off_may_be_unfinished() -> None:
    verdict = judged(*GOOD[:3], quiet=False)
    assert verdict.finding is None
    assert verdict.hot == ("Answered: 1 operations wait for their answer",)


def test_a_header_may_pick_monitors_and_set_their_fields() -> None:
    assert judged(*LOST, header=Header("put", {"Answered": {}})).finding is None
    assert judged(*LOST, header=Header("put", {"NoLostAck": {"allowed_losses": 1}})).finding is None
    assert judged(*LOST, header=Header("put", {"NoLostAck": {"allowed_losses": 0}})).finding is not None


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (Header("put", {"Order": {}}), "no monitor Order"),
        (Header("put", {"NoLostAck": {"size": 1}}), "no field size"),
        (Header("put", {"NoLostAck": {"allowed_losses": "many"}}), "Expected `int`"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(header: Header, words: str) -> None:
    with pytest.raises(TraceError, match=words):
        judged(*GOOD, header=header)


def test_an_unknown_scenario_is_refused_with_a_near_name() -> None:
    with pytest.raises(UnknownName, match="did you mean put"):
        judged(header=Header("putt"))


HEAD = json.dumps({"format": "trunkline-trace", "version": 1, "scenario": "put"})


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "line 1: not a JSON object"),
        (["{}"], "line 1: not a trace"),
        ([HEAD.replace("1", "2")], "version 2"),
        ([HEAD, "torn {"], "line 2: not a JSON object"),
        ([HEAD, "[]"], "line 2: not a JSON object"),
        ([HEAD, '{"process": "k"}'], "line 2: expected exactly"),
        ([HEAD, '{"process": "k", "role": "r", "event": {"type": "Nothing"}}'], "no Event type is called 'Nothing'"),
        ([HEAD, '{"process": "k", "role": "r", "event": {"type": "Stored"}}'], "lacks the field value"),
        ([HEAD, '{"process": "k", "role": "r", "event": {"type": "Stored", "value": "x"}}'], "Expected `int`"),
        ([HEAD, '{"process": "k", "role": "r", "event": {"type": "Stored", "value": 1, "x": 1}}'], "no field x"),
        ([HEAD, '{"process": "k", "role": "r", "event": 3}'], "expected an object"),
        ([HEAD, '{"end": "quiet"}', '{"end": "quiet"}'], "line 3: the trace goes on"),
    ],
)
def test_a_malformed_line_is_named(lines: list[str], words: str) -> None:
    with pytest.raises(TraceError, match=words):
        judge(lines, catalogue().scenario)


def test_a_trace_may_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    path.write_text("".join(f"{line}\n" for line in encode(Header("put"), LOST, quiet=False)))
    with path.open() as lines:
        assert judge(lines, catalogue().scenario).line == 6
