"""What every server process does: listen, run until it is told to stop, and say why it ended."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import logging
import resource
import signal
import time
from collections.abc import Coroutine
from typing import NamedTuple

from trunkline.errors import ConfigError
from trunkline.net.limits import Limits

log = logging.getLogger("trunkline")

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)
KEPT_BYTES_MAX = 128 * 1024 * 1024  # at the heap's end
MAPPED_BYTES_MIN = 32 * 1024 * 1024  # larger buffers are given back at once

OTHER_FILES = 64  # the event loop's, the directory's and the manifest's, and what a library opens now and then
STORAGE_FILES_MAX = 4096  # too small: files are opened and closed all the time; too big: the kernel's memory
OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
CONNECTIONS_MAX = Limits().connections_max

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Lifetime:
    """Ends when a signal comes, or when the process cannot go on."""

    def __init__(self) -> None:
        keep_freed_memory()
        allow_many_files()
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[str] = self._loop.create_future()
        for number in SIGNALS:
            self._loop.add_signal_handler(number, self.end, "")
        self._loop.set_exception_handler(self._on_exception)

    def end(self, why: str) -> None:
        """``why`` is empty for an orderly stop."""
        if not self._ended.done():
            self._ended.set_result(why)

    @property
    def orderly(self) -> bool:
        """Whether it was told to stop, before anything failed."""
        return self._ended.done() and not self._ended.cancelled() and not self._ended.result()

    async def run(self, start: Coroutine[None, None, None]) -> int:
        """Start, then serve until the end; the exit code. A signal while it starts ends it as well."""
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
        """An exception that nobody caught is a bug: what it left behind is not to be trusted. But a connection that
        cannot be accepted for lack of files or memory is only refused: the loop tries again a second later.
        """
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in OUT_OF_RESOURCES and "socket" in context:
            log.warning("connections are refused: %s", error)
            return
        loop.default_exception_handler(context)
        self.end(f"{context.get('message')}: {error!r}")


def keep_freed_memory() -> None:
    """Let the C library keep what is freed: buffers of a megabyte come and go, and to fault them in again costs more
    than all the work on them. Does nothing where there is no such call.
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES_MAX)
        library.mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)


def allow_many_files() -> None:
    """Take as many open files as the system gives without asking: every connection has one, and so has every stream
    that was used of late. The usual soft limit, 1024, is only that low for programs that call select(2).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # some systems allow less than their hard limit says
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class FileBudget(NamedTuple):
    """How a server divides the files that it may have open."""

    storage: int
    connections: int  # a server has up to twice as many: those that are being refused count apart


def file_budget() -> FileBudget:
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed == resource.RLIM_INFINITY:
        return FileBudget(STORAGE_FILES_MAX, CONNECTIONS_MAX)
    spare = max(allowed - OTHER_FILES, OTHER_FILES)
    return FileBudget(min(spare // 2, STORAGE_FILES_MAX), min(spare // 4, CONNECTIONS_MAX))


def start_number() -> int:
    """Unique to this process start and larger than those before it, unless the clock was set back."""
    return time.time_ns()


def split_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{address!r} is no address to listen on, such as 127.0.0.1:7400")
    return host.strip("[]"), int(port)
