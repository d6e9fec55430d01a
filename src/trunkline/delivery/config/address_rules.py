"""Addresses of a configuration: fills in placeholders, makes paths absolute, and rejects invalid ones.

Rules
 A1  No secret is in an address, nor in a message about one.
 A2  A routing value is made safe before it becomes part of a name: special characters are replaced and a digest is
     added, so that two values hardly ever collide; if they do, the second is rejected (A3).
 A3  Two addresses of one table have one identity. It ignores case, as some catalogs and file systems do.
 A4  The name of a source's table becomes part of names in the same way (A2). It fills ``{table}`` and ``{schema}``,
     which stay in a destination's address until a table is known.
 A5  A path is one of the file system; the files of lakes and Delta tables may also be at an ``s3://`` URL
     (``object_urls.py``). Any other URL, also one that a path becomes with its placeholders filled in, is rejected: as
     a path it would be a local directory called ``gs:``, where no one would look for the rows.
 A6  The same holds for kinds of other packages: what is special about one is a method of its address.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Literal

from msgspec.structs import replace
from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from trunkline.delivery.changes.rows import RESERVED_PREFIX
from trunkline.delivery.config.addresses import (
    Address,
    DeltaAddress,
    DestinationAddress,
    IcebergAddress,
    LakeAddress,
    LogAddress,
    PostgresAddress,
)
from trunkline.delivery.config.object_urls import (
    STORE_FIELDS,
    SUPPORTED,
    UNTESTED,
    catalog_faults,
    endpoint_faults,
    is_url,
    plain_url,
    url_faults,
)
from trunkline.errors import ConfigError
from trunkline.net.addresses import parse_address

KINDS: Final[dict[str, type[Address]]] = {  # those of other packages are in ``kinds.py``
    "ducklake": LakeAddress,
    "delta": DeltaAddress,
    "iceberg": IcebergAddress,
    "postgres": PostgresAddress,
    "log": LogAddress,
}
SOURCE_KINDS: Final = ("ducklake", "delta", "log")
DESTINATION_KINDS: Final = ("ducklake", "delta", "iceberg", "postgres")
NOTES: Final = {  # documentation of the keys
    "catalog": "the lake's catalog: the path of a DuckDB file (one process at a time can open it), `sqlite:PATH`, or "
    "`postgres:` with a libpq connection string without a password",
    "iceberg.catalog": "the URL of an Iceberg REST catalog: `http://HOST:PORT` or `https://HOST/PATH`",
    "warehouse": "as the catalog names it; if wrong: like `catalog`",
    "client_id_env": "the environment variable that holds the id for a login to the catalog by OAuth2, together with "
    "`client_secret_env`; without both, and without `token_env`, requests have no login",
    "client_secret_env": "the environment variable that holds the secret for it",
    "token_url": "where OAuth2 gives tokens; without it `/v1/oauth/tokens` of the catalog",
    "scope": "what the login asks for, if the catalog wants one",
    "iceberg.token_env": "the environment variable that holds a token for the catalog, in place of a login",
    "iceberg.schema": "the namespace of the table; created if it does not exist",
    "table": "if wrong: the source is not found; a destination gets a new table, and the old one stays as it is. With "
    "`tables`: not of a source; of a destination `{table}`, if it is left out",
    "schema": "of the table; if wrong: like `table`. Of a lake with `tables`: of entries without a schema",
    "data_path": "the directory of a lake's Parquet files, or `s3://BUCKET/PREFIX`, required if the lake does not "
    "exist yet or is on an object store; never that of another lake: a clean-up of one would remove the files of the "
    "other",
    "path": "the directory of a Delta table, or `s3://BUCKET/PREFIX`. With `tables` it has `{table}`",
    "endpoint": "of an object store that is not Amazon's: `http://HOST:PORT` or `https://HOST`; if wrong: nothing is "
    "found there, or another bucket of this name",
    "region": "of the bucket; without it `AWS_REGION`, `AWS_DEFAULT_REGION`, the profile's, or us-east-1",
    "access_key_env": "the environment variable that holds the access key of the object store, together with "
    "`secret_key_env`; without both, `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`. Set them wherever a task may run",
    "secret_key_env": "the environment variable that holds the secret key",
    "session_token_env": "the environment variable that holds a session token, if the keys need one",
    "profile": "the section of `~/.aws/credentials` that has the keys, in place of variables",
    "dsn": "a libpq connection string without a password, such as `host=db dbname=orders user=deliver`",
    "log": "the name of a Trunkline log that holds changes: of `trunkline capture`, or of Debezium's connectors",
    "connect": "the coordinators of the log's cluster, host:port, separated by commas",
    "format": "`changes`: as `trunkline capture` writes them; `debezium`: JSON envelopes, with or without their schema",
    "columns": "names and types, as DuckDB writes them; required for Debezium events without a schema. Numbers that "
    "are times need a unit: TIMESTAMP_S, _MS, _US or _NS, TIME_MS, _US or _NS",
    "log.table": "of the log of a whole database: SCHEMA.TABLE, such as public.orders; none: the log has one table",
    "malformed": "a malformed event halts the pipeline, or is skipped and kept in `dead_letters`",
    "dead_letters": "the log for skipped events, each with its position and the reason; created if it does not exist",
    "tls_ca": "the CA certificate of the log's cluster; without it connections are not encrypted",
    "tls_cert": "the client certificate",
    "tls_key": "the key of the client certificate",
    "token_env": "the environment variable that holds the secret of the log's cluster",
    "password_env": "the environment variable that holds the password; it must be set wherever a task may run",
}
PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")
PLACEHOLDERS: Final = ("name", "value")
TABLE_PLACEHOLDERS: Final = ("table", "schema")  # of a set
PLAIN: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)
PLAIN_CHARS_MAX: Final = 48  # leaves room for a digest and a prefix in a PostgreSQL name
POSTGRES_NAME_BYTES_MAX: Final = 63  # the server truncates longer names, so two tables would become one
DIGEST_CHARS: Final = 8
SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:", re.ASCII)
VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
PATHS: Final = ("path", "data_path", "tls_ca", "tls_cert", "tls_key")
VARIABLES: Final = "_env"  # how fields end that name environment variables
FILE_PLACES: Final = ("path", "data_path")  # may be on an object store
SECRET_OPTIONS: Final = ("password", "sslpassword")
CATALOG_FORMS: Final = "the path of a DuckDB file, sqlite:PATH or postgres:DSN"


def safe(value: str) -> str:
    """A routing value as a part of file and table names (A2)."""
    plain = PLAIN.fullmatch(value) is not None and not value.startswith(RESERVED_PREFIX)
    if plain and len(value) <= PLAIN_CHARS_MAX:
        return value
    digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_CHARS]
    words = re.sub(r"[^A-Za-z0-9_]+", "_", value).lstrip("_")[:PLAIN_CHARS_MAX]
    return f"{words or 'value'}-{digest}"


def placeholders(text: str) -> set[str]:
    """The names of the placeholders in a text."""
    return {found[1] for found in PLACEHOLDER.finditer(text)}


def filled_text(text: str, name: str, value: str) -> str:
    """With ``{name}`` and ``{value}`` filled in; ``value`` is made safe."""
    words = {"name": name, "value": safe(value)}
    return PLACEHOLDER.sub(lambda found: words.get(found[1], found[0]), text)


def filled(address: Address, name: str, value: str) -> Address:
    """With the placeholders of each of its texts filled in."""
    return replace(address, **{field: filled_text(text, name, value) for field, text in _texts(address)})


def table_fields(kind: type[Address]) -> tuple[str, ...]:
    """The fields that say which table it is, the decisive one first; the others say where all tables are."""
    return ("path",) if kind is DeltaAddress else ("table", "schema")


def commits_alone(address: Address) -> bool:
    """Whether each table of a destination commits alone, and one of them leads."""
    return isinstance(address, DeltaAddress | IcebergAddress)


def has_table(address: Address) -> bool:
    """Whether each table of a set has its own in this destination."""
    return "table" in placeholders(getattr(address, table_fields(type(address))[0]) or "")


Ability = Literal["history", "column_steps", "repairs"]


def lacks(address: Address, ability: Ability) -> bool:
    """Whether a destination of this kind cannot do something; the kinds of this package can do everything."""
    return isinstance(address, DestinationAddress) and not getattr(address, ability)


def kind_of(address: Address) -> str:
    """The ``type`` of an address."""
    return str(address.__struct_config__.tag)


def address_of(address: Address, table: str) -> Address:
    """The address of one table, SCHEMA.TABLE, of a destination (A4); the empty name is that of the only table.

    Raises ``ConfigError`` that names the table if it cannot have that address.
    """
    if not table:
        return address
    fields = table_fields(type(address))
    found = {field: filled_with_table(text, table) for field, text in _texts(address) if field in fields}
    made = replace(address, **found)
    for field, text in found.items():
        for why in field_faults(type(made), field, text):
            raise ConfigError(f"table {table} cannot be delivered: its {field} {why}")
    return made


def filled_with_table(text: str, table: str) -> str:
    """With ``{table}`` and ``{schema}`` filled in."""
    schema, _, name = table.partition(".")
    words = {"table": safe(name), "schema": safe(schema)}
    return PLACEHOLDER.sub(lambda found: words.get(found[1], found[0]), text)


def identity_of(template: tuple[str, ...], table: str) -> tuple[str, ...]:
    """The identity of one table of a destination, from the ``identity`` of its address."""
    return tuple(filled_with_table(part, table).casefold() for part in template) if table else template


def clashes(address: Address, tables: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of source tables that would have the same table in a destination."""
    template = identity(address)
    held: dict[tuple[str, ...], str] = {}
    pairs = ((held.setdefault(identity_of(template, table), table), table) for table in tables)
    return [(first, second) for first, second in pairs if first != second]


def check_apart(address: Address, tables: Iterable[str]) -> None:
    """Raises ``ConfigError`` if two source tables would have the same table in a destination."""
    for first, second in clashes(address, tables):
        raise ConfigError(f"tables {clash_text(first, second)}")


def clash_text(first: str, second: str) -> str:
    return (
        f"{first} and {second} would have the same table in the destinations; use {{schema}} in its address, such as "
        'schema: "{schema}", or leave one of them out'
    )


def home_of(address: Address) -> str:
    """The schema that has the record of a destination's member; empty for Delta and Iceberg."""
    match address:
        case LakeAddress(schema=schema):
            return schema if placeholders(schema).isdisjoint(TABLE_PLACEHOLDERS) else "main"
        case PostgresAddress(schema=schema):
            return schema if placeholders(schema).isdisjoint(TABLE_PLACEHOLDERS) else "public"
        case DestinationAddress():
            return address.home
    return ""


def place_of(address: Address) -> str:
    """Equal for two destinations only if one transaction can write both: one catalog or database, reached in one way;
    a Delta or Iceberg destination is a place of its own. It ignores no difference of case, unlike ``identity``."""
    match address:
        case LakeAddress(catalog=catalog, password_env=password_env) if catalog.startswith("postgres:"):
            return f"ducklake {_connection(catalog.removeprefix('postgres:'))} {password_env or ''}"
        case LakeAddress(catalog=catalog):
            return f"ducklake {' '.join(store_identity(catalog))}"
        case PostgresAddress(dsn=dsn, password_env=password_env):
            return f"postgres {_connection(dsn)} {password_env or ''}"
        case DeltaAddress(path=path):
            return " ".join(["delta", path_identity(path), *_access(address)])
        case IcebergAddress():
            return " ".join(["iceberg", *(f"{field}={text}" for field, text in _texts(address))])
        case LogAddress():
            return " ".join(identity(address))
        case DestinationAddress():
            return f"{kind_of(address)} {address.place}"


def located(address: Address, folder: Path) -> Address:
    """With paths made absolute."""
    match address:
        case DeltaAddress(path=path):
            return replace(address, path=located_path(path, folder))
        case LogAddress():
            files = {name: getattr(address, name) for name in ("tls_ca", "tls_cert", "tls_key")}
            return replace(address, **{name: located_path(at, folder) for name, at in files.items() if at is not None})
        case LakeAddress(catalog=catalog, data_path=data_path):
            return replace(
                address,
                catalog=located_store(catalog, folder),
                data_path=None if data_path is None else located_path(data_path, folder),
            )
        case DestinationAddress():
            given = {name: getattr(address, name) for name in address.paths}
            return replace(address, **{name: located_path(at, folder) for name, at in given.items() if at is not None})
    return address


def located_path(path: str, folder: Path) -> str:
    return plain_url(path) if is_url(path) else str(folder / path)


def located_store(store: str, folder: Path) -> str:
    """Of ``PATH``, ``sqlite:PATH`` or ``postgres:DSN``."""
    if store.startswith("postgres:"):
        return store
    if store.startswith("sqlite:"):
        return f"sqlite:{folder / store.removeprefix('sqlite:')}"
    return str(folder / store)


def faults(address: Address) -> Iterator[tuple[str, str]]:
    """Invalid fields, each with the reason. Placeholders must be filled in."""
    for field, text in _texts(address):
        yield from ((field, why) for why in field_faults(type(address), field, text))


def field_faults(kind: type[Address], field: str, text: str) -> Iterator[str]:
    """Why one field of an address is invalid."""
    if issubclass(kind, DestinationAddress):
        yield from _faults_elsewhere(kind, field, text)
    elif field == "token_url" or (field == "catalog" and kind is IcebergAddress):
        yield from catalog_faults(text)
    elif field == "catalog":
        yield from store_faults(text, CATALOG_FORMS, path_allowed=True)
    elif field == "dsn":
        yield from dsn_faults(text)
    elif field in FILE_PLACES and text.startswith(SUPPORTED):
        yield from url_faults(text)
    elif field in PATHS:
        yield from path_faults(text, of_files=field in FILE_PLACES)
    elif field == "endpoint":
        yield from endpoint_faults(text)
    elif field in ("log", "dead_letters") and "://" in text:
        yield "is a URL; write the name of a log"
    elif field == "connect":
        yield from connect_faults(text)
    elif field.endswith(VARIABLES):
        yield from variable_faults(text)
    elif field == "table" and kind is LogAddress:
        if not all(text.partition(".")):
            yield f"{text!r} has no schema; write SCHEMA.TABLE, such as public.orders"
    elif field == "table" and text.lower().startswith(RESERVED_PREFIX):
        yield f"{text!r} starts with the reserved prefix {RESERVED_PREFIX}; choose another name"
    elif field in ("table", "schema") and kind is PostgresAddress and len(text.encode()) > POSTGRES_NAME_BYTES_MAX:
        yield f"{text!r} is longer than PostgreSQL's {POSTGRES_NAME_BYTES_MAX} bytes; shorten it"


def _faults_elsewhere(kind: type[DestinationAddress], field: str, text: str) -> Iterator[str]:
    """Of a kind of another package (A6)."""
    if field.endswith(VARIABLES):
        yield from variable_faults(text)
    elif field in kind.paths:
        yield from path_faults(text)
    elif field == "table" and text.lower().startswith(RESERVED_PREFIX):
        yield f"{text!r} starts with the reserved prefix {RESERVED_PREFIX}; choose another name"
    yield from kind.faults(field, text)


def store_faults(store: str, forms: str, *, path_allowed: bool) -> Iterator[str]:
    """Of a catalog or control store. The text is not shown: it may hold a secret."""
    scheme = SCHEME.match(store)
    if store.startswith("postgres:"):
        yield from dsn_faults(store.removeprefix("postgres:"))
    elif store == "sqlite:":
        yield "has no path after sqlite:; write sqlite:PATH"
    elif store.startswith("sqlite:"):
        yield from path_faults(store.removeprefix("sqlite:"))
    elif not path_allowed or "password=" in store:
        yield f"must be {forms}"
    elif scheme is not None:
        yield f"must be {forms}; {scheme[0]} is none of them (before a path with a colon write ./)"
    else:
        yield from path_faults(store)


def path_faults(path: str, *, of_files: bool = False) -> Iterator[str]:
    """Why a text is not a path (A5). ``of_files``: it could be on an object store."""
    scheme = SCHEME.match(path)
    if of_files and scheme is not None and scheme[0].lower() in (*UNTESTED, "s3:"):
        yield f"{scheme[0]} is not supported: of object stores, only s3://BUCKET/PREFIX is"
    elif scheme is not None and scheme[0].lower() == "file:":
        yield "is a URL; write the path alone, without file:"
    elif scheme is not None or "://" in path:
        what = f"{scheme[0]} is not supported" if scheme is not None else "URLs are not supported"
        yield f"must be a path in the file system: {what} (before a path with a colon write ./)"


def connect_faults(connect: str) -> Iterator[str]:
    try:
        for address in connect.split(","):
            parse_address(address)
    except ConfigError as error:
        yield str(error)


def dsn_faults(dsn: str) -> Iterator[str]:
    """The text itself is never shown: it may hold a secret."""
    try:
        options = conninfo_to_dict(dsn)
    except ProgrammingError:
        yield "is not a valid libpq connection string; write for example host=db port=5432 dbname=orders user=deliver"
        return
    for option in SECRET_OPTIONS:
        if option in options:
            yield (
                f"holds a {option}; remove it, and name the environment variable that has the password in password_env"
                if option == "password"
                else f"holds a {option}; remove it, and use a key file without one"
            )


def variable_faults(variable: str) -> Iterator[str]:
    """The text is not shown: it may be the secret itself."""
    if VARIABLE.fullmatch(variable) is None:
        yield "is not the name of an environment variable; write a name such as ORDERS_PASSWORD, not the secret"


def identity(address: Address) -> tuple[str, ...]:
    """Equal for two addresses of one table, as far as the text shows it (A3)."""
    match address:
        case LakeAddress(catalog=catalog, schema=schema, table=table):
            parts = ["ducklake", *store_identity(catalog), schema, table]
        case DeltaAddress(path=path):
            parts = ["delta", path_identity(path), *([address.endpoint] if address.endpoint else [])]
        case IcebergAddress(catalog=catalog, warehouse=warehouse, schema=schema, table=table):
            parts = ["iceberg", catalog.rstrip("/"), warehouse, schema, table]
        case PostgresAddress(dsn=dsn, schema=schema, table=table):
            parts = ["postgres", *_database(dsn), schema, table]
        case LogAddress(connect=connect, log=log, table=table):
            parts = ["log", connect, log, table or ""]
        case DestinationAddress():
            parts = [place_of(address), *(getattr(address, name, "") or "" for name in table_fields(type(address)))]
    return tuple(part.casefold() for part in parts)


def shared_place(address: Address) -> str:
    """What allows one writer at a time, such as the catalog of a lake. Empty for other tables."""
    match address:
        case LakeAddress(catalog=catalog):
            return " ".join(store_identity(catalog)).casefold()
        case DestinationAddress() if address.one_writer:
            return place_of(address)
    return ""


def store_identity(store: str) -> tuple[str, ...]:
    if store.startswith("postgres:"):
        return _database(store.removeprefix("postgres:"))
    return (path_identity(store.removeprefix("sqlite:")),)


def path_identity(path: str) -> str:
    return plain_url(path) if is_url(path) else os.path.realpath(path)


def _access(address: DeltaAddress) -> list[str]:
    """How a store is reached, for tables that are on one."""
    return [getattr(address, field) or "" for field in STORE_FIELDS] if is_url(address.path) else []


def _database(dsn: str) -> tuple[str, ...]:
    options = {"port": "5432", **conninfo_to_dict(dsn)}
    return tuple(str(options.get(part, "")) for part in ("service", "host", "hostaddr", "port", "dbname"))


def _connection(dsn: str) -> str:
    """All that decides how a database is reached, and as whom."""
    options = {"port": "5432", **conninfo_to_dict(dsn)}
    return " ".join(f"{option}={options[option]!r}" for option in sorted(options))


def _texts(address: Address) -> list[tuple[str, str]]:
    values = ((field, getattr(address, field)) for field in address.__struct_fields__)
    return [(field, value) for field, value in values if isinstance(value, str)]
