"""Many random histories in one log: each has rows of its own in one of three tables of a captured database, and is
judged by a replay in plain Python."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Final

from delivery.direct_delivery import Direct
from delivery.group_log import COMMIT_US, GroupLog, Work
from delivery.memory_log import MemoryLog
from delivery.random_histories import NAMES, RandomHistory, Row, us
from trunkline.client.entries import Entry
from trunkline.delivery.changes.history import CURRENT, VALID_FROM, VALID_FROM_TIME, VALID_TO, VALID_TO_TIME
from trunkline.delivery.changes.rows import Mode
from trunkline.delivery.config.addresses import Address, LakeAddress, LogAddress
from trunkline.delivery.config.table_patterns import Selection
from trunkline.delivery.config.tree import TableConfig
from trunkline.delivery.job.work import TaskDestination
from trunkline.delivery.sources import log_reader
from trunkline.delivery.sources.database import DatabaseSource

KINDS: Final = ("full", "key", "plain")
IDS_EACH: Final = 10
VALUES: Final[dict[str, tuple[str | None, ...]]] = {"one": ("a", "b"), "two": ("b", None)}  # rows of c go nowhere
TARGETS: Final = tuple(VALUES)
TABLES: Final = tuple(f"table{number + 1}" for number in range(len(KINDS)))
LOGS = count(1)


class ManyHistories:
    """``ends``: the positions at which windows may begin and end."""

    def __init__(self, seed: int, histories: int, steps: int) -> None:
        self.chance = random.Random(seed)
        self._tables: list[list[RandomHistory]] = [[] for _ in KINDS]
        for number in range(histories):
            place = number % len(KINDS)
            options: dict[str, Any] = {"table": place + 1, "first_id": number * IDS_EACH, "truncates": False}
            self._tables[place].append(RandomHistory(seed * histories + number, KINDS[place], **options))
        self._log = GroupLog()
        self._times: dict[int, list[int]] = {}  # of the transactions at each end
        for held in self._tables:
            self._log.schema(held[0].schema)
            for history in held:
                history.begin()
            rows = [row for history in held for row in history.state.values()]
            self._log.chunk(held[0].schema, 0, rows)
        self.ends = [self._log.last]
        for history in self.histories:
            history.first = self.ends[0]
        for _ in range(steps):
            self._group()

    @property
    def histories(self) -> list[RandomHistory]:
        return [history for held in self._tables for history in held]

    @property
    def entries(self) -> Sequence[Entry]:
        return self._log.entries

    def _group(self) -> None:
        """Some transactions that share a position; each changes rows of half of the histories."""
        begin, made = self._log.lsn, [self._transaction() for _ in range(self.chance.randrange(1, 4))]
        end = self._log.group(*(work for work, _ in made))
        self.ends.append(end)
        self._times[end] = [COMMIT_US + begin + 10 * (place + 1) for place in range(len(made))]
        for place, (_, changed) in enumerate(made):
            for history, transaction in changed:
                history.versions.append((end, self._times[end][place], transaction))
        if self.chance.random() < 0.1:
            self._log.catalog()

    def _transaction(self) -> tuple[Work, list[tuple[RandomHistory, Any]]]:
        if self.chance.random() < 0.05:
            held = self.chance.choice(self._tables)
            changed = [(history, history.truncation()) for history in held]
            return held[0].work(changed[0][1]), changed
        chosen = self.chance.sample(self.histories, len(self.histories) // 2)
        changed = [(history, history.transaction()) for history in chosen]
        return [change for history, transaction in changed for change in history.work(transaction)], changed

    def windows(self) -> list[int]:
        """The ends of windows, by chance; the last one is there."""
        return sorted({self.ends[-1], *self.chance.sample(self.ends[1:], len(self.ends) // 2)})

    def by_table(self) -> Iterator[tuple[str, RandomHistory]]:
        for table, held in zip(TABLES, self._tables, strict=True):
            yield from ((table, history) for history in held)

    def ordinal(self, end: int, time_us: int) -> int:
        """The number of a transaction among those with the same position."""
        return self._times[end].index(time_us)

    def replayed(self, table: str, target: str, upto: int) -> list[Row]:
        """What a destination has to hold at a position."""
        place = TABLES.index(table)
        found: list[Row] = []
        for history in self._tables[place]:
            versions = history.replayed(lambda tenant: (0,) if tenant in VALUES[target] else (), upto=upto)
            found += [version[1:] for version in versions]
        return sorted(found, key=repr)


def spans(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Rows of a destination in the form of ``replayed``."""
    found = []
    for row in rows:
        times = [None if row[name] is None else us(row[name]) for name in (VALID_FROM_TIME, VALID_TO_TIME)]
        found.append((*(row[name] for name in NAMES), row[VALID_FROM], times[0], row[VALID_TO], times[1], row[CURRENT]))
    return sorted(found, key=repr)


def delivery_of(entries: Sequence[Entry], addresses: Mapping[str, Address]) -> Direct:
    """All tables in mode history, to the destinations of VALUES; addresses may hold {table}."""
    return _delivery(
        entries, [TaskDestination(name, addresses[name], VALUES[name], mode="history") for name in TARGETS]
    )


def everything_of(entries: Sequence[Entry], addresses: Mapping[Mode, LakeAddress]) -> Direct:
    """All rows of all tables, to one destination of each mode."""
    return _delivery(entries, [TaskDestination(mode, address, None, mode=mode) for mode, address in addresses.items()])


def _delivery(entries: Sequence[Entry], targets: Sequence[TaskDestination]) -> Direct:
    name = f"many histories {next(LOGS)}"
    MemoryLog(name, entries)
    source = DatabaseSource(LogAddress(name, "nowhere:1"), Selection(("public.*",)))
    return Direct(source, *targets, tables=[TableConfig(table="public.*", key=("id",))], key=())


def forget_logs() -> None:
    for key in [key for key in log_reader._open if "many histories" in repr(key)]:
        del log_reader._open[key]
