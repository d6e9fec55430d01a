"""What an application does wrong is one line that names the argument and what to do: never an error from inside.

Each table is: what is done, and the text of the ``ConfigError``.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import pytest

import trunkline
from client.test_log import run
from system.processes import Processes
from trunkline import sync
from trunkline.client.arguments import DEFAULT
from trunkline.client.cluster import Cluster, log_settings
from trunkline.client.failures import append_failure
from trunkline.core.events import AppendRefused
from trunkline.core.messages import Reason
from trunkline.errors import ConditionFailed, ConfigError, LogSealed, NoSuchLog, OwnedByAnother, Refused, Unreachable

POSITION = "must be a position, an integer from 1 on, not"
SECONDS = "timeout must be a number of seconds, or None to wait forever, not"
NOT_BYTES = "append takes bytes or a list of bytes, not"
BOUNDS = "must be a position from 1 to 9223372036854775807, not"

OF_A_LOG: Final[list[tuple[str, Callable[[Any], object], str]]] = [
    ("read a str", lambda log: log.read("7"), f"glsn {POSITION} the str '7'"),
    ("read a float", lambda log: log.read(1.0), f"glsn {POSITION} 1.0"),
    ("read a bool", lambda log: log.read(True), f"glsn {POSITION} True"),
    ("read None", lambda log: log.read(None), f"glsn {POSITION} None"),
    ("read a list", lambda log: log.read([1]), f"glsn {POSITION} list"),
    ("read 0", lambda log: log.read(0), f"glsn {BOUNDS} 0"),
    ("read 2**63", lambda log: log.read(2**63), f"glsn {BOUNDS} 9223372036854775808"),
    (
        "read, fill_after_ms",
        lambda log: log.read(1, fill_after_ms=0.5),
        "fill_after_ms must be a whole number of milliseconds, or None, not 0.5",
    ),
    ("read, timeout", lambda log: log.read(1, timeout="1"), f"{SECONDS} the str '1'"),
    (
        "append a dict",
        lambda log: log.append({"a": 1}),
        f"{NOT_BYTES} dict: encode it first, as in json.dumps(value).encode()",
    ),
    ("append a str", lambda log: log.append("a"), f"{NOT_BYTES} str: encode it first, as in text.encode()"),
    ("append None", lambda log: log.append(None), f"{NOT_BYTES} NoneType: encode it first"),
    ("append an int", lambda log: log.append(5), f"{NOT_BYTES} int: encode it first"),
    ("append a set", lambda log: log.append({b"a"}), f"{NOT_BYTES} set: encode it first"),
    ("append a generator", lambda log: log.append(x for x in [b"a"]), f"{NOT_BYTES} generator: encode it first"),
    ("append nothing", lambda log: log.append([]), "an append needs at least one entry"),
    ("append dicts", lambda log: log.append([{"a": 1}]), "an entry must be bytes, not dict: encode it first"),
    ("append, expect", lambda log: log.append(b"a", expect="1"), f"expect {POSITION} the str '1'"),
    ("append, expect 0", lambda log: log.append(b"a", expect=0), f"expect {BOUNDS} 0"),
    ("append, timeout", lambda log: log.append(b"a", timeout=-1), f"{SECONDS} -1"),
    (
        "append, headers",
        lambda log: log.append(b"a", headers={"k": "v"}),
        "the value of header 'k' must be bytes, not str: encode it, as in value.encode()",
    ),
    ("batches, start", lambda log: next(log.batches("1")), f"start {POSITION} the str '1'"),
    ("batches, until", lambda log: next(log.batches(1, "2")), f"until {POSITION} the str '2'"),
    ("batches, some", lambda log: log.batches(1).some(timeout="x"), f"{SECONDS} the str 'x'"),
    (
        "batches, replica",
        lambda log: next(log.batches(replica=-1)),
        "replica must be an integer from 0 on, not -1",
    ),
    ("subscribe, start", lambda log: next(log.subscribe(0)), f"start {BOUNDS} 0"),
    ("subscribe, until", lambda log: next(log.subscribe(until=b"x")), f"until {POSITION} the bytes b'x'"),
    ("tail, timeout", lambda log: log.tail(timeout=float("nan")), f"{SECONDS} nan"),
    ("peek, timeout", lambda log: log.peek(timeout=[1]), f"{SECONDS} list"),
    ("fill", lambda log: log.fill("1"), f"glsn {POSITION} the str '1'"),
    ("trim", lambda log: log.trim("1"), f"glsn {POSITION} the str '1'"),
    ("trim, timeout", lambda log: log.trim(1, timeout="x"), f"{SECONDS} the str 'x'"),
    ("declare_lost", lambda log: log.declare_lost(None), f"end {POSITION} None"),
    ("seal", lambda log: log.seal(timeout=True), f"{SECONDS} True"),
    ("reopen", lambda log: log.reopen(timeout="x"), f"{SECONDS} the str 'x'"),
    ("delete", lambda log: log.delete(timeout="x"), f"{SECONDS} the str 'x'"),
]

OF_A_CLUSTER: Final[list[tuple[str, Callable[[Any], object], str]]] = [
    ("log, name", lambda c: c.log(5), "name must be a str, not 5"),
    ("log, name, create", lambda c: c.log(None, create=True), "name must be a str, not None"),
    (
        "log, policy",
        lambda c: c.log("x", create=True, policy="ring"),
        "'ring' is not a policy; choose chain or broadcast",
    ),
    (
        "log, replicas",
        lambda c: c.log("x", create=True, replicas="3"),
        "replicas must be an integer from 1 on, not the str '3'",
    ),
    (
        "log, min_replicas",
        lambda c: c.log("x", create=True, min_replicas=4),
        "min_replicas (4) must be between 1 and replicas (3)",
    ),
    ("log, groups", lambda c: c.log("x", create=True, groups=None), "groups must be an integer from 1 on, not None"),
    (
        "log, groups of broadcast",
        lambda c: c.log("x", create=True, policy="broadcast", groups=2),
        "groups must be 1 for a broadcast log; it is 2",
    ),
    (
        "log, stripe_unit",
        lambda c: c.log("x", create=True, stripe_unit=2.5),
        "stripe_unit must be an integer from 1 on, not 2.5",
    ),
    (
        "create_log",
        lambda c: c.create_log("x", "chain"),
        "settings must be a Settings, as trunkline.client.cluster.log_settings makes it, not the str 'chain'",
    ),
    ("describe", lambda c: c.describe(b"x"), "name must be a str, not the bytes b'x'"),
    ("set_node_state", lambda c: c.set_node_state(1, "rw"), "node must be a str, not 1"),
    (
        "set_node_state, state",
        lambda c: c.set_node_state("n", "away"),
        "'away' is not a node state; choose rw, draining or gone",
    ),
    ("forget_node", lambda c: c.forget_node(1), "node must be a str, not 1"),
    ("node_status", lambda c: c.node_status(1), "node must be a str, not 1"),
    ("status", lambda c: c.status(timeout="x"), f"{SECONDS} the str 'x'"),
    ("open again", lambda c: c.open(), "the cluster handle is already open"),
]

OF_CONNECT: Final[list[tuple[str, Callable[[], object], str]]] = [
    (
        "an int",
        lambda: trunkline.connect(5),  # type: ignore[arg-type]
        "addresses are a str such as '127.0.0.1:7400', or a list of them, not int",
    ),
    ("ints", lambda: trunkline.connect([5]), "an address must be a str, not 5"),  # type: ignore[list-item]
    ("nothing", lambda: trunkline.connect(""), "give the address of a coordinator, such as 127.0.0.1:7400"),
    ("no port", lambda: trunkline.connect("h:x"), "'x' in 'h:x' is not a valid port; write a number up to 65535"),
    (
        "options as a dict",
        lambda: trunkline.connect(options={"timeout": 3}),  # type: ignore[arg-type]
        "options must be a trunkline.ClientOptions, not dict",
    ),
    ("tls", lambda: trunkline.connect(tls=True), "tls must be an ssl.SSLContext, not True"),  # type: ignore[arg-type]
    ("timeout", lambda: trunkline.ClientOptions(timeout="3"), f"{SECONDS} the str '3'"),  # type: ignore[arg-type]
    (
        "lease",
        lambda: trunkline.ClientOptions(lease_ms=0),
        "lease_ms must be an integer from 1 on, not 0",
    ),
    (
        "batch",
        lambda: trunkline.ClientOptions(batch={}),  # type: ignore[arg-type]
        "batch must be a trunkline.BatchOptions, not dict",
    ),
    ("in_flight", lambda: trunkline.BatchOptions(in_flight=0), "in_flight must be an integer from 1 on, not 0"),
    (
        "batch_bytes",
        lambda: trunkline.BatchOptions(batch_bytes="1"),  # type: ignore[arg-type]
        "batch_bytes must be an integer from 1 on, not the str '1'",
    ),
    (
        "linger_ms",
        lambda: trunkline.BatchOptions(linger_ms=-1),
        "linger_ms must be a number of milliseconds from 0 on, not -1",
    ),
    (
        "id",
        lambda: trunkline.connect("h").id,
        "the cluster handle is not open: use `async with trunkline.connect(...)`",
    ),
]


@pytest.fixture(scope="module")
def handle(cluster: Processes) -> Iterator[sync.Cluster]:
    with sync.connect(cluster.coordinators) as opened:
        yield opened


@pytest.fixture(scope="module")
def log(handle: sync.Cluster) -> sync.Log:
    made = handle.log("wrong-uses", create=True)
    made.append(b"one")
    return made


def text_of(error: pytest.ExceptionInfo[ConfigError]) -> str:
    return str(error.value)


@pytest.mark.parametrize(("use", "text"), [case[1:] for case in OF_A_LOG], ids=[case[0] for case in OF_A_LOG])
def test_a_wrong_use_of_a_log_is_named(log: sync.Log, use: Callable[[Any], object], text: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        use(log)
    assert text_of(wrong) == text


def test_wrong_uses_leave_the_log_as_it_was(log: sync.Log) -> None:
    assert [entry.payload for entry in log.subscribe(to_tail=True)] == [b"one"]
    assert log._log._session._waiting == {}
    assert log.tail() == 2


@pytest.mark.parametrize(("use", "text"), [case[1:] for case in OF_A_CLUSTER], ids=[case[0] for case in OF_A_CLUSTER])
def test_a_wrong_use_of_a_cluster_is_named(handle: sync.Cluster, use: Callable[[Any], object], text: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        use(handle)
    assert text_of(wrong) == text


@pytest.mark.parametrize(("use", "text"), [case[1:] for case in OF_CONNECT], ids=[case[0] for case in OF_CONNECT])
def test_a_wrong_way_to_connect_is_named_at_once(use: Callable[[], object], text: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        use()
    assert text_of(wrong) == text


def test_an_unknown_node_is_refused_at_once(handle: sync.Cluster) -> None:
    with pytest.raises(Refused, match="there is no node nope; `trunkline node list` lists them"):
        handle.node_status("nope")


@pytest.mark.parametrize("call", ["logs", "nodes", "status", "log", "create_log", "describe", "node_status"])
def test_a_handle_that_is_not_open_says_how_it_is_opened(cluster: Processes, call: str) -> None:
    given: dict[str, tuple[object, ...]] = {"create_log": ("x", log_settings()), "logs": (), "nodes": (), "status": ()}
    arguments = given.get(call, ("x",))

    async def use() -> None:
        opened = trunkline.connect(cluster.coordinators)
        for state in ("not open", "closed"):
            with pytest.raises(ConfigError) as wrong:
                await getattr(opened, call)(*arguments)
            assert text_of(wrong) == f"the cluster handle is {state}: use `async with trunkline.connect(...)`"
            async with opened:
                pass

    asyncio.run(use())


def test_a_handle_of_another_event_loop_says_so(cluster: Processes) -> None:
    opened = trunkline.connect(cluster.coordinators)
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(opened.open())
        log = loop.run_until_complete(opened.log("wrong-loop", create=True))
        for call in (log.append(b"a"), log.tail(), log.read(1), log.trim(1)):
            with pytest.raises(ConfigError, match="the log belongs to another event loop: connect and open it again"):
                asyncio.run(call)
        with pytest.raises(ConfigError, match="the log belongs to another event loop"):
            log.batches()
        with pytest.raises(ConfigError, match="the cluster handle belongs to another event loop: connect again"):
            asyncio.run(opened.logs())
    finally:
        loop.run_until_complete(opened.close())
        loop.close()


@pytest.mark.parametrize(
    ("addresses", "named"), [("127.0.0.1:1", "127.0.0.1:1"), ("127.0.0.1:1,127.0.0.1:2", "127.0.0.1:1 and 127.0.0.1:2")]
)
def test_a_refused_connection_fails_at_once_and_names_each_address_once(addresses: str, named: str) -> None:
    opened = sync.connect(addresses, options=trunkline.ClientOptions(connect_timeout=60.0))
    with pytest.raises(Unreachable) as failed:
        opened.open(patient=False)
    assert str(failed.value) == (
        f"no coordinator answered at {named} (connection refused); is the cluster up? Start one with `trunkline up`, "
        "or give the address of the one that runs"
    )


# ---------------------------------------------------------------------------------------------- what errors carry


def test_a_failed_condition_carries_the_position_to_expect(cluster: Processes, name: str) -> None:
    async def test(handle: Cluster) -> None:
        log = await handle.log(name, create=True)
        await log.append([b"a", b"b"])
        for wrong in (1, 2, 9):
            with pytest.raises(ConditionFailed) as failed:
                await log.append(b"c", expect=wrong)
            assert failed.value.tail == 3
        assert await log.append(b"c", expect=3) == 3

    run(cluster, test)


def test_the_error_of_a_log_that_is_owned_names_the_owner(cluster: Processes, name: str) -> None:
    async def test(handle: Cluster) -> None:
        first = await handle.log(name, create=True, policy="broadcast")
        await first.append(b"a")
        async with trunkline.connect(cluster.coordinators) as other:
            with pytest.raises(OwnedByAnother) as owned:
                await (await other.log(name)).append(b"b")
        assert owned.value.owner == (await handle.describe(name)).last.owner.process
        assert owned.value.owner.startswith("shop-")

    run(cluster, test, name="shop")


def test_every_call_on_a_deleted_log_says_that_there_is_none(cluster: Processes, name: str) -> None:
    async def test(handle: Cluster) -> None:
        log = await handle.log(name, create=True)
        await log.append(b"a")
        await log.delete()
        for call in (log.trim(1), log.seal(), log.append(b"b"), log.tail(), log.peek(), log.read(1)):
            with pytest.raises(NoSuchLog, match="the log was deleted"):
                await call

    run(cluster, test)


@pytest.mark.parametrize("text", ["owned by another", "the log is sealed", "no such log", "anything"])
@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (Reason.OTHER, Refused),
        (Reason.NO_SPACE, Refused),
        (Reason.TOO_LARGE, Refused),
        (Reason.SEALED, LogSealed),
        (Reason.NO_SUCH_LOG, NoSuchLog),
        (Reason.OWNED, OwnedByAnother),
        (Reason.CONDITION, ConditionFailed),
    ],
)
def test_the_class_of_an_error_depends_on_its_cause_and_not_on_its_text(text: str, cause: Reason, kind: type) -> None:
    assert type(append_failure(AppendRefused(text, cause))) is kind


def test_a_refusal_that_was_recorded_before_there_were_causes_is_read() -> None:
    recorded = msgspec.json.encode({"why": "no space on a; add nodes or trim"})
    assert msgspec.json.decode(recorded, type=AppendRefused) == AppendRefused("no space on a; add nodes or trim")


# ------------------------------------------------------------------------------------------------------- inspection


def test_the_repr_of_handles_and_logs_names_them(cluster: Processes, handle: sync.Cluster, log: sync.Log) -> None:
    at = ",".join(handle._cluster.addresses)
    assert repr(handle) == f"<sync.Cluster at {at}, open>"
    assert repr(log) == "<sync.Log 'wrong-uses', chain>"
    assert repr(log._log) == "<Log 'wrong-uses', chain>"
    assert repr(trunkline.connect("h")) == "<Cluster at h:7400, not open>"


@pytest.mark.parametrize("kind", [trunkline.Log, trunkline.Cluster, sync.Log, sync.Cluster])
def test_no_signature_has_a_number_that_means_something_else(kind: type) -> None:
    for _, call in inspect.getmembers(kind, inspect.isfunction):
        for parameter in inspect.signature(call).parameters.values():
            assert parameter.default != -1
            if parameter.name == "policy":
                assert parameter.annotation == "PolicyName"
    assert repr(DEFAULT) == "<the timeout of the cluster handle>"


def test_to_arrow_has_positions_times_and_headers(handle: sync.Cluster) -> None:
    log = handle.log("arrow", create=True)
    log.append([b"a", b"b"], headers=[{"k": b"v", "l": b""}, None])
    log.append(b"c")
    first, second = log.batches(2, 3), log.batches(3, 3)
    rows = next(first).to_arrow()
    assert rows.schema.names == ["glsn", "payload", "time", "headers"]
    assert rows.column("glsn").to_pylist() == [2]
    assert rows.column("payload").to_pylist() == [b"b"]
    entry, other = log.read(1), log.read(3)
    whole = next(log.batches(1, 2)).to_arrow()
    assert whole.column("headers").to_pylist() == [[("k", b"v"), ("l", b"")], []]
    assert [round(time.timestamp() * 1000) for time in whole.column("time").to_pylist()] == [entry.time_ms] * 2
    plain = next(second).to_arrow()
    assert plain.column("headers").to_pylist() == [[]]
    assert round(plain.column("time")[0].as_py().timestamp() * 1000) == other.time_ms
    first.close()
    second.close()
