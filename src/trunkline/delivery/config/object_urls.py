"""URLs of object stores in addresses: which are understood, and what is wrong with the others.

Rules
 U1  ``s3://BUCKET/PREFIX`` is a place for files. Other stores are refused by name: no client of theirs is tested.
 U2  A URL is plain text. Characters that a client would take for a pattern, a query or a login are refused, for one
     address would then name other objects for one client than for another.
 U3  A message shows nothing of a URL that is refused for its form: someone may have put a key into it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from trunkline.delivery.config.addresses import DeltaAddress, IcebergAddress, LakeAddress

SUPPORTED: Final = "s3://"
UNTESTED: Final = ("gs:", "gcs:", "az:", "azure:", "abfs:", "abfss:", "r2:", "s3a:", "s3n:")
BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
KEY: Final = re.compile(r"[A-Za-z0-9_.=+@-]+(/[A-Za-z0-9_.=+@-]+)*/?", re.ASCII)
PROFILE: Final = re.compile(r"[A-Za-z0-9_.@-]+", re.ASCII)
FORM: Final = "write s3://BUCKET/PREFIX, with letters, digits and _ . = + @ - / in the prefix"
ACCESS_KEY: Final = "AWS_ACCESS_KEY_ID"  # variables that count if an address names none
SECRET_KEY: Final = "AWS_SECRET_ACCESS_KEY"
STORE_KEYS: Final = (ACCESS_KEY, SECRET_KEY)
LOGIN_FIELDS: Final = ("client_id_env", "client_secret_env", "token_url", "scope", "token_env")  # of a catalog
STORE_FIELDS: Final = ("endpoint", "region", "access_key_env", "secret_key_env", "session_token_env", "profile")

FilesAddress = LakeAddress | DeltaAddress | IcebergAddress  # addresses whose files may be on an object store


def is_url(path: str | None) -> bool:
    """Whether files are on an object store, and not in a directory."""
    return path is not None and path.startswith(SUPPORTED)


def store_url(address: FilesAddress) -> str | None:
    """Where the files of an address are, if that is on an object store; of an Iceberg table, the catalog knows it."""
    if isinstance(address, IcebergAddress):
        return address.catalog
    path = address.path if isinstance(address, DeltaAddress) else address.data_path
    return path if is_url(path) else None


def bucket_and_prefix(url: str) -> tuple[str, str]:
    """Of a valid URL; the prefix has no slash at its end."""
    bucket, _, prefix = url.removeprefix(SUPPORTED).partition("/")
    return bucket, prefix.rstrip("/")


def plain_url(url: str) -> str:
    """The same for two spellings of one place: without a slash at the end."""
    return url.rstrip("/")


def url_faults(url: str) -> Iterator[str]:
    """Why a text that starts with ``s3://`` names no place for files (U2, U3)."""
    bucket, _, prefix = url.removeprefix(SUPPORTED).partition("/")
    if BUCKET.fullmatch(bucket) is None:
        yield f"has no valid name of a bucket; {FORM}"
    elif not prefix:
        yield f"has no prefix: other files of the bucket must stay apart; {FORM}"
    elif KEY.fullmatch(prefix) is None or {".", ".."} & set(prefix.split("/")):
        yield f"has an invalid prefix; {FORM}"


def endpoint_faults(endpoint: str) -> Iterator[str]:
    """The text is not shown (U3)."""
    try:
        parts = urlsplit(endpoint)
        valid = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid or parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc:
        yield "is not the address of a server; write http://HOST:PORT or https://HOST"


def catalog_faults(url: str) -> Iterator[str]:
    """Why a text is not the URL of an Iceberg catalog, or of what gives tokens for it. It is not shown (U3)."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment or "@" in parts.netloc:
        yield "is not the URL of a server; write http://HOST:PORT or https://HOST/PATH, without a login"


def login_faults(address: IcebergAddress) -> Iterator[tuple[str, str]]:
    """Keys for a login to a catalog that do not fit together."""
    if (address.client_id_env is None) != (address.client_secret_env is None):
        missing = "client_id_env" if address.client_id_env is None else "client_secret_env"
        yield missing, "is missing: a login needs both client_id_env and client_secret_env"
    elif address.token_env is not None and address.client_id_env is not None:
        yield "token_env", "cannot be used together with client_id_env and client_secret_env; keep one of the two"
    elif address.client_id_env is None:
        for field in ("token_url", "scope"):
            if getattr(address, field) is not None:
                yield field, "is for a login; add client_id_env and client_secret_env, or remove it"


def access_faults(address: FilesAddress) -> Iterator[tuple[str, str]]:
    """Keys of an address that do not fit together."""
    if address.profile is not None:
        if PROFILE.fullmatch(address.profile) is None:
            yield "profile", "is not the name of a profile; write that of a section in ~/.aws/credentials"
        if address.access_key_env or address.secret_key_env or address.session_token_env:
            yield "profile", "cannot be used together with access_key_env and secret_key_env; keep one of the two"
    elif (address.access_key_env is None) != (address.secret_key_env is None):
        missing = "access_key_env" if address.access_key_env is None else "secret_key_env"
        yield missing, "is missing: a key needs both access_key_env and secret_key_env"
    if address.session_token_env is not None and address.access_key_env is None:
        yield "session_token_env", "needs access_key_env and secret_key_env"
