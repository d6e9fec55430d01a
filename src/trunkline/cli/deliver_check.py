"""``trunkline deliver validate`` and ``verify``: checks of a pipeline before and after it ran."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from msgspec import to_builtins

from trunkline.cli.deliver_pipeline import known_destinations
from trunkline.cli.tables import Bar, plural, print_json, table
from trunkline.delivery.config import DestinationConfig, Pipeline, load_pipeline
from trunkline.delivery.deliverer.assembly import pipeline_source, task_pipeline
from trunkline.delivery.verification.comparison import RowDifference
from trunkline.delivery.verification.preflight import preflight
from trunkline.delivery.verification.verify import VerifyVerdict, verify_all
from trunkline.errors import ConfigError

if TYPE_CHECKING:
    from pyspark import SparkContext

AT_ONCE_MAX: Final = 8  # destinations compared concurrently, on this machine
NAMES_SHOWN_MAX: Final = 10  # tables in a line
DIFFERS = 1
UNVERIFIED = 3


def validate(options: argparse.Namespace) -> int:
    pipeline, problems, source, notes = preflight(options.config)
    tables = [each.name for each in source.tables] if source is not None and pipeline and pipeline.tables else []
    if options.json:
        found = {"valid": not problems, "problems": to_builtins(problems), "tables": tables, "notes": list(notes)}
        print_json(found)
        return 1 if problems else 0
    if tables:
        print(f"{plural(len(tables), 'table')}: {_shortened(tables)}")
    if source is not None and source.left_out:
        print(f"left out, without their routing column: {_shortened(source.left_out)}")
    if problems:
        print("\n".join(str(problem) for problem in problems))
        print(f"{plural(len(problems), 'problem')} in {options.config}")
    elif pipeline is not None:
        print(f"{options.config}: pipeline {pipeline.name}, {_targets(pipeline)}: valid")
    for note in notes:
        print(note)
    return 1 if problems else 0


def _shortened(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN_MAX:,} more" if len(names) > NAMES_SHOWN_MAX else ""
    return ", ".join(names[:NAMES_SHOWN_MAX]) + more


def _targets(pipeline: Pipeline) -> str:
    found = plural(len(pipeline.destinations), "destination")
    return f"{found} and discovered ones" if pipeline.discover is not None else found


# -------------------------------------------------------------------------------------------------------------- verify


def verify(options: argparse.Namespace) -> int:
    pipeline = load_pipeline(options.config)
    chosen = chosen_destinations(options, pipeline)
    names = [each.name for each in chosen]
    tasks = task_pipeline(pipeline, pipeline_source(pipeline), chosen)
    seeds = {each.name: each.seed for each in chosen}
    verdicts = []
    with spark_context(pipeline) as context, Bar("verify", len(names)) as bar:
        for verdict in verify_all(tasks, names, seeds, at_once=at_once(names), context=context):
            verdicts.append(verdict)
            bar.update(len(verdicts))
    if options.json:
        print_json({"pipeline": pipeline.name, "destinations": to_builtins(verdicts)})
    else:
        print(verdict_text(verdicts))
    outcomes = {each.outcome for each in verdicts}
    return DIFFERS if "differs" in outcomes else UNVERIFIED if "unverified" in outcomes else 0


def chosen_destinations(options: argparse.Namespace, pipeline: Pipeline) -> list[DestinationConfig]:
    known = known_destinations(pipeline, options.config)
    for name in options.destinations:
        if name not in known:
            raise ConfigError(f"pipeline {pipeline.name} has no destination {name}; see `trunkline deliver status`")
    return [known[name] for name in options.destinations] or list(known.values())


def at_once(names: Sequence[str]) -> int:
    return max(1, min(len(names), os.cpu_count() or 1, AT_ONCE_MAX))


@contextmanager
def spark_context(pipeline: Pipeline) -> Iterator[SparkContext | None]:
    """Spark's on a cluster, as tables may be unreachable from here; on one machine threads are enough."""
    if pipeline.spark.master.startswith("local"):
        yield None
        return
    from trunkline.cli.deliver_run import spark_of
    from trunkline.delivery.engine.session import stop_session

    session = spark_of(pipeline)
    try:
        yield session.sparkContext
    finally:
        stop_session(session)


def verdict_text(verdicts: Sequence[VerifyVerdict]) -> str:
    rows = [[each.destination, each.position, each.rows, _verdict(each)] for each in verdicts]
    parts = [table(["destination", "position", "rows", "verdict"], rows)]
    for each in verdicts:
        if each.differences:
            parts.append(
                "\n".join([f"{each.destination}:", *(f"  {difference_text(one)}" for one in each.differences)])
            )
            if (hidden := each.missing + each.extra + each.different - len(each.differences)) > 0:
                parts[-1] += f"\n  and {hidden:,} more"
    return "\n\n".join([*parts, _sum(verdicts)])


def _verdict(verdict: VerifyVerdict) -> str:
    note = f": {verdict.note}" if verdict.note else ""
    match verdict.outcome:
        case "equal":
            return f"equal{note}"
        case "kept":
            return f"as promised{note}"
        case "unverified":
            return f"not verified{note}"
    counts = {"missing": verdict.missing, "extra": verdict.extra, "different": verdict.different}
    found = ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)
    return f"DIFFERS: {'; '.join(part for part in (found, verdict.note) if part)}"


def difference_text(difference: RowDifference) -> str:
    key = ", ".join(f"{name}={'NULL' if value is None else value}" for name, value in difference.key.items())
    key = f"{difference.table} {key}" if difference.table else key
    match difference.kind:
        case "missing":
            return f"missing    {key}"
        case "extra":
            return f"extra      {key}"
    what = (
        ", ".join(difference.columns) or f"{plural(difference.wanted, 'row')} in the source, {difference.held:,} here"
    )
    return f"different  {key}: {what}"


def _sum(verdicts: Sequence[VerifyVerdict]) -> str:
    words = {"equal": "equal", "kept": "as promised", "differs": "DIFFERENT", "unverified": "not verified"}
    counts = {word: sum(each.outcome == outcome for each in verdicts) for outcome, word in words.items()}
    total = plural(len(verdicts), "destination")
    if counts["equal"] == len(verdicts):
        return f"{total}: all equal to the source"
    return f"{total}: " + ", ".join(f"{count:,} {word}" for word, count in counts.items() if count)
