"""Addresses of tables, as configured. They name environment variables, and hold no secrets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from msgspec import Struct


class LakeAddress(Struct, frozen=True, tag_field="type", tag="ducklake", forbid_unknown_fields=True):
    """A table of a DuckLake.

    ``catalog`` is the path of a DuckDB file, ``sqlite:PATH``, or ``postgres:`` with a libpq connection string.
    """

    catalog: str
    table: str
    schema: str = "main"
    data_path: str | None = None  # required only if the lake does not exist yet
    password_env: str | None = None  # the variable that holds the password of a PostgreSQL catalog
    endpoint: str | None = None  # these are of an object store; without an endpoint: Amazon's
    region: str | None = None
    access_key_env: str | None = None  # variables that hold keys
    secret_key_env: str | None = None
    session_token_env: str | None = None
    profile: str | None = None  # of Amazon's credentials file, in place of those


class DeltaAddress(Struct, frozen=True, tag_field="type", tag="delta", forbid_unknown_fields=True):
    """A Delta table in a directory or on an object store."""

    path: str
    endpoint: str | None = None  # these are of an object store; without an endpoint: Amazon's
    region: str | None = None
    access_key_env: str | None = None  # variables that hold keys
    secret_key_env: str | None = None
    session_token_env: str | None = None
    profile: str | None = None  # of Amazon's credentials file, in place of those


class IcebergAddress(Struct, frozen=True, tag_field="type", tag="iceberg", forbid_unknown_fields=True):
    """A table of an Iceberg REST catalog; only a destination. ``schema`` is its namespace."""

    catalog: str  # the URL of the catalog
    warehouse: str  # as the catalog names it
    table: str
    schema: str = "main"
    client_id_env: str | None = (
        None  # variables that hold a login by OAuth2, or a token; without: the catalog asks none
    )
    client_secret_env: str | None = None
    token_url: str | None = None  # where OAuth2 gives tokens; without: the catalog itself
    scope: str | None = None
    token_env: str | None = None
    endpoint: str | None = None  # these are of the object store that has the files; without an endpoint: Amazon's
    region: str | None = None
    access_key_env: str | None = None  # variables that hold keys
    secret_key_env: str | None = None
    session_token_env: str | None = None
    profile: str | None = None  # of Amazon's credentials file, in place of those


class PostgresAddress(Struct, frozen=True, tag_field="type", tag="postgres", forbid_unknown_fields=True):
    """A table of a PostgreSQL database; ``dsn`` is a libpq connection string without a password."""

    dsn: str
    table: str
    schema: str = "public"
    password_env: str | None = None


class LogAddress(Struct, frozen=True, tag_field="type", tag="log", forbid_unknown_fields=True):
    """A Trunkline log of changes; only a source. ``connect``: the coordinators of its cluster, separated by commas."""

    log: str
    connect: str = "127.0.0.1:7400"
    table: str | None = None  # of the log of a whole database: SCHEMA.TABLE
    format: Literal["changes", "debezium"] = "changes"
    columns: dict[str, str] = {}  # name -> type; for events without a schema
    malformed: Literal["halt", "skip"] = "halt"
    dead_letters: str | None = None  # the log for skipped entries
    token_env: str | None = None  # the variable that holds the cluster's shared secret
    tls_ca: str | None = None  # files, like the options of these names
    tls_cert: str | None = None
    tls_key: str | None = None


class DestinationAddress(
    Struct, frozen=True, tag_field="type", tag="of another package", omit_defaults=True, forbid_unknown_fields=True
):
    """The address of a table of a kind that another package adds: derive from it, with ``tag`` as the ``type`` that
    pipelines write, and name the class as an entry point of the group ``trunkline.destinations``.

    Its fields are the keys of the address; annotate each with ``about``. One of them is ``table``, a text; ``schema``
    may be another. Only these two may hold ``{table}`` and ``{schema}``; every text may hold ``{name}`` and
    ``{value}``. Keys that end in ``password_env`` or ``token_env`` name environment variables. Addresses are sent to
    Spark's workers by pickle: the package must be installed there, too. A new key needs a default; as long as it is
    not set, destinations are not seeded again.
    """

    # What a kind can do besides modes mirror and append. What it cannot do is refused before it is called.
    history: ClassVar[bool] = False  # mode history (T11)
    column_steps: ClassVar[bool] = False  # follows columns that are renamed, dropped or added with a default (T6)
    repairs: ClassVar[bool] = False  # `trunkline deliver repair` (T12)
    # True: one task writes all destinations of a place, as a file with one writer needs it; False: several tasks may.
    one_writer: ClassVar[bool] = False
    paths: ClassVar[tuple[str, ...]] = ()  # fields that are paths: made absolute, and URLs are refused

    @property
    def place(self) -> str:
        """Equal for two addresses only if one transaction can write both. It depends on no ``{table}``."""
        raise NotImplementedError

    @property
    def home(self) -> str:
        """``MemberStep.home``: the schema of the records, if a place has several; empty: it has one."""
        return ""

    @classmethod
    def faults(cls, field: str, text: str) -> Iterator[str]:
        """Why the text of a field is invalid, as the end of a sentence that says what to write instead."""
        return iter(())

    def open_place(self) -> Any:
        """The ``Place`` of this address. Connects to nothing; import the driver here."""
        raise NotImplementedError


# A PostgreSQL table is a source only through a captured log; a log cannot be a destination.
Address = LakeAddress | DeltaAddress | IcebergAddress | PostgresAddress | LogAddress | DestinationAddress
