"""The guard of a server's disk: warnings once, then the configured action."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.delivery.capture.postgres.wal_guard import MIB, WalAction, WalLevel, judged_wal

pytestmark = pytest.mark.fast

LIMIT = 1000 * MIB


def test_it_warns_once_at_half_and_once_at_the_limit_and_again_only_after_a_calm() -> None:
    level, said = WalLevel.FINE, []
    for retained in (0, 499, 500, 700, 999, 1000, 2000, 900, 1100, 700, 450, 600, 300, 500, 1000):
        verdict = judged_wal(retained * MIB, LIMIT, WalAction.WARN, level, "shop")
        assert verdict.action is WalAction.WARN
        level = verdict.level
        if verdict.warning:
            said.append((retained, level))
    half, limit = WalLevel.HALF, WalLevel.LIMIT
    assert said == [(500, half), (1000, limit), (500, half), (1000, limit)]


@pytest.mark.parametrize("action", WalAction)
def test_at_the_limit_it_does_what_was_configured_and_says_so(action: WalAction) -> None:
    half = judged_wal(LIMIT // 2, LIMIT, action, WalLevel.FINE, "shop")
    assert (half.action, half.level) == (WalAction.WARN, WalLevel.HALF)
    assert "500 MiB" in half.warning
    verdict = judged_wal(LIMIT, LIMIT, action, WalLevel.HALF, "shop")
    assert (verdict.action, verdict.level) == (action, WalLevel.LIMIT)
    assert "slot shop" in verdict.warning
    assert ("captured again" in verdict.warning) == (action is WalAction.DROP)
    assert judged_wal(LIMIT, LIMIT, action, WalLevel.FINE, "shop").action is action  # at once, without a half


@given(st.lists(st.integers(0, 3 * LIMIT)), st.sampled_from(WalAction))
def test_the_action_comes_only_at_the_limit_and_always_with_a_reason(sizes: list[int], action: WalAction) -> None:
    level = WalLevel.FINE
    for retained in sizes:
        verdict = judged_wal(retained, LIMIT, action, level, "shop")
        if verdict.action is not WalAction.WARN:
            assert retained >= LIMIT
            assert verdict.warning
        if retained >= LIMIT:
            assert verdict.level is WalLevel.LIMIT
        level = verdict.level
