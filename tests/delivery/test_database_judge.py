"""The judge of captured databases finds what is wrong, and nothing where nothing is."""

from __future__ import annotations

import random

import psycopg
import pyarrow as pa
import pytest

from database_judge import State, Wrong, census, check_sums, differences, judge_pgbench, states
from delivery.group_log import GroupLog, Work, schema_of
from delivery.random_database import Database, rows
from postgres_server import PostgresServer
from trunkline.delivery.changes.groups import RowKind
from trunkline.delivery.changes.rebuilt import rebuild

BRANCHES = schema_of(1, "bid INTEGER, bbalance INTEGER", ("bid",), name="pgbench_branches")
TELLERS = schema_of(2, "tid INTEGER, bid INTEGER, tbalance INTEGER", ("tid",), name="pgbench_tellers")
ACCOUNTS = schema_of(3, "aid INTEGER, bid INTEGER, abalance INTEGER", ("aid",), name="pgbench_accounts")
HISTORY = schema_of(4, "tid INTEGER, bid INTEGER, aid INTEGER, delta INTEGER", (), name="pgbench_history")


@pytest.mark.parametrize("seed", range(25))
def test_any_history_is_rebuilt_column_by_column_as_it_is_row_by_row(seed: int) -> None:
    database = Database(seed)
    for _ in range(40):
        database.step()
    entries = database.log.entries
    counted = census(entries)
    chosen = range(1, counted.transactions + 1)
    found = list(states(entries, set(random.Random(seed).sample(chosen, len(chosen) // 2))))
    for state in found:
        at = database.log.last if state.place is None else state.place.glsn
        if at not in database.expected or (state.place is not None and _inside(database.log, state)):
            continue
        keyed, plain = database.expected[at]
        assert ("public.table1" in state.tables) == (keyed is not None)
        if keyed is not None:
            assert rows(state.tables["public.table1"]) == keyed
        assert rows(state.tables["public.table2"]) == plain


def _inside(log: GroupLog, state: State) -> bool:
    """Whether a transaction is not the last of its entry."""
    assert state.place is not None
    counted = census(log.entries[: state.place.glsn])
    return counted.transactions != state.place.number


class Bank:
    """pgbench with two branches."""

    def __init__(self) -> None:
        self.chance = random.Random(1)
        self.log = GroupLog()
        for schema in (BRANCHES, TELLERS, ACCOUNTS, HISTORY):
            self.log.schema(schema)
        self.balances = {(schema.number, key): 0 for schema in (BRANCHES, TELLERS, ACCOUNTS) for key in (1, 2)}
        self.log.chunk(BRANCHES, 0, [(1, 0), (2, 0)])
        self.log.chunk(TELLERS, 0, [(1, 1, 0), (2, 2, 0)])
        self.log.chunk(HISTORY, 0, [])

    def deposit(self) -> Work:
        branch, delta = self.chance.choice((1, 2)), self.chance.randrange(-99, 99)
        work: Work = [(HISTORY, RowKind.INSERT, (branch, branch, branch, delta))]
        for schema in (BRANCHES, TELLERS, ACCOUNTS):
            self.balances[schema.number, branch] += delta
            row = (branch, *([branch] if schema is not BRANCHES else []), self.balances[schema.number, branch])
            work.append((schema, RowKind.UPDATE_NEW, row))
        return work

    def fill(self) -> None:
        self.log.group(*(self.deposit() for _ in range(5)))
        accounts = [(key, key, self.balances[3, key]) for key in (1, 2)]
        self.log.chunk(ACCOUNTS, 0, accounts)
        for _ in range(20):
            self.log.group(*(self.deposit() for _ in range(7)))


def test_the_sums_of_pgbench_agree_after_each_transaction() -> None:
    bank = Bank()
    bank.fill()
    judged = judge_pgbench(lambda: bank.log.entries, ends=1000, seed=2)
    assert judged.census.transactions == 145
    assert judged.census.readable == 6
    assert [place.number for place in judged.places] == list(range(6, 146)), "also inside of groups"
    whole = rebuild(bank.log.entries, bank.log.last)
    assert [rows(table) for table in judged.last.tables.values()] == [rows(whole[number]) for number in range(1, 5)]


def test_a_transaction_that_is_torn_is_found() -> None:
    bank = Bank()
    bank.fill()
    torn = bank.deposit()
    bank.log.group(torn[:2], torn[2:])
    bank.log.group(*(bank.deposit() for _ in range(7)))
    with pytest.raises(Wrong, match=r"branch \d: branches have .*, tellers .*, after Place\(number=146"):
        judge_pgbench(lambda: bank.log.entries, ends=1000, seed=2)


def test_a_sum_that_differs_is_named() -> None:
    bank = Bank()
    bank.fill()
    state = judge_pgbench(lambda: bank.log.entries, ends=1, seed=2).last
    history = state.tables["public.pgbench_history"]
    with pytest.raises(Wrong, match="history"):
        check_sums(State(None, {**state.tables, "public.pgbench_history": history.slice(1)}))
    with pytest.raises(Wrong, match="history"):
        check_sums(State(None, {**state.tables, "public.pgbench_history": pa.concat_tables([history, history])}))


def test_tables_are_compared_with_the_server_row_by_row(postgres: PostgresServer) -> None:
    dsn = postgres.create_database("judged")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE plain (a integer, b text, c timestamptz, d numeric(9,2), e char(4))")
        connection.execute("INSERT INTO plain VALUES (1, '', now(), 1.5, 'x'), (1, NULL, NULL, NULL, NULL)")
        connection.execute("INSERT INTO plain VALUES (2, 'a,\"b', NULL, 0, 'y')")
        connection.execute("INSERT INTO plain SELECT * FROM plain WHERE a = 2")
        found = connection.execute("SELECT * FROM plain").fetchall()
    columns = list(zip(*found, strict=True))
    types = [pa.int32(), pa.string(), pa.timestamp("us", tz="UTC"), pa.decimal128(9, 2), pa.string()]
    table = pa.table([pa.array(each, kind) for each, kind in zip(columns, types, strict=True)], names=list("abcde"))
    assert differences(dsn, {"public.plain": table}) == {}
    assert differences(dsn, {"public.plain": table.slice(0, 3)}) == {"public.plain": (1, 0)}
    twice = pa.concat_tables([table, table.slice(0, 2)])
    assert differences(dsn, {"public.plain": twice}) == {"public.plain": (0, 2)}
