"""Stopping a process so that it stands still: a signal that was sent is not yet a process that has stopped.

``kill(SIGSTOP)`` returns when the signal is queued. Until one of the process's threads is next scheduled, all of them
run on: on a busy machine for ten milliseconds and more, long enough to answer a request.
"""

import os
import signal
import time
from pathlib import Path

STOP_S_MAX = 10.0
LOOK_AGAIN_S = 0.001


def stop_and_wait(process: int) -> None:
    """SIGSTOP; return when no thread of the process can run any more."""
    os.kill(process, signal.SIGSTOP)
    deadline = time.monotonic() + STOP_S_MAX
    while not _stands_still(process):
        assert time.monotonic() < deadline, f"process {process} does not stop"
        time.sleep(LOOK_AGAIN_S)


def _stands_still(process: int) -> bool:
    return all(_state(thread) in "TtZX" for thread in Path(f"/proc/{process}/task").iterdir())


def _state(thread: Path) -> str:
    """One letter, behind the program's name, which may hold anything."""
    try:
        return thread.joinpath("stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"
