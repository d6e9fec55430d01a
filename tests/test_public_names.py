"""What applications rely on: the public names, and the names of their parameters. A change here is a release note."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest

import trunkline
from trunkline import sync

NAMES = """
    Batch BatchOptions ClientOptions Cluster ConditionFailed ConfigError CorruptEntry DestinationHalted
    DuplicateKey EntriesLost Entry Fenced Hole Log LogSealed NoSuchLog NotWritten OutcomeUnknown
    OwnedByAnother PositionMoved ProtocolError Refused SchemaMismatch SourceExpired StorageError Trimmed
    TrunklineError Unreachable __version__ connect errors sync
"""

DESTINATIONS = """
    Address Applied BATCH_ROWS Batches Column ColumnSteps Columns DestinationAddress DuplicatePolicy GroupCommit
    GroupStage LeavingTable MEMBERS MemberRecord MemberResult MemberStep MemberTables MemberWrite Merged Mode OP_COLUMN
    Op Place RESERVED_PREFIX Standing Store StorePlace StoreTransaction TableStep about arrow_schema arrow_type
    check_columns checked_steps completed evolution from_plain may_retire plain_type record_names result_of stepped_rows
    stored to_plain
"""
STORE = {"close": "", "name": "address", "transaction": "writes"}
STORE_TRANSACTION = {
    "columns": "table remembered",
    "commit": "",
    "create": "table columns key",
    "drop": "table",
    "insert": "table columns rows",
    "lookup": "table keys key also",
    "merge": "table columns key rows",
    "put_record": "member record",
    "read": "table columns",
    "records": "members",
    "rename": "table to",
    "savepoint": "",
    "shared_key": "table key",
    "undo": "",
}
PLACE = {
    "apply": "writes",
    "close": "",
    "columns": "address",
    "retire": "member",
    "rows": "member",
    "standings": "members",
}
ADDRESS = "column_steps faults history home one_writer open_place paths place repairs"

CLUSTER = {
    "close": "",
    "create_log": "name settings",
    "describe": "name",
    "log": "name create policy replicas min_replicas groups stripe_unit",
    "logs": "",
    "events": "book after timeout",
    "forget_node": "node",
    "node_status": "node timeout",
    "nodes": "",
    "open": "patient",
    "set_node_state": "node state",
    "status": "logs timeout",
}
LOG = {
    "append": "payload headers expect takeover timeout",
    "batches": "start until to_tail fill_after_ms replica",
    "close": "",
    "declare_lost": "end timeout",
    "delete": "timeout",
    "fill": "glsn timeout",
    "peek": "timeout",
    "read": "glsn fill_after_ms timeout",
    "reopen": "timeout",
    "seal": "timeout",
    "subscribe": "start until to_tail fill_after_ms dedupe",
    "tail": "timeout",
    "trim": "glsn timeout",
}


def parameters(function: object) -> str:
    assert callable(function)
    return " ".join(name for name in inspect.signature(function).parameters if name != "self")


def calls(kind: type) -> dict[str, str]:
    """The public methods with their parameters."""
    found = {name: value for name, value in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}
    return {name: parameters(value) for name, value in found.items()}


def test_the_public_names_are_these_and_all_are_there() -> None:
    assert sorted(trunkline.__all__) == sorted(NAMES.split())
    for name in NAMES.split():
        assert getattr(trunkline, name) is not None
        assert name in dir(trunkline)
    with pytest.raises(AttributeError, match="no attribute 'fly'"):
        assert importlib.import_module("trunkline").fly


def test_every_error_is_public() -> None:
    kinds = {name for name, value in vars(trunkline.errors).items() if inspect.isclass(value)}
    assert kinds <= set(trunkline.__all__)


@pytest.mark.parametrize("connect", [trunkline.connect, sync.connect], ids=["async", "sync"])
def test_connect_takes_these(connect: object) -> None:
    assert parameters(connect) == "addresses options tls"


@pytest.mark.parametrize("kind", [trunkline.Cluster, sync.Cluster], ids=["async", "sync"])
def test_a_cluster_offers_these_calls(kind: type) -> None:
    assert calls(kind) == CLUSTER


@pytest.mark.parametrize("kind", [trunkline.Log, sync.Log], ids=["async", "sync"])
def test_a_log_offers_these_calls(kind: type) -> None:
    assert calls(kind) == LOG


def test_an_entry_and_the_options_have_these_fields() -> None:
    assert trunkline.Entry.__struct_fields__ == ("glsn", "payload", "writer", "seq", "time_ms", "encoded_headers")
    options = "timeout connect_timeout token suspect_after_ms fill_after_ms lease_ms batch record name"
    assert " ".join(trunkline.ClientOptions.__struct_fields__) == options
    batches = "batch_bytes batch_entries in_flight linger_ms waiting_bytes"
    assert " ".join(trunkline.BatchOptions.__struct_fields__) == batches


def test_packages_that_add_a_kind_of_destination_rely_on_these() -> None:
    from trunkline import destinations

    assert sorted(destinations.__all__) == sorted(DESTINATIONS.split())
    assert (calls(destinations.Store), calls(destinations.StoreTransaction)) == (STORE, STORE_TRANSACTION)
    assert calls(destinations.Place) == calls(destinations.StorePlace) == PLACE
    assert sorted(name for name in vars(destinations.DestinationAddress) if not name.startswith("_")) == ADDRESS.split()
    assert destinations.Merged._fields == ("removed", "written", "duplicates", "missing", "duplicate")
    steps = "table address columns key mode duplicates replaces steps counts_missing discards"
    assert " ".join(destinations.TableStep.__struct_fields__) == steps


def test_the_protocol_alone_does_not_load_the_network() -> None:
    program = "import sys, trunkline.core.storage; sys.exit('asyncio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
