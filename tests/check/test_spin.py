"""One protocol, two engines: this checker counts the same distinct states as Spin."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from alternating_bit import alternating_bit
from outside import program
from trunkline.check.search import explore
from trunkline.check.world import World

MODEL = Path(__file__).parent / "spin" / "alternating_bit.pml"
DISTINCT = 79_365
TRANSITIONS = 423_544


def counted_by_spin(folder: Path) -> tuple[int, int]:
    """States and transitions of an exhaustive search by Spin, without reduction."""
    compile_it = f"{program('gcc')} -O1 -DSAFETY -DNOREDUCE -DNOFAIR -DVECTORSZ=256 -o pan pan.c"
    for command in (f"{program('spin')} -a {MODEL}", compile_it, "./pan -m100000"):
        done = subprocess.run(command.split(), cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    assert "errors: 0" in done.stdout, done.stdout
    assert "max search depth too small" not in done.stdout, done.stdout
    stored, transitions = (re.search(rf"(\d+) {name}", done.stdout) for name in ("states, stored", "transitions"))
    assert stored is not None, done.stdout
    assert transitions is not None, done.stdout
    return int(stored[1]), int(transitions[1])


def test_the_engine_counts_the_states_of_the_alternating_bit_protocol() -> None:
    found = explore(World(alternating_bit()))
    assert found.complete
    assert found.finding is None
    assert (found.distinct, found.transitions) == (DISTINCT, TRANSITIONS)


def test_spin_stores_exactly_the_states_that_the_engine_counts(tmp_path: Path) -> None:
    # Spin counts the entry into the initial state as a transition.
    assert counted_by_spin(tmp_path) == (DISTINCT, TRANSITIONS + 1)
