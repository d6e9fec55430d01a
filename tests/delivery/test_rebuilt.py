"""Any history of a database, with crashes, chunks, large transactions and new columns, is rebuilt from its log."""

from __future__ import annotations

import random

import pytest

from delivery.random_database import Database, rows
from trunkline.delivery.changes.rebuilt import rebuild


@pytest.mark.parametrize("seed", range(25))
def test_any_history_is_rebuilt_at_every_end(seed: int) -> None:
    database = Database(seed)
    for _ in range(40):
        database.step()
    for end in random.Random(seed).sample(sorted(database.expected), 12):
        found = rebuild(database.log.entries, end)
        keyed, plain = database.expected[end]
        assert (1 in found) == (keyed is not None)
        if keyed is not None:
            assert rows(found[1]) == keyed
        assert rows(found[2]) == plain
