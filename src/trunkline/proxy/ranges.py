"""Reading a range of a log to its end, or to the tail, whichever comes first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from trunkline.client.subscription import Subscription
from trunkline.core.events import SubscriptionEnded
from trunkline.errors import OutcomeUnknown, Unreachable


def reached(subscription: Subscription, until: int) -> int:
    """How far a finished subscription read: the position after the last entry or hole."""
    result = subscription.done.result()
    assert isinstance(result, SubscriptionEnded), result
    return min(result.next, until + 1)


@asynccontextmanager
async def reading_within(timeout_s: float | None, what: str) -> AsyncIterator[None]:
    """A read has no effect, so a missing answer is ``Unreachable``, never an unknown outcome."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise Unreachable(f"{what} got no answer in time; try again, or see `trunkline status`") from None
    except OutcomeUnknown:
        raise Unreachable(f"{what} was interrupted; try again") from None
