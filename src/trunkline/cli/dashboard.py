"""``trunkline dashboard``: a web page that shows a cluster and its pipelines."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trunkline.cli import WrongInput
from trunkline.cli.connection import cluster_options, configuration, run_loop
from trunkline.cli.extras import changes_text
from trunkline.cli.serve import add_allow_host_option, add_parent_option, end_with
from trunkline.cli.tables import print_json
from trunkline.dashboard.server import Dashboard, DashboardConfig
from trunkline.net.addresses import parse_address
from trunkline.net.http_names import is_loopback
from trunkline.runtime.server_process import Lifetime

LISTEN = "127.0.0.1:7480"
CHECK_OUT = Path("check-out")
EXAMPLES = """\
examples:
  trunkline dashboard                                            the cluster at 127.0.0.1:7400
  trunkline dashboard --deliver sqlite:control.db                with the pipelines of this control store
  trunkline dashboard --listen 127.0.0.1:0 --connect HOST:PORT   on any free port
"""


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "dashboard",
        help="serve a web page that shows a cluster, its logs and its pipelines",
        parents=[cluster_options()],
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--listen", default=LISTEN, metavar="ADDR", help=f"address of the page (default: {LISTEN})")
    parser.add_argument(
        "--deliver",
        nargs="+",
        action="extend",
        default=[],
        metavar="CONTROL_STORE",
        help="control stores of pipelines: sqlite:PATH, postgres:DSN (libpq finds the password, such as in PGPASSFILE)",
    )
    parser.add_argument(
        "--check-out",
        type=Path,
        metavar="DIR",
        help=f"counterexamples of `trunkline check` (default: ./{CHECK_OUT}, if it exists)",
    )
    add_allow_host_option(parser, "another host name of the page, such as that of a reverse proxy")
    parser.add_argument(
        "--open",
        action="store_true",
        help="no login: the page is open to all who can reach it, even if the cluster has a token",
    )
    parser.add_argument("--read-only", action="store_true", help="the page cannot pause or resume destinations")
    add_parent_option(parser)
    parser.set_defaults(run=_dashboard)


def _dashboard(options: argparse.Namespace) -> int:
    end_with(options.parent)
    if options.check_out is not None and not options.check_out.is_dir():
        raise WrongInput(f"there is no directory {options.check_out}; create it, or omit --check-out")
    config = DashboardConfig(
        connection=configuration(options),
        listen=options.listen,
        stores=tuple(options.deliver),
        check_out=options.check_out or CHECK_OUT,
        allow_hosts=tuple(options.allow_host),
        read_only=options.read_only,
        open=options.open,
        changes_text=changes_text,
    )
    with_login = bool(config.connection.token) and not config.open
    if not is_loopback(parse_address(config.listen)[0]) and not with_login:
        print(
            "trunkline: this address is open to other machines, without a login: they can read the logs"
            + ("" if config.read_only else " and pause destinations (--read-only prevents that)"),
            file=sys.stderr,
        )

    def listening(url: str) -> None:
        if options.json:
            print_json({"url": url})
        else:
            print(f"dashboard: {url}")
            if with_login:
                print("log in with the cluster's token (--open disables the login)")
        sys.stdout.flush()

    return run_loop(_serve(config, listening))


async def _serve(config: DashboardConfig, listening: Callable[[str], None]) -> int:
    """Serve until SIGTERM or SIGINT. ``listening`` receives the address of the page."""
    lifetime = Lifetime()
    dashboard = Dashboard(config, lifetime.end)

    async def start() -> None:
        listening(await dashboard.start())

    try:
        return await lifetime.run(start())
    finally:
        await dashboard.close()
        lifetime.close()
