"""The exact message and exit code of commands that fail or find nothing.

One table, one cluster. ``{here}`` and the like stand for what differs from run to run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from local_cluster import Command, RunningCluster
from outside import program
from trunkline.cli.main import whole_parser
from trunkline.cli.read import _why_nothing
from trunkline.plural import plural

SUBSCRIBE = "`trunkline subscribe parcels` waits for more"


class Case(NamedTuple):
    arguments: str
    code: int
    err: str
    out: str = ""
    stdin: str = ""


CASES: Final = [
    # unknown words
    Case("apend parcels", 2, "there is no command 'apend'; did you mean append? (see `trunkline --help`)"),
    Case("fly", 2, "there is no command 'fly' (see `trunkline --help`)"),
    Case("log creat x", 2, "there is no command 'creat'; did you mean create? (see `trunkline log --help`)"),
    Case("node lst", 2, "there is no command 'lst'; did you mean list? (see `trunkline node --help`)"),
    Case("read parcels --form 2", 2, "unknown option --form; did you mean --from? (see `trunkline read --help`)"),
    Case("read parcels --zzz", 2, "unknown option --zzz (see `trunkline read --help`)"),
    Case("read parcels more", 2, "unexpected argument more (see `trunkline read --help`)"),
    Case("--no status", 2, "unknown option --no before the command; put it after the command (see `trunkline --help`)"),
    Case(
        "log create x --policy chian",
        2,
        "argument --policy: invalid choice: 'chian' (choose from chain, broadcast); did you mean chain? "
        "(see `trunkline log create --help`)",
    ),
    Case("read pacrels", 1, "log pacrels does not exist; create it first; did you mean parcels?"),
    Case("append parcesl", 1, "log parcesl does not exist; create it first; did you mean parcels?", stdin="a\n"),
    Case("log describe parcelss", 1, "log parcelss does not exist; create it first; did you mean parcels?"),
    Case("read quite-another", 1, "log quite-another does not exist; create it first"),
    # reads that find nothing
    Case("read parcels --from 2", 0, "", "b\nc\n"),
    Case("read parcels --from 4", 0, "log parcels ends at 3; position 4 is not written yet"),
    Case("read parcels --from 5", 1, f"log parcels ends at 3, before 5; {SUBSCRIBE}"),
    Case("read parcels --from 3 --to 9", 1, f"log parcels ends at 3, before 9; {SUBSCRIBE}", "c\n"),
    Case("read parcels --from 8 --to 9", 1, f"log parcels ends at 3, before 9; {SUBSCRIBE}"),
    Case("read parcels-empty", 0, "log parcels-empty is empty"),
    Case("read parcels-empty --from 1", 0, "log parcels-empty is empty"),
    Case(
        "read parcels-empty --to 1",
        1,
        "log parcels-empty is empty, before 1; `trunkline subscribe parcels-empty` waits for more",
    ),
    Case("tail parcels-empty", 0, "log parcels-empty is empty"),
    Case("tail parcels-empty -n 0", 0, ""),
    Case("read parcels-trimmed", 0, "", "c\n"),
    Case("read parcels-trimmed --from 1", 1, "positions up to 2 were trimmed away; read from 3 on"),
    Case("read parcels-trimmed --to 2", 1, "positions up to 2 were trimmed away; read from 3 on"),
    Case("read parcels-trimmed --from 2 --to 3", 1, "positions up to 2 were trimmed away; read from 3 on"),
    Case("read emptied", 0, "emptied is trimmed up to 2, and has no newer entries"),
    Case("tail emptied", 0, "emptied is trimmed up to 2, and has no newer entries"),
    # a log that exists
    Case("log create parcels", 0, "", "log parcels already exists, with the same settings: chain, {members}\n"),
    Case(
        "log create parcels --policy broadcast --replicas 2 --min-replicas 2",
        1,
        "parcels: the log exists with other settings: policy is chain (requested: broadcast), "
        "replicas is 3 (requested: 2), min_replicas is 1 (requested: 2)",
    ),
    # conditional appends
    Case(
        "append parcels --expect 2",
        1,
        "the next position is 4; nothing was appended",
        stdin="x\n",
    ),
    # directories
    Case(
        "up --dir /proc/nowhere",
        2,
        "cannot use /proc/nowhere: No such file or directory; name another directory with --dir",
    ),
    Case(
        "up --detach --dir /proc/nowhere",
        2,
        "cannot use /proc/nowhere: No such file or directory; name another directory with --dir",
    ),
    Case("up --dir file", 2, "{here}/file is a file, not a directory; name another directory with --dir"),
    Case("up --detach --dir file", 2, "{here}/file is a file, not a directory; name another directory with --dir"),
    Case("up --dir file/below", 2, "{here}/file is a file, not a directory; name another directory with --dir"),
    Case("down --dir file", 2, "{here}/file is a file, not a directory; name another directory with --dir"),
    Case("status --dir file", 2, "{here}/file is a file, not a directory; name another directory with --dir"),
    Case("node add --dir file", 2, "{here}/file is a file, not a directory; name another directory with --dir"),
    Case("up --port 99999", 2, "argument --port: expected a port, 0 to 65535, got '99999' (see `trunkline up --help`)"),
    Case("up --port 65534", 2, "ports 65534 to 65537 are needed, and the last is 65535; choose a lower --port"),
    # no server
    Case(
        "status --connect 127.0.0.1:1",
        3,
        "no coordinator answered at 127.0.0.1:1 (connection refused); is the cluster up? Start one with "
        "`trunkline up`, or give the address of the one that runs",
    ),
    Case(
        "read parcels --connect 127.0.0.1:1,127.0.0.1:2",
        3,
        "no coordinator answered at 127.0.0.1:1 and 127.0.0.1:2 (connection refused); is the cluster up? Start one "
        "with `trunkline up`, or give the address of the one that runs",
    ),
    Case(
        "status --connect a..b:7400",
        3,
        "no coordinator answered (a..b:7400: {resolver}); is the cluster up? (`trunkline status`)",
    ),
    Case(
        "completion fish",
        2,
        "argument SHELL: invalid choice: 'fish' (choose from bash, zsh, tcsh) (see `trunkline completion --help`)",
    ),
]


@pytest.fixture(scope="module")
def logs(cluster: RunningCluster) -> RunningCluster:
    """Logs with some entries, without any, and trimmed."""
    for name in ("parcels", "parcels-empty", "parcels-trimmed", "emptied"):
        cluster.ok("log", "create", name)
    cluster.ok("append", "parcels", "--batch", "1", stdin=b"a\nb\nc\n")
    cluster.ok("append", "parcels-trimmed", "--batch", "1", stdin=b"a\nb\nc\n")
    cluster.ok("log", "trim", "parcels-trimmed", "2")
    cluster.ok("append", "emptied", stdin=b"a\nb\n")
    cluster.ok("log", "trim", "emptied", "2")
    return cluster


def members(cluster: RunningCluster) -> str:
    [group] = cluster.json("log", "describe", "parcels")["segments"][-1]["groups"]
    return " > ".join(member["node"] for member in group)


@pytest.mark.parametrize("case", CASES, ids=[case.arguments for case in CASES])
def test_a_message_is_one_line_with_an_exit_code(
    logs: RunningCluster, on_cluster: Command, tmp_path: Path, case: Case
) -> None:
    (tmp_path / "file").touch()
    done = on_cluster(*case.arguments.split(), stdin=case.stdin.encode())
    wanted = case.err.replace("{here}", str(tmp_path))
    out = case.out.replace("{members}", members(logs)) if "{members}" in case.out else case.out
    if "{resolver}" in wanted:  # the text depends on the machine
        before, after = wanted.split("{resolver}")
        assert done.err.startswith(f"trunkline: {before}")
        assert done.err.endswith(f"{after}\n")
    else:
        assert done.err == (f"trunkline: {wanted}\n" if wanted else "")
    assert (done.code, done.text) == (case.code, out)


def test_a_note_is_an_object_with_json(logs: RunningCluster, on_cluster: Command) -> None:
    done = on_cluster("read", "parcels-empty", "--json")
    assert (done.code, done.out, json.loads(done.err)) == (0, b"", {"note": "log parcels-empty is empty"})
    assert on_cluster("log", "create", "parcels", "--json").json["existed"] is True
    late = on_cluster("read", "parcels", "--from", "9", "--json")
    assert (late.code, json.loads(late.err)["error"]) == (1, "NotWritten")


def test_a_subscription_past_the_end_reports_what_it_waits_for(logs: RunningCluster) -> None:
    with logs.begin("subscribe", "parcels", "--from", "9") as reader:
        assert reader.stderr is not None
        assert reader.stderr.readline() == b"trunkline: log parcels ends at 3; waiting for 9\n"
        reader.terminate()


@pytest.mark.parametrize(
    ("start", "until", "text"),
    [
        (2, 2, "2 is a hole: x will never have an entry there"),
        (None, 4, "1 to 4 are holes: x will never have an entry there"),
        (3, None, "3 to 5 are holes: x will never have an entry there"),
    ],
)
def test_a_range_of_holes_is_reported(start: int | None, until: int | None, text: str) -> None:
    assert _why_nothing("x", 0, 6, start, until) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 rows have"), (1, "1 row has"), (2, "2 rows have"), (1234, "1,234 rows have")]
)
def test_a_number_has_a_singular_or_plural(count: int, text: str) -> None:
    assert plural(count, "row has", "rows have") == text
    assert plural(count, "row") == text.rsplit(" ", 1)[0]


# --------------------------------------------------------------------------------------------------------------- help


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    families = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    if not families:
        yield parser
    for family in families:
        for command in family.choices.values():
            yield from leaves(command)


def test_every_command_has_an_example() -> None:
    lacking = [each.prog for each in leaves(whole_parser()) if f"\n  {each.prog}" not in (each.epilog or "")]
    assert [prog for prog in lacking if prog not in ("trunkline append", "trunkline proxy")] == []
    assert "| trunkline append" in next(each.epilog or "" for each in leaves(whole_parser()) if "append" in each.prog)


def test_every_example_is_valid() -> None:
    parser = whole_parser()
    for command in leaves(parser):
        for line in (command.epilog or "").splitlines()[1:]:
            words = line.partition("  trunkline ")[2] if line.startswith("  trunkline") else ""
            given = words.split("   ")[0].split(" < ")[0].split(" > ")[0].strip()
            if given and "'" not in given:
                parser.parse_args(given.split())


# --------------------------------------------------------------------------------------------------------- completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_the_completion_script_has_every_command(command: Command, shell: str) -> None:
    done = command("completion", shell)
    assert (done.code, done.err) == (0, "")
    for word in ("subscribe", "declare-lost", "completion"):
        assert word in done.text
    assert "--from" in done.text or "'from'" in done.text or shell == "tcsh"


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["sub"], ["subscribe"]),
        (["log", "de"], ["describe", "delete", "declare-lost"]),
        (["read", "parcels", "--fr"], ["--from"]),
        (["log", "create", "x", "--policy", "b"], ["broadcast"]),
        (["append", "x", "--file", "fil"], ["file"]),
    ],
)
def test_bash_completes_commands_options_and_files(
    command: Command, tmp_path: Path, words: list[str], wanted: list[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "script").write_bytes(command("completion", "bash").out)
    line = ["trunkline", *words]
    script = (
        "source ./script; "
        f"COMP_WORDS=({' '.join(line)}); COMP_CWORD={len(line) - 1}; "
        f"_shtab_trunkline trunkline {words[-1]} {line[-2]}; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run([program("bash"), "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert sorted(done.stdout.split()) == sorted(wanted), done.stderr


def test_no_other_command_loads_the_completion_library() -> None:
    script = "import sys, trunkline.cli.main as m; m._parser('read'); sys.exit('shtab' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], env=dict(os.environ), check=False).returncode == 0
