"""Access to object stores: credentials, and what DuckDB and delta-rs need to know.

Rules
 O1  Keys are read at each use, from the environment or a profile, in the process that uses them. They are in no
     address, no task, no file and no message: ``without_keys`` takes them out of the messages of others.
 O2  Nothing is looked up elsewhere: neither DuckDB nor delta-rs asks a metadata service or guesses an endpoint.
 O3  DuckDB takes the secret with the longest scope, and compares all of them at each request: 10,000 cost 80 ms. So the
     first access to a bucket makes a secret for the whole bucket, and only lakes with other access have their own, for
     their data path. Two lakes with one data path and different access would use each other's: they are not attached
     at the same time (``ducklake_attachments.py``).
"""

from __future__ import annotations

import configparser
import hashlib
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import duckdb
from msgspec import Struct

from trunkline.config import ENVIRONMENT, secret
from trunkline.delivery.backends.sql import literal
from trunkline.delivery.config.object_urls import (
    ACCESS_KEY,
    SECRET_KEY,
    STORE_FIELDS,
    FilesAddress,
    bucket_and_prefix,
    plain_url,
    store_url,
)
from trunkline.errors import ConfigError

SESSION_TOKEN: Final = "AWS_SESSION_TOKEN"
REGIONS: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
REGION: Final = "us-east-1"  # what servers other than Amazon's expect
PROFILE_FILES: Final = (("AWS_SHARED_CREDENTIALS_FILE", "credentials"), ("AWS_CONFIG_FILE", "config"))
# Of one request. Shorter: a slow upload fails; longer: a server that hangs delays its worker.
REQUEST_S: Final = 30
CONNECT_S: Final = 5
RETRY_S: Final = 20  # for all attempts of one request; then the flush fails and is retried as a whole
RETRIES: Final = 3
NOWHERE: Final = "127.0.0.1:1"  # nothing listens there


class StoreKeys(Struct, frozen=True):
    """Not to be shown: it has no text of its own."""

    access_key: str
    secret_key: str
    session_token: str
    region: str

    def __repr__(self) -> str:
        return "StoreKeys(...)"


def keys_of(address: FilesAddress) -> StoreKeys:
    """Raises ``ConfigError`` that names what is missing."""
    where = f"for {store_url(address)}"
    if address.profile is not None:
        found = _profile(address.profile)
        region = address.region or found.get("region", "") or _region()
        return StoreKeys(
            _of_profile(found, "aws_access_key_id", address.profile),
            _of_profile(found, "aws_secret_access_key", address.profile),
            found.get("aws_session_token", ""),
            region,
        )
    access = secret(address.access_key_env or ACCESS_KEY, f"the access key {where}, or name a `profile`")
    key = secret(address.secret_key_env or SECRET_KEY, f"the secret key {where}")
    token = ""
    if address.session_token_env is not None:
        token = secret(address.session_token_env, f"the session token {where}")
    elif address.access_key_env is None:
        token = ENVIRONMENT.get(SESSION_TOKEN, "")
    return StoreKeys(access, key, token, address.region or _region())


def _region() -> str:
    return next((found for name in REGIONS if (found := ENVIRONMENT.get(name))), REGION)


def _profile(name: str) -> dict[str, str]:
    """The values of a profile, from Amazon's two files."""
    found: dict[str, str] = {}
    for variable, file in PROFILE_FILES:
        path = Path(ENVIRONMENT.get(variable) or Path.home() / ".aws" / file)
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read ({type(error).__name__}); correct it") from None
        for section in (name, f"profile {name}"):
            if parser.has_section(section):
                found = {**dict(parser.items(section)), **found}
    return found


def _of_profile(found: dict[str, str], key: str, profile: str) -> str:
    if value := found.get(key):
        return value
    raise ConfigError(
        f"the profile {profile} has no {key} in ~/.aws/credentials; only profiles with keys are supported, not those "
        "that ask a program or a service for them"
    )


def without_keys(text: str, address: FilesAddress) -> str:
    """A message of another library, without what it may repeat (O1)."""
    if store_url(address) is None:
        return text
    try:
        keys = keys_of(address)
    except ConfigError:
        return text
    for value in (keys.secret_key, keys.session_token, keys.access_key):
        text = text.replace(value, "***") if value else text
    return text


def store_options(address: FilesAddress) -> dict[str, str]:
    """Storage options of delta-rs. A commit is a put that fails if the object exists."""
    keys = keys_of(address)
    options = {
        "aws_access_key_id": keys.access_key,
        "aws_secret_access_key": keys.secret_key,
        "aws_region": keys.region,
        "aws_conditional_put": "etag",
        "timeout": f"{REQUEST_S}s",
        "connect_timeout": f"{CONNECT_S}s",
        "max_retries": str(RETRIES),
        "retry_timeout": f"{RETRY_S}s",
    }
    if keys.session_token:
        options["aws_session_token"] = keys.session_token
    if address.endpoint is not None:
        options["aws_endpoint"] = address.endpoint
        options["aws_virtual_hosted_style_request"] = "false"
        options["aws_allow_http"] = str(address.endpoint.startswith("http://")).lower()
    return options


def access_of(address: FilesAddress) -> tuple[str, ...]:
    """What decides how a store is reached, and as whom: without any secret."""
    return tuple(getattr(address, field) or "" for field in STORE_FIELDS)


def only_secret(connection: duckdb.DuckDBPyConnection, address: FilesAddress) -> None:
    """Let a connection that is used for one address at a time reach its files."""
    if store_url(address) is not None:
        for name in _secrets(connection):
            connection.execute(f"DROP SECRET {name}")
        create_secret(connection, address)


def create_secret(connection: duckdb.DuckDBPyConnection, address: FilesAddress) -> None:
    """Let DuckDB reach the files of an address, if they are on an object store (O3); ``httpfs`` must be loaded."""
    if (url := store_url(address)) is None:
        return
    keys = keys_of(address)
    bucket, _ = bucket_and_prefix(url)
    first, access = f"bucket_{_digest(bucket)}_", _digest(*access_of(address))
    own = f"path_{_digest(plain_url(url))}"
    there = _secrets(connection)
    held = [name for name in there if name.startswith(first)]
    parts = urlsplit(address.endpoint) if address.endpoint is not None else None
    values: dict[str, str | bool] = {
        "KEY_ID": keys.access_key,
        "SECRET": keys.secret_key,
        "SESSION_TOKEN": keys.session_token,
        "REGION": keys.region,
        "ENDPOINT": "" if parts is None else parts.netloc,
        "URL_STYLE": "vhost" if parts is None else "path",
        "USE_SSL": parts is None or parts.scheme == "https",
    }
    if not held or held == [first + access]:
        if own in there:
            connection.execute(f"DROP SECRET {own}")
        _create(connection, first + access, f"s3://{bucket}/", values)
    else:
        _create(connection, own, plain_url(url) + "/", values)


def block(connection: duckdb.DuckDBPyConnection, address: FilesAddress) -> str:
    """From now on every access to the files of an address fails at once; ``unblock`` takes the name."""
    url = store_url(address)
    assert url is not None
    values: dict[str, str | bool] = {"KEY_ID": "x", "SECRET": "x", "ENDPOINT": NOWHERE, "USE_SSL": False}
    name = f"block_{_digest(plain_url(url))}"
    _create(connection, name, f"{plain_url(url)}/", {**values, "URL_STYLE": "path", "REGION": REGION})
    if f"path_{_digest(plain_url(url))}" in _secrets(connection):  # of the same length: it would be ambiguous
        connection.execute(f"DROP SECRET path_{_digest(plain_url(url))}")
    return name


def unblock(connection: duckdb.DuckDBPyConnection, address: FilesAddress, name: str) -> None:
    connection.execute(f"DROP SECRET {name}")
    create_secret(connection, address)


def _secrets(connection: duckdb.DuckDBPyConnection) -> list[str]:
    return [name for (name,) in connection.execute("SELECT name FROM duckdb_secrets()").fetchall()]


def _create(connection: duckdb.DuckDBPyConnection, name: str, scope: str, values: dict[str, str | bool]) -> None:
    listed = ", ".join(f"{key} {literal(value)}" for key, value in values.items() if value != "")
    connection.execute(f"CREATE OR REPLACE SECRET {name} (TYPE s3, SCOPE {literal(scope)}, {listed})")


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
