"""A log, as an application uses it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from msgspec import Struct

from trunkline.client.batcher import Batcher, BatchOptions
from trunkline.client.bodies import Buffer
from trunkline.client.dedupe import Repeats
from trunkline.client.entries import Batch, Entry
from trunkline.client.headers import encode_all
from trunkline.client.session import Session
from trunkline.client.subscription import Subscription
from trunkline.core.calls import DeleteRequested, PeekRequested, SealRequested, TailRequested, TrimRequested
from trunkline.core.effects import Event
from trunkline.core.events import PeekIs, RequestRefused, SegmentEnded, TailIs
from trunkline.core.events import Trimmed as TrimmedTo
from trunkline.core.peek import Peeker, PeekerConfig
from trunkline.core.projection import Policy, Projection
from trunkline.core.tail import TailConfig, TailFinder
from trunkline.errors import ConfigError, Hole, NoSuchLog, NotWritten, OutcomeUnknown, Refused, Unreachable
from trunkline.runtime.links import REGISTER

DEFAULT = -1.0  # "the time-out of the cluster handle"


class Ended(Struct, frozen=True):
    """A segment was ended: its number and the position after its last entry."""

    segment: int
    end: int


class Log:
    """One log. Made by ``Cluster.log``; all calls may be made concurrently.

    Every call takes ``timeout`` in seconds (None: for ever). A call that runs into it raises ``Unreachable`` if it
    changes nothing, and ``OutcomeUnknown`` if it may still happen.
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
        self._view = view  # as it was when the log was opened; roles keep their own
        self._options = options
        self._timeout = timeout
        self._batcher: Batcher | None = None
        self._another_session = another_session  # for administration: an answer never meets a later question

    # ------------------------------------------------------------------------------------------------------- appending

    async def append(
        self,
        payload: Buffer | Sequence[Buffer],
        *,
        headers: Mapping[str, bytes] | Sequence[Mapping[str, bytes] | None] | None = None,
        expect: int | None = None,
        takeover: bool = False,
        timeout: float | None = DEFAULT,
    ) -> int:
        """Append one entry or a batch, and answer the first GLSN once everything is committed.

        ``expect``: only if the (first) entry gets exactly this position, else ``ConditionFailed`` (chain logs).
        ``takeover``: take a broadcast log from its present writer. ``headers``: of every entry, or a list with those of
        each. ``ConfigError``: nothing of it was appended.
        """
        single = isinstance(payload, bytes | bytearray | memoryview)
        payloads: Sequence[Buffer] = (payload,) if single else payload  # type: ignore[assignment]
        if not payloads:
            raise ConfigError("an append needs at least one entry")
        if expect is not None and self._view.settings.policy is not Policy.CHAIN:
            raise ConfigError("expect= is for chain logs: a broadcast log has one writer, which knows its positions")
        encoded = encode_all(headers, len(payloads))
        if self._batcher is None:
            self._batcher = Batcher(self._session, self._newest(), self._options)
        limit = self._limit(timeout)
        return await self._batcher.append(payloads, encoded, expect=expect, takeover=takeover, timeout=limit)

    # --------------------------------------------------------------------------------------------------------- reading

    async def read(self, glsn: int, *, fill_after_ms: int | None = None, timeout: float | None = DEFAULT) -> Entry:
        """The entry at a position. Raises ``NotWritten``, ``Hole``, ``Trimmed`` or ``EntriesLost`` if there is none."""
        _check_position(glsn)
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

        ``to_tail``: end at the tail instead of waiting there for what comes. ``replica``: any number; readers that give
        different ones read from different replicas where several may be read. Close it, or read it to its end.
        """
        if start is not None:
            _check_position(start)
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
        """Entries in order, one by one. It survives reconfigurations and lost connections, and never skips silently.

        ``dedupe``: leave out rows that a Spark job appended again, as far as the first lies in what is read.
        """
        repeats = Repeats() if dedupe else None
        batches = self.batches(start, until, to_tail=to_tail, fill_after_ms=fill_after_ms)
        try:
            async for batch in batches:
                for entry in batch if repeats is None else repeats.without_repeats(batch):
                    yield entry
        finally:
            batches.close()

    async def tail(self, *, timeout: float | None = DEFAULT) -> int:
        """The position after the last committed entry, linearizable."""
        config = TailConfig(REGISTER, self.name, suspect_after_ms=self._session.timing.suspect_after_ms)
        role = self._session.add_role("tail", TailFinder(config, self._newest()))
        try:
            async with self._within(timeout, "tail"):
                result = await self._session.operate(role, lambda operation: TailRequested(operation, self.name))
        finally:
            self._session.remove_role(role)
        if isinstance(result, RequestRefused):
            raise NoSuchLog(result.why)
        assert isinstance(result, TailIs)
        return result.glsn

    async def peek(self, *, timeout: float | None = DEFAULT) -> int:
        """The next position that will be handed out: at least the tail, and ahead of it while appends are in flight."""
        role = self._session.add_role("peek", Peeker(PeekerConfig(self.name)))
        try:
            async with self._within(timeout, "peek"):
                result = await self._session.operate(role, lambda operation: PeekRequested(operation, self.name))
        finally:
            self._session.remove_role(role)
        if isinstance(result, RequestRefused):
            raise NoSuchLog(result.why)
        assert isinstance(result, PeekIs)
        return result.glsn

    async def fill(self, glsn: int, *, timeout: float | None = DEFAULT) -> bool:
        """Settle a position now: True if it is (or became) a hole, False if it holds an entry."""
        try:
            await self.read(glsn, fill_after_ms=0, timeout=timeout)
        except Hole:
            return True
        except NotWritten:
            raise NotWritten(f"position {glsn} was not handed out yet, so there is nothing to fill") from None
        return False

    # --------------------------------------------------------------------------------------------------- administration

    async def trim(self, glsn: int, *, timeout: float | None = DEFAULT) -> int:
        """Delete every entry up to ``glsn``; answers the point, lowered where it would have cut a batch.

        It frees space and hides nothing: until the nodes have followed, a reader with an older map may still be given
        such entries.
        """
        _check_position(glsn)
        result = await self._administer(timeout, "trim", TrimRequested, glsn)
        assert isinstance(result, TrimmedTo)
        return result.point

    async def seal(self, *, timeout: float | None = DEFAULT) -> Ended:
        """Make the log read-only until ``reopen``."""
        return _ended(await self._administer(timeout, "seal", SealRequested, False))

    async def reopen(self, *, timeout: float | None = DEFAULT) -> Ended:
        """Let a sealed log be appended to again; on an open log: end its segment and begin another (reconfigure)."""
        return _ended(await self._administer(timeout, "reopen", SealRequested, True))

    async def declare_lost(self, end: int, *, timeout: float | None = DEFAULT) -> Ended:
        """An operator's last resort: the open segment has no intact member left. Readers see a gap up to ``end``."""
        return _ended(await self._administer(timeout, "declare_lost", SealRequested, True, end))

    async def delete(self, *, timeout: float | None = DEFAULT) -> None:
        """Delete the log. Its name is not used again."""
        await self._administer(timeout, "delete", DeleteRequested)

    async def close(self) -> None:
        """Wait for appends that are under way, and let the log go."""
        if self._batcher is not None and self._session.failed is None:
            try:
                async with asyncio.timeout(self._timeout):
                    await self._batcher.settled()
            except TimeoutError:
                pass  # their callers are told that the outcome is unknown
        self._session.close()

    # ---------------------------------------------------------------------------------------------------------- inside

    async def _administer(self, timeout: float | None, what: str, kind: type, *fields: object) -> Event:
        if self._session.failed is not None:
            raise self._session.failed
        session = self._another_session()
        try:
            async with asyncio.timeout(self._limit(timeout)):
                role = session.ensure_administrator()
                result = await session.operate(role, lambda operation: kind(operation, self.name, *fields))
        except TimeoutError:
            raise OutcomeUnknown(f"{what} of {self.name} did not end in time and may still happen") from None
        finally:
            self._view = session.newest(self._newest())
            session.close()
        if isinstance(result, RequestRefused):
            raise Refused(result.why)
        return result

    @asynccontextmanager
    async def _within(self, timeout: float | None, what: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._limit(timeout)):
                yield
        except TimeoutError:
            raise Unreachable(f"{what} of {self.name} got no answer in time; see `trunkline status`") from None

    def _newest(self) -> Projection:
        self._view = self._session.newest(self._view)
        return self._view

    def _limit(self, timeout: float | None) -> float | None:
        return self._timeout if timeout == DEFAULT else timeout


def _ended(result: Event) -> Ended:
    assert isinstance(result, SegmentEnded)
    return Ended(result.segment, result.end)


def _check_position(glsn: int) -> None:
    if glsn < 1:
        raise ConfigError(f"positions begin at 1; {glsn} is none")


__all__ = ["Batch", "Ended", "Entry", "Log"]
