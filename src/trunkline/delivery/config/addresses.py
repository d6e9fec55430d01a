"""Addresses of tables, as configured. They name environment variables, and hold no secrets."""

from __future__ import annotations

from typing import Literal

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


# A PostgreSQL table is a source only through a captured log; a log cannot be a destination.
Address = LakeAddress | DeltaAddress | IcebergAddress | PostgresAddress | LogAddress
