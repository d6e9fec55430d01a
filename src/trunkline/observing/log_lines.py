"""How processes write their log: lines of text for people, or one JSON object for each line.

A JSON line has ``ts`` (UTC), ``level``, then ``logger`` and ``message``, or the ``event`` of ``log_event`` instead of
them; then what is known of the process (its kind and name), the fields of the record (``extra={"fields": {...}}``), and
``exception`` where there is one.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Mapping
from typing import Final, TextIO

LOG_FORMATS: Final = ("text", "json")
TEXT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"
PLAIN: Final = re.compile(r"[\w.:/+-]+")


class JsonLines(logging.Formatter):
    """One JSON object for each record. ``known`` is in every one of them."""

    def __init__(self, known: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._known = dict(known or {})

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(self.fields(record), default=str)  # ASCII: a name from a broken peer cannot break the line

    def fields(self, record: logging.LogRecord) -> dict[str, object]:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        found: dict[str, object] = {"ts": f"{stamp}.{int(record.msecs):03}Z", "level": record.levelname.lower()}
        if (event := getattr(record, "event", None)) is not None:
            found["event"] = event
        else:
            found |= {"logger": record.name, "message": record.getMessage()}
        found |= self._known
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            found |= {name: value for name, value in fields.items() if name not in found}
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return found


class KeyValueLines(JsonLines):
    """The same fields as key=value, for people."""

    def format(self, record: logging.LogRecord) -> str:
        return key_values(self.fields(record))


def begin_logging(stream: TextIO, log_format: str, known: Mapping[str, str]) -> None:
    """Log everything of this process there, from INFO up."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines(known) if log_format == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def log_event(logger: logging.Logger, level: int, event: str, **fields: object) -> None:
    """Log one event. Its text is key=value; fields that are None are left out."""
    if logger.isEnabledFor(level):
        known = {name: value for name, value in fields.items() if value is not None}
        logger.log(level, "%s", key_values({"event": event, **known}), extra={"event": event, "fields": known})


def key_values(fields: Mapping[str, object]) -> str:
    return " ".join(f"{name}={_quoted(str(value))}" for name, value in fields.items())


def _quoted(text: str) -> str:
    return text if PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)
