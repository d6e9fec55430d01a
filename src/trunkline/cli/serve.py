"""``trunkline serve node`` and ``trunkline serve coordinator``: one server process, in the foreground.

``python -m trunkline.cli.serve`` is the same, but does not load the other commands.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import signal
import ssl
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec

from trunkline.cli import WrongInput
from trunkline.cli.connection import add_security_options, configuration, positive, run_loop
from trunkline.cli.paths import local_path
from trunkline.errors import ConfigError, TrunklineError
from trunkline.net.http_names import OwnNames
from trunkline.net.tls import client_tls, server_tls
from trunkline.observing.log_lines import LOG_FORMATS, begin_logging
from trunkline.observing.targets import observe_address
from trunkline.runtime.coordinator import CoordinatorServerConfig, run_coordinator
from trunkline.runtime.node import NodeConfig, run_node
from trunkline.storage.options import REMOVED, StorageOptions

log = logging.getLogger("trunkline")

PR_SET_PDEATHSIG = 1
SYNC_POLICIES = ("always", "interval", "never")
POLICIES = ("chain", "broadcast")


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    serve = commands.add_parser("serve", help="run one server process: a node or a coordinator")
    add_servers(serve.add_subparsers(required=True, metavar="SERVER"))


def add_servers(servers: argparse._SubParsersAction[Any]) -> None:
    node = servers.add_parser("node", help="run a storage node")
    node.add_argument("--dir", type=local_path, required=True, help="data directory; formatted if it is empty")
    node.add_argument("--name", required=True, help="unique in the cluster")
    node.add_argument("--listen", default="127.0.0.1:7401", metavar="ADDR", help="default: 127.0.0.1:7401")
    node.add_argument(
        "--advertise", default="", metavar="ADDR", help="the address for clients and other servers (default: --listen)"
    )
    node.add_argument("--coordinators", default="127.0.0.1:7400", metavar="ADDR[,ADDR]", help="default: 127.0.0.1:7400")
    node.add_argument("--zone", default="", help="failure domain; replicas are placed in different zones")
    add_storage_options(node)
    _add_common(node)
    node.set_defaults(run=_node)
    coordinator = servers.add_parser("coordinator", help="run a coordinator")
    coordinator.add_argument(
        "--dir", type=local_path, help="directory of the embedded metadata store and of recent events"
    )
    coordinator.add_argument("--etcd", default="", metavar="URL[,URL]", help="store the metadata in etcd instead")
    coordinator.add_argument("--name", default="coordinator", help="unique among the coordinators")
    coordinator.add_argument("--listen", default="127.0.0.1:7400", metavar="ADDR", help="default: 127.0.0.1:7400")
    coordinator.add_argument(
        "--default-policy", choices=POLICIES, default="chain", help="the policy of logs that are created without one"
    )
    coordinator.add_argument(
        "--tick-ms", type=positive, default=500, metavar="N", help="interval of the background duties"
    )
    _add_common(coordinator)
    coordinator.set_defaults(run=_coordinator)


def add_storage_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sync", choices=SYNC_POLICIES, default="always", help="when appends are synced to disk")
    parser.add_argument(
        "--storage",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of the storage engine: " + ", ".join(_storage_keys()),
    )


def _storage_keys() -> list[str]:
    return [name for name in StorageOptions.__struct_fields__ if name != "sync"]


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lease-ms", type=positive, default=3000, metavar="N", help="a node that is silent for longer counts as failed"
    )
    parser.add_argument("--record", type=local_path, metavar="DIR", help="record for `trunkline check --recording DIR`")
    add_observe_option(parser)
    add_log_format_option(parser)
    add_parent_option(parser)
    add_security_options(parser.add_argument_group("security"))


def add_observe_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--observe",
        default="",
        metavar="[HOST:]PORT",
        help="serve /metrics, /healthz and /readyz there (host: 127.0.0.1; port 0: any free port; default: off)",
    )
    add_allow_host_option(parser, "another host name for --observe, such as that of a Prometheus target")


def add_allow_host_option(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME", help=f"{text}; may be repeated")


def add_log_format_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--log-format", choices=LOG_FORMATS, default="text", help="format of log lines (default: text)")


def add_parent_option(parser: argparse.ArgumentParser) -> None:
    """For supervisors and tests: end when the parent process ends."""
    parser.add_argument("--parent", type=positive, help=argparse.SUPPRESS)


def storage_options(sync: str, given: list[str]) -> StorageOptions:
    """Raises ``ConfigError`` with the name of the key."""
    values: dict[str, object] = {"sync": sync}
    for each in given:
        key, equals, value = each.partition("=")
        if key in REMOVED:
            log.warning("--storage %s has no effect any more; remove it", each)
            continue
        if not equals or key not in _storage_keys():
            raise ConfigError(f"--storage {each}: write KEY=VALUE; the keys are {', '.join(_storage_keys())}")
        values[key] = value
    try:
        return msgspec.convert(values, StorageOptions, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"--storage: {error}") from None


def _node(options: argparse.Namespace) -> int:
    _begin(options, "node")
    config = NodeConfig(
        directory=options.dir,
        name=options.name,
        listen=options.listen,
        advertise=options.advertise,
        coordinators=tuple(_listed(options.coordinators)),
        zone=options.zone,
        token=configuration(options).token,
        lease_ms=options.lease_ms,
        record=options.record,
        storage=storage_options(options.sync, options.storage),
        observe=options.observe,
        allow_hosts=tuple(options.allow_host),
    )
    serving, dialling = _tls(options)
    return _serve(options, run_node(config, server_tls=serving, client_tls=dialling))


def _coordinator(options: argparse.Namespace) -> int:
    _begin(options, "coordinator")
    config = CoordinatorServerConfig(
        listen=options.listen,
        directory=options.dir,
        etcd=tuple(_listed(options.etcd)),
        name=options.name,
        token=configuration(options).token,
        lease_ms=options.lease_ms,
        tick_ms=options.tick_ms,
        record=options.record,
        default_policy=options.default_policy,
        observe=options.observe,
        allow_hosts=tuple(options.allow_host),
    )
    serving, dialling = _tls(options)
    return _serve(options, run_coordinator(config, server_tls=serving, client_tls=dialling))


def _begin(options: argparse.Namespace, kind: str) -> None:
    if options.observe:
        OwnNames(observe_address(options.observe)[0], options.allow_host)  # report an error before anything starts
    end_with(options.parent)
    begin_logging(sys.stderr, options.log_format, {"process": kind, "name": options.name})


def _serve(options: argparse.Namespace, work: Coroutine[Any, Any, int]) -> int:
    """With JSON log lines, a fatal error is one, too."""
    try:
        return run_loop(work)
    except TrunklineError as error:
        if options.log_format != "json":
            raise
        log.error("%s", error)  # noqa: TRY400
        return 2 if isinstance(error, ConfigError) else 1


def end_with(parent: int | None) -> None:
    """Let the kernel kill this process when its parent dies."""
    if parent is None:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the call
        sys.exit(1)


def _tls(options: argparse.Namespace) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """For accepted and for outgoing connections. All three files are set, or none."""
    files = configuration(options)
    given = [files.tls_ca, files.tls_cert, files.tls_key]
    if not any(given):
        return None, None
    if not all(given):
        raise ConfigError("a server with TLS needs --tls-ca, --tls-cert and --tls-key")
    authority, certificate, key = (Path(each) for each in given)
    return server_tls(certificate, key, authority), client_tls(authority, certificate, key)


def _listed(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m trunkline.cli.serve")
    add_servers(parser.add_subparsers(required=True, metavar="SERVER"))
    options = parser.parse_args()
    try:
        return int(options.run(options))
    except (TrunklineError, WrongInput) as error:
        print(f"trunkline: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError | WrongInput) else 1


if __name__ == "__main__":
    sys.exit(main())
