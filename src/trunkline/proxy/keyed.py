"""Appends with an idempotency key. Rules K1 to K7 are in ``keys.py``.

Appends with a key to one log take turns: each is conditional on the end of the log, so of several at the same time all
but one would fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from trunkline.client.log import Log
from trunkline.errors import ConditionFailed, CorruptEntry, EntriesLost, OutcomeUnknown, Trimmed, Unreachable
from trunkline.proxy.counters import ProxyCounters
from trunkline.proxy.keys import KeyedAppend, KeyIndex, Stamp, digest_of, stamp_of
from trunkline.proxy.limits import KEY_READS_MAX, KEY_TRIES_MAX, KEYED_WAITING_MAX
from trunkline.proxy.problems import refusal
from trunkline.proxy.ranges import reached, reading_within

Headers = Sequence[Mapping[str, bytes]]


class KeyedAppends:
    """Of one chain log. For batches the log must have one group: a batch that does not fit into a stripe unit skips
    positions, and the condition on its own position does not cover these.
    """

    def __init__(self, log: Log, window: int, timeout_s: float | None, counters: ProxyCounters) -> None:
        self._log = log
        self._timeout_s = timeout_s
        self._counters = counters
        self._index = KeyIndex(window)
        self._started = False
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def append(self, key: str, payloads: Sequence[bytes], headers: Headers, expect: int | None) -> int:
        """The (first) position of the append with this key, now or earlier."""
        stamp = Stamp(key, len(payloads), digest_of(payloads, headers, expect))
        async with self._in_turn():
            try:
                return await self._append(stamp, payloads, headers, expect)
            except OutcomeUnknown as error:  # K4
                raise refusal(
                    "outcome-unknown", f"{error}; send it again with the same key, to any proxy", retry=True
                ) from None

    async def _append(self, stamp: Stamp, payloads: Sequence[bytes], headers: Headers, expect: int | None) -> int:
        stamped = [{**headers[0], **stamp.headers()}, *headers[1:]]  # K1
        if not self._started:
            await self._read_on()
        for tries in range(KEY_TRIES_MAX):
            found = self._index.find(stamp.key)
            if found is not None:
                return self._found(found, stamp)
            at = self._index.next
            if expect not in (None, at):
                if tries:  # the index is current
                    raise ConditionFailed(f"the next position is {at}", at)
            else:
                try:
                    glsn = await self._log.append(payloads, headers=stamped, expect=at)  # K2
                except ConditionFailed:
                    self._counters.key_conflicts += 1
                else:
                    return self._made(glsn, stamp)
            await self._read_on()  # K3
        raise refusal(
            "contended",
            f"other writers took the position in each of {KEY_TRIES_MAX} tries, and nothing was appended; try again",
            retry=True,
        )

    def _found(self, found: KeyedAppend, stamp: Stamp) -> int:
        if (found.count, found.digest) != (stamp.count, stamp.digest):  # K6
            raise refusal(
                "key-reused",
                f"the key was used at position {found.glsn} for another request; choose a new key for a new request",
                glsn=found.glsn,
            )
        self._counters.keys_repeated += 1
        return found.glsn

    def _made(self, glsn: int, stamp: Stamp) -> int:
        self._index.add(glsn, stamp)
        self._index.advance(glsn + stamp.count)
        self._counters.entries_appended += stamp.count
        return glsn

    # --------------------------------------------------------------------------------------------------------- reading

    async def _read_on(self) -> None:
        """To the current end of the log, one window at a time: what lies further back is forgotten anyway."""
        async with reading_within(self._timeout_s, f"the search for the key in {self._log.name}"):
            for _ in range(KEY_READS_MAX):
                if await self._read_window():
                    return
        raise refusal("contended", "the log grows faster than it can be searched for the key; try again", retry=True)

    async def _read_window(self) -> bool:
        """Returns whether the end was reached."""
        index = self._index
        if not self._started:
            index.advance(await self._log.tail() - index.window)  # K5
            self._started = True
        until = index.next + index.window - 1
        batches = self._log.batches(index.next, until, to_tail=True)
        try:
            async for batch in batches:
                for entry in batch:
                    index.add(entry.glsn, stamp_of(entry.encoded_headers))
        except Trimmed as error:  # K7
            index.forget_below(error.point + 1)
            index.advance(error.point + 1)
            return False
        except (EntriesLost, CorruptEntry) as error:  # no proxy appends corrupt entries: they have no key
            index.advance(error.end)
            return False
        finally:
            batches.close()
        index.advance(reached(batches, until))
        self._started = index.next <= until  # after a whole window, ask for the tail before reading another
        return self._started

    # ----------------------------------------------------------------------------------------------------------- turns

    @asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        if self._waiting >= KEYED_WAITING_MAX:
            raise refusal("busy", f"{self._waiting} appends with keys wait for this log; try again", retry=True)
        self._waiting += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._turn.acquire()
        except TimeoutError:
            raise Unreachable("the append waited too long for its turn and was not sent; try again") from None
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._turn.release()
