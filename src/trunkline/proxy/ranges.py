"""Reading a range of a log to its end, or to the tail, whichever comes first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from trunkline.client.subscription import Subscription
from trunkline.core.events import SubscriptionEnded
from trunkline.errors import OutcomeUnknown, Unreachable


def reached(subscription: Subscription, until: int) -> int:
    """Where a subscription that ended has come to: the position after the last one that holds an entry or is a hole."""
    result = subscription.done.result()
    assert isinstance(result, SubscriptionEnded), result
    return min(result.next, until + 1)


@asynccontextmanager
async def reading_within(timeout_s: float | None, what: str) -> AsyncIterator[None]:
    """Reading changes nothing, so whatever was not answered did not happen."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise Unreachable(f"{what} got no answer in time; ask again, or see `trunkline status`") from None
    except OutcomeUnknown:
        raise Unreachable(f"{what} was interrupted; ask again") from None
