"""How a server ended: cleanly or by a failure."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal

import pytest

from trunkline.runtime.server_process import CONNECTIONS_MAX, STORAGE_FILES_MAX, Lifetime, allow_many_files, file_budget


async def nothing() -> None: ...


async def failing() -> None:
    raise RuntimeError("a bug")


def test_a_stop_by_a_signal_is_clean_whatever_fails_after_it() -> None:
    async def scenario() -> None:
        lifetime = Lifetime()
        assert not lifetime.stopped_cleanly
        os.kill(os.getpid(), signal.SIGTERM)
        assert await lifetime.run(nothing()) == 0
        lifetime.end("the disk failed")
        assert lifetime.stopped_cleanly
        lifetime.close()

    asyncio.run(scenario())


def test_a_stop_by_a_failure_is_not_clean_and_a_signal_after_it_changes_nothing() -> None:
    async def scenario() -> None:
        lifetime = Lifetime()
        lifetime.end("the disk failed")
        lifetime.end("")
        assert await lifetime.run(nothing()) == 1
        assert not lifetime.stopped_cleanly
        lifetime.close()

    asyncio.run(scenario())


def test_a_start_that_failed_is_not_clean() -> None:
    async def scenario() -> None:
        lifetime = Lifetime()
        with pytest.raises(RuntimeError, match="a bug"):
            await lifetime.run(failing())
        assert not lifetime.stopped_cleanly
        lifetime.close()

    asyncio.run(scenario())


def test_a_server_raises_its_limit_of_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, soft), hard))
        allow_many_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("allowed", [128, 256, 1024, 4096, 65_536])
def test_files_and_connections_together_fit_into_the_limit_of_open_files(allowed: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(allowed, hard), hard))
        budget = file_budget()
        assert budget.storage + 2 * budget.connections < min(allowed, hard)
        assert budget.storage <= STORAGE_FILES_MAX
        assert budget.connections <= CONNECTIONS_MAX
        assert min(budget) >= 16
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_connection_that_cannot_be_accepted_for_lack_of_files_stops_nothing() -> None:
    async def scenario() -> None:
        lifetime = Lifetime()
        loop = asyncio.get_running_loop()
        refused = {"message": "socket.accept() out of system resource", "socket": object()}
        loop.call_exception_handler({**refused, "exception": OSError(errno.EMFILE, "Too many open files")})
        lifetime.end("")
        assert lifetime.stopped_cleanly
        assert await lifetime.run(nothing()) == 0
        lifetime.close()

    asyncio.run(scenario())
