"""``trunkline proxy``: the log over HTTP, in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import sys
from typing import Any

from trunkline.cli.connection import CONNECT_TIMEOUT_S, cluster_options, configuration, positive, run_loop
from trunkline.cli.serve import add_allow_host_option, add_parent_option, end_with
from trunkline.cli.tables import print_json
from trunkline.client.cluster import ClientOptions, Cluster
from trunkline.config import TOKEN_BYTES_MAX, ConnectionConfig, secret
from trunkline.errors import ConfigError
from trunkline.proxy.limits import KEY_WINDOW, STOP_S_MAX
from trunkline.proxy.server import ProxyServer
from trunkline.proxy.service import DEFAULT_LISTEN, ProxyConfig
from trunkline.runtime.server_process import Lifetime

EPILOG = """\
trunkline proxy &
curl -H 'Content-Type: application/json' -d '{"text": "hello"}' http://127.0.0.1:8480/v1/logs/orders/entries"""


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "proxy",
        help="serve the log over HTTP, for applications without the library",
        description="Serve the logs of a cluster over HTTP, until SIGTERM or Ctrl-C.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[cluster_options()],
    )
    _add_options(parser)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--listen", default=DEFAULT_LISTEN, metavar="ADDR", help=f"default: {DEFAULT_LISTEN}")
    parser.add_argument(
        "--token-env",
        metavar="NAME",
        help="require the token in this environment variable: `Authorization: Bearer ...`",
    )
    add_allow_host_option(parser, "another host name of the proxy; with a token every name is accepted")
    parser.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="accept requests from web pages of this origin, such as https://shop.example; may be repeated",
    )
    parser.add_argument(
        "--key-window",
        type=positive,
        default=KEY_WINDOW,
        metavar="N",
        help=f"positions back to which idempotency keys count; the same for all proxies (default: {KEY_WINDOW})",
    )
    add_parent_option(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    end_with(options.parent)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    config = ProxyConfig(
        options.listen,
        _token(options.token_env),
        allow_hosts=tuple(options.allow_host),
        allow_origins=tuple(options.allow_origin),
        key_window=options.key_window,
    )
    return run_loop(_serve(config, configuration(options), as_json=options.json))


def _token(variable: str | None) -> str:
    if variable is None:
        return ""
    token = secret(variable, "the token of the proxy").strip()
    if not token or len(token.encode()) > TOKEN_BYTES_MAX:
        raise ConfigError(f"--token-env: {variable} must contain a token of 1 to {TOKEN_BYTES_MAX} bytes")
    return token


async def _serve(config: ProxyConfig, connection: ConnectionConfig, *, as_json: bool) -> int:
    timeout = connection.timeout_s
    connect_timeout = min(CONNECT_TIMEOUT_S, timeout or CONNECT_TIMEOUT_S)
    options = ClientOptions(timeout=timeout, connect_timeout=connect_timeout, token=connection.token, name="proxy")
    cluster = Cluster(connection.connect, options, tls=connection.tls())
    await cluster.open()
    server = ProxyServer(config, cluster)
    lifetime = Lifetime()

    async def start() -> None:
        await server.start()
        _announce(server.address, as_json=as_json)

    try:
        return await lifetime.run(start())
    finally:
        await server.stop()
        with contextlib.suppress(TimeoutError):  # the outcome of other appends stays unknown
            async with asyncio.timeout(STOP_S_MAX):
                await cluster.close()
        lifetime.close()


def _announce(address: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"listen": address})
    else:
        print(f"listening on http://{address}")
    sys.stdout.flush()
