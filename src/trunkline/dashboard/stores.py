"""One control store of delivery: what it knows of pipelines, and the desired state of a destination.

Rules
 K1  Packages of delivery are imported at the first read of a store, and only those of the control store: the dashboard
     runs where neither Spark nor DuckDB is installed.
 K2  The dashboard never creates a store: a missing file is an error on the page.
 K3  Calls block, so they run one by one on a thread per store; a store that hangs delays no other.
 K4  The page shows no password.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import Struct

from trunkline.dashboard.delivery_words import state_words
from trunkline.dashboard.views import ShownDeliverer, ShownDestination, ShownPipeline, ShownStore, ShownUnrouted
from trunkline.errors import ConfigError, Refused, TrunklineError

if TYPE_CHECKING:
    from trunkline.delivery.control.contract import DesiredState, DestinationRecord
    from trunkline.delivery.control.store import ControlStore

T = TypeVar("T")

REQUESTS_AT_ONCE: Final = 8  # more are refused
CLOSE_S: Final = 1.0  # a store that hangs is not waited for
DESTINATIONS_SHOWN_MAX: Final = 5_000  # of a pipeline
VALUES_SHOWN: Final = 3  # of unrouted rows
VALUE_CHARACTERS_MAX: Final = 40  # of one that is shown
HALT_ENDS_S: Final = 10.0  # a deliverer reads the desired states once a second
CHECK_EVERY_S: Final = 0.2


class StoreContent(Struct, frozen=True):
    """A store, and its destinations by key."""

    store: ShownStore
    destinations: dict[str, ShownDestination]


class StoreWatch:
    """``number``: its place in the command line."""

    def __init__(self, number: int, address: str) -> None:
        self.number = number
        self.address = shown_address(address)
        self._given = address
        self._thread = ThreadPoolExecutor(1, f"control-store-{number}")  # K3
        self._opened: ControlStore | None = None
        self._requests = 0

    async def close(self) -> None:
        if self._opened is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._run(self._opened.close)
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def read(self) -> StoreContent:
        """The content of the store, or why it cannot be read."""
        try:
            return await self._run(self._read)
        except TrunklineError as error:
            return StoreContent(ShownStore(self.address, str(error), ()), {})

    async def set_desired_state(self, pipeline: str, name: str, desired_state: DesiredState) -> None:
        """Pause or resume a destination; to resume a halted one ends the halt."""
        if self._requests >= REQUESTS_AT_ONCE:
            raise Refused("this control store is busy with other requests; try again in a moment")
        self._requests += 1
        try:
            changed = await self._run(lambda: self._store().desired_states.set(pipeline, [name], desired_state))
            if desired_state == "active" and not changed and await self._is_halted(pipeline, name):
                await self._end_halt(pipeline, name)
        finally:
            self._requests -= 1

    async def _end_halt(self, pipeline: str, name: str) -> None:
        """A halt ends when a destination becomes active. This one is active already, so it is paused for a moment."""
        await self._run(lambda: self._store().desired_states.set(pipeline, [name], "paused"))
        try:
            with contextlib.suppress(TimeoutError):  # no deliverer runs; the next one starts without the halt
                async with asyncio.timeout(HALT_ENDS_S):
                    while await self._is_halted(pipeline, name):
                        await asyncio.sleep(CHECK_EVERY_S)
        finally:
            await self._run(lambda: self._store().desired_states.set(pipeline, [name], "active"))

    async def _is_halted(self, pipeline: str, name: str) -> bool:
        records = await self._run(lambda: self._store().destinations(pipeline))
        return any(record.halted for record in records if record.name == name)

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    # --------------------------------------------------------------------------------------------------- on its thread

    def _store(self) -> ControlStore:
        if self._opened is None:
            self._opened = _opened(self._given)
        return self._opened

    def _read(self) -> StoreContent:
        store = self._store()
        pipelines: list[ShownPipeline] = []
        found: dict[str, ShownDestination] = {}
        for name in store.pipelines():
            deliverers = tuple(ShownDeliverer(each.name, each.live, each.held) for each in store.deliverers(name))
            records = [each for each in store.destinations(name) if each.configured and not each.retired]
            pipelines.append(ShownPipeline(self.number, name, deliverers, len(records), _unrouted(store, name)))
            for record in records[:DESTINATIONS_SHOWN_MAX]:
                shown = _shown(self.number, name, record)
                found[shown.key] = shown
        return StoreContent(ShownStore(self.address, "", tuple(pipelines)), found)


def _opened(address: str) -> ControlStore:
    """K1, K2."""
    try:
        from trunkline.delivery.control.store import open_control_store

        return open_control_store(address, create=False)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"this control store needs the package {error.name}; install it: pip install 'trunkline[delivery]'"
        ) from None


def _unrouted(store: ControlStore, pipeline: str) -> ShownUnrouted | None:
    summary = store.unrouted.summary(pipeline, VALUES_SHOWN)
    if not summary.rows:
        return None
    return ShownUnrouted(summary.rows, summary.through, tuple((_cut(value), count) for value, count in summary.values))


def _cut(value: str | None) -> str | None:
    return value if value is None or len(value) <= VALUE_CHARACTERS_MAX else f"{value[:VALUE_CHARACTERS_MAX]}…"


def check_address(address: str) -> None:
    """Raise ``ConfigError`` if this is not the address of a control store."""
    kind, _, place = address.partition(":")
    if kind not in ("sqlite", "postgres") or not place:
        raise ConfigError(f"{address!r} is not a valid control store; write sqlite:PATH or postgres:DSN")


def shown_address(address: str) -> str:
    """Of a connection string, only host and database (K4)."""
    kind, _, place = address.partition(":")
    if kind != "postgres":
        return address
    if "://" in place:
        host = place.partition("://")[2].rpartition("@")[2].partition("?")[0]
        return f"postgres: {host}"
    words = [word for word in place.split() if word.partition("=")[0] in ("host", "port", "dbname", "service")]
    return f"postgres: {' '.join(words)}".rstrip()


def _shown(store: int, pipeline: str, record: DestinationRecord) -> ShownDestination:
    status = record.status
    facts = {
        "key": f"{store}/{pipeline}/{record.name}",
        "store": store,
        "pipeline": pipeline,
        "name": record.name,
        "state": state_words(status.state if status else "", record.desired_state, owned=record.owner is not None),
        "desired_state": record.desired_state,
        "owner": record.owner,
        "halted": record.halted,
    }
    if status is None:
        return ShownDestination(**facts)  # type: ignore[arg-type]
    return ShownDestination(
        **facts,  # type: ignore[arg-type]
        position=status.position,
        lag_versions=status.lag_versions,
        lag_ms=status.lag_ms,
        flushed_at_ms=status.flushed_at_ms,
        rows=status.rows,
        rows_total=status.rows_total,
        error=status.error,
    )
