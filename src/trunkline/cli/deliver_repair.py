"""``trunkline deliver repair``: compares destinations with the source, and rewrites the keys that differ."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import to_builtins
from msgspec.structs import replace

from trunkline.cli.deliver_check import (
    DIFFERS,
    UNVERIFIED,
    at_once,
    chosen_destinations,
    difference_text,
    spark_context,
)
from trunkline.cli.deliver_pipeline import store_of_a_pipeline_that_ran
from trunkline.cli.tables import Bar, plural, print_json, table
from trunkline.delivery.config import Pipeline, load_pipeline
from trunkline.delivery.config.tree import SeedMode
from trunkline.delivery.control.contract import DestinationRecord
from trunkline.delivery.deliverer.assembly import pipeline_source, task_pipeline
from trunkline.delivery.job.work import TaskPipeline
from trunkline.delivery.verification.repair import RepairVerdict, repair_all, too_many, unrepaired
from trunkline.delivery.verification.seizure import Seizure, seized
from trunkline.delivery.verification.verify import VerifyVerdict, verify_all

if TYPE_CHECKING:
    from pyspark import SparkContext

WORDS: Final = {
    "equal": "equal",
    "kept": "as promised",
    "repaired": "repaired",
    "differs": "DIFFERENT",
    "unverified": "not verified",
}


def repair(options: argparse.Namespace) -> int:
    pipeline = load_pipeline(options.config)
    chosen = chosen_destinations(options, pipeline)
    names = list(dict.fromkeys(each.name for each in chosen))
    tasks = task_pipeline(pipeline, pipeline_source(pipeline), chosen)
    seeds: dict[str, SeedMode] = {each.name: each.seed for each in chosen}
    with spark_context(pipeline) as context:
        found: dict[str, RepairVerdict] = {}
        with Bar("verify", len(names)) as bar:
            for verdict in verify_all(tasks, names, seeds, at_once=at_once(names), context=context):
                found[verdict.destination] = _looked_at(verdict, dry_run=options.dry_run, force=options.force)
                bar.update(len(found))
        wanted = [name for name, each in found.items() if each.outcome == "differs" and not each.note]
        if wanted and not options.dry_run:
            found |= _repaired(options, pipeline, tasks, wanted, seeds, context)
    results = [found[name] for name in names]
    if options.json:
        print_json({"pipeline": pipeline.name, "dry_run": options.dry_run, "destinations": to_builtins(results)})
    else:
        print(repair_text(results))
    outcomes = {each.outcome for each in results}
    return DIFFERS if "differs" in outcomes else UNVERIFIED if "unverified" in outcomes else 0


def _looked_at(verdict: VerifyVerdict, *, dry_run: bool, force: bool) -> RepairVerdict:
    """Before any ownership; a destination that differs and has no note is to be repaired."""
    if verdict.outcome != "differs":
        return unrepaired(verdict)
    if not verdict.differences:
        return unrepaired(verdict, "only `trunkline deliver reseed` helps")
    advice = "" if force else too_many(verdict)
    keys = verdict.missing + verdict.extra + verdict.different
    if dry_run:
        advice = advice or f"{plural(keys, 'key')} would be rewritten"
    return unrepaired(replace(verdict, note=""), advice)


def _repaired(
    options: argparse.Namespace,
    pipeline: Pipeline,
    tasks: TaskPipeline,
    names: Sequence[str],
    seeds: Mapping[str, SeedMode],
    context: SparkContext | None,
) -> dict[str, RepairVerdict]:
    """They are compared again, now that no deliverer moves them."""
    found: dict[str, RepairVerdict] = {}
    with store_of_a_pipeline_that_ran(pipeline, options.config) as store:
        records = {record.name: record for record in store.destinations(pipeline.name)}
        found |= {name: _refused(name, why) for name in names if (why := _hindrance(records.get(name)))}
        rest = [name for name in names if name not in found]
        if not rest:
            return found
        with seized(store, pipeline, rest) as seizure, Bar("repair", len(rest)) as bar:

            def run(tokens: Mapping[str, int]) -> None:
                for verdict in repair_all(
                    tasks, tokens, seeds, insists=options.force, at_once=at_once(rest), context=context
                ):
                    found[verdict.destination] = verdict
                    bar.update(len(found))

            run(seizure.tokens)
            if higher := _outbid(seizure, found):
                run(higher)
        found |= {name: _refused(name, "it is retired") for name in rest if name not in found}
    return found


def _outbid(seizure: Seizure, found: Mapping[str, RepairVerdict]) -> dict[str, int]:
    seen = {name: each.fenced_by for name, each in found.items() if each.fenced_by}
    return seizure.outbid(seen) if seen else {}


def _hindrance(record: DestinationRecord | None) -> str:
    if record is None or not record.configured:
        return "no deliverer has it in its configuration yet; run the pipeline"
    if record.reseed:
        return "it is to be seeded again already"
    return ""


def _refused(name: str, why: str) -> RepairVerdict:
    return RepairVerdict(name, "differs", note=why)


# ---------------------------------------------------------------------------------------------------------------- text


def repair_text(results: Sequence[RepairVerdict]) -> str:
    rows = [[each.destination, each.position, each.rows, _result(each)] for each in results]
    parts = [table(["destination", "position", "rows", "result"], rows)]
    for each in results:
        if each.differences:
            lines = [f"{each.destination}:", *(f"  {difference_text(one)}" for one in each.differences)]
            hidden = each.missing + each.extra + each.different - len(each.differences)
            parts.append("\n".join([*lines, *([f"  and {hidden:,} more"] if hidden > 0 else [])]))
    counts = {word: sum(each.outcome == outcome for each in results) for outcome, word in WORDS.items()}
    listed = ", ".join(f"{count:,} {word}" for word, count in counts.items() if count)
    return "\n\n".join([*parts, f"{plural(len(results), 'destination')}: {listed}"])


def _result(each: RepairVerdict) -> str:
    counts = {"missing": each.missing, "extra": each.extra, "different": each.different}
    keys = ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)
    note = f": {each.note}" if each.note else ""
    match each.outcome:
        case "repaired":
            return f"repaired: {keys}{f'; {each.note}' if each.note else ''}"
        case "differs":
            return f"DIFFERS: {'; '.join(part for part in (keys, each.note) if part)}"
    return f"{WORDS[each.outcome]}{note}"
