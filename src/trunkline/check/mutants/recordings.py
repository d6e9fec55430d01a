"""The rules of recordings: hosts follow them, not roles."""

from __future__ import annotations

_TESTED = "hosts write recordings, and searches do not run hosts; the tests of recordings cover the rule"

UNSEEN = {
    "recording T1": f"The host stamps a line: {_TESTED}.",
    "recording T2": f"The host writes a line before the effects that follow it: {_TESTED}.",
    "recording T3": f"The last line of a file shows how its process ended: {_TESTED}.",
    "recording T4": f"Hosts number starts, and the world does in a search: {_TESTED}.",
    "recording T5": f"Clients number operations, and hosts write the lines: {_TESTED}.",
}
