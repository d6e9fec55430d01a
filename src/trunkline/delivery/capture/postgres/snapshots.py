"""What every session with a captured server sets, and which transactions a snapshot of the server has seen."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

SESSION: Final = (  # texts of values must not depend on the server's settings
    "SET TimeZone = 'UTC'; SET DateStyle = 'ISO'; SET IntervalStyle = 'postgres'; SET extra_float_digits = 3; "
    "SET bytea_output = 'hex'; SET row_security = off"  # off: a query that would omit rows fails
)


class Seen(Struct, frozen=True):
    """A snapshot of the server: which transactions it has seen."""

    xmin: int
    xmax: int
    running: tuple[int, ...] = ()

    def has(self, xid: int) -> bool:
        """``xid`` has 32 bits; the full number with these bits that is nearest to the snapshot counts."""
        whole = (self.xmax & ~0xFFFF_FFFF) | xid
        whole += (whole < self.xmax - 2**31) * 2**32 - (whole > self.xmax + 2**31) * 2**32
        return whole < self.xmin or (whole < self.xmax and whole not in self.running)


def seen_of(text: str) -> Seen:
    """From PostgreSQL's `xmin:xmax:running,...`."""
    xmin, xmax, running = text.split(":")
    return Seen(int(xmin), int(xmax), tuple(int(each) for each in running.split(",") if each))


def lsn_text(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFF_FFFF:X}"
