"""The connections of one Python worker of Spark, kept from task to task.

1. There is one connection for each cluster and set of credentials, made on first use. Spark uses a worker for many
   tasks, one at a time; connecting for each of them would take longer than a small task.
2. A connection is closed after an error: the next task, or the next attempt of this one, reconnects.
3. At most ``CONNECTIONS_MAX`` are kept; the least recently used one is closed for another.
4. They are closed when the process shuts down cleanly. If Spark kills a worker, readers settle its append in flight,
   like that of any client that dies.
"""

from __future__ import annotations

import atexit
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from trunkline import sync
from trunkline.client.cluster import ClientOptions
from trunkline.config import TOKEN_BYTES_MAX, ConnectionConfig, secret
from trunkline.errors import ConfigError, TrunklineError
from trunkline.spark.options import ConnectionOptions

CONNECTIONS_MAX: Final = 4
CONNECT_S_MAX: Final = 5.0


class OpenCluster:
    """A connection, with the logs that it opened."""

    def __init__(self, options: ConnectionOptions) -> None:
        self.cluster = connect(options)
        self._logs: dict[str, sync.Log] = {}

    def log(self, name: str) -> sync.Log:
        if name not in self._logs:
            self._logs[name] = self.cluster.log(name)
        return self._logs[name]


class Connections:
    def __init__(self) -> None:
        self._open: OrderedDict[ConnectionOptions, OpenCluster] = OrderedDict()

    @contextmanager
    def using(self, options: ConnectionOptions) -> Iterator[tuple[sync.Cluster, sync.Log]]:
        """The cluster and the log that the options name. An error inside closes the connection (2)."""
        key = replace(options, log="")
        try:
            opened = self._opened(key)
            yield opened.cluster, opened.log(options.log)
        except TrunklineError:
            self._close(key)
            raise

    def close(self) -> None:
        for key in list(self._open):
            self._close(key)

    def _opened(self, key: ConnectionOptions) -> OpenCluster:
        if key not in self._open:
            while len(self._open) >= CONNECTIONS_MAX:
                self._close(next(iter(self._open)))
            self._open[key] = OpenCluster(key)
            atexit.unregister(self.close)
            atexit.register(self.close)  # after the connection's own thread, so that it runs before that ends
        self._open.move_to_end(key)
        return self._open[key]

    def _close(self, key: ConnectionOptions) -> None:
        opened = self._open.pop(key, None)
        if opened is not None:
            opened.cluster.close()


CONNECTIONS: Final = Connections()


def connect(options: ConnectionOptions) -> sync.Cluster:
    """A new open handle; the caller closes it."""
    config = ConnectionConfig(tls_ca=options.tls_ca, tls_cert=options.tls_cert, tls_key=options.tls_key)
    timeout_s = options.timeout_s
    client = ClientOptions(
        timeout=timeout_s,
        connect_timeout=min(CONNECT_S_MAX, timeout_s or CONNECT_S_MAX),
        token=_token(options),
        name="spark",
    )
    cluster = sync.connect(options.connect, options=client, tls=config.tls())
    cluster.open()
    return cluster


def _token(options: ConnectionOptions) -> str:
    if options.token_env:
        where = "on the driver and, with spark.executorEnv, on executors"
        return secret(options.token_env, f"the token of the cluster, {where}")
    if not options.token_file:
        return ""
    try:
        with Path(options.token_file).open("rb") as file:
            token = file.read(TOKEN_BYTES_MAX + 1).decode("utf-8").strip()
    except OSError as error:
        raise ConfigError(f"option tokenFile: cannot read {options.token_file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"option tokenFile: {options.token_file} is not UTF-8 text") from None
    if not token or len(token) > TOKEN_BYTES_MAX:
        raise ConfigError(f"option tokenFile: {options.token_file} must hold 1 to {TOKEN_BYTES_MAX} bytes")
    return token
