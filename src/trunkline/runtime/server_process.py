"""What every server process does: listen, run until it is stopped, and log why it ended."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import logging
import resource
import signal
import ssl
import time
from collections.abc import Callable, Coroutine
from typing import NamedTuple

from trunkline.errors import ConfigError, StorageError
from trunkline.net.connection import Connection, Handler
from trunkline.net.limits import Limits
from trunkline.net.server import Server

log = logging.getLogger("trunkline")

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)
KEPT_BYTES_MAX = 128 * 1024 * 1024  # free memory at the end of the heap
MAPPED_BYTES_MIN = 32 * 1024 * 1024  # larger buffers are returned at once

OTHER_FILES = 64  # of the event loop, the directory, the manifest and libraries
STORAGE_FILES_MAX = 4096  # too small: files are reopened all the time; too big: kernel memory
OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
CONNECTIONS_MAX = Limits().connections_max

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Lifetime:
    """Ends with a signal, or when the process cannot continue."""

    def __init__(self) -> None:
        keep_freed_memory()
        allow_many_files()
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[str] = self._loop.create_future()
        for number in SIGNALS:
            self._loop.add_signal_handler(number, self.end, "")
        self._loop.set_exception_handler(self._on_exception)

    def end(self, why: str) -> None:
        """``why`` is empty for a clean shutdown."""
        if not self._ended.done():
            self._ended.set_result(why)

    @property
    def stopped_cleanly(self) -> bool:
        """Whether it was stopped by a signal before anything failed."""
        return self._ended.done() and not self._ended.cancelled() and not self._ended.result()

    async def run(self, start: Coroutine[None, None, None]) -> int:
        """Start, then serve until the end; returns the exit code. A signal also ends the start."""
        starting = asyncio.ensure_future(start)
        await asyncio.wait((starting, self._ended), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        elif starting.exception() is not None:
            starting.result()
        return await self._wait()

    async def _wait(self) -> int:
        why = await self._ended
        if why:
            log.error("stopping: %s", why)
        return 1 if why else 0

    def close(self) -> None:
        for number in SIGNALS:
            self._loop.remove_signal_handler(number)

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """An uncaught exception is a bug: the state after it cannot be trusted. But a connection that cannot be
        accepted for lack of files or memory is only refused: the loop retries after a second.
        """
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in OUT_OF_RESOURCES and "socket" in context:
            log.warning("connections are refused: %s", error)
            return
        loop.default_exception_handler(context)
        self.end(f"{context.get('message')}: {error!r}")


def keep_freed_memory() -> None:
    """Make the C library keep freed memory: faulting in buffers of a megabyte again and again costs more than all work
    on them. Does nothing without ``mallopt``.
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES_MAX)
        library.mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)


def allow_many_files() -> None:
    """Raise the soft limit of open files to the hard one: every connection has one, and every recently used stream. The
    usual soft limit, 1024, exists for programs that call select(2).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # some systems allow less than their hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class FileBudget(NamedTuple):
    """How a server divides its open files."""

    storage: int
    connections: int  # a server has up to twice as many: those being refused are counted apart


def file_budget() -> FileBudget:
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed == resource.RLIM_INFINITY:
        return FileBudget(STORAGE_FILES_MAX, CONNECTIONS_MAX)
    spare = max(allowed - OTHER_FILES, OTHER_FILES)
    return FileBudget(min(spare // 2, STORAGE_FILES_MAX), min(spare // 4, CONNECTIONS_MAX))


async def listen(
    address: str,
    received: Handler,
    cluster: str,
    name: str,
    token: str,
    tls: ssl.SSLContext | None,
    on_closed: Callable[[Connection], None] | None = None,
) -> tuple[Server, str]:
    """A server, and the address it listens on. Raises ``StorageError``."""
    host, port = split_address(address)
    limits = Limits(connections_max=file_budget().connections)
    try:
        server = await Server.start(
            host, port, received, cluster=cluster, name=name, token=token, limits=limits, tls=tls, on_closed=on_closed
        )
    except OSError as error:
        raise StorageError(f"cannot listen on {address}: {error.strerror or error}") from None
    return server, f"{host}:{server.port}"


def log_listening(logger: logging.Logger, process: str, address: str, observe: str) -> None:
    seen = f", observed at http://{observe}/metrics" if observe else ""
    fields = {"address": address, "observe": observe}
    logger.info("%s listens on %s%s", process, address, seen, extra={"fields": fields})


def start_number() -> int:
    """Unique to this process start and larger than those before it, unless the clock was set back."""
    return time.time_ns()


def split_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{address!r} is not a valid address to listen on, such as 127.0.0.1:7400")
    return host.strip("[]"), int(port)
