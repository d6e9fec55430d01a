"""What a kind of table offers whose tables commit alone (T10): Delta, Iceberg.

``delta_step`` does the steps of a member with it and ``delta_member`` reads the member's state; the rules are in
``delta.py``. A version is what one read of a table found. A commit succeeds only on the version that it was made for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Protocol, TypeVar

import pyarrow as pa

from trunkline.delivery.config.addresses import Address
from trunkline.delivery.destinations.contract import Applied, Batches, MemberStep, TableStep
from trunkline.delivery.destinations.delta_record import StoredRecord, TableRecord


class LoneVersion(Protocol):
    """What one read of a table found."""

    @property
    def version(self) -> object:
        """Differs if a deliverer wrote in between."""
        ...

    @property
    def stored(self) -> StoredRecord: ...

    @property
    def record(self) -> TableRecord | None:
        """``None``: the table was not delivered, or is retired."""
        ...


Version = TypeVar("Version", bound=LoneVersion)
VersionRead = TypeVar("VersionRead", bound=LoneVersion, covariant=True)


class LonePrepared(Protocol[VersionRead]):
    """What a step does to a table, all but the commit."""

    @property
    def loaded(self) -> VersionRead | None: ...

    @property
    def applied(self) -> Applied: ...

    @property
    def changes(self) -> bool:
        """Whether anything but the record changes."""
        ...


Prepared = TypeVar("Prepared", bound=LonePrepared)  # type: ignore[type-arg]


class CommitLost(Exception):
    """A commit was reported as failed; ``now`` is the newest version after it, which shows the outcome."""

    def __init__(self, path: object, reason: Exception, now: LoneVersion | None) -> None:
        super().__init__(f"{path}: the commit failed and nothing was written; retrying ({reason})")
        self.now = now


class LoneTable(Protocol[Version, Prepared]):
    """One table. Every call may raise ``Unreachable``."""

    @property
    def path(self) -> str:
        """Its name in messages and among the tables of its member."""
        ...

    def load(self) -> Version | None:
        """The newest version; ``None`` without a table."""
        ...

    def prepared(self, stack: ExitStack, step: MemberStep, table: TableStep, rows: Batches | None) -> Prepared:
        """On the version that was loaded last. What is left of it is removed when ``stack`` ends."""
        ...

    def commit(self, prepared: Prepared, record: TableRecord, after: Version | None = None) -> None:
        """Raises ``CommitLost``. ``after``: a later version than that of ``prepared``, with another record only."""
        ...

    def begin(self, prepared: Prepared, record: TableRecord) -> None:
        """Create the table, or make it this member's, without any rows. Raises ``CommitLost``."""
        ...

    def commit_record(self, loaded: Version, record: TableRecord) -> None: ...

    def retire(self, loaded: Version) -> None:
        """Commit that the table belongs to no member. Raises ``CommitLost``."""
        ...

    def drop(self) -> None: ...

    def landed(self, now: LoneVersion | None, record: TableRecord, prepared: Prepared) -> bool:
        """Whether a commit that was reported as failed has succeeded."""
        ...

    def is_next(self, after: Version | None, loaded: Version | None) -> bool:
        """Whether ``after`` is what this process committed on ``loaded``, and nothing else."""
        ...

    def rows(self, loaded: Version, stack: ExitStack) -> Iterator[pa.RecordBatch]:
        """Of the version that was loaded last; readable until ``stack`` ends."""
        ...

    def beside(self) -> Iterator[tuple[str, Address]]:
        """The tables of the same folder or namespace."""
        ...
