"""A log, as an application uses it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from msgspec import Struct

from trunkline.client.arguments import (
    DEFAULT,
    Default,
    Timeout,
    check_count,
    check_patience,
    check_timeout,
    position,
    position_or_none,
)
from trunkline.client.batcher import Batcher, BatchOptions
from trunkline.client.bodies import Buffer
from trunkline.client.dedupe import Repeats
from trunkline.client.entries import Batch, Entry
from trunkline.client.failures import request_failure
from trunkline.client.headers import encode_all
from trunkline.client.session import Session
from trunkline.client.subscription import Subscription
from trunkline.core.calls import DeleteRequested, PeekRequested, SealRequested, TailRequested, TrimRequested
from trunkline.core.effects import Event
from trunkline.core.events import PeekIs, RequestRefused, SegmentEnded, TailIs
from trunkline.core.events import Trimmed as TrimmedTo
from trunkline.core.peek import Peeker, PeekerConfig
from trunkline.core.projection import Policy, Projection, Settings
from trunkline.core.role import Role
from trunkline.core.tail import TailConfig, TailFinder
from trunkline.errors import ConfigError, Hole, NotWritten, OutcomeUnknown, Unreachable
from trunkline.runtime.links import REGISTER


class Ended(Struct, frozen=True):
    """A segment that ended: its number, and the position after its last entry."""

    segment: int
    end: int


class Log:
    """One log. Made by ``Cluster.log``; all methods may be called concurrently.

    Every method takes ``timeout`` in seconds (None: wait forever; by default that of the cluster handle). After it, a
    call that changes nothing raises ``Unreachable``; one that may still take effect raises ``OutcomeUnknown``.
    """

    def __init__(
        self,
        session: Session,
        view: Projection,
        options: BatchOptions,
        timeout: float | None,
        another_session: Callable[[], Session],
    ) -> None:
        self.name = session.log
        self._session = session
        self._view = view  # the newest that is known; roles have their own
        self._options = options
        self._timeout = timeout
        self._batcher: Batcher | None = None
        self._another_session = another_session  # for administration: a late answer cannot meet a later request

    def __repr__(self) -> str:
        return f"<Log {self.name!r}, {self.settings.policy.value}>"

    @property
    def settings(self) -> Settings:
        """The settings that the log was created with; they never change."""
        return self._view.settings

    # ------------------------------------------------------------------------------------------------------- appending

    async def append(
        self,
        payload: Buffer | Sequence[Buffer],
        *,
        headers: Mapping[str, bytes] | Sequence[Mapping[str, bytes] | None] | None = None,
        expect: int | None = None,
        takeover: bool = False,
        timeout: Timeout = DEFAULT,
    ) -> int:
        """Append one entry or a batch. Returns the first GLSN once everything is committed.

        ``headers``: of every entry, or a list with those of each. ``expect`` (chain logs): append only if the first
        entry gets exactly this position, else raise ``ConditionFailed``. ``takeover``: take a broadcast log from its
        present writer. ``ConfigError``: an argument is invalid, and nothing was appended.
        """
        payloads = _payloads(payload)
        expect, limit = position_or_none("expect", expect), self._limit(timeout)
        if expect is not None and self.settings.policy is not Policy.CHAIN:
            raise ConfigError("expect= is for chain logs: a broadcast log has one writer, which knows its positions")
        encoded = encode_all(headers, len(payloads))
        if self._batcher is None:
            self._batcher = Batcher(self._session, self._newest(), self._options)
        return await self._batcher.append(payloads, encoded, expect=expect, takeover=bool(takeover), timeout=limit)

    # --------------------------------------------------------------------------------------------------------- reading

    async def read(self, glsn: int, *, fill_after_ms: int | None = None, timeout: Timeout = DEFAULT) -> Entry:
        """The entry at a position. Raises ``NotWritten``, ``Hole``, ``Trimmed`` or ``EntriesLost`` if it has none."""
        glsn = position("glsn", glsn)
        check_patience("fill_after_ms", fill_after_ms)
        async with self._within(timeout, "read"):
            subscription = Subscription(
                self._session, self._newest(), glsn, glsn, to_tail=True, fill_after_ms=fill_after_ms, read_frames=1
            )
            batch = await subscription.one()
            return next(iter(batch))

    def batches(
        self,
        start: int | None = None,
        until: int | None = None,
        *,
        to_tail: bool = False,
        fill_after_ms: int | None = None,
        replica: int = 0,
    ) -> Subscription:
        """Batches from ``start`` (None: the oldest entry) through ``until`` (None: endless), without copying.

        ``to_tail``: end at the tail instead of waiting for new entries. ``replica``: any number; readers with different
        numbers read from different replicas where possible. Read the subscription to its end, or close it.
        """
        start, until = position_or_none("start", start), position_or_none("until", until)
        check_patience("fill_after_ms", fill_after_ms)
        check_count("replica", replica, 0)
        self._session.check_loop()
        return Subscription(
            self._session,
            self._newest(),
            start,
            until,
            to_tail=to_tail,
            fill_after_ms=fill_after_ms,
            replica=replica,
        )

    async def subscribe(
        self,
        start: int | None = None,
        until: int | None = None,
        *,
        to_tail: bool = False,
        fill_after_ms: int | None = None,
        dedupe: bool = False,
    ) -> AsyncIterator[Entry]:
        """Entries in order, one by one. Survives reconfigurations and lost connections, and never skips silently.

        ``dedupe``: leave out rows that a Spark job appended again, if their first copy is part of what is read.
        """
        repeats = Repeats() if dedupe else None
        batches = self.batches(start, until, to_tail=to_tail, fill_after_ms=fill_after_ms)
        try:
            async for batch in batches:
                for entry in batch if repeats is None else repeats.without_repeats(batch):
                    yield entry
        finally:
            batches.close()

    async def tail(self, *, timeout: Timeout = DEFAULT) -> int:
        """The position after the last committed entry; linearizable."""
        config = TailConfig(REGISTER, self.name, self._session.timing)
        result = await self._ask(timeout, "tail", TailFinder(config, self._newest()), TailRequested)
        assert isinstance(result, TailIs)
        return result.glsn

    async def peek(self, *, timeout: Timeout = DEFAULT) -> int:
        """The next position that will be assigned: at least the tail, and ahead of it while appends are in flight."""
        config = PeekerConfig(self.name, self._session.timing)
        result = await self._ask(timeout, "peek", Peeker(config), PeekRequested)
        assert isinstance(result, PeekIs)
        return result.glsn

    async def fill(self, glsn: int, *, timeout: Timeout = DEFAULT) -> bool:
        """Settle a position now: True if it is (or became) a hole, False if it holds an entry."""
        try:
            await self.read(glsn, fill_after_ms=0, timeout=timeout)
        except Hole:
            return True
        except NotWritten:
            raise NotWritten(f"position {glsn} is not assigned yet, so there is nothing to fill") from None
        return False

    # --------------------------------------------------------------------------------------------------- administration

    async def trim(self, glsn: int, *, timeout: Timeout = DEFAULT) -> int:
        """Delete every entry up to ``glsn``. Returns the trim point, which is lower where ``glsn`` would cut a batch.

        It frees space and hides nothing: until the nodes have followed, a reader with an older projection may still
        get such entries.
        """
        glsn = position("glsn", glsn)
        result = await self._administer(timeout, "trim", TrimRequested, glsn)
        assert isinstance(result, TrimmedTo)
        return result.point

    async def seal(self, *, timeout: Timeout = DEFAULT) -> Ended:
        """Make the log read-only until ``reopen``."""
        return _ended(await self._administer(timeout, "seal", SealRequested, False))

    async def reopen(self, *, timeout: Timeout = DEFAULT) -> Ended:
        """Open a sealed log for appends again. On an open log: end its segment and start another (reconfiguration)."""
        return _ended(await self._administer(timeout, "reopen", SealRequested, True))

    async def declare_lost(self, end: int, *, timeout: Timeout = DEFAULT) -> Ended:
        """The last resort if the open segment has no intact replica left: readers see a gap up to ``end``."""
        return _ended(await self._administer(timeout, "declare_lost", SealRequested, True, position("end", end)))

    async def delete(self, *, timeout: Timeout = DEFAULT) -> None:
        """Delete the log. Its name cannot be used again."""
        await self._administer(timeout, "delete", DeleteRequested)

    async def close(self) -> None:
        """Wait for appends in flight, and release the log."""
        if self._batcher is not None and self._session.failed is None:
            try:
                async with asyncio.timeout(self._timeout):
                    await self._batcher.settled()
            except TimeoutError:
                pass  # their callers get ``OutcomeUnknown``
        self._session.close()

    # ---------------------------------------------------------------------------------------------------------- inside

    async def _ask(self, timeout: Timeout, what: str, role: Role, kind: type[TailRequested | PeekRequested]) -> Event:
        """Run a role for one call."""
        name = self._session.add_role(what, role)
        try:
            async with self._within(timeout, what):
                result = await self._session.begin(name, lambda operation: kind(operation, self.name))
        finally:
            self._session.remove_role(name)
        if isinstance(result, RequestRefused):
            raise request_failure(result)
        return result

    async def _administer(self, timeout: Timeout, what: str, kind: type, *fields: object) -> Event:
        if self._session.failed is not None:
            raise self._session.failed
        limit = self._limit(timeout)
        session = self._another_session()
        try:
            async with asyncio.timeout(limit):
                role = session.ensure_administrator()
                result = await session.begin(role, lambda operation: kind(operation, self.name, *fields))
        except TimeoutError:
            raise OutcomeUnknown(f"{what} of {self.name} did not finish in time and may still take effect") from None
        finally:
            self._view = session.newest(self._newest())
            session.close()
        if isinstance(result, RequestRefused):
            raise request_failure(result)
        return result

    @asynccontextmanager
    async def _within(self, timeout: Timeout, what: str) -> AsyncIterator[None]:
        limit = self._limit(timeout)
        try:
            async with asyncio.timeout(limit):
                yield
        except TimeoutError:
            raise Unreachable(f"{what} of {self.name} got no answer in time; see `trunkline status`") from None

    def _newest(self) -> Projection:
        self._view = self._session.newest(self._view)
        return self._view

    def _limit(self, timeout: Timeout) -> float | None:
        check_timeout(timeout)
        self._session.check_loop()
        return self._timeout if isinstance(timeout, Default) else timeout


def _ended(result: Event) -> Ended:
    assert isinstance(result, SegmentEnded)
    return Ended(result.segment, result.end)


def _payloads(payload: object) -> Sequence[Buffer]:
    """One entry or several. An error names the type of the argument, not that of its elements."""
    if isinstance(payload, bytes | bytearray | memoryview):
        return (payload,)
    if isinstance(payload, str) or not isinstance(payload, Sequence):
        kind = type(payload).__name__
        raise ConfigError(f"append takes bytes or a list of bytes, not {kind}: encode it first{_ENCODED.get(kind, '')}")
    if not payload:
        raise ConfigError("an append needs at least one entry")
    return payload


_ENCODED = {"str": ", as in text.encode()", "dict": ", as in json.dumps(value).encode()"}


__all__ = ["Batch", "Ended", "Entry", "Log"]
