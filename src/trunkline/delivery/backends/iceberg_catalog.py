"""Iceberg catalogs in DuckDB: one instance for each catalog and access, with the catalog attached as ``ALIAS``.

Rules
 I1  Secrets are read from the environment when an instance is made. They are in that instance only, in no address, and
     ``without_secrets`` takes them out of the messages of others.
 I2  An instance that had an error which may be its own, or that did not find a namespace (Y5), is abandoned: the next
     call makes a new one, with a new token.
 I3  Requests to the catalog pass through a relay (``catalog_relay.py``): no commit without an answer reaches DuckDB.
 I4  Nothing is looked up elsewhere: neither an endpoint nor credentials of the machine.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Final
from urllib.parse import urlsplit

import duckdb
from msgspec.structs import replace

from trunkline.config import ENVIRONMENT, secret
from trunkline.delivery.backends.catalog_relay import CatalogRelay
from trunkline.delivery.backends.duckdb_pool import new_duckdb
from trunkline.delivery.backends.object_store import keys_of, without_keys
from trunkline.delivery.backends.sql import identifier, literal
from trunkline.delivery.config.addresses import IcebergAddress

ALIAS: Final = "iceberg"
CREATED_BY_ANOTHER: Final = "_409"
TOKENS: Final = "/v1/oauth/tokens"
# Of one request. Shorter: a slow upload fails; longer: a server that hangs delays its worker.
REQUEST_S: Final = 30
RETRIES: Final = 3
THREADS: Final = 1  # workers run side by side already
VARIABLES: Final = ("client_id_env", "client_secret_env", "token_env")


class IcebergCatalog:
    """One catalog, reached in one way. Thread-safe."""

    def __init__(self, address: IcebergAddress) -> None:
        self._address = address
        self._instance: duckdb.DuckDBPyConnection | None = None
        self.relay = CatalogRelay(address.catalog)
        self._namespaces: set[str] = set()  # that are there
        self._lock = threading.Lock()

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection of its own. Raises ``duckdb.Error`` if the catalog cannot be reached."""
        with self._lock:
            if self.relay.take_missing():
                self._instance = None
            if self._instance is None:
                self._instance = _attached(self._address, self.relay.url)
            return self._instance.cursor()

    def abandon(self) -> None:
        """After an error (I2); connections that are open stay so."""
        with self._lock:
            self._instance = None
            self._namespaces.clear()

    def create_namespace(self, name: str) -> None:
        """If it does not exist."""
        if name in self._namespaces:
            return
        cursor = self.cursor()
        try:
            cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {ALIAS}.{identifier(name)}")
        except duckdb.Error as error:
            if CREATED_BY_ANOTHER not in str(error):
                raise
        finally:
            cursor.close()
        self._namespaces.add(name)


def catalog_of(address: IcebergAddress) -> IcebergCatalog:
    """The same one for all tables of a catalog that are reached in one way."""
    return _catalog(access_of(address))


@cache
def _catalog(address: IcebergAddress) -> IcebergCatalog:
    """Global to the process."""
    return IcebergCatalog(address)


def access_of(address: IcebergAddress) -> IcebergAddress:
    """What decides which catalog it is, and how it is reached: without the table."""
    return replace(address, table="", schema="")


def _attached(address: IcebergAddress, endpoint: str) -> duckdb.DuckDBPyConnection:
    connection = new_duckdb("httpfs", "avro", "iceberg")
    connection.execute(f"SET threads = {THREADS}")
    connection.execute("SET catalog_error_max_schemas = 0")  # a table that is not there would cost a list of all tables
    connection.execute(f"SET http_timeout = {REQUEST_S}")
    connection.execute(f"SET http_retries = {RETRIES}")
    connection.execute(f"CREATE SECRET files (TYPE s3, {_listed(_store(address))})")
    options = {"ENDPOINT": endpoint, "ACCESS_DELEGATION_MODE": "none"}
    if login := _login(address):
        connection.execute(f"CREATE SECRET login (TYPE iceberg, {_listed(login)})")
        options["SECRET"] = "login"
    else:
        options["AUTHORIZATION_TYPE"] = "none"
    listed = ", ".join(f"{name} {literal(value)}" for name, value in options.items())
    connection.execute(f"ATTACH {literal(address.warehouse)} AS {ALIAS} (TYPE iceberg, {listed})")
    return connection


def _store(address: IcebergAddress) -> dict[str, str | bool]:
    """The files of the tables."""
    keys = keys_of(address)
    parts = urlsplit(address.endpoint) if address.endpoint is not None else None
    values: dict[str, str | bool] = {
        "KEY_ID": keys.access_key,
        "SECRET": keys.secret_key,
        "SESSION_TOKEN": keys.session_token,
        "REGION": keys.region,
        "URL_STYLE": "vhost" if parts is None else "path",
        "USE_SSL": parts is None or parts.scheme == "https",
    }
    return values if parts is None else values | {"ENDPOINT": parts.netloc}


def _login(address: IcebergAddress) -> dict[str, str | bool]:
    """To the catalog; empty: it asks for none."""
    where = f"for the catalog {address.catalog}"
    if address.token_env is not None:
        return {"TOKEN": secret(address.token_env, f"the token {where}")}
    if address.client_id_env is None or address.client_secret_env is None:
        return {}
    return {
        "CLIENT_ID": secret(address.client_id_env, f"the client's id {where}"),
        "CLIENT_SECRET": secret(address.client_secret_env, f"the client's secret {where}"),
        "OAUTH2_SERVER_URI": address.token_url or address.catalog.rstrip("/") + TOKENS,
        "OAUTH2_SCOPE": address.scope or "",
    }


def _listed(values: dict[str, str | bool]) -> str:
    return ", ".join(f"{name} {literal(value)}" for name, value in values.items() if value != "")


def without_secrets(text: str, address: IcebergAddress) -> str:
    """A message of another library, without what it may repeat (I1)."""
    for name in VARIABLES:
        value = ENVIRONMENT.get(getattr(address, name) or "")
        text = text.replace(value, "***") if value else text
    return without_keys(text, address)
