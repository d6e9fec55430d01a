"""What a destination decides before it writes: every rule on its own boundary."""

from __future__ import annotations

import pytest

from trunkline.core.fencing import Decision, decide_flush, decide_seed


@pytest.mark.parametrize(
    ("position", "token", "decision"),
    [
        (5, 3, Decision.PROCEED),
        (5, 2, Decision.PROCEED),  # an older owner wrote last
        (5, 4, Decision.FENCED),
        (9, 4, Decision.FENCED),  # done or not, it is somebody else's
        (4, 3, Decision.MOVED),
        (6, 3, Decision.MOVED),
        (7, 3, Decision.MOVED),
        (8, 3, Decision.ALREADY),
        (9, 3, Decision.ALREADY),
        (0, 0, Decision.MOVED),  # no record
    ],
)
def test_a_flush_from_5_to_8_under_token_3(position: int, token: int, decision: Decision) -> None:
    assert decide_flush(position, token, expected=5, through=8, mine=3) is decision


@pytest.mark.parametrize(
    ("position", "token", "decision"),
    [
        (0, 0, Decision.PROCEED),
        (7, 3, Decision.PROCEED),
        (8, 3, Decision.PROCEED),  # an operator asked for the very version that is there
        (9, 3, Decision.ALREADY),
        (0, 4, Decision.FENCED),
        (9, 4, Decision.FENCED),
    ],
)
def test_a_seed_of_8_under_token_3(position: int, token: int, decision: Decision) -> None:
    assert decide_seed(position, token, through=8, mine=3) is decision
