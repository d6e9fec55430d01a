"""Entries in and out: ``append``, ``read``, ``tail``, ``subscribe``, ``peek`` and ``fill``, on a real cluster."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from local_cluster import PROGRAM, Command, RunningCluster
from lying_writer import GARBAGE, POISONED, append_corrupt_batch, append_poison, payload_of, writing

LINES = b"".join(b"%d\n" % number for number in range(1, 100_001))
ENTRY_BYTES_MAX = 16 * 1024 * 1024


def lines(*texts: str) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode()


def test_a_hundred_thousand_lines_come_back_byte_for_byte(cluster: RunningCluster) -> None:
    cluster.ok("log", "create", "orders")
    assert cluster.ok("append", "orders", stdin=LINES) == b"appended 100,000 entries from 1 to 100000\n"
    assert cluster.ok("read", "orders", "--from", "1", "--to", "100000") == LINES


def test_files_of_any_size_come_back_byte_for_byte(cluster: RunningCluster, tmp_path: Path) -> None:
    contents = [b"", b"x", bytes(range(256)) * 7 + b"\n", os.urandom(ENTRY_BYTES_MAX)]
    paths = [tmp_path / f"entry{number}" for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    cluster.ok("log", "create", "files")
    cluster.ok("append", "files", "--file", *map(str, paths))
    for glsn, content in enumerate(contents, 1):
        assert cluster.ok("read", "files", "--raw", "--from", str(glsn), "--to", str(glsn)) == content
    assert cluster.ok("read", "files", "--raw") == b"".join(contents)


def test_a_file_that_is_too_large_is_rejected_and_the_message_counts_what_was_appended(
    on_cluster: Command, tmp_path: Path
) -> None:
    (tmp_path / "small").write_bytes(b"small")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(ENTRY_BYTES_MAX + 1)
    on_cluster("log", "create", "large-files")
    done = on_cluster("append", "large-files", "--file", "small", "large", "--batch", "1")
    assert done.code == 2
    assert "large is larger than 16,777,216 bytes, the limit of an entry" in done.err
    assert "before the failure, appended 1 entry at 1" in done.err


@pytest.mark.parametrize(
    ("options", "stdin", "entries"),
    [
        ([], b"a\n\nb", [b"a", b"", b"b"]),
        ([], b"a\r\n\xff\x00\n", [b"a\r", b"\xff\x00"]),
        (["--null"], b"one\ntwo\0\0three", [b"one\ntwo", b"", b"three"]),
        (["--delimiter", "; "], b"a; b;c; ", [b"a", b"b;c"]),
        (["--delimiter", r"\t"], b"a\tb", [b"a", b"b"]),
        (["--batch", "2"], b"1\n2\n3\n4\n5\n", [b"1", b"2", b"3", b"4", b"5"]),
        (["--unordered", "--batch", "2"], b"7\n7\n7\n7\n7\n", [b"7"] * 5),
    ],
    ids=["lines", "binary", "null", "delimiter", "escape", "batch", "unordered"],
)
def test_standard_input_is_split_into_entries(
    on_cluster: Command, request: pytest.FixtureRequest, options: list[str], stdin: bytes, entries: list[bytes]
) -> None:
    log = f"cut-{request.node.callspec.id}"
    on_cluster("log", "create", log)
    done = on_cluster("append", log, *options, "--json", stdin=stdin)
    assert done.json == {"log": log, "count": len(entries), "first": 1, "last": len(entries)}
    shown = [json.loads(line) for line in on_cluster("read", log, "--json").out.splitlines()]
    assert [_payload(each) for each in shown] == entries


def _payload(shown: dict[str, str]) -> bytes:
    return base64.b64decode(shown["payload"]) if shown["encoding"] == "base64" else shown["payload"].encode()


def test_an_empty_input_appends_nothing(on_cluster: Command) -> None:
    on_cluster("log", "create", "empty-input")
    assert on_cluster("append", "empty-input").text == "nothing to append\n"


def test_a_conditional_append_takes_its_position_or_fails(on_cluster: Command) -> None:
    on_cluster("log", "create", "conditional")
    assert on_cluster("append", "conditional", "--expect", "1", stdin=b"a\n").code == 0
    late = on_cluster("append", "conditional", "--expect", "1", "--json", stdin=b"b\n")
    assert late.code == 1
    assert json.loads(late.err)["error"] == "ConditionFailed"
    assert on_cluster("read", "conditional").out == b"a\n"


def test_a_range_is_inclusive_on_both_ends(on_cluster: Command) -> None:
    on_cluster("log", "create", "ranges")
    for batch in ("abc", "def", "ghi"):
        on_cluster("append", "ranges", stdin=lines(*batch))
    assert on_cluster("read", "ranges", "--from", "2", "--to", "5").out == lines(*"bcde")
    assert on_cluster("read", "ranges", "--from", "3", "--to", "3").out == lines("c")
    assert on_cluster("read", "ranges", "--from", "8").out == lines("h", "i")
    assert on_cluster("read", "ranges", "--to", "2").out == lines("a", "b")


def test_a_read_past_the_tail_prints_what_is_there_and_fails(on_cluster: Command) -> None:
    on_cluster("log", "create", "short")
    on_cluster("append", "short", stdin=b"a\nb\n")
    done = on_cluster("read", "short", "--from", "2", "--to", "5")
    assert (done.code, done.out) == (1, b"b\n")
    assert done.err == "trunkline: log short ends at 2, before 5; `trunkline subscribe short` waits for more\n"


def test_a_trimmed_range_is_an_error_that_names_the_point(on_cluster: Command) -> None:
    on_cluster("log", "create", "trimmed")
    for batch in ("ab", "cd", "ef"):
        on_cluster("append", "trimmed", stdin=lines(*batch))
    assert on_cluster("log", "trim", "trimmed", "3").text == "log trimmed is trimmed to 2 (batches are not split)\n"
    done = on_cluster("read", "trimmed", "--from", "1")
    assert (done.code, done.out) == (1, b"")
    assert done.err == "trunkline: positions up to 2 were trimmed away; read from 3 on\n"
    assert on_cluster("read", "trimmed").out == lines(*"cdef")
    assert on_cluster("tail", "trimmed", "-n", "100").out == lines(*"cdef")


def test_the_tail_shows_the_last_entries(on_cluster: Command) -> None:
    on_cluster("log", "create", "tails")
    assert on_cluster("tail", "tails").out == b""
    on_cluster("append", "tails", stdin=lines(*"abcdefghijkl"))
    assert on_cluster("tail", "tails").out == lines(*"cdefghijkl")
    assert on_cluster("tail", "tails", "-n", "2").out == lines("k", "l")
    assert on_cluster("tail", "tails", "-n", "0").out == b""


def test_peek_and_fill_report_positions(on_cluster: Command) -> None:
    on_cluster("log", "create", "positions")
    on_cluster("append", "positions", stdin=b"a\n")
    assert on_cluster("peek", "positions", "--json").json == {"log": "positions", "peek": 2, "tail": 2}
    assert on_cluster("fill", "positions", "1").text == "position 1 has an entry\n"
    ahead = on_cluster("fill", "positions", "2")
    assert ahead.code == 1
    assert "is not assigned yet" in ahead.err


def test_a_subscriber_gets_entries_as_they_arrive(cluster: RunningCluster) -> None:
    cluster.ok("log", "create", "live")
    with cluster.begin("subscribe", "live") as reader, cluster.begin("append", "live") as writer:
        assert reader.stdout is not None
        assert writer.stdin is not None
        for text in (b"first\n", b"second\n"):
            writer.stdin.write(text)
            writer.stdin.flush()
            assert reader.stdout.readline() == text
        reader.send_signal(signal.SIGINT)
        assert reader.communicate(timeout=10) == (b"", b"")
        assert reader.returncode == 130
        writer.send_signal(signal.SIGINT)
        _, err = writer.communicate(timeout=10)
        assert writer.returncode == 130
        assert err == b"trunkline: appended 2 entries from 1 to 2\ntrunkline: interrupted\n"


def test_tail_with_follow_prints_new_entries(cluster: RunningCluster) -> None:
    cluster.ok("log", "create", "followed")
    cluster.ok("append", "followed", stdin=b"a\nb\nc\n")
    with cluster.begin("tail", "followed", "-n", "1", "--follow") as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"c\n"
        cluster.ok("append", "followed", stdin=b"d\n")
        assert reader.stdout.readline() == b"d\n"
        reader.send_signal(signal.SIGINT)
        assert reader.wait(10) == 130


def test_a_read_that_blocks_on_a_full_pipe_can_be_interrupted(cluster: RunningCluster) -> None:
    cluster.ok("log", "create", "blocked-pipe")
    cluster.ok("append", "blocked-pipe", stdin=b"x" * 100_000 + b"\n" + b"y" * 100_000 + b"\n")
    with cluster.begin("read", "blocked-pipe") as reader:
        assert reader.stdout is not None
        assert reader.stdout.read(1) == b"x"  # it writes, and the pipe will soon be full
        reader.send_signal(signal.SIGINT)
        _, err = reader.communicate(timeout=10)
    assert reader.returncode == 130
    assert b"Traceback" not in err


def test_a_closed_output_ends_the_command_quietly(cluster: RunningCluster) -> None:
    cluster.ok("log", "create", "left")
    cluster.ok("append", "left", stdin=LINES)
    with cluster.begin("subscribe", "left") as reader:
        assert reader.stdout is not None
        assert reader.stderr is not None
        assert reader.stdout.readline() == b"1\n"
        reader.stdout.close()
        assert reader.wait(10) == 1
        assert reader.stderr.read() == b""


def test_a_command_that_reaches_no_server_reports_it(command: Command) -> None:
    done = command("read", "orders", "--connect", "127.0.0.1:1", "--timeout", "0.3")
    assert done.code == 3
    assert "127.0.0.1:1" in done.err
    assert "Traceback" not in done.err


def test_the_installed_program_runs() -> None:
    done = subprocess.run([*PROGRAM, "version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("trunkline ")


def test_a_poisoned_log_is_readable_and_invalid_headers_are_shown(on_cluster: Command, cluster: RunningCluster) -> None:
    writing(cluster.connect, "poisoned", append_poison)
    done = on_cluster("read", "poisoned", "--json")
    assert done.code == 0, done.err
    shown = [json.loads(line) for line in done.out.splitlines()]
    assert [each["payload"].encode() for each in shown] == [payload_of(index) for index in range(len(POISONED))]
    assert shown[1]["headers"] == {"source": "shöp", "n": {"base64": "/w=="}}
    unreadable = [base64.b64decode(each.get("unreadable_headers", "")) for each in shown]
    assert unreadable == [b"", b"", *GARBAGE, b""]
    assert on_cluster("tail", "poisoned", "-n", "2", "--json").code == 0


def test_a_corrupt_batch_is_reported_with_the_position_to_continue_from(
    on_cluster: Command, cluster: RunningCluster
) -> None:
    writing(cluster.connect, "corrupt", append_corrupt_batch)
    on_cluster("append", "corrupt", stdin=b"behind")
    for options in ([], ["--json"], ["--raw"]):
        done = on_cluster("read", "corrupt", *options)
        assert done.code == 1
        assert "positions 1 to 3 of corrupt hold a corrupt batch" in done.err
        assert "read on from 4" in done.err
        assert "Traceback" not in done.err
    assert on_cluster("read", "corrupt", "--from", "4").out == b"behind\n"
