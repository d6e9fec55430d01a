"""The processes of the demo. Each is started here, and ended by its pid."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

PROGRAM: Final = (sys.executable, "-m", "trunkline.cli.main")
LINES_KEPT: Final = 200
STOP_S: Final = 60.0  # a deliverer finishes its work first
END_S: Final = 20.0


class Process:
    """A ``trunkline`` command in the background, in its own session, so that Ctrl-C does not reach it."""

    def __init__(self, *arguments: str, on_line: Callable[[str], None] = lambda _: None) -> None:
        self.what = arguments[0]
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._on_line = on_line
        self._process = subprocess.Popen(
            [*PROGRAM, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._listen, name=f"output of {self.what}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    @property
    def output(self) -> str:
        """The last lines of its output."""
        return "\n".join(self._lines)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line.rstrip())
            self._on_line(line)

    def kill(self) -> None:
        """Kill it, like a crash."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """Shut it down cleanly, as in production."""
        if self.runs:
            self._process.send_signal(signal.SIGTERM)
        return self._ended(STOP_S)

    def end(self) -> int:
        """End it quickly; a deliverer does not finish its work."""
        for _ in range(2):  # a second signal ends it without draining
            if self.runs:
                self._process.send_signal(signal.SIGTERM)
        return self._ended(END_S)

    def _ended(self, within_s: float) -> int:
        """Wait for the exit; after the time limit, kill the process and its children."""
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._reader.join(within_s)
        return self._process.returncode
