"""Addresses of destinations with sets of tables, of each kind, for tests that need a place of their own."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Final

import psycopg

from postgres_server import PostgresServer
from trunkline.delivery.config.addresses import Address, DeltaAddress, LakeAddress, PostgresAddress

KINDS: Final = ("ducklake", "postgres", "delta")
NUMBERS: Final = count()
Make = Callable[[str], Address]


def addresses(kind: str, folder: Path, postgres: PostgresServer) -> Make:
    """The address of a destination by its name. They share a place if that kind can, and no test has it before."""
    schema = f"sets{next(NUMBERS)}"  # with its own records
    if kind == "postgres":
        with psycopg.connect(postgres.dsn()) as connection:
            connection.execute(f"CREATE SCHEMA {schema}".encode())

    def made(name: str) -> Address:
        match kind:
            case "ducklake":
                return LakeAddress(f"sqlite:{folder}/lake.db", f"{name}_{{table}}", data_path=str(folder / "lake"))
            case "postgres":
                return PostgresAddress(postgres.dsn(), f"{name}_{{table}}", schema)
            case _:
                return DeltaAddress(f"{folder}/{name}/{{table}}")

    return made
