"""Lines of the log: one JSON object, or key=value, for each record."""

from __future__ import annotations

import json
import logging
import sys

from trunkline.observing.log_lines import JsonLines


def test_a_line_of_the_log_is_one_json_object_whatever_is_in_it() -> None:
    formatter = JsonLines({"process": "node", "name": "n1"})
    try:
        raise ValueError("two\nlines")
    except ValueError:
        error = sys.exc_info()
    record = logging.LogRecord("trunkline.node", logging.WARNING, "", 0, "peer %s", ("\udcff\n",), error)
    record.fields = {"address": "127.0.0.1:1", "level": "hidden"}
    line = formatter.format(record)
    assert "\n" not in line
    found = json.loads(line)
    assert {key: found[key] for key in ("level", "logger", "message", "process", "name", "address")} == {
        "level": "warning",
        "logger": "trunkline.node",
        "message": "peer \udcff\n",
        "process": "node",
        "name": "n1",
        "address": "127.0.0.1:1",
    }
    assert found["ts"].endswith("Z")
    assert "ValueError: two" in found["exception"]
