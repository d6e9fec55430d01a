"""Records what the roles of a process announce, for ``trunkline check --recording``.

One file per process start; ``core/recording.py`` has the rules. A line is written to the operating system before any
later effect is carried out, so a kill loses no event that another process may have observed.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from trunkline.core.effects import Event
from trunkline.core.recording import encode_event, end_line, file_name, header_line


class Recorder:
    def __init__(self, directory: Path, cluster: str, process: str, start: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / file_name(process, start)
        self._process = process
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        os.write(self._file, header_line(process, start, cluster, time.monotonic_ns()))

    def event(self, role: str, event: Event) -> None:
        os.write(self._file, encode_event(self._process, role, time.monotonic_ns(), event))

    def close(self) -> None:
        """The process shuts down cleanly."""
        if self._file >= 0:
            os.write(self._file, end_line(time.monotonic_ns()))
            os.close(self._file)
            self._file = -1
