"""The options of ``format("trunkline")``: all are checked before a connection is made.

Spark passes options as strings and ignores case; underscores are ignored, too (``token_env`` is ``tokenEnv``). An
unknown option is refused: a misspelt one would silently have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from trunkline.errors import ConfigError

OLDEST: Final = "oldest"
LATEST: Final = "latest"
TIMEOUT_S: Final = 30.0
PARTITIONS_MAX: Final = 10_000  # of one read: each is a task

CONNECTION: Final = ("connect", "log", "timeout", "tokenEnv", "tokenFile", "tlsCa", "tlsCert", "tlsKey")
BATCH: Final = (*CONNECTION, "changes", "startingOffset", "endingOffset", "partitions", "failOnTrim")
STREAM: Final = (*CONNECTION, "changes", "startingOffset", "maxEntriesPerTrigger", "partitions", "failOnTrim")
SINK: Final = (*CONNECTION, "queryName")
SPARKS_OWN: Final = ("checkpointLocation", "path")  # Spark passes these to a sink as well


class ConnectionOptions(Struct, frozen=True):
    """Which log of which cluster, and the credentials. Files are on the machine where a task runs."""

    connect: str
    log: str
    timeout_s: float | None = TIMEOUT_S  # too small: reads give up during a fail-over; None: they wait forever
    token_env: str = ""  # the variable that holds the cluster's secret: the secret itself would show in plans
    token_file: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""


class ReadOptions(Struct, frozen=True):
    connection: ConnectionOptions
    starting: int | str = OLDEST  # a position, OLDEST or LATEST
    ending: int | None = None  # the last position to read; None: up to the tail
    entries_per_trigger: int | None = None
    partitions: int | None = None  # None: by the size of the range
    fail_on_trim: bool = True
    changes: str = ""  # the table of a captured database whose changes are read; empty: entries


class WriteOptions(Struct, frozen=True):
    connection: ConnectionOptions
    query: str = ""  # the name of this write; empty: a random one


class _Given:
    """The options of the user, by their canonical names."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...], ignored: tuple[str, ...] = ()) -> None:
        names = {name.lower(): name for name in (*known, *ignored)}
        self._values: dict[str, str] = {}
        for key, value in options.items():
            name = names.get(key.lower().replace("_", ""))
            if name is None:
                raise ConfigError(f"unknown option {key!r} of format trunkline; choose from: {', '.join(known)}")
            self._values[name] = str(value).strip()

    def text(self, name: str, default: str = "") -> str:
        return self._values.get(name) or default

    def needed(self, name: str, example: str) -> str:
        value = self.text(name)
        if not value:
            raise ConfigError(f'format trunkline needs the option {name}: .option("{name}", "{example}")')
        return value

    def number(self, name: str, at_most: int = 2**63 - 1) -> int | None:
        value = self.text(name)
        if not value:
            return None
        if not (value.isascii() and value.isdecimal() and 1 <= int(value) <= at_most):
            raise ConfigError(f"option {name} is {value!r}: give a whole number from 1 to {at_most}")
        return int(value)

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.text(name, str(default)).lower()
        if value not in ("true", "false"):
            raise ConfigError(f"option {name} is {value!r}: give true or false")
        return value == "true"

    def position(self, name: str, words: tuple[str, ...], default: str) -> int | str:
        value = self.text(name, default)
        if value.lower() in words:
            return value.lower()
        if not (value.isascii() and value.isdecimal() and 1 <= int(value) < 2**63):
            raise ConfigError(f"option {name} is {value!r}: give {', '.join(words)} or a position from 1 on")
        return int(value)


def batch_options(options: Mapping[str, str]) -> ReadOptions:
    """For ``spark.read``. Raises ``ConfigError``."""
    given = _Given(options, BATCH)
    ending = given.position("endingOffset", (LATEST,), LATEST)
    return ReadOptions(
        connection=_connection(given),
        starting=given.position("startingOffset", (OLDEST,), OLDEST),
        ending=ending if isinstance(ending, int) else None,
        partitions=given.number("partitions", PARTITIONS_MAX),
        fail_on_trim=given.flag("failOnTrim", default=True),
        changes=given.text("changes"),
    )


def stream_options(options: Mapping[str, str]) -> ReadOptions:
    """For ``spark.readStream``. Raises ``ConfigError``."""
    given = _Given(options, STREAM)
    return ReadOptions(
        connection=_connection(given),
        starting=given.position("startingOffset", (OLDEST, LATEST), OLDEST),
        entries_per_trigger=given.number("maxEntriesPerTrigger"),
        partitions=given.number("partitions", PARTITIONS_MAX),
        fail_on_trim=given.flag("failOnTrim", default=True),
        changes=given.text("changes"),
    )


def read_options(options: Mapping[str, str]) -> ReadOptions | None:
    """Those of the table, if changes of one are read, as far as a batch and a stream share them."""
    given = _Given(options, tuple(dict.fromkeys((*BATCH, *STREAM, *SINK))), SPARKS_OWN)
    if not given.text("changes"):
        return None
    ending = given.position("endingOffset", (LATEST,), LATEST)
    return ReadOptions(
        _connection(given), ending=ending if isinstance(ending, int) else None, changes=given.text("changes")
    )


def check_any_read(options: Mapping[str, str]) -> None:
    """Checks what is wrong for a batch and for a stream: which of them it is, is not known yet."""
    given = _Given(options, tuple(dict.fromkeys((*BATCH, *STREAM))))
    if given.text("maxEntriesPerTrigger"):
        stream_options(options)
        return
    try:
        batch_options(options)
    except ConfigError as wrong:
        try:
            stream_options(options)
        except ConfigError:
            raise wrong from None


def connection_options(options: Mapping[str, str]) -> ConnectionOptions:
    """For a read or a write of any kind. Raises ``ConfigError``."""
    return _connection(_Given(options, tuple(dict.fromkeys((*BATCH, *STREAM, *SINK))), SPARKS_OWN))


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """For ``write`` and ``writeStream``. Raises ``ConfigError``."""
    given = _Given(options, SINK, SPARKS_OWN)
    return WriteOptions(_connection(given), given.text("queryName"))


def _connection(given: _Given) -> ConnectionOptions:
    if given.text("tokenEnv") and given.text("tokenFile"):
        raise ConfigError("options tokenEnv and tokenFile both name the cluster's secret: keep one")
    return ConnectionOptions(
        connect=given.needed("connect", "127.0.0.1:7400"),
        log=given.needed("log", "orders"),
        timeout_s=_seconds(given.text("timeout", str(TIMEOUT_S))),
        token_env=given.text("tokenEnv"),
        token_file=given.text("tokenFile"),
        tls_ca=given.text("tlsCa"),
        tls_cert=given.text("tlsCert"),
        tls_key=given.text("tlsKey"),
    )


def _seconds(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ConfigError(f"option timeout is {text!r}: give a number of seconds, or 0 to wait forever")
    return seconds or None
