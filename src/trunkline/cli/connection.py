"""Shared by the commands that use a cluster: options, the connection, and how a command runs."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from trunkline.cli.parser import did_you_mean
from trunkline.cli.tables import json_option
from trunkline.client.cluster import ClientOptions, Cluster
from trunkline.config import ConnectionConfig, load
from trunkline.errors import NoSuchLog, TrunklineError
from trunkline.net.addresses import PORT_MAX

T = TypeVar("T")

CONNECT_TIMEOUT_S = 5.0
CLOSE_S = 2.0  # after Ctrl-C or a failure: the wait for appends in flight
SUGGEST_S = 2.0  # the time to find a similar name
GROUP = "the cluster"


def cluster_options() -> argparse.ArgumentParser:
    """A parent parser for commands that use a cluster."""
    parent = json_option()
    group = parent.add_argument_group(GROUP)
    group.add_argument(
        "--connect",
        metavar="ADDR[,ADDR]",
        help="coordinators (environment: TRUNKLINE_CONNECT; default: 127.0.0.1:7400)",
    )
    add_security_options(group)
    group.add_argument("--timeout", metavar="S", help="limit of a call in seconds, 0: none (TRUNKLINE_TIMEOUT; 30)")
    group.add_argument(
        "--config",
        metavar="FILE",
        help="TOML with the same keys (TRUNKLINE_CONFIG; ./trunkline.toml, ~/.config/trunkline/config.toml)",
    )
    return parent


def add_security_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--token-file", metavar="FILE", help="contains the cluster's token (or set TRUNKLINE_TOKEN)")
    group.add_argument(
        "--tls-ca", metavar="FILE", help="the authority of the cluster's certificates (TRUNKLINE_TLS_CA)"
    )
    group.add_argument("--tls-cert", metavar="FILE", help="the certificate of this process (TRUNKLINE_TLS_CERT)")
    group.add_argument("--tls-key", metavar="FILE", help="its key (TRUNKLINE_TLS_KEY)")


def configuration(options: argparse.Namespace) -> ConnectionConfig:
    keys = ("connect", "token_file", "timeout", "tls_ca", "tls_cert", "tls_key", "config")
    return load({key: getattr(options, key, None) for key in keys}, home=Path.home())


@asynccontextmanager
async def connected(config: ConnectionConfig) -> AsyncIterator[Cluster]:
    """A user waits at a terminal, so a connection that cannot succeed fails at once."""
    timeout = config.timeout_s
    connect_timeout = min(CONNECT_TIMEOUT_S, timeout or CONNECT_TIMEOUT_S)
    options = ClientOptions(timeout=timeout, connect_timeout=connect_timeout, token=config.token, name="cli")
    cluster = Cluster(config.connect, options, tls=config.tls())
    await cluster.open(patient=False)
    try:
        yield cluster
    except BaseException:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await cluster.close()
        raise
    await cluster.close()


def cluster_command(
    work: Callable[[argparse.Namespace, Cluster], Awaitable[int | None]],
) -> Callable[[argparse.Namespace], int]:
    """Run ``work`` with a connection; ``None`` means exit code 0."""

    async def run(options: argparse.Namespace) -> int:
        async with connected(configuration(options)) as cluster:
            try:
                return await work(options, cluster) or 0
            except NoSuchLog as error:
                name = str(getattr(options, "log", "") or getattr(options, "name", ""))
                error.args = (f"{error}{await _similar_log(name, cluster)}",)
                raise

    return lambda options: run_loop(run(options))


async def _similar_log(name: str, cluster: Cluster) -> str:
    """A hint with the most similar name of a log, if there is one."""
    with contextlib.suppress(TrunklineError, TimeoutError):
        async with asyncio.timeout(SUGGEST_S):
            return did_you_mean(name, await cluster.logs())
    return ""


def run_loop(work: Coroutine[Any, Any, T]) -> T:
    """Ctrl-C cancels the work, so that it can report its progress; a second one ends it at once."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(work)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # not on every platform
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside, Ctrl-C raises at once, even in a write that blocks on a full pipe."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def position(text: str) -> int:
    """A GLSN on the command line."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a position, a whole number above 0, got {text!r}")
    return int(text)


def count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}")
    return int(text)


def port(text: str) -> int:
    if not text.isdecimal() or int(text) > PORT_MAX:
        raise argparse.ArgumentTypeError(f"expected a port, 0 to {PORT_MAX}, got {text!r}")
    return int(text)


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text!r}")
    return int(text)
