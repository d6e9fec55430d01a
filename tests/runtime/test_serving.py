"""Why a server ended decides what it may still say."""

from __future__ import annotations

import asyncio
import os
import resource
import signal

import pytest

from trunkline.runtime.serving import Lifetime, allow_many_files


async def nothing() -> None: ...


async def failing() -> None:
    raise RuntimeError("a bug")


def test_a_stop_by_a_signal_is_orderly_whatever_fails_after_it() -> None:
    async def scenario() -> None:
        lifetime = Lifetime()
        assert not lifetime.orderly
        os.kill(os.getpid(), signal.SIGTERM)
        assert await lifetime.run(nothing()) == 0
        lifetime.end("the disk failed")
        assert lifetime.orderly
        lifetime.close()

    asyncio.run(scenario())


def test_a_stop_by_a_failure_is_not_orderly_and_a_signal_after_it_changes_nothing() -> None:
    async def scenario() -> None:
        lifetime = Lifetime()
        lifetime.end("the disk failed")
        lifetime.end("")
        assert await lifetime.run(nothing()) == 1
        assert not lifetime.orderly
        lifetime.close()

    asyncio.run(scenario())


def test_a_start_that_failed_is_not_orderly() -> None:
    async def scenario() -> None:
        lifetime = Lifetime()
        with pytest.raises(RuntimeError, match="a bug"):
            await lifetime.run(failing())
        assert not lifetime.orderly
        lifetime.close()

    asyncio.run(scenario())


def test_a_server_takes_as_many_files_as_the_system_gives() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, soft), hard))
        allow_many_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
