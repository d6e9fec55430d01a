"""Rules of recordings. A recording is what a running process writes down: hosts keep its rules, and no role."""

from __future__ import annotations

_TESTED = "a recording is written by hosts, which searches do not run; the tests of recordings break it instead"

UNSEEN = {
    "recording T1": f"When a line is stamped is the host's doing: {_TESTED}.",
    "recording T2": f"Which line is in the file before which effect is the host's doing: {_TESTED}.",
    "recording T3": f"How a file ends tells how its process ended: {_TESTED}.",
    "recording T4": f"Starts are numbered by hosts, and by the world in a search: {_TESTED}.",
    "recording T5": f"Operations are numbered by clients, and lines are written by hosts: {_TESTED}.",
}
