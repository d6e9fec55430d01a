"""The command, as a user runs it."""

from __future__ import annotations

import subprocess

import pytest

from dashboard.running_dashboard import PROGRAM


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--check-out", "nowhere"], "there is no directory nowhere; create it, or omit --check-out"),
        (["--deliver", "mysql:x"], "'mysql:x' is not a valid control store; write sqlite:PATH or postgres:DSN"),
        (["--listen", "127.0.0.1"], "'127.0.0.1' has no port; write 127.0.0.1:port"),
    ],
)
def test_wrong_options_are_one_line_each(options: list[str], words: str) -> None:
    done = subprocess.run([*PROGRAM, *options], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (2, f"trunkline: {words}\n")
