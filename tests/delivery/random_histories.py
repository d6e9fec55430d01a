"""A table that changes at random, transaction by transaction, and the versions of its rows by a replay in plain Python.

The judge has nothing from the project but names: it compares the states before and after each transaction.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from delivery.group_log import COMMIT_US, GroupLog, Work, schema_of
from trunkline.delivery.changes.groups import RowKind
from trunkline.delivery.changes.history import CURRENT, VALID_FROM, VALID_FROM_TIME, VALID_TO, VALID_TO_TIME
from trunkline.delivery.changes.rows import DESTINATION_COLUMN, OP_COLUMN, Op
from trunkline.delivery.changes.schemas import Identity

INSERT, DELETE, OLD, NEW, TRUNCATE, READ = RowKind
TENANTS = ["a", "b", "c", None]
COLUMNS = "id BIGINT, tenant VARCHAR, note VARCHAR, size INTEGER"
NAMES = ("id", "tenant", "note", "size")

Row = tuple[Any, ...]  # NAMES
State = dict[Any, Row]  # by the identity of rows in the source


class Change(NamedTuple):
    kind: RowKind
    old: Row | None
    new: Row | None
    stated: bool = True  # False: the note is not stated


class Transaction(NamedTuple):
    changes: list[Change]
    before: State
    after: State
    written: set[Any]  # keys of rows that were written or removed


class RandomHistory:
    """``kind``: full (rows are whole), key (removals state the key alone) or plain (a table without a key). Several may
    share a table: they have other ids, and ``truncates`` is false."""

    def __init__(self, seed: int, kind: str, *, table: int = 1, first_id: int = 0, truncates: bool = True) -> None:
        self.chance = random.Random(seed)
        self.kind = kind
        self.first_id, self.truncates = first_id, truncates
        key = {"full": ("id",), "key": ("id", "tenant"), "plain": ()}[kind]
        identity = Identity.KEY if kind == "key" else Identity.FULL
        self.schema = schema_of(table, COLUMNS, key=key, identity=identity)
        self.state: State = {}
        self.versions: list[tuple[int, int, Transaction]] = []  # end, time, what happened

    def row(self, number: int) -> Row:
        chance = self.chance
        tenant = chance.choice(TENANTS[:3] if self.kind == "key" else TENANTS)
        return (number, tenant, chance.choice("xyz"), chance.randrange(3))

    def number(self) -> int:
        return self.first_id + self.chance.randrange(6)

    def begin(self) -> None:
        """The state of the snapshot."""
        numbers = range(self.first_id, self.first_id + self.chance.randrange(5))
        self.state = {number: self.row(number) for number in numbers}
        self.seeded = dict(self.state)

    def truncation(self) -> Transaction:
        """Of the whole table, by a transaction that does nothing else."""
        before, self.state = self.state, {}
        return Transaction([Change(TRUNCATE, None, None)], before, {}, set(before))

    def transaction(self) -> Transaction:
        before, state, changes, written = dict(self.state), dict(self.state), list[Change](), set[Any]()
        for _ in range(self.chance.randrange(6)):
            number = self.number()
            held = state.get(number)
            choice = self.chance.random()
            if choice < 0.03 and held is not None and self.truncates:
                changes.append(Change(TRUNCATE, None, None))
                written |= set(state) | set(before)
                state = {}
            elif held is None:
                state[number] = self.row(number)
                changes.append(Change(INSERT, None, state[number]))
                written.add(number)
            elif choice < 0.25:
                changes.append(Change(DELETE, state.pop(number), None))
                written.add(number)
            elif choice < 0.4 and len(state) > 1 and self.kind == "full":  # two rows change their keys, deferred
                other = self.chance.choice([each for each in state if each != number])
                first, second = (other, *held[1:]), (number, *state[other][1:])
                changes += [Change(NEW, held, first), Change(NEW, state[other], second)]
                state[other], state[number] = first, second
                written |= {number, other}
            else:
                to = self.number() if self.chance.random() < 0.2 else number
                to = to if to not in state else number
                new = self.row(to)
                stated = True
                if self.chance.random() < 0.3:
                    new = held if self.kind != "key" else (to, *held[1:])  # nothing but perhaps the key changes
                    to = new[0]
                if self.kind == "key" and self.chance.random() < 0.5:
                    new, stated = (*new[:2], held[2], new[3]), False
                changes.append(Change(NEW, state.pop(number), new, stated))
                state[to] = new
                written |= {number, to}
        self.state = state
        return Transaction(changes, before, state, written)

    # ---------------------------------------------------------------------------------------------------- as a database

    def work(self, transaction: Transaction) -> Work:
        found: Work = []
        for kind, old, new, stated in transaction.changes:
            if kind is NEW:
                assert old is not None
                assert new is not None
                bits = None if stated else b"\x04"
                row = new if stated else (*new[:2], None, new[3])
                if self.kind != "key" or old[:2] != new[:2]:
                    found.append((self.schema, OLD, self.removal(old)))
                found.append((self.schema, NEW, row, bits))
            elif kind is DELETE:
                assert old is not None
                found.append((self.schema, DELETE, self.removal(old)))
            else:
                found.append((self.schema, kind, new or ()))
        return found

    def removal(self, row: Row) -> Row:
        return (*row[:2], None, None) if self.kind == "key" else row

    def log(self, steps: int) -> GroupLog:
        log = GroupLog()
        log.schema(self.schema)
        self.begin()
        log.chunk(self.schema, 0, list(self.state.values()))
        self.first = log.last
        for _ in range(steps):
            if self.chance.random() < 0.2:
                made = self.transaction()
                work = self.work(made)
                cut = next((at for at in range(len(work) // 2, len(work)) if work[at][1] is not NEW), 0)
                log.part(0, work[:cut])
                log.part(1, work[cut:], last=True)
                self.versions.append((log.last, COMMIT_US + log.lsn, made))
                continue
            group = [self.transaction() for _ in range(self.chance.randrange(1, 4))]
            begin = log.lsn
            log.group(*(self.work(made) for made in group))
            for place, made in enumerate(group):
                self.versions.append((log.last, COMMIT_US + begin + 10 * (place + 1), made))
            if self.chance.random() < 0.1:
                log.catalog()
        return log

    # -------------------------------------------------------------------------------------------------------- the judge

    def replayed(
        self,
        targets: Callable[[str | None], Sequence[int]],
        shaped: Callable[[Row], Row | None] = lambda row: row,
        upto: int | None = None,
    ) -> list[Row]:
        """Every version up to a position: destination, row, and its span."""
        found: list[list[Any]] = []
        opened: dict[tuple[int, Any], list[Any]] = {}

        def placed(state: State) -> dict[tuple[int, Any], Row]:
            return {
                (target, number): made
                for number, row in state.items()
                if (made := shaped(row)) is not None
                for target in targets(row[1])
            }

        def begin(place: tuple[int, Any], row: Row, end: int, time_us: int | None) -> None:
            opened[place] = [place[0], *row, end, time_us, None, None, True]
            found.append(opened[place])

        for place, row in placed(self.seeded).items():
            begin(place, row, self.first, None)
        for end, time_us, made in self.versions:
            if upto is not None and end > upto:
                break
            before, after = placed(made.before), placed(made.after)
            for place in sorted(before.keys() | after.keys(), key=repr):
                written = place[1] in made.written
                blind = self.kind == "key" and not any(each.kind is TRUNCATE for each in made.changes)
                if not written or (not blind and before.get(place) == after.get(place)):
                    continue
                if place in before:
                    opened.pop(place)[-3:] = [end, time_us, False]
                if place in after:
                    begin(place, after[place], end, time_us)
        return sorted((tuple(each) for each in found), key=repr)


class HistoryTable:
    """The history tables of all destinations, written as a place writes them."""

    def __init__(self, key: Sequence[str], names: Sequence[str] = NAMES) -> None:
        self.key, self.names = key, names
        self.rows: list[dict[str, Any]] = []

    def seed(self, rows: Sequence[dict[str, Any]]) -> None:
        self.rows += rows

    def flush(self, staged: Sequence[dict[str, Any]]) -> None:
        for row in staged:
            if row[OP_COLUMN] == Op.REMOVE:
                self._close(row)
        for row in staged:
            if row[OP_COLUMN] == Op.INSERT:
                open_one = [each for each in self.rows if self._same(each, row) and each[CURRENT]]
                assert not (row[CURRENT] and open_one), "a key has two open versions"
                self.rows.append(row)

    def _close(self, row: dict[str, Any]) -> None:
        found = [each for each in self.rows if self._same(each, row) and each[CURRENT]]
        assert len(found) <= 1
        for each in found:
            each |= {VALID_TO: row[VALID_TO], VALID_TO_TIME: row[VALID_TO_TIME], CURRENT: False}

    def _same(self, one: dict[str, Any], other: dict[str, Any]) -> bool:
        return all(one[name] == other[name] for name in (DESTINATION_COLUMN, *self.key))

    def found(self) -> list[Row]:
        made = []
        for row in self.rows:
            times = [None if row[name] is None else us(row[name]) for name in (VALID_FROM_TIME, VALID_TO_TIME)]
            span = (row[VALID_FROM], times[0], row[VALID_TO], times[1], row[CURRENT])
            made.append((row[DESTINATION_COLUMN], *(row[name] for name in self.names), *span))
        return sorted(made, key=repr)


def us(value: Any) -> int:
    found: int = round(value.timestamp() * 1_000_000)
    return found
