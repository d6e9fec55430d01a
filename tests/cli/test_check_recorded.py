"""``trunkline check`` over real runs: recordings of processes and histories of clients."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from check.recordings import busy_history, write_recording
from trunkline.check.history_file import HistoryWriter
from trunkline.cli.main import main

BUSY = list(busy_history(20))


def write_history(directory: Path, first: int) -> None:
    with HistoryWriter(directory, "x", "orders") as writer:
        writer.end(writer.append(["x1"]), glsn=first)
        final = writer.final()
        writer.got(final, 1, ["x1"])
        writer.end(final, glsn=2)


def test_a_directory_of_recordings_is_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_recording(tmp_path, BUSY)
    assert main(["check", "--recording", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "20 batches committed, 40 read: no violation" in out
    assert "6 files (6 of processes that were killed or still run), judged by TotalOrder, " in out


def test_a_violation_in_a_recording_names_log_file_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_recording(tmp_path, [*BUSY, BUSY[-1]])
    assert main(["check", "--recording", str(tmp_path)]) == 1
    assert "VIOLATION in log log, at r-1.trace line 44: Completeness" in capsys.readouterr().out


def test_one_file_of_a_recording_is_judged_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_recording(tmp_path, BUSY)
    assert main(["check", "--recording", str(tmp_path / "meta-1.trace"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["events"], document["violated"]) == (1, False)
    assert main(["check", "--trace", str(tmp_path)]) == 0, "the former name of the option still works"


def test_histories_are_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_history(tmp_path / "good", 1)
    assert main(["check", "--history", str(tmp_path / "good")]) == 0
    assert "log orders: 2 operations, 1 entry acknowledged, 1 read: no violation" in capsys.readouterr().out
    write_history(tmp_path / "bad", 2)
    assert main(["check", "--history", str(tmp_path / "bad"), "--json"]) == 1
    (log,) = json.loads(capsys.readouterr().out)["logs"]
    assert {each["rule"] for each in log["broken"]} == {"H2", "H6", "H9"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--recording", "."], "no *.trace files in this directory"),
        (["--history", "."], "no *.history files in this directory"),
        (["chain", "--history", "."], "--history takes no scenario"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["check", *arguments]) == 2
    assert words in capsys.readouterr().err
