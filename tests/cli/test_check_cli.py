"""The command line of ``trunkline check``: outputs, files and exit codes, over the toy store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from toy_store import careless, catalogue, put_scenario
from trunkline.check.catalogue import Catalogue
from trunkline.cli.main import main

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def broken() -> Iterator[None]:
    with careless():
        yield


def run(*arguments: str, known: Catalogue | None = None) -> int:
    return main(["check", *arguments], lambda: known or catalogue())


def one_line(text: str) -> str:
    assert text.count("\n") == 1
    return text.strip()


def test_the_default_run_ends_with_a_table_and_a_closing_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()[:4]] == ["scenario", "--------", "put", "pair"]
    assert out.splitlines()[-1].startswith("2 scenarios, 0 violations, ")
    assert "(exhausted)" in out
    assert "[2/2]" in err


def test_the_default_run_adds_schedules_if_it_reaches_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("put", "--states-limit", "20") == 0
    assert "breadth+swarm (1,500 schedules)" in capsys.readouterr().out


def test_an_event_that_never_happens_is_a_violation(capsys: pytest.CaptureFixture[str]) -> None:
    known = Catalogue({"put": lambda: put_scenario(sometimes=("Stored", "Miracle"))})
    assert run(known=known) == 1
    assert "Vacuous\n  never saw Miracle" in capsys.readouterr().out


def test_exhaustive_prints_coverage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("put", "--exhaustive") == 0
    out = capsys.readouterr().out
    names = ("bounds", "states", "transitions", "depth", "coverage", "cpu seconds", "memory", "states/s")
    assert all(f"\n{name} " in out for name in names)
    assert "all within the bounds" in out
    assert "rest can be reached from every state" in out


def test_a_bound_is_named_in_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("put", "--exhaustive", "--max-states", "10") == 0
    out = capsys.readouterr().out
    assert "at most 10 states" in out
    assert "a limit was reached" in out


def test_coverage_lists_pairs_before_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("put", "--coverage") == 0
    out = capsys.readouterr().out
    assert "  Keeper empty Put\n" in out
    assert out.splitlines()[-1].startswith("1 scenario, 0 violations, ")


@pytest.mark.parametrize("strategy", ["random", "pct", "swarm"])
def test_schedules_of_each_strategy_run(strategy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("put", "--schedules", "500", "--strategy", strategy, "--jobs", "2") == 0
    assert f"{strategy} (500 schedules)" in capsys.readouterr().out


@pytest.mark.usefixtures("broken")
def test_a_violation_is_shown_shrunk_and_its_commands_replay_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("put", "--schedules", "3000", "--strategy", "random") == 1
    out = capsys.readouterr().out
    assert "VIOLATION in put: NoLostAck" in out
    assert "acknowledged, but lost" in out
    commands = [line.split("trunkline check ")[1].split("  (")[0] for line in out.splitlines() if "replay:" in line]
    assert len(commands) == 2
    page = Path(out.split("diagram: ")[1].splitlines()[0])
    assert page.read_text().lstrip().lower().startswith("<!doctype html>")
    for command in commands:
        assert run(*command.split()) == 1
        assert "VIOLATION: NoLostAck" in capsys.readouterr().out


@pytest.mark.usefixtures("broken")
def test_the_reported_seed_does_not_depend_on_the_number_of_workers(capsys: pytest.CaptureFixture[str]) -> None:
    seeds = []
    for jobs in ("1", "2", "3"):
        assert run("pair", "--schedules", "2000", "--strategy", "pct", "--jobs", jobs, "--json") == 1
        document = json.loads(capsys.readouterr().out)
        seeds.append(document["scenarios"][0]["violations"][0]["seed"])
    assert len(set(seeds)) == 1


@pytest.mark.usefixtures("broken")
def test_violations_go_to_the_named_directory(tmp_path: Path) -> None:
    assert run("pair", "--exhaustive", "--out", "elsewhere") == 1
    assert sorted(each.name for each in (tmp_path / "elsewhere").iterdir()) == [
        "pair-NoLostAck.actions",
        "pair-NoLostAck.html",
    ]


def test_a_long_fair_phase_is_shown_by_its_beginning_and_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    needed = replace(put_scenario(), stays_down=("k",), smaller=())
    assert run("put", "--schedules", "200", "--strategy", "random", known=Catalogue({"put": lambda: needed})) == 1
    out = capsys.readouterr().out
    assert "not reached within 2000 fair steps" in out
    assert " fair steps ...\n" in out
    assert len(out.splitlines()) < 80
    assert "the first 60 of 2000 fair steps" in Path("check-out/put-Progress.html").read_text()


def test_a_seed_replays_one_line_per_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("put", "--seed", "3") == 0
    first = capsys.readouterr().out
    assert run("put", "--seed", "3") == 0
    assert capsys.readouterr().out == first
    assert first.splitlines()[0] == "put, swarm, seed 3"
    assert first.splitlines()[-1] == "no violation"


def test_mutants_are_found_and_the_correct_code_survives(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--mutants") == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1].startswith("2 of 2 mutants found, ")
    assert "yes (exhausted" in out
    assert "yes (5,000 schedules)" in out


def test_a_mutants_run_can_be_kept_and_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--mutants", "answer-first", "--out", "kept") == 0
    capsys.readouterr()
    assert run("put", "--actions", "kept/answer-first.actions") == 1
    assert "with answer-first" in capsys.readouterr().out


def test_a_mutant_that_is_not_found_fails(capsys: pytest.CaptureFixture[str]) -> None:
    known = catalogue()
    mutants = tuple(each for each in known.mutants if each.name == "answer-first")
    poor = type(mutants[0])(**{**vars(mutants[0]), "budget": 2})
    assert run("--mutants", known=Catalogue(known.scenarios, (poor,))) == 1
    assert "NOT FOUND in 2 states" in capsys.readouterr().out


def test_json_of_the_default_run_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert [each["scenario"] for each in document["scenarios"]] == ["put", "pair"]
    assert document["scenarios"][0]["complete"] is True
    assert ["Keeper", "empty", "Put"] in document["scenarios"][0]["coverage"]


def test_scenarios_and_mutants_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--list") == 0
    out = capsys.readouterr().out
    assert "1 callers store 2 values each" in out
    assert "a lost request is never sent again" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["putt"], "unknown scenario 'putt': did you mean put?"),
        (["--mutants", "ask-onse"], "unknown mutant 'ask-onse': did you mean ask-once?"),
        (["zzz"], "`trunkline check --list` lists them"),
        (["put", "--max-states", "0"], "expected a whole number above 0, got '0'"),
        (["put", "--max-depth", "deep"], "expected a whole number above 0, got 'deep'"),
        (["put", "--seed", "-1"], "--seed"),
        (["--seed", "1"], "--seed needs exactly one scenario"),
        (["put", "--exhaustive", "--schedules", "3"], "not allowed with"),
        (["put", "--strategy", "pct"], "--strategy goes with"),
        (["--recording", "absent.trace"], "absent.trace: No such file or directory"),
        (["--recording", "noise"], "noise: noise line 1: not a JSON object"),
        (["--recording", "binary"], "binary: binary line 1: not a JSON object"),
        (["put", "--recording", "."], "--recording takes no scenario"),
        (["--actions", "absent.actions"], "absent.actions: No such file or directory"),
        (["--actions", "noise"], "noise: line 1: expected `trunkline-actions 1`"),
        (["pair", "--actions", "of-put"], "it belongs to scenario put, not pair"),
        (["--actions", "of-put"], "action 1 cannot happen here: crash n9"),
        (["--colour"], "unknown option --colour"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "noise").write_text("noise\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "of-put").write_text("trunkline-actions 1\nscenario put\n\ncrash n9\n")
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in one_line(err)


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out.startswith("trunkline ")


def children_of(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            if parent == pid:
                found.append(int(entry.name))
    return found


def wait_until(condition: object, seconds: float = 20.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see worker processes")
def test_an_interrupt_ends_the_workers_and_exits_with_130() -> None:
    program = (
        "import sys\n"
        "from toy_store import catalogue\n"
        "from trunkline.cli.main import main\n"
        "sys.exit(main(['check', 'pair', '--schedules', '100000000', '--jobs', '2'], catalogue))\n"
    )
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        wait_until(lambda: len(children_of(process.pid)) == 2)
        workers = children_of(process.pid)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: to the workers as well
        _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err.strip().splitlines()[-1] == "trunkline: interrupted"
    assert "Traceback" not in err
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


def test_the_rules_are_listed_with_the_mutants_that_break_them(capsys: pytest.CaptureFixture[str]) -> None:
    run("--rules")
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line.startswith("reader D2 ") and "value-from-head" in line]
    assert out.splitlines()[-1].startswith("rules: ")
    run("--rules", "--json")
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["rules"]}
    assert rows["reader D2"]["mutants"] == ["value-from-head"]
