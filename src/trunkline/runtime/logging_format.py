"""How server processes write their log: lines of text for people, or one JSON object a line for machines.

A JSON line has ``ts`` (UTC), ``level``, ``logger`` and ``message``; then what is known of the process (its kind and
name), then what the record itself brought as ``extra={"fields": {...}}``, and ``exception`` where there is one.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from typing import Final, TextIO

LOG_FORMATS: Final = ("text", "json")
TEXT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"


class JsonLines(logging.Formatter):
    """One line for each record: a JSON object. ``known`` is in every one of them."""

    def __init__(self, known: Mapping[str, str]) -> None:
        super().__init__()
        self._known = dict(known)

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        found: dict[str, object] = {
            "ts": f"{stamp}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._known,
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            found |= {name: value for name, value in fields.items() if name not in found}
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found, default=str)  # in ASCII: a name from a broken peer cannot break the line


def begin_logging(stream: TextIO, log_format: str, known: Mapping[str, str]) -> None:
    """Log there from now on, everything of this process from INFO up."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines(known) if log_format == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
