"""A slow peer is distinguished from a silent one, and the wait for either is bounded."""

from __future__ import annotations

import asyncio

from net.wiring import STORED, Inbox, Run, dialled, serving, until
from trunkline.net.limits import MIB
from trunkline.net.progress import STEP_BYTES, WORK_BYTES, TransferProgress

WITHIN_S = 0.2
BODY = bytes(32 * MIB)


def test_a_peer_that_stops_taking_a_large_message_is_not_at_work_until_it_goes_on(run: Run) -> None:
    async def scene() -> None:
        served = Inbox()
        async with serving(served) as server, dialled(server) as connection:
            connection.send("r", 0, STORED)
            accepted = (await served.next())[0]
            accepted.pause()
            connection.send("r", 1, STORED, [BODY])
            assert connection.at_work(WITHIN_S)  # it has just been sent
            await until(lambda: not connection.at_work(WITHIN_S))
            accepted.resume()
            await until(lambda: connection.at_work(WITHIN_S))
            assert len((await served.next())[2][0]) == len(BODY)

    run(scene())


def test_a_peer_that_has_taken_a_large_message_shows_that_it_lives_and_is_given_time_for_it_but_not_for_ever(
    run: Run,
) -> None:
    async def scene() -> None:
        served, loop = Inbox(), asyncio.get_running_loop()
        async with serving(served) as server, dialled(server) as connection:
            connection.send("r", 1, STORED, [BODY])
            await served.next()
            taken_at = loop.time()
            while connection.at_work(WITHIN_S):
                await asyncio.sleep(WITHIN_S / 4)
            assert loop.time() - taken_at > 2 * WITHIN_S
            assert not connection.at_work(WITHIN_S)

    run(scene())


def test_small_messages_give_no_patience(run: Run) -> None:
    async def scene() -> None:
        served = Inbox()
        async with serving(served) as server, dialled(server) as connection:
            for token in range(100):
                connection.send("r", token, STORED, [bytes(1000)])
            assert not connection.at_work(WITHIN_S)

    run(scene())


def test_a_closed_connection_is_not_at_work(run: Run) -> None:
    async def scene() -> None:
        async with serving(Inbox()) as server, dialled(server) as connection:
            connection.send("r", 1, STORED, [BODY])
            connection.close()
            assert not connection.at_work(WITHIN_S)

    run(scene())


class Clock(asyncio.SelectorEventLoop):
    """A loop whose time is set by hand; it is never run."""

    now = 0.0

    def time(self) -> float:
        return self.now


def test_one_that_trickles_or_is_silent_after_it_took_everything_is_not_at_work() -> None:
    clock, pings = Clock(), []
    left = 10 * MIB
    progress = TransferProgress(clock, lambda: left, lambda: pings.append(clock.now))
    progress.sent(left)
    clock.now, left = 0.9, left - STEP_BYTES
    assert progress.at_work(1.0, heard_at=0.0)
    clock.now, left = 2.0, left - STEP_BYTES + 1  # less than a step
    assert not progress.at_work(1.0, heard_at=2.0)
    clock.now, left = 3.0, 0
    assert progress.at_work(1.0, heard_at=0.0)
    assert pings == [3.0, 3.0]
    clock.now = 4.5
    assert not progress.at_work(1.0, heard_at=3.0)
    assert progress.at_work(1.0, heard_at=4.0)
    clock.now = 3.0 + 1.0 * (1 + 10 * MIB / WORK_BYTES) + 0.1
    assert not progress.at_work(1.0, heard_at=clock.now)
    clock.close()
