"""The processes of the demonstration. Each is started here and ended by its own number, whatever happens."""

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
STOP_S: Final = 60.0  # a deliverer that drains may take a while
END_S: Final = 20.0


class Process:
    """A command of Trunkline in the background, in a group of its own, so that Ctrl-C reaches only us."""

    def __init__(self, *arguments: str, heard: Callable[[str], None] = lambda _: None) -> None:
        self.what = arguments[0]
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._heard = heard
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
        """The last lines that it wrote."""
        return "\n".join(self._lines)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line.rstrip())
            self._heard(line)

    def kill(self) -> None:
        """As a crash would."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """In order, as one would in production."""
        if self.runs:
            self._process.send_signal(signal.SIGTERM)
        return self._ended(STOP_S)

    def end(self) -> int:
        """Soon: what a deliverer has not delivered yet does not matter any more."""
        for _ in range(2):  # a second signal ends it without draining
            if self.runs:
                self._process.send_signal(signal.SIGTERM)
        return self._ended(END_S)

    def _ended(self, within_s: float) -> int:
        """What does not end in time is killed with all that it started."""
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._reader.join(within_s)
        return self._process.returncode
