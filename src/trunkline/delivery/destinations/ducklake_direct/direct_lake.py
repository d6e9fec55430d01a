"""A lake whose ordinary flushes are written directly: divides the members of a call, and writes those that it may."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec import Struct

from trunkline.delivery.backends.ducklake_attachment import catalog_location
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.destinations.contract import MemberResult, MemberWrite
from trunkline.delivery.destinations.ducklake_direct.bounds import Unusual
from trunkline.delivery.destinations.ducklake_direct.catalog import Catalog, Watch
from trunkline.delivery.destinations.ducklake_direct.gate import CALL_BYTES_MAX, OrdinaryMember, ordinary
from trunkline.delivery.destinations.ducklake_direct.postgres_catalog import PostgresCatalog
from trunkline.delivery.destinations.ducklake_direct.sqlite_catalog import SqliteCatalog
from trunkline.delivery.destinations.ducklake_direct.transaction import DirectTransaction
from trunkline.errors import TrunklineError

__all__ = ["DirectLake", "DirectOutcome", "OrdinaryMember", "is_direct"]

log = logging.getLogger(__name__)


class DirectOutcome(Struct, frozen=True):
    results: dict[str, MemberResult]
    written: list[OrdinaryMember]  # members that are committed
    left: list[MemberWrite]  # for the extension
    reasons: dict[str, str]  # why each of those is


class DirectLake:
    """One catalog in SQLite or PostgreSQL. ``watch``: called before every statement and file."""

    def __init__(self, address: LakeAddress, watch: Watch | None = None) -> None:
        self._address = address
        self._watch = watch

    def apply(self, writes: Sequence[MemberWrite]) -> DirectOutcome:
        """Write what is ordinary, in one transaction. Errors that concern the whole lake are raised."""
        members: list[OrdinaryMember] = []
        reasons: dict[str, str] = {}
        results: dict[str, MemberResult] = {}
        space = CALL_BYTES_MAX
        for write in writes:
            try:
                members.append(ordinary(write, space))
            except Unusual as error:
                reasons[write.step.member] = str(error)
            except TrunklineError as error:  # of reading its rows
                results[write.step.member] = error
            else:
                space -= members[-1].size_bytes
        transaction = DirectTransaction(self._catalog(), self._address, members, self._watch)
        transaction.run()
        reasons |= transaction.handed_over
        for name, why in reasons.items():
            log.debug("%s is written by the extension: %s", name, why)
        left = [write for write in writes if write.step.member in reasons]
        written = [member for member in members if member.step.member in transaction.written]
        return DirectOutcome(results | transaction.results(), written, left, reasons)

    def _catalog(self) -> Catalog:
        kind, _ = catalog_location(self._address.catalog)
        if kind == "postgres":
            return PostgresCatalog(self._address, self._watch)
        return SqliteCatalog(self._address, self._watch)


def is_direct(address: LakeAddress) -> bool:
    """Whether a catalog is in a database that can be written directly."""
    return catalog_location(address.catalog)[0] != "duckdb"
