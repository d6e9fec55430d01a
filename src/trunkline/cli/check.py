"""``trunkline check``: its options, and the check that they select."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trunkline.check.campaign import SchedulePlan, SearchBounds
from trunkline.check.catalogue import Catalogue, UnknownName, shipped
from trunkline.check.random_search import HEAL_STEPS_MAX, STEPS_MAX
from trunkline.check.runner import cores
from trunkline.cli import WrongInput, check_many, check_one, check_recorded
from trunkline.cli.check_output import Output
from trunkline.cli.paths import local_path

STATES_LIMIT = 300_000
DEFAULT_SCHEDULES = 1_500
EXAMPLES = """\
examples:
  trunkline check                                    every scenario, bounded; minutes
  trunkline check takeover --exhaustive              all interleavings within the scenario's bounds
  trunkline check takeover --schedules 100000 --strategy pct
  trunkline check takeover --seed 2483               replays one schedule exactly
  trunkline check takeover --actions f.actions       replays an action file
  trunkline check --mutants                          finds every mutant: the code with one known bug
  trunkline check --rules                            lists the mutants that break each rule
  trunkline check --recording ./recordings           judges what running processes recorded, with the same monitors
  trunkline check --history ./histories              judges the answers that clients received
"""


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "check",
        help="explore the protocol under faults and judge it",
        description="Explore scenarios of the protocol code under faults and judge every state with monitors.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="which scenarios (default: all)")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--exhaustive", action="store_true", help="all interleavings within the scenario's bounds")
    mode.add_argument("--schedules", type=_positive, metavar="N", help="N random schedules")
    mode.add_argument("--seed", type=_natural, metavar="N", help="replay the schedule of one seed")
    mode.add_argument("--actions", type=Path, metavar="FILE", help="replay an action file")
    mode.add_argument(
        "--mutants", nargs="*", metavar="NAME", help="search for mutants (default: all): each must be found"
    )
    mode.add_argument("--recording", type=Path, metavar="PATH", help="judge a recording: a directory or one file")
    mode.add_argument("--history", type=Path, metavar="DIR", help="judge the histories that clients wrote")
    mode.add_argument("--list", action="store_true", help="list scenarios and mutants")
    mode.add_argument(
        "--rules", action="store_true", help="list the rules of the roles, and the mutants that break each"
    )
    parser.add_argument("--trace", dest="recording", type=Path, help=argparse.SUPPRESS)  # former name of --recording
    parser.add_argument("--strategy", choices=("random", "pct", "swarm"), help="for random schedules (default: swarm)")
    parser.add_argument("--first-seed", type=_natural, metavar="N", help="seed of the first schedule (default: 0)")
    parser.add_argument("--max-states", type=_positive, metavar="N", help="stop exhaustive search after N states")
    parser.add_argument("--max-depth", type=_positive, metavar="N", help="at most N steps in a run")
    parser.add_argument(
        "--states-limit",
        type=_positive,
        default=STATES_LIMIT,
        metavar="N",
        help=f"states per scenario of the default run (default: {STATES_LIMIT:,})",
    )
    parser.add_argument(
        "--jobs", type=_positive, default=cores(), metavar="N", help="worker processes (default: cores)"
    )
    parser.add_argument("--out", type=local_path, metavar="DIR", help="write violations there (default: ./check-out)")
    parser.add_argument("--coverage", action="store_true", help="list the pairs of role state and event that occurred")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace, catalogue: Callable[[], Catalogue]) -> int:
    _reject_combinations(options)
    known = catalogue()
    output = Output(
        as_json=options.json, directory=options.out, coverage=options.coverage, max_steps=options.max_depth or STEPS_MAX
    )
    try:
        return _dispatch(options, known, output, with_rules=catalogue is shipped)
    except UnknownName as error:
        raise WrongInput(str(error)) from None


def _dispatch(options: argparse.Namespace, known: Catalogue, output: Output, *, with_rules: bool) -> int:
    names: list[str] = options.scenarios
    for name in names:
        known.scenario(name)
    bounds = SearchBounds(options.max_states, options.max_depth, options.max_depth or STEPS_MAX, HEAL_STEPS_MAX)
    if options.list:
        return check_one.list_all(known, output)
    if options.rules:
        return check_one.list_rules(output)
    if options.recording is not None:
        return check_recorded.check_recording(options.recording, output)
    if options.history is not None:
        return check_recorded.check_history(options.history, output)
    if options.actions is not None:
        return check_one.replay_actions(known, names[0] if names else None, options.actions, output)
    if options.seed is not None:
        return check_one.replay_seed(known, names[0], options.seed, options.strategy or "swarm", bounds, output)
    if options.mutants is not None:
        return check_many.mutants(known, options.mutants, names, bounds, options.jobs, output, with_rules=with_rules)
    chosen = names or list(known.scenarios)
    if options.exhaustive:
        return check_many.exhaustive(known, chosen, bounds, options.jobs, output)
    if options.schedules is not None:
        plan = SchedulePlan(options.strategy or "swarm", options.first_seed or 0, options.schedules)
        return check_many.schedules(known, chosen, plan, bounds, options.jobs, output)
    bounds = SearchBounds(
        options.max_states or options.states_limit, bounds.max_depth, bounds.max_steps, bounds.heal_steps
    )
    return check_many.by_default(known, chosen, DEFAULT_SCHEDULES, bounds, options.jobs, output)


def _reject_combinations(options: argparse.Namespace) -> None:
    """Reject combinations that argparse does not."""
    if options.seed is not None and len(options.scenarios) != 1:
        raise WrongInput("--seed needs exactly one scenario")
    if options.actions is not None and len(options.scenarios) > 1:
        raise WrongInput("--actions needs at most one scenario")
    if options.recording is not None and options.scenarios:
        raise WrongInput("--recording takes no scenario")
    if options.history is not None and options.scenarios:
        raise WrongInput("--history takes no scenario")
    if options.strategy is not None and options.schedules is None and options.seed is None:
        raise WrongInput("--strategy goes with --schedules or --seed")
    if options.first_seed is not None and options.schedules is None:
        raise WrongInput("--first-seed goes with --schedules")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text!r}")
    return int(text)


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}")
    return int(text)
